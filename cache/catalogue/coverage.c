/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, coverage: what is complete, and what may still be. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue/private.h"
#include "bytes/checksum.h"
#include "layout/coverage.h"

/* What counts as present when coverage is asked. */
enum asked {
	ASKED_ANYWHERE,		/* memory and disk */
	ASKED_DISK,		/* primary images on disk */
	ASKED_HOPE		/* anywhere, and what living ranks may seal */
};

/* The images of a question, and what identifies it. */
struct question {
	struct sk_coverage_image *images;
	uint32_t *key;		/* per image: layout id, present */
	size_t n;
	size_t room;
};

static void question_free(struct question *q)
{
	free(q->images);
	free(q->key);
}

static void ask_about(struct question *q, const struct sk_cat_layout *layout,
		      bool present)
{
	if (!layout || q->n == q->room)
		return;
	q->images[q->n].layout = layout->layout;
	q->images[q->n].present = present;
	q->key[q->n] = layout->id << 1 | present;
	q->n++;
}

static bool is_present(const struct sk_cat_image *image, enum asked asked)
{
	if (asked == ASKED_DISK)
		return image->kind == SK_IMAGE_PRIMARY &&
		       sk_cat_on_disk(image);
	return sk_cat_in_memory(image) || sk_cat_on_disk(image);
}

bool sk_cat_expected(const struct sk_cat_state *state,
		     const struct sk_cat_snapshot *snapshot)
{
	const struct sk_cat_slot *slot;

	assert(state->run->job == snapshot->job);
	if (!state->living || state->replaced ||
	    sk_cat_image_find(snapshot, state->rank, SK_IMAGE_PRIMARY))
		return false;
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FILLING && slot->snapshot == snapshot)
			return true;
	}
	return state->last_step < snapshot->step &&
	       state->lost_step != snapshot->step;
}

static size_t count_links(const struct sk_link *head)
{
	size_t n = 0;

	for (const struct sk_link *l = head->next; l != head; l = l->next)
		n++;
	return n;
}

static int question_new(const struct sk_cat_snapshot *s, enum asked asked,
			struct question *q)
{
	struct sk_cat_run *run = sk_cat_run_of(s);
	struct sk_cat_state *state;
	struct sk_cat_image *image;

	q->room = count_links(&s->images) +
		  (run ? 2 * count_links(&run->states) : 0) + 1;
	q->images = calloc(q->room, sizeof(*q->images));
	q->key = calloc(q->room + 2, sizeof(*q->key));
	if (!q->images || !q->key)
		return -ENOMEM;
	sk_link_each(image, &s->images, link)
		ask_about(q, image->layout, is_present(image, asked));
	if (!run)
		return 0;
	/* What the others registered tells what must be covered. */
	sk_link_each(state, &run->states, link) {
		bool hope = asked == ASKED_HOPE && sk_cat_expected(state, s);

		if (state->replaced ||
		    sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY))
			continue;
		ask_about(q, state->layouts[0], hope);
		ask_about(q, hope ? state->layouts[1] : NULL, true);
	}
	return 0;
}

/* Steady state: the same layouts ask the same question at every step. */
static struct sk_cat_verdict *known_verdict(struct sk_cat_job *job,
					    struct question *q, int32_t world,
					    uint8_t key[16])
{
	assert(q->n <= q->room);
	q->key[q->n] = (uint32_t)world;
	sk_xxh3_128(q->key, (q->n + 1) * sizeof(*q->key), key);
	for (unsigned i = 0; i < SK_CAT_VERDICTS; i++) {
		struct sk_cat_verdict *v = &job->verdicts[i];

		if (v->result <= 0 && memcmp(v->key, key, 16) == 0)
			return v;
	}
	return NULL;
}

/* 0 or a negative errno with the sentence. */
static int covered(const struct sk_cat_snapshot *s, enum asked asked,
		   struct sk_err *err)
{
	struct sk_cat_job *job = s->job;
	struct question q = { NULL };
	struct sk_cat_verdict *v;
	struct sk_err text = { "" };
	uint8_t key[16];
	int r;

	r = question_new(s, asked, &q);
	if (r < 0) {
		question_free(&q);
		return sk_err_set(err, r, "no memory to tell what is covered");
	}
	v = known_verdict(job, &q, s->world, key);
	if (!v) {
		v = &job->verdicts[job->next_verdict++ % SK_CAT_VERDICTS];
		job->catalogue->coverage_checks++;
		v->result = sk_coverage_check(q.images, q.n, s->world, &text);
		memcpy(v->key, key, sizeof(key));
		(void)snprintf(v->text, sizeof(v->text), "%s", text.text);
	}
	question_free(&q);
	r = v->result;
	if (r < 0)
		sk_err_set(err, r, "%s", v->text);
	if (r == -ENOMEM)	/* not a verdict on the set */
		v->result = 1;
	return r;
}

/*
 * As long as all of a run's ranks live, those that are still to seal are
 * waited for, and coverage is not asked at every seal. After a death it is:
 * replicas may hold what the dead rank did not save.
 */
static const struct sk_cat_state *awaited(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = sk_cat_run_of(s);
	struct sk_cat_state *state;

	if (!run || run->ended)
		return NULL;
	sk_link_each(state, &run->states, link) {
		if (sk_cat_expected(state, s))
			return state;
	}
	return NULL;
}

static bool any_on_disk(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->kind == SK_IMAGE_PRIMARY && sk_cat_on_disk(image))
			return true;
	}
	return false;
}

/* All ranks that this agent knows sealed it, but the world has more: they
 * are other agents'. */
static bool is_local(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = sk_cat_run_of(s);
	struct sk_cat_state *state;
	struct sk_cat_image *image;
	int32_t ranks = 0;

	if (!run)
		return false;
	sk_link_each(state, &run->states, link) {
		if (state->replaced)
			continue;
		image = sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY);
		if (!image || !sk_cat_in_memory(image))
			return false;
		ranks++;
	}
	return ranks && ranks < s->world;
}

/* Whether all of it is there; for want of memory it is not known, and the
 * snapshot stays to be decided. */
static bool decide(struct sk_cat_snapshot *s, enum asked asked,
		   struct sk_err *err)
{
	int r = covered(s, asked, err);

	s->stale |= r == -ENOMEM;
	return r == 0;
}

bool sk_cat_update(struct sk_cat_snapshot *s)
{
	const struct sk_cat_state *state = awaited(s);
	bool was = s->complete || s->local;
	struct sk_err err = { "" };

	s->stale = false;
	s->complete = !sk_link_empty(&s->images) && !state &&
		      decide(s, ASKED_ANYWHERE, &err);
	if (state)
		sk_err_set(&err, 0, "rank %" PRId32 " of %" PRId32 " has not "
			   "sealed it yet", state->rank, s->world);
	s->on_disk = any_on_disk(s) && decide(s, ASKED_DISK, NULL);
	s->local = !s->complete && is_local(s);
	(void)snprintf(s->missing, sizeof(s->missing), "%s", err.text);
	return !was && (s->complete || s->local);
}

bool sk_cat_whole_in_memory(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->kind == SK_IMAGE_PRIMARY &&
		    !sk_cat_in_memory(image))
			return false;
	}
	return s->complete;
}

void sk_cat_update_run(const struct sk_cat_run *run)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &run->job->snapshots, link) {
		if (sk_cat_is_of(s, run) && !s->complete)
			(void)sk_cat_update(s);
	}
}

/* One that was found bad is none: its rank does not save it again. */
static bool has_image(const struct sk_cat_snapshot *s, int32_t rank)
{
	const struct sk_cat_image *image =
		sk_cat_image_find(s, rank, SK_IMAGE_PRIMARY);

	return image && is_present(image, ASKED_ANYWHERE);
}

bool sk_cat_hopeless(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run;
	int32_t known = 0;
	struct sk_cat_state *state;
	bool lost = false;
	int r;

	if (s->complete || s->local || s->stale)
		return false;
	run = sk_cat_run_of(s);
	if (!run || !sk_cat_run_living(run))
		return true;
	sk_link_each(state, &run->states, link) {
		known += !state->replaced;
		lost |= !state->replaced && !sk_cat_expected(state, s) &&
			!has_image(s, state->rank);
	}
	/* Ranks that have not come yet, or are another agent's, may hold
	 * anything; but no more than all of ours can be had here. */
	if (known < s->world && !run->ended)
		return lost;
	r = lost ? covered(s, ASKED_HOPE, NULL) : 0;
	return r < 0 && r != -ENOMEM;
}
