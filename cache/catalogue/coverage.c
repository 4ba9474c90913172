/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue, coverage: what is complete, and what may still be.
 *
 * Nothing is decided before somebody asks: what happens to a snapshot marks it,
 * and one that is being let go of is seldom asked about again.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue/private.h"

/* What counts as present when coverage is asked. */
enum asked {
	ASKED_ANYWHERE,		/* memory and disk */
	ASKED_DISK,		/* primary images on disk */
	ASKED_HOPE		/* anywhere, and what living ranks may seal */
};

static void visit(const struct sk_cat_snapshot *s)
{
	s->job->catalogue->visits++;
}

static bool is_present(const struct sk_cat_image *image, enum asked asked)
{
	if (asked == ASKED_DISK)
		return image->kind == SK_IMAGE_PRIMARY &&
		       sk_cat_on_store(image);
	return sk_cat_in_memory(image) || sk_cat_on_store(image);
}

static bool has_primary(const struct sk_cat_snapshot *s, int32_t rank)
{
	return sk_cat_image_find(s, rank, SK_IMAGE_PRIMARY);
}

/* A living rank, or one that may be back, may still seal the snapshot. */
static bool expected(const struct sk_cat_state *state,
		     const struct sk_cat_snapshot *s)
{
	const struct sk_cat_slot *slot;

	assert(state->run->job == s->job);
	visit(s);
	if (!(state->living || state->awaited) || state->replaced ||
	    has_primary(s, state->rank))
		return false;
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FILLING && slot->snapshot == s)
			return true;
	}
	return state->last_step < s->step && state->lost_step != s->step;
}

/* ---- what is asked ---- */

/* The images of a question: they are summed up, and counted out where nobody
 * knows the answer. */
struct asking {
	struct sk_cat_set set;
	struct sk_cat_question *question;	/* NULL: sum up */
};

static void ask_about(struct asking *a, const struct sk_cat_layout *layout,
		      bool present)
{
	if (!layout)
		return;
	if (a->question)
		sk_cat_question_add(a->question, layout, present);
	else
		sk_cat_set_add(&a->set, layout, present);
}

static void ask_images(struct asking *a, const struct sk_cat_snapshot *s,
		       enum asked asked)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		visit(s);
		/* A replica is never on disk, and says nothing of its rank
		 * that the primary does not. */
		if (asked == ASKED_DISK && image->kind == SK_IMAGE_REPLICA &&
		    has_primary(s, image->rank))
			continue;
		ask_about(a, image->layout, is_present(image, asked));
	}
}

/* What the others registered tells what must be covered. */
static void ask_ranks(struct asking *a, const struct sk_cat_snapshot *s,
		      enum asked asked)
{
	struct sk_cat_run *run = sk_cat_run_of(s);
	struct sk_cat_state *state;

	if (!run)
		return;
	sk_link_each(state, &run->states, link) {
		bool hope = asked == ASKED_HOPE && expected(state, s);

		visit(s);
		if (state->replaced || has_primary(s, state->rank))
			continue;
		ask_about(a, state->layouts[0], hope);
		ask_about(a, hope ? state->layouts[1] : NULL, true);
	}
}

/* 0 or a negative errno with the sentence; -EINPROGRESS: it will be known. */
static int covered(const struct sk_cat_snapshot *s, enum asked asked,
		   struct sk_err *err)
{
	struct asking a = { .set = sk_cat_set_new(s->world) };
	int r;

	ask_images(&a, s, asked);
	ask_ranks(&a, s, asked);
	if (sk_cat_verdict(s->job, &a.set, &r, err))
		return r;
	/* One at a time: by then it may be asked no more. */
	if (s->job->question)
		return sk_err_set(err, -EINPROGRESS, "what its images cover is "
				  "being told");
	a.question = sk_cat_question_new(s->job, &a.set, s->world);
	if (!a.question)
		return sk_err_set(err, -ENOMEM, "no memory to tell what is "
				  "covered");
	ask_images(&a, s, asked);
	ask_ranks(&a, s, asked);
	r = sk_cat_question_ask(a.question, err);
	return r != -EINPROGRESS ? r :
	       sk_err_set(err, r, "what its images cover is being told");
}

static bool is_known(int result)
{
	return result != -ENOMEM && result != -EINPROGRESS;
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
		if (expected(state, s))
			return state;
	}
	return NULL;
}

/* The same, at once while somebody fills it. */
static bool is_awaited(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = s->filling ? sk_cat_run_of(s) : NULL;

	return (run && !run->ended) || awaited(s);
}

/* All ranks that this agent knows sealed it, but the world has more: they
 * are other agents', also where the store has what those have written. */
static bool is_local(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = sk_cat_run_of(s);
	struct sk_cat_state *state;
	struct sk_cat_image *image;
	int32_t ranks = 0;

	if (!run)
		return false;
	sk_link_each(state, &run->states, link) {
		visit(s);
		if (state->replaced)
			continue;
		image = sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY);
		if (!image || !sk_cat_in_memory(image))
			return false;
		ranks++;
	}
	return ranks && ranks < s->world;
}

/* Ranks of one node take their snapshots in step: where a second one lacks
 * the others, they are not late but elsewhere. */
static void note_local(struct sk_cat_run *run, int64_t step)
{
	assert(run);
	run->apart |= run->has_local && run->local_step != step;
	if (!run->has_local)
		run->local_step = step;
	run->has_local = true;
}

/* ---- what is known ---- */

/* It stands in its job's list of what is to be decided. */
static void note_undecided(struct sk_cat_snapshot *s)
{
	bool undecided = s->known.undecided || s->known.disk_undecided;

	if (undecided != sk_link_empty(&s->undecided))
		return;
	if (undecided)
		sk_link_insert(&s->job->undecided, &s->undecided);
	else
		sk_link_remove(&s->undecided);
	/* The newest one may be another now, or be due to be written. */
	sk_cat_wake(s->job);
}

static void announce(struct sk_cat_snapshot *s)
{
	struct sk_catalogue *cat = s->job->catalogue;

	s->known.announce = false;
	if (cat->completed)
		cat->completed(cat->ctx, s);
}

/* What the run's ranks, by now, have to do with what is not complete. */
static uint64_t ranks_of(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_run *run = sk_cat_run_of(s);

	return run ? run->changes : 0;
}

/* What is kept of answers is no part of what the snapshot is: const to others
 * than this file. */
static struct sk_cat_known *look(const struct sk_cat_snapshot *asked)
{
	struct sk_cat_snapshot *s = (struct sk_cat_snapshot *)asked;
	struct sk_cat_known *k = &s->known;
	bool wait, local;
	int r;

	if (k->fresh && (k->complete || k->ranks_at == ranks_of(s)))
		return k;
	visit(s);
	wait = sk_link_empty(&s->images) || is_awaited(s);
	r = wait ? -EAGAIN : covered(s, ASKED_ANYWHERE, NULL);
	k->fresh = true;
	k->ranks_at = ranks_of(s);
	k->complete = r == 0;
	k->undecided = !is_known(r);
	local = !wait && is_local(s);
	k->local = r < 0 && local;
	/* As long as its ranks are known: one that comes late was nowhere. */
	if (!wait && sk_cat_run_of(s))
		s->elsewhere = k->local;
	if (local)
		note_local(sk_cat_run_of(s), s->step);
	note_undecided(s);
	if (k->complete && k->announce)
		announce(s);
	return k;
}

bool sk_cat_complete(const struct sk_cat_snapshot *s)
{
	return look(s)->complete;
}

bool sk_cat_local(const struct sk_cat_snapshot *s)
{
	return look(s)->local;
}

/* Whether the flush that is under way has more to write; or nothing of it is
 * there at all. */
static bool disk_can_wait(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;
	bool any = false;

	sk_link_each(image, &s->images, link) {
		visit(s);
		if (image->kind != SK_IMAGE_PRIMARY)
			continue;
		if (sk_cat_on_store(image))
			any = true;
		else if (s->flushing && sk_cat_in_memory(image))
			return true;
	}
	return !any;
}

static struct sk_cat_known *look_at_disk(const struct sk_cat_snapshot *asked)
{
	struct sk_cat_snapshot *s = (struct sk_cat_snapshot *)asked;
	struct sk_cat_known *k = &s->known;
	int r;

	if (k->disk_fresh && (k->on_disk || k->disk_ranks_at == ranks_of(s)))
		return k;
	r = disk_can_wait(s) ? -EAGAIN : covered(s, ASKED_DISK, NULL);
	k->disk_fresh = true;
	k->disk_ranks_at = ranks_of(s);
	k->on_disk = r == 0;
	k->disk_undecided = !is_known(r);
	note_undecided(s);
	return k;
}

bool sk_cat_on_disk(const struct sk_cat_snapshot *s)
{
	return look_at_disk(s)->on_disk;
}

bool sk_cat_undecided(const struct sk_cat_snapshot *s)
{
	return look(s)->undecided || look_at_disk(s)->disk_undecided;
}

/* Ranks that are gone tell nobody any more that the others were elsewhere. */
static int missing(const struct sk_cat_snapshot *s, struct sk_err *err)
{
	struct sk_err why = { 0 };
	int r = covered(s, ASKED_ANYWHERE, &why);

	if (r != -ENODATA || !s->elsewhere)
		return sk_err_set(err, r, "%s", why.text);
	return sk_err_set(err, r, "%s; ranks that came to another agent, or to "
			  "none, had the rest", why.text);
}

int sk_cat_missing(const struct sk_cat_snapshot *s, struct sk_err *err)
{
	const struct sk_cat_state *state;

	if (sk_cat_complete(s))
		return 0;
	state = awaited(s);
	if (state)
		return sk_err_set(err, -EAGAIN, "rank %" PRId32 " of %" PRId32
				  " has not sealed it yet", state->rank,
				  s->world);
	if (sk_link_empty(&s->images))
		return sk_err_set(err, -ENODATA, "no rank has sealed it");
	return missing(s, err);
}

int sk_cat_missing_on_disk(const struct sk_cat_snapshot *s, struct sk_err *err)
{
	return sk_cat_on_disk(s) ? 0 : covered(s, ASKED_DISK, err);
}

bool sk_cat_asking(const struct sk_cat_job *job)
{
	return job->question;
}

bool sk_cat_whole_in_memory(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->kind == SK_IMAGE_PRIMARY &&
		    !sk_cat_in_memory(image))
			return false;
	}
	return sk_cat_complete(s);
}

/* ---- what happened ---- */

void sk_cat_touch(struct sk_cat_snapshot *s)
{
	s->known.fresh = false;
	sk_cat_changed(s->job);
	/* Memory alone makes nothing durable, nor less so. */
	if (!s->known.on_disk)
		s->known.disk_fresh = false;
}

void sk_cat_touch_disk(struct sk_cat_snapshot *s)
{
	s->known.fresh = s->known.disk_fresh = false;
	sk_cat_changed(s->job);
}

void sk_cat_touch_run(struct sk_cat_run *run)
{
	sk_cat_changed(run->job);
	run->changes++;
}

void sk_cat_flushing(struct sk_cat_snapshot *s, bool flushing)
{
	assert(s->flushing != flushing);
	s->flushing = flushing;
	s->known.disk_fresh = false;
	sk_cat_wake(s->job);
}

unsigned sk_cat_refresh(struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;
	unsigned undecided = 0;

	job->catalogue->visits++;
	sk_link_each(s, &job->undecided, undecided) {
		s->known.fresh &= !s->known.undecided;
		s->known.disk_fresh &= !s->known.disk_undecided;
		undecided += sk_cat_undecided(s);
	}
	return undecided;
}

/* ---- hope ---- */

bool sk_cat_may_seal(const struct sk_cat_snapshot *s, int32_t rank)
{
	struct sk_cat_run *run = sk_cat_run_of(s);
	const struct sk_cat_state *state;

	if (!run || !sk_cat_run_awaited(run))
		return false;
	state = sk_cat_state_find(run, rank);
	/* One that has not come yet may bring anything. */
	return state ? expected(state, s) : !run->ended;
}

/* One that was found bad is none: its rank does not save it again. */
static bool has_image(const struct sk_cat_snapshot *s, int32_t rank)
{
	const struct sk_cat_image *image =
		sk_cat_image_find(s, rank, SK_IMAGE_PRIMARY);

	return image && is_present(image, ASKED_ANYWHERE);
}

/* 0: there is hope; -ENODATA: none; else it is not known. */
static int lose_hope(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = sk_cat_run_of(s);
	struct sk_cat_state *state;
	bool lost = false, awaited = false;
	int32_t known = 0;

	if (!run || !sk_cat_run_awaited(run))
		return -ENODATA;
	sk_link_each(state, &run->states, link) {
		bool comes = expected(state, s);

		known += !state->replaced;
		awaited |= comes;
		lost |= !state->replaced && !comes &&
			!has_image(s, state->rank);
	}
	/* Ranks that have not come yet, or are another agent's, may hold
	 * anything; but no more than all of ours can be had here. */
	if (lost && known < s->world && !run->ended)
		return -ENODATA;
	if (!lost && (awaited || known < s->world))
		return 0;
	return covered(s, ASKED_HOPE, NULL);
}

bool sk_cat_hopeless(const struct sk_cat_snapshot *s)
{
	struct sk_cat_known *k = look(s);
	int r;

	if (k->complete || k->local || sk_cat_undecided(s))
		return false;
	/* All that wait for it ask, each time that anything happens. */
	if (k->hope_at == s->job->changes)
		return k->hopeless;
	r = lose_hope(s);
	if (!is_known(r))
		return false;
	k->hopeless = r < 0;
	k->hope_at = s->job->changes;
	return k->hopeless;
}
