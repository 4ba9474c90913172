/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/merge.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"
#include "catalogue/pins.h"
#include "disk/histories.h"
#include "disk/ignored.h"
#include "disk/passed.h"
#include "disk/retain.h"
#include "disk/settle.h"
#include "memory/record.h"

/* Images that are looked at in one turn. */
#define PORTION 512u

struct job_id {
	char name[SK_JOB_MAX + 1];
	uid_t uid;
};

/* Three times through: what is the same is marked, what is not marked may be
 * gone, and what was not known is added. */
enum stage { MARK, FORGET, ADD, OVER };

struct merging {
	struct chore chore;
	struct agent *agent;
	struct scan *scan;
	void (*done)(struct scan *scan);
	enum stage stage;
	size_t at;			/* of what was found, or of jobs */
	struct job_id *jobs;		/* that the look was at */
	size_t n_jobs, room_jobs;
	struct sk_cat_cursor cursor;
	bool troubles;			/* some could not be looked at */
	bool inside;			/* what is gone is of what was looked
					 * into: no directory is */
	bool stray;			/* some stay that do not stand where
					 * their directories do */
	unsigned left;			/* of the portion */
};

/* A failed read may do better next time: it is tried again. */
static void ignore(struct agent *a, const struct found *f)
{
	bool tried_again = f->stored.rank < 0 || found_unreadable(f);

	a->counts.unreadable += tried_again;
	a->counts.ignored_files += f->stored.rank >= 0;
	if (!tried_again)
		ignored_add(a, f);
	else if (!passed_is_new(a, &f->stored, &f->err))
		return;
	if (f->stored.rank < 0)
		log_warning(a, "passing over: %s", f->err.text);
	else
		log_warning(a, "ignoring %s/%s, rank %" PRId32 " of %" PRId32
			    ": %s", f->stored.job, f->stored.dir,
			    f->stored.rank, f->stored.world, f->err.text);
}

/* ---- what is the same ---- */

static void visit(struct merging *m, size_t n)
{
	m->agent->cat.visits += n;
	m->left -= m->left < n ? m->left : (unsigned)n;
}

/* The catalogue's image of that name. */
static struct sk_cat_image *find_image(struct agent *a, const struct found *f)
{
	struct sk_cat_image *image = f->image ?
		sk_cat_image_by_id(&a->cat, f->image) : NULL;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;

	/* Ids are never given twice. */
	if (image)
		return image;
	job = sk_cat_job_find(&a->cat, f->stored.job, f->owner);
	s = job ? sk_cat_snapshot_find(job, f->run.number, f->run.id,
				       (int64_t)f->stored.step) : NULL;
	return s ? sk_cat_image_find(s, f->stored.rank, SK_IMAGE_PRIMARY) :
		   NULL;
}

/* The agent that was asked to pin it may have died since. A look that had begun
 * when it was unpinned may have seen it before. */
static void take_pin(struct agent *a, const struct scan *scan,
		     const struct found *f, struct sk_cat_snapshot *s)
{
	if (!f->stored.pinned || s->unpinning ||
	    scan->mark <= s->unpinned_at)
		return;
	if (s->pinned && s->pin_stored)
		return;
	s->pinned = s->pin_stored = true;
	/* Of several nodes each has its part written. */
	if (sk_cat_want_pinned(s))
		agent_changed(a);
	record_snapshot(a, s);
}

/* Another agent has unpinned it. What was never pinned but in memory stays so,
 * and so does what this agent has pinned, or is about to, since the look. */
static void lose_pin(struct merging *m, struct sk_cat_snapshot *s)
{
	if (!s->pin_stored || s->pinning || s->unpinning ||
	    m->scan->mark <= s->pin_stored_at)
		return;
	s->pinned = s->was_pinned = s->pin_stored = false;
	sk_cat_unwant_pinned(s);
	record_snapshot(m->agent, s);
	retain_due(m->agent, s->job);
}

/* The agent that pinned it in memory was killed when it had written the step,
 * and not the pin yet; or this one could not write that. */
static bool lacks_pin(const struct merging *m, const struct sk_cat_snapshot *s)
{
	return s->pinned && !s->pin_stored && !s->pinning && !s->unpinning &&
	       !s->flushing && !s->pin_settling &&
	       m->scan->mark > s->pin_stored_at;
}

/* What the look says of the pin. */
static void see_pin(struct merging *m, const struct found *f,
		    struct sk_cat_snapshot *s)
{
	take_pin(m->agent, m->scan, f, s);
	if (f->stored.pinned)
		return;
	lose_pin(m, s);
	if (!lacks_pin(m, s))
		return;
	s->pin_stored_at = m->scan->mark;	/* once a look */
	settle_step(m->agent, s);
}

/* It stands elsewhere than its directory, which is a newer run's. */
static void note_stray(struct merging *m, const struct found *f)
{
	m->stray |= f->step && !sk_store_run_equal(&f->step->run, &f->run);
}

static void mark(struct merging *m, struct found *f)
{
	struct sk_cat_image *image;

	m->troubles |= !f->layout;
	if (!f->layout || f->result < 0)
		return;
	note_stray(m, f);
	image = find_image(m->agent, f);
	if (!image || !image->stored.dir[0] ||
	    !sk_cat_same_content(image, f->layout, f->content))
		return;
	image->stored.seen = m->scan->mark;
	if (strcmp(image->stored.dir, f->stored.dir) != 0) {
		take_pin(m->agent, m->scan, f, image->snapshot);
		return;
	}
	see_pin(m, f, image->snapshot);
	f->known = sk_file_id_equal(&image->stored.file, &f->stored.file) &&
		   f->image == image->id;
}

/* ---- what is gone ---- */

static const struct found *find_found(const struct scan *scan,
				      const struct found *key)
{
	const struct file_key names = file_key_of(&key->stored);

	return found_find(scan, &names);
}

/* Whether the image, its directory, or its whole job was passed over. */
static bool was_passed_over(const struct scan *scan,
			    const struct sk_cat_image *image)
{
	struct found key = { 0 };
	const struct found *f;

	stored_name(image, &key.stored);
	f = find_found(scan, &key);
	if (f)
		return found_unreadable(f);
	key.stored.rank = -1;
	key.stored.world = 0;
	if (find_found(scan, &key))
		return true;
	key.stored.dir[0] = 0;
	return find_found(scan, &key);
}

/* Whether what was seen may still be what the image knows, which was not seen
 * itself. What could not be looked at is not gone. */
static bool still_there(const struct merging *m,
			const struct sk_cat_image *image)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	const struct sk_store_run run = { s->run, s->run_id };
	struct sk_store_run theirs = { 0 };

	if (m->troubles && was_passed_over(m->scan, image))
		return true;
	/* The name may be another run's by now. */
	return scan_seen(m->scan, s->job->name, image->stored.dir,
			 &theirs) == SCAN_NAMED &&
	       (!theirs.number || sk_store_run_equal(&theirs, &run));
}

/* The disk itself is there, and has a newer one. */
static bool is_deleted(const struct sk_cat_snapshot *s)
{
	struct sk_cat_snapshot *newer;

	sk_link_each(newer, &s->job->snapshots, link) {
		if (newer == s || sk_cat_on_disk(newer))
			return newer != s;
	}
	return false;
}

static bool has_directory(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->stored.dir[0])
			return true;
	}
	return false;
}

/* What somebody deleted of an old step is not written once more, and its pin
 * went before, or with it. */
static void note_lost(struct merging *m, struct sk_cat_snapshot *s)
{
	if (!is_deleted(s))
		return;
	if (!has_directory(s))
		lose_pin(m, s);
	if (!s->wanted)
		return;
	s->wanted = s->wanted_by_pin = false;
	sk_cat_wake(s->job);
	record_snapshot(m->agent, s);
}

/* Pinned on disk, as an agent before this one knew: of another store, or of
 * this one before it was emptied. What the look has found, and is only added to
 * the catalogue after this, is there. */
static bool is_missing(const struct merging *m, const struct sk_cat_snapshot *s)
{
	char dir[SK_CAT_DIR_MAX];
	struct sk_store_run theirs;

	if (!s->pin_stored || has_directory(s) || m->troubles || s->pinning ||
	    s->unpinning || m->scan->mark <= s->pin_stored_at)
		return false;
	settle_name(dir, s->step);
	return scan_seen(m->scan, s->job->name, dir, &theirs) == SCAN_GONE;
}

/* For it is pinned. */
static void write_anew(struct merging *m, struct sk_cat_snapshot *s)
{
	if (!s->pinned)
		return;
	s->pin_stored = false;
	if (sk_cat_want_pinned(s))
		agent_changed(m->agent);
	record_snapshot(m->agent, s);
}

/* What the disk had and has no more; but not what came since the look. */
static void forget_gone(struct merging *m, struct sk_cat_snapshot *s)
{
	const struct scan *scan = m->scan;
	const char *stays = "";		/* a directory that does */
	struct sk_cat_image *image;
	bool lost = false, missing;

	s->filling++;	/* keeps it while its images go */
	sk_link_each(image, &s->images, link) {
		const struct sk_cat_stored *at = &image->stored;

		/* It may have gone since, and before the names were read. */
		m->stray |= at->dir[0] && at->serial > scan->serial;
		if (!at->dir[0] || at->serial > scan->serial ||
		    at->seen == scan->mark || strcmp(at->dir, stays) == 0)
			continue;
		if (!still_there(m, image)) {
			sk_cat_stored_remove(image);
			lost = true;
		} else if (!m->troubles) {
			stays = at->dir;
		}
	}
	missing = is_missing(m, s);
	if (missing || (lost && (s->wanted || s->pin_stored)))
		note_lost(m, s);
	if (missing)
		write_anew(m, s);
	s->filling--;
}

static bool next_job(struct merging *m)
{
	const struct job_id *id;
	struct sk_cat_job *job;

	sk_cat_cursor_end(&m->cursor);
	if (m->at == m->n_jobs)
		return false;
	id = &m->jobs[m->at++];
	job = sk_cat_job_find(&m->agent->cat, id->name, id->uid);
	if (job && scan_has_reached(m->scan, id->name))
		sk_cat_cursor_begin(&m->cursor, job);
	return true;
}

/* Whether the look ended before it. */
static bool is_beyond(const struct scan *scan, const struct sk_cat_snapshot *s)
{
	const struct stored_end *end = &scan->end;

	/* It was at names alone. */
	if (!end->run.number)
		return end->more;
	return sk_cat_order(end->run.number, end->run.id, (int64_t)end->step,
			    s) > 0;
}

/* False: there is no more. */
static bool forget_some(struct merging *m)
{
	struct sk_cat_snapshot *s = sk_cat_cursor_at(&m->cursor);

	visit(m, 1);
	if (!s || (m->inside && is_beyond(m->scan, s)))
		return next_job(m);
	visit(m, s->n_images);
	sk_cat_cursor_next(&m->cursor);
	forget_gone(m, s);
	(void)sk_cat_snapshot_trim(s);
	return true;
}

/* ---- what is new ---- */

/* Who has it, and the layout that all of its like share. */
static void note_image(struct agent *a, struct found *f)
{
	struct sk_history_file *file =
		sk_history_file_find(f->step, f->stored.rank,
				     f->stored.world);
	const struct sk_cat_image *image = find_image(a, f);

	if (!file || !image)
		return;
	file->image = image->id;
	sk_layout_free(file->layout);
	file->layout = sk_layout_ref(image->layout->layout);
}

/* Into the catalogue, which takes what was found over. */
static void add(struct merging *m, struct found *f)
{
	struct agent *a = m->agent;
	struct scan *scan = m->scan;
	struct sk_cat_found found = {
		.run = f->run.number, .run_id = f->run.id,
		.step = (int64_t)f->stored.step, .dir = f->stored.dir,
		.file = f->stored.file,
	};
	struct sk_cat_layout *layout;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;

	assert(f->layout && f->result == 0);
	memcpy(found.content, f->content, sizeof(found.content));
	job = sk_cat_job_get(&a->cat, f->stored.job, f->owner);
	layout = sk_cat_layout_take(&a->cat, sk_take_ptr(f->layout));
	if (!job || !layout) {
		sk_cat_layout_unref(layout);
		/* Who asked must not take what is left out for all. */
		scan->result = sk_err_set(&scan->err, -ENOMEM, "no memory for "
					  "what the store has");
		return;
	}
	f->result = sk_cat_stored_add(job, &found, layout, &f->err);
	if (f->result == -ESTALE || f->result == -EINVAL)
		f->result = -EBADMSG;
	if (f->result < 0) {
		ignore(a, f);
		return;
	}
	f->known = true;
	note_image(a, f);
	s = sk_cat_snapshot_find(job, found.run, found.run_id, found.step);
	if (s)
		see_pin(m, f, s);
}

static void add_new(struct merging *m, struct found *f)
{
	/* Deleted between two looks is nothing to speak of. */
	if (f->layout && f->result == 0 && !f->known)
		add(m, f);
	else if (f->result < 0 && f->result != -ENOENT && !f->told)
		ignore(m->agent, f);
}

/* ---- in portions ---- */

static bool each_found(struct merging *m,
		       void (*fn)(struct merging *m, struct found *f))
{
	if (m->at == m->scan->n_found)
		return false;
	visit(m, 1);
	fn(m, &m->scan->found[m->at++]);
	return true;
}

/* Of the one job that was looked at, all of which could be. */
static struct sk_history *history_of(const struct merging *m)
{
	return m->scan->job[0] && !m->troubles && m->scan->result == 0 ?
	       histories_find(m->agent, m->scan->job) : NULL;
}

static void next_stage(struct merging *m)
{
	struct sk_history *h = history_of(m);

	if (m->stage == MARK)
		m->inside = h && sk_history_merged(h);
	else if (m->stage == FORGET && h)
		sk_history_note_merged(h, !m->stray);
	m->stage++;
	m->at = 0;
}

/* False: it is over. What a look that failed has not seen may be there all the
 * same. */
static bool go_on(struct merging *m)
{
	bool more = m->stage == MARK ? each_found(m, mark) :
		    m->stage == ADD ? each_found(m, add_new) :
		    m->scan->result == 0 && forget_some(m);

	if (more)
		return true;
	next_stage(m);
	return m->stage != OVER;
}

static void end(struct merging *m)
{
	struct scan *scan = m->scan;

	sk_cat_cursor_end(&m->cursor);
	m->agent->merging = NULL;
	free(m->jobs);
	m->done(scan);
	free(m);
}

static void do_portion(struct chore *chore)
{
	struct merging *m = sk_link_object(chore, struct merging, chore);
	bool more = true;

	for (m->left = PORTION; m->left && more;)
		more = go_on(m);
	if (more)
		loop_queue(&m->agent->loop, chore);
	else
		end(m);
}

static int list_jobs(struct merging *m)
{
	const struct sk_catalogue *cat = &m->agent->cat;
	struct sk_cat_jobs jobs = sk_cat_jobs_named(cat, m->scan->job);
	const struct sk_cat_job *job;

	while ((job = sk_cat_jobs_next(&jobs))) {
		job->catalogue->visits++;
		if (sk_array_fit(m->jobs, m->room_jobs, m->n_jobs + 1) < 0)
			return -ENOMEM;
		memcpy(m->jobs[m->n_jobs].name, job->name, sizeof(job->name));
		m->jobs[m->n_jobs++].uid = job->uid;
	}
	return 0;
}

static struct merging *new_merging(struct agent *a, struct scan *scan)
{
	struct merging *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	*m = (struct merging){ .agent = a, .scan = scan,
			       .chore.run = do_portion };
	sk_link_init(&m->chore.link);
	if (list_jobs(m) == 0)
		return m;
	free(m->jobs);
	free(m);
	return NULL;
}

void merge_begin(struct agent *a, struct scan *scan,
		 void (*done)(struct scan *scan))
{
	struct merging *m = new_merging(a, scan);

	assert(!a->merging);
	if (!m) {
		scan->result = sk_err_set(&scan->err, -ENOMEM, "no memory for "
					  "what the store has");
		done(scan);
		return;
	}
	m->done = done;
	a->merging = m;
	loop_queue(&a->loop, &m->chore);
}

void merge_now(struct agent *a)
{
	struct merging *m = a->merging;

	if (!m)
		return;
	sk_link_remove(&m->chore.link);
	m->left = UINT32_MAX;
	while (go_on(m))
		;
	end(m);
}

void merge_deleted(struct agent *a, const char *job, const char *dir)
{
	struct scan *scan = a->merging ? a->merging->scan : NULL;

	for (size_t i = 0; scan && i < scan->n_found; i++) {
		struct found *f = &scan->found[i];

		if (f->layout && strcmp(f->stored.dir, dir) == 0 &&
		    strcmp(f->stored.job, job) == 0)
			f->result = -ENOENT;
	}
}
