/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/tally.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "catalogue/kept.h"

struct tally {
	struct sk_cat_cursor cursor;
	struct tally_step *steps;	/* by tally_order() once it is over */
	size_t n, room;
	size_t first;			/* of the snapshot that is counted */
	int32_t next_rank;		/* of it; -1: none is */
	uint64_t *ranks;
	size_t n_words, room_words;
	struct tally_run *runs;
	size_t n_runs, room_runs;
};

struct tally *tally_begin(struct sk_cat_job *job)
{
	struct tally *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->next_rank = -1;
	sk_cat_cursor_begin(&t->cursor, job);
	return t;
}

struct tally *tally_free(struct tally *t)
{
	if (!t)
		return NULL;
	sk_cat_cursor_end(&t->cursor);
	for (size_t i = 0; i < t->n_runs; i++)
		free(t->runs[i].kept);
	free(t->runs);
	free(t->ranks);
	free(t->steps);
	free(t);
	return NULL;
}

/* ---- steps ---- */

static int add_step(struct tally *t, const struct sk_cat_snapshot *s)
{
	size_t words = ((size_t)s->world + 63) / 64;

	if (sk_array_fit(t->steps, t->room, t->n + 1) < 0 ||
	    sk_array_fit(t->ranks, t->room_words, t->n_words + words) < 0)
		return -ENOMEM;
	memset(t->ranks + t->n_words, 0, words * sizeof(*t->ranks));
	t->steps[t->n++] = (struct tally_step){
		.run = s->run, .run_id = s->run_id, .step = s->step,
		.world = s->world, .on_disk = sk_cat_on_disk(s),
		.pinned = s->pinned, .kept = sk_cat_kept(s),
		.passed = sk_cat_passed_over(s),
		.in_use = s->leases || s->flushing || s->filling ||
			  s->known.disk_undecided || sk_cat_flushable(s),
		.ranks_at = t->n_words,
	};
	t->n_words += words;
	return 0;
}

/* The snapshot's for that directory; NULL: no memory. */
static struct tally_step *step_of(struct tally *t,
				  const struct sk_cat_snapshot *s,
				  const char *dir)
{
	struct tally_step *step = &t->steps[t->n - 1];

	for (size_t i = t->n; i-- > t->first;) {
		if (strcmp(t->steps[i].dir, dir) == 0)
			return &t->steps[i];
	}
	if (step->dir[0]) {
		if (add_step(t, s) < 0)
			return NULL;
		step = &t->steps[t->n - 1];
	}
	(void)snprintf(step->dir, sizeof(step->dir), "%s", dir);
	return step;
}

static int count_image(struct tally *t, const struct sk_cat_image *image)
{
	const struct sk_cat_stored *at = &image->stored;
	struct tally_step *step;

	if (!at->dir[0])
		return 0;
	step = step_of(t, image->snapshot, at->dir);
	if (!step)
		return -ENOMEM;
	step->bytes += at->file.bytes;
	if (!image->bad_disk)
		t->ranks[step->ranks_at + (size_t)image->rank / 64] |=
			UINT64_C(1) << image->rank % 64;
	return 0;
}

/* The one that was being counted may have gone, and the next one stands where
 * it stood. */
static bool is_begun(const struct tally *t, const struct sk_cat_snapshot *s)
{
	const struct tally_step *step;

	if (t->next_rank < 0)
		return false;
	step = &t->steps[t->n - 1];
	return step->run == s->run &&
	       step->run_id == s->run_id && step->step == s->step;
}

/* Its images from the next rank on. */
static int count_images(struct tally *t, const struct sk_cat_snapshot *s,
			unsigned *left)
{
	size_t i = sk_count_before(s->n_images, at,
				   s->by_rank[at]->rank < t->next_rank);
	int r = 0;

	for (; i < s->n_images && *left && r == 0; i++, --*left) {
		s->job->catalogue->visits++;
		r = count_image(t, s->by_rank[i]);
		/* All of a rank's, or none. */
		if (i + 1 < s->n_images &&
		    s->by_rank[i + 1]->rank == s->by_rank[i]->rank)
			++*left;
		else
			t->next_rank = s->by_rank[i]->rank + 1;
	}
	return r < 0 ? r : i < s->n_images;
}

/* ---- runs ---- */

static int add_run(struct tally *t, const struct sk_cat_run *run)
{
	size_t n = run->n_kept;
	struct tally_run *to;

	if (sk_array_fit(t->runs, t->room_runs, t->n_runs + 1) < 0)
		return -ENOMEM;
	to = &t->runs[t->n_runs];
	*to = (struct tally_run){
		.number = run->number, .id = run->id,
		.living = sk_cat_run_living(run), .n_kept = n,
		.kept = malloc((n ? n : 1) * sizeof(*run->kept)),
	};
	if (!to->kept)
		return -ENOMEM;
	if (n)
		memcpy(to->kept, run->kept, n * sizeof(*run->kept));
	t->n_runs++;
	return 0;
}

static int tally_order(const void *a, const void *b)
{
	const struct tally_step *x = a, *y = b;

	if (x->run != y->run)
		return x->run < y->run ? -1 : 1;
	if (x->run_id != y->run_id)
		return x->run_id < y->run_id ? -1 : 1;
	if (x->step != y->step)
		return x->step < y->step ? -1 : 1;
	return strcmp(x->dir, y->dir);
}

static int end(struct tally *t)
{
	struct sk_cat_run *run;
	int r = 0;

	if (t->cursor.job)
		sk_link_each(run, &t->cursor.job->runs, link) {
			r = add_run(t, run);
			if (r < 0)
				return r;
		}
	sk_cat_cursor_end(&t->cursor);
	if (t->n)
		qsort(t->steps, t->n, sizeof(*t->steps), tally_order);
	return 0;
}

/* ---- all of it ---- */

int tally_go_on(struct tally *t, unsigned most)
{
	const struct sk_cat_snapshot *s;
	unsigned left = most;
	int r = 0;

	while (left && (s = sk_cat_cursor_at(&t->cursor))) {
		s->job->catalogue->visits++;
		if (!is_begun(t, s)) {
			t->first = t->n;
			t->next_rank = 0;
			r = add_step(t, s);
			left--;
		}
		if (r == 0)
			r = count_images(t, s, &left);
		if (r < 0)
			return r;
		if (r > 0)
			break;
		t->next_rank = -1;
		sk_cat_cursor_next(&t->cursor);
	}
	return sk_cat_cursor_at(&t->cursor) ? 1 : end(t);
}

/* ---- what it says ---- */

const struct tally_run *tally_run(const struct tally *t, uint64_t number,
				  uint64_t id)
{
	for (size_t i = 0; i < t->n_runs; i++) {
		if (t->runs[i].number == number && t->runs[i].id == id)
			return &t->runs[i];
	}
	return NULL;
}

bool tally_kept(const struct tally_run *run, int64_t step)
{
	size_t at = sk_count_before(run->n_kept, i, run->kept[i] < step);

	return at < run->n_kept && run->kept[at] == step;
}

static bool is_of(const struct tally *t, size_t at,
		  const struct tally_step *key)
{
	return at < t->n && t->steps[at].run == key->run &&
	       t->steps[at].run_id == key->run_id &&
	       t->steps[at].step == key->step;
}

const struct tally_step *tally_step(const struct tally *t, uint64_t run,
				    uint64_t run_id, int64_t step,
				    const char *dir)
{
	const struct tally_step key = { .run = run, .run_id = run_id,
					.step = step };
	size_t first = sk_count_before(t->n, i,
				       tally_order(&t->steps[i], &key) < 0);

	for (size_t at = first; is_of(t, at, &key); at++) {
		if (strcmp(t->steps[at].dir, dir) == 0)
			return &t->steps[at];
	}
	return is_of(t, first, &key) ? &t->steps[first] : NULL;
}

const uint64_t *tally_ranks(const struct tally *t,
			    const struct tally_step *step)
{
	return t->ranks + step->ranks_at;
}
