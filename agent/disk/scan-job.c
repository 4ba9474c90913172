/* SPDX-License-Identifier: Apache-2.0 */
/* Names first, then the newest directories, then those headers in them that are
 * new. */
#include "disk/scan-job.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"
#include "disk/histories.h"
#include "disk/scan-file.h"

/* Against a file that is what it was, of which only the name is looked at. */
#define DIRECTORY 4u
#define FILES_AT_ONCE 512u

/* ---- the answer ---- */

struct found *scan_add(struct scan *scan, const char *job)
{
	struct found *f;

	if (sk_array_fit(scan->found, scan->room, scan->n_found + 1) < 0)
		return NULL;
	f = &scan->found[scan->n_found++];
	*f = (struct found){ .stored.rank = -1 };
	(void)snprintf(f->stored.job, sizeof(f->stored.job), "%s", job);
	return f;
}

static void note_damaged(struct scan *scan, const struct found *f)
{
	const struct sk_stored *stored = &f->stored;

	if (!scan->unreadable++)
		(void)sk_err_set(&scan->first, -EBADMSG, "%s/%s/%s, rank %"
				 PRId32 " of %" PRId32 ", is damaged: %s",
				 sk_store_path(scan->agent->store),
				 stored->job, stored->dir, stored->rank,
				 stored->world, f->err.text[0] ? f->err.text :
				 "the log says how");
}

int scan_note(struct scan *scan, const struct found *f)
{
	if (f->result == -EMFILE || f->result == -ENFILE ||
	    f->result == -ENOMEM) {
		scan->err = f->err;
		return f->result;
	}
	if (found_damaged(f))
		note_damaged(scan, f);
	else if (found_unreadable(f) && !scan->unreadable++)
		scan->first = f->err;
	return 0;
}

static int owner_of(struct scan *scan, const char *job, bool exists,
		    uid_t *ret_owner)
{
	struct agent *a = scan->agent;
	int r;

	*ret_owner = a->uid;
	r = sk_store_owner(a->store, job, ret_owner, &scan->err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 || exists)
		scan->owner = *ret_owner;
	return 0;
}

/* ---- one job ---- */

static bool is_asked(const struct stored_range *range,
		     const struct sk_history_step *s)
{
	return (range->step < 0 || s->step == (uint64_t)range->step) &&
	       (!range->run || !s->run.number || s->run.number == range->run);
}

/* Whether an earlier portion came by it. Of which nobody knows the run come
 * first, and all at once. */
static bool is_over(const struct scan *scan, const struct sk_history_step *s)
{
	const struct stored_end *place = &scan->place;

	if (!scan->goes_on || !s->run.number || !place->run.number)
		return scan->goes_on && !s->run.number;
	if (s->run.number != place->run.number)
		return s->run.number > place->run.number;
	if (s->step != place->step)
		return s->step > place->step;
	return s->run.id >= place->run.id;
}

/* Of those that are looked into the next @most, marked; NULL: no memory. */
static struct sk_history_step **choose(struct scan *scan,
				       const struct sk_history *h,
				       size_t most, size_t *ret_n)
{
	size_t all = sk_history_count(h), left = scan->range.most, n = 0;
	struct sk_history_step **steps = calloc(all + 1, sizeof(*steps));

	scan->cut = false;
	for (size_t i = 0; i < all && steps && !scan->end.more && !scan->cut;
	     i++) {
		struct sk_history_step *s = sk_history_at(h, i);
		bool over = s->mark == scan->mark || is_over(scan, s);

		if (!is_asked(&scan->range, s))
			continue;
		/* What nobody knows the run of may be the newest. */
		scan->end.more = s->run.number && !left;
		scan->cut = !scan->end.more && !over && s->run.number &&
			    n >= most;
		if (scan->end.more || scan->cut)
			continue;
		left -= s->run.number > 0;
		if (!over) {
			s->mark = scan->mark;
			steps[n++] = s;
		}
		scan->end.run = s->run;
		scan->end.step = s->step;
	}
	*ret_n = n;
	return steps;
}

/* That could not be read whose it is, though what is in it, or nothing, may
 * have been read since. */
static void note_nobodys(struct scan *scan, const char *job,
			 const struct sk_history_step *s)
{
	char dir[SK_STEP_DIR_MAX];

	if (scan->unreadable)
		return;
	sk_history_name(s, dir);
	(void)sk_err_errno(&scan->first, s->error, "cannot tell the run of "
			   "%s/%s/%s", sk_store_path(scan->agent->store), job,
			   dir);
	scan->unreadable = 1;
}

/* Runs are known of directories that are not looked into, too. One of which it
 * is not may be the newest. */
static void note_newest(struct scan *scan, const struct sk_history *h)
{
	for (size_t i = 0; i < sk_history_count(h); i++) {
		const struct sk_history_step *s = sk_history_at(h, i);

		if (s->error)
			note_nobodys(scan, sk_history_job(h), s);
		if (s->run.number > scan->newest_run)
			scan->newest_run = s->run.number;
		if (s->run.number)
			return;		/* the others' are older */
	}
}

/* The same, when each is known to be what it is taken for; a look goes wrong
 * as one that is too short. */
static int choose_proved(struct scan *scan, struct sk_history *h, size_t most,
			 struct sk_history_step ***ret_steps, size_t *ret_n)
{
	bool others = true;
	int r = 0;

	while (others && r == 0) {
		struct sk_history_step **steps;

		scan->end = (struct stored_end){ .more = false };
		steps = choose(scan, h, most, ret_n);
		if (!steps)
			return sk_err_set(&scan->err, -ENOMEM, "no memory to "
					  "look at job \"%s\"",
					  sk_history_job(h));
		r = sk_history_prove(h, scan->agent->store, steps, *ret_n,
				     &others, &scan->err);
		for (size_t i = 0; i < *ret_n && others; i++)
			steps[i]->mark = 0;
		if (others || r < 0)
			free(steps);
		else
			*ret_steps = steps;
	}
	return r;
}

static int add_image(struct scan *scan, struct sk_history *h, uid_t owner,
		     const struct sk_stored *image,
		     struct sk_history_step *step)
{
	struct found *f = scan_add(scan, sk_history_job(h));

	if (!f)
		return sk_err_set(&scan->err, -ENOMEM, "no memory for what "
				  "the store has");
	f->stored = *image;
	f->owner = owner;
	f->step = step;
	scan_look_at(scan, h, f);
	return scan_note(scan, f);
}

/* *ret_n: how many images the steps have. */
static int read_steps(struct scan *scan, struct sk_history *h, uid_t owner,
		      struct sk_history_step *const *steps, size_t n_steps,
		      size_t *ret_n)
{
	_cleanup_free_ struct sk_stored *images = NULL;
	struct sk_history_step *step = NULL;
	int r;

	scan->spent += DIRECTORY * n_steps;
	*ret_n = 0;
	r = sk_history_scan(h, scan->agent->store, steps, n_steps, &images,
			    ret_n, &scan->err);
	for (size_t i = 0; i < *ret_n && r == 0; i++) {
		/* They come directory by directory. */
		if (!i || strcmp(images[i].dir, images[i - 1].dir) != 0)
			step = sk_history_find(h, images[i].dir);
		r = add_image(scan, h, owner, &images[i], step);
	}
	return r;
}

/* A few directories tell how many images others have. */
static int look_into(struct scan *scan, struct sk_history *h, uid_t owner)
{
	size_t at_once = SCAN_STEPS;
	int r = 0;

	scan->cut = true;
	while (r == 0 && scan->cut && scan_has_room(scan)) {
		_cleanup_free_ struct sk_history_step **steps = NULL;
		size_t n_steps = 0, n;

		r = choose_proved(scan, h, at_once, &steps, &n_steps);
		if (r == 0)
			r = read_steps(scan, h, owner, steps, n_steps, &n);
		if (r == 0 && n_steps && scan->cut)
			at_once = FILES_AT_ONCE / (n / n_steps + 1) + 1;
	}
	return r;
}

/* Of so many steps, and so many files, what was noted is kept. */
#define NOTED_STEPS 64u
#define NOTED_FILES 65536u

/* Of the newest, and of those that somebody has just asked for. */
static void trim_noted(const struct scan *scan, const struct sk_history *h)
{
	size_t files = 0;

	for (size_t i = 0; i < sk_history_count(h); i++) {
		struct sk_history_step *s = sk_history_at(h, i);

		if (s->mark == scan->mark)
			sk_history_briefs_forget(s);
		else if (i >= NOTED_STEPS ||
			 files + s->n_files > NOTED_FILES)
			sk_history_files_forget(s);
		files += s->n_files;
	}
}

int scan_job(struct scan *scan, const char *job, bool again)
{
	struct sk_history *h = histories_get(scan->agent, job);
	uid_t owner;
	int r;

	scan->cut = false;
	scan->goes_on = again;
	if (!h)
		return sk_err_set(&scan->err, -ENOMEM, "no memory to look at "
				  "job \"%s\"", job);
	if (!again)
		wrote_doubt(&scan->wrote, h);
	r = sk_history_look(h, scan->agent->store, &scan->err);
	if (r == 0)
		r = owner_of(scan, job, sk_history_count(h), &owner);
	if (r == 0) {
		wrote_note(&scan->wrote, h);
		r = look_into(scan, h, owner);
		note_newest(scan, h);
		if (r == 0 && !scan->cut && scan->counts &&
		    census_names(h, &scan->census))
			r = sk_err_set(&scan->err, -ENOMEM, "no memory to "
				       "count the steps of job \"%s\"", job);
		if (r == 0)
			trim_noted(scan, h);
	}
	/* It is not gone on with. */
	scan->cut &= r == 0;
	scan->learnt |= sk_history_unsaved(h);
	scan->unproved |= sk_history_unproved(h) > 0;
	histories_trim(scan->agent, h);
	return r;
}
