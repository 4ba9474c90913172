/* SPDX-License-Identifier: Apache-2.0 */
/* What is complete, told lazily and in the background, against the plain rule;
 * and how the work that it takes grows. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "catalogue/catalogue.h"
#include "layout/coverage.h"
#include "tensor/mesh.h"

#define SEED 9100u
#define RANKS 4
#define MOST 128

static const uint64_t kinds[2] = { 4096, 4096 };

/* ---- a catalogue whose questions wait for somebody to answer them ---- */

struct desk {
	struct sk_catalogue cat;
	struct sk_cat_question *out[8];
	unsigned n_out, completed;
	bool full;			/* nothing can be asked */
};

static int put_on_desk(void *ctx, struct sk_cat_question *q)
{
	struct desk *d = ctx;

	if (d->full)
		return -ENOMEM;
	cr_assert_lt(d->n_out, 8);
	d->out[d->n_out++] = q;
	return 0;
}

static void note_completed(void *ctx, const struct sk_cat_snapshot *s)
{
	struct desk *d = ctx;

	(void)s;
	d->completed++;
}

static void desk_open(struct desk *d, bool later)
{
	*d = (struct desk){ 0 };
	sk_cat_init(&d->cat);
	d->cat.budget = UINT64_MAX;
	d->cat.ctx = d;
	d->cat.completed = note_completed;
	if (later)
		d->cat.ask = put_on_desk;
}

static void answer_one(struct desk *d)
{
	struct sk_cat_job *job;

	if (!d->n_out)
		return;
	sk_cat_question_run(d->out[--d->n_out]);
	cr_assert(sk_cat_question_end(d->out[d->n_out]));
	sk_link_each(job, &d->cat.jobs, link)
		(void)sk_cat_refresh(job);
}

static void answer_all(struct desk *d)
{
	while (d->n_out)
		answer_one(d);
}

static void desk_close(struct desk *d)
{
	answer_all(d);
	sk_cat_destroy(&d->cat);
	cr_assert_eq(d->cat.used, 0);
	cr_assert_eq(d->cat.layouts.count, 0, "a layout is left");
}

static struct sk_cat_job *job_of(struct desk *d)
{
	return sk_cat_job_get(&d->cat, "job", 0);
}

/* ---- layouts: "w" in boxes that ranks say, "r" on all of them ---- */

static struct sk_layout *new_layout(int rank, int world, int kind, int salt,
				    bool replicated)
{
	struct sk_box box = { .offset = { 8 * rank }, .size = { 8 } };
	char name[32];
	struct sk_item items[2] = {
		{ .spec = { .name = name, .dtype = SK_F32, .ndim = 1,
			    .shape = { 8 * world } },
		  .explicit_boxes = true, .n_boxes = 1, .boxes = &box },
		{ .spec = { .name = "r", .dtype = SK_F32, .ndim = 1,
			    .shape = { 16 } } },
	};
	struct sk_layout *l = NULL;
	struct sk_err err = { "" };

	snprintf(name, sizeof(name), "w%d", salt);
	cr_assert_eq(sk_layout_new("job", rank, world,
				   (enum sk_image_kind)kind, items,
				   replicated ? 2 : 1, &l, &err), 0, "%s",
		     err.text);
	return l;
}

struct maker {
	int world, salt;
	bool replicated;
	unsigned slots;
};

static struct sk_cat_state *enter(struct desk *d, int rank,
				  const struct maker *m)
{
	const struct sk_cat_ask ask = { .rank = rank, .world = m->world,
					.fresh_id = 1 + d->cat.next_id };
	struct sk_cat_layout *layouts[2] = { NULL, NULL };
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cat_run_open(job_of(d), &ask, &run, &err), 0, "%s",
		     err.text);
	for (int kind = 0; kind < 1 + m->replicated; kind++)
		layouts[kind] = sk_cat_layout_take(&d->cat,
			new_layout(rank, m->world, kind, m->salt,
				   m->replicated));
	state = sk_cat_state_new(run, rank, layouts);
	cr_assert(state);
	while (state->n_slots < m->slots)
		cr_assert(sk_cat_slot_add(state, kinds, NULL));
	return state;
}

static void leave(struct desk *d, struct sk_cat_state *state)
{
	sk_cat_state_end(state);
	(void)sk_cat_trim_free(&d->cat, NULL);
}

static int fill(struct sk_cat_state *state, int64_t step,
		struct sk_cat_slot **ret)
{
	unsigned evicted;

	return sk_cat_slot_take(state, step, 0, false, ret, &evicted, NULL);
}

static void seal(struct sk_cat_slot *slot)
{
	uint64_t *sums[2] = { NULL, NULL };

	for (int kind = 0; kind < 2; kind++)
		if (slot->state->layouts[kind])
			sums[kind] = calloc(8, sizeof(uint64_t));
	cr_assert_eq(sk_cat_slot_seal(slot, sums, NULL, 1), 0);
}

static void snap(struct sk_cat_state *state, int64_t step)
{
	struct sk_cat_slot *slot = NULL;
	int r = fill(state, step, &slot);

	cr_assert_eq(r, 0, "step %d: %d", (int)step, r);
	seal(slot);
}

static struct sk_cat_snapshot *at_step(struct desk *d, int64_t step)
{
	return sk_cat_snapshot_find(job_of(d), 0, 0, step);
}

/* As if the image had been written to disk. */
static void write_image(struct desk *d, struct sk_cat_image *image)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	struct sk_cat_found found = {
		.run = s->run, .run_id = s->run_id, .step = s->step,
		.dir = "step" };
	struct sk_err err = { "" };

	memcpy(found.content, image->content, sizeof(found.content));
	cr_assert_eq(sk_cat_stored_add(job_of(d), &found,
				       sk_cat_layout_ref(image->layout), &err),
		     0, "%s", err.text);
}

static void write_snapshot(struct desk *d, struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_cat_flushing(s, true);
	sk_link_each(image, &s->images, link) {
		if (image->kind == SK_IMAGE_PRIMARY)
			write_image(d, image);
		(void)sk_cat_on_disk(s);
	}
	sk_cat_flushing(s, false);
	answer_all(d);
	cr_assert(sk_cat_on_disk(s), "step %d", (int)s->step);
}

/* ---- the plain rule ---- */

static bool awaited(const struct sk_cat_snapshot *s, const struct sk_cat_run *r)
{
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;

	sk_link_each(state, &r->states, link) {
		bool filling = false;

		if (!state->living || state->replaced ||
		    sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY))
			continue;
		sk_link_each(slot, &state->slots, link)
			filling |= slot->use == SK_CAT_FILLING &&
				   slot->snapshot == s;
		if (filling || (state->last_step < s->step &&
				state->lost_step != s->step))
			return true;
	}
	return false;
}

/* All layouts that are known are asked about, each time anew. */
static bool plainly_covered(const struct sk_cat_snapshot *s, bool disk)
{
	struct sk_coverage_image asked[4 * MOST];
	struct sk_cat_run *run = sk_cat_run_find(s->job, s->run, s->run_id);
	struct sk_cat_image *image;
	struct sk_cat_state *state;
	size_t n = 0;

	sk_link_each(image, &s->images, link) {
		bool memory = image->slot && !image->bad_memory && !disk;
		bool stored = image->stored.dir[0] && !image->bad_disk;

		asked[n].layout = image->layout->layout;
		asked[n++].present = memory || stored;
	}
	if (run) {
		sk_link_each(state, &run->states, link) {
			if (state->replaced ||
			    sk_cat_image_find(s, state->rank,
					      SK_IMAGE_PRIMARY))
				continue;
			asked[n].layout = state->layouts[0]->layout;
			asked[n++].present = false;
		}
	}
	return n && sk_coverage_check(asked, n, s->world, NULL) == 0;
}

static bool plainly_complete(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = sk_cat_run_find(s->job, s->run, s->run_id);

	if (sk_link_empty(&s->images) ||
	    (run && !run->ended && awaited(s, run)))
		return false;
	return plainly_covered(s, false);
}

/* What is said is so; and what is not known yet is said to be so. */
static void check_said(struct desk *d, unsigned seed, int turn)
{
	struct sk_cat_snapshot *s, *newest = NULL;

	/* What could not be asked then can be now. */
	if (!d->full)
		(void)sk_cat_refresh(job_of(d));
	sk_link_each(s, &job_of(d)->snapshots, link) {
		bool complete = plainly_complete(s);
		bool disk = plainly_covered(s, true) && !s->flushing;

		if (complete && !newest)
			newest = s;
		if (sk_cat_undecided(s)) {
			cr_assert(d->n_out || d->full);
			continue;
		}
		cr_assert_eq(sk_cat_complete(s), complete, "seed %u, turn %d, "
			     "step %d", seed, turn, (int)s->step);
		cr_assert_eq(sk_cat_on_disk(s), disk, "seed %u, turn %d, "
			     "step %d", seed, turn, (int)s->step);
	}
	cr_assert(!newest || sk_cat_protected(newest), "seed %u, turn %d: step "
		  "%d may go", seed, turn, (int)newest->step);
}

/* ---- random lives ---- */

struct life {
	struct desk d;
	struct maker maker;
	struct sk_cat_state *states[RANKS];
	int64_t step;
};

static void rank_acts(struct life *l, int k)
{
	struct sk_cat_slot *slot;

	if (random() % 8 == 0 || fill(l->states[k], l->step, &slot) < 0)
		return;
	if (random() % 8)
		seal(slot);
	else
		sk_cat_slot_clear(slot);
}

static void rank_dies(struct life *l, int k)
{
	l->maker.salt = (int)(random() % 3);
	leave(&l->d, l->states[k]);
	for (int i = 0; i < l->maker.world; i++) {
		if (i != k)
			leave(&l->d, l->states[i]);
		l->states[i] = enter(&l->d, i, &l->maker);
	}
}

static void one_is_bad(struct life *l, struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	(void)l;
	sk_link_each(image, &s->images, link) {
		if (random() % 3)
			continue;
		sk_cat_image_bad(image, random() % 2, 0);
		return;
	}
}

static void disk_loses(struct life *l, struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	(void)l;
	s->filling++;
	sk_link_each(image, &s->images, link) {
		if (image->stored.dir[0] && random() % 2)
			sk_cat_stored_remove(image);
	}
	s->filling--;
	(void)sk_cat_snapshot_trim(s);
}

static void some_snapshot(struct life *l)
{
	struct sk_cat_snapshot *s, *one = NULL;
	struct sk_cat_image *image;

	sk_link_each(s, &job_of(&l->d)->snapshots, link) {
		if (!one || random() % 2)
			one = s;
	}
	if (!one)
		return;
	switch (random() % 6) {
	case 0:
		one->pinned = !one->pinned;
		return;
	case 1:
		one_is_bad(l, one);
		return;
	case 2:
		disk_loses(l, one);
		return;
	case 3:
		if (!sk_cat_protected(one))
			(void)sk_cat_evict_memory(one);
		return;
	default:
		sk_link_each(image, &one->images, link)
			if (image->kind == SK_IMAGE_PRIMARY && image->slot &&
			    random() % 4)
				write_image(&l->d, image);
	}
}

static void live(unsigned seed, bool later)
{
	struct life l = { .maker = { .slots = 2 } };

	srandom(seed);
	desk_open(&l.d, later);
	l.maker.world = 1 + (int)(random() % RANKS);
	l.maker.replicated = random() % 2;
	for (int i = 0; i < l.maker.world; i++)
		l.states[i] = enter(&l.d, i, &l.maker);
	for (int turn = 0; turn < 150; turn++) {
		int first = (int)(random() % l.maker.world);

		l.step += random() % 3 > 0;
		l.d.full = random() % 16 == 0;
		for (int k = 0; k < l.maker.world; k++)
			rank_acts(&l, (first + k) % l.maker.world);
		if (random() % 30 == 0)
			rank_dies(&l, first);
		if (random() % 3 == 0)
			some_snapshot(&l);
		if (random() % 2)
			check_said(&l.d, seed, turn);
		l.d.full = false;
		if (random() % 3 == 0)
			answer_one(&l.d);
		if (random() % 10 == 0) {
			do {
				answer_all(&l.d);
				check_said(&l.d, seed, turn);
			} while (l.d.n_out);
		}
	}
	desk_close(&l.d);
}

Test(verdict, random_lives)
{
	for (unsigned i = 0; i < 150; i++)
		live(SEED + i, i % 2);
}

/* ---- in the background ---- */

/* Two ranks, and two steps of theirs that nothing is known of yet. */
static void snap_twice(struct desk *d, const struct maker *m,
		       struct sk_cat_state *s[2])
{
	for (int i = 0; i < 2; i++)
		s[i] = enter(d, i, m);
	for (int64_t step = 1; step < 3; step++)
		for (int i = 0; i < 2; i++)
			snap(s[i], step);
}

/* While it is being told whether the newest is complete, neither it nor the one
 * before goes, and it is told once. */
Test(verdict, nothing_goes_while_it_is_told)
{
	const struct maker m = { .world = 2, .slots = 2 };
	struct sk_cat_state *s[2];
	struct sk_cat_slot *slot;
	struct sk_err err = { "" };
	struct desk d;

	desk_open(&d, true);
	snap_twice(&d, &m, s);
	cr_assert(!sk_cat_complete(at_step(&d, 1)));
	cr_assert(sk_cat_undecided(at_step(&d, 1)));
	cr_assert_eq(sk_cat_missing(at_step(&d, 1), &err), -EINPROGRESS);
	cr_assert(sk_cat_asking(job_of(&d)) && d.n_out == 1);
	cr_assert_eq(fill(s[0], 3, &slot), -EBUSY);
	cr_assert(!sk_cat_hopeless(at_step(&d, 1)));
	answer_one(&d);
	cr_assert(sk_cat_complete(at_step(&d, 1)));
	cr_assert(sk_cat_complete(at_step(&d, 2)));
	cr_assert_eq(d.completed, 2);
	cr_assert_eq(fill(s[0], 3, &slot), 0);
	sk_cat_slot_clear(slot);
	cr_assert_eq(d.completed, 2, "told once");
	desk_close(&d);
}

/* Nor is it written: half of a snapshot on disk is of no use. */
Test(verdict, nothing_is_written_while_it_is_told)
{
	const struct maker m = { .world = 2, .slots = 3 };
	struct sk_cat_state *s[2];
	struct desk d;

	desk_open(&d, true);
	d.cat.has_store = true;
	snap_twice(&d, &m, s);
	cr_assert(!sk_cat_flushable(at_step(&d, 1)));
	cr_assert_str_eq(sk_cat_protected(at_step(&d, 1)),
			 "not known to be complete yet");
	answer_all(&d);
	cr_assert(sk_cat_flushable(at_step(&d, 1)));
	cr_assert_str_eq(sk_cat_protected(at_step(&d, 1)), "not durable yet");
	desk_close(&d);
}

/* Whoever has a question out may hand it back when its job is gone. */
Test(verdict, a_job_goes_before_its_answer)
{
	const struct maker m = { .world = 1, .slots = 1 };
	struct sk_cat_state *state;
	struct desk d;

	desk_open(&d, true);
	state = enter(&d, 0, &m);
	snap(state, 1);
	cr_assert(!sk_cat_complete(at_step(&d, 1)));
	leave(&d, state);
	(void)sk_cat_evict_memory(at_step(&d, 1));
	cr_assert(sk_cat_job_trim(job_of(&d)));
	cr_assert_eq(d.n_out, 1);
	cr_assert(sk_link_empty(&d.cat.jobs));
	answer_all(&d);
	desk_close(&d);
}

/* ---- how it grows ---- */

/* What 50 snapshots of so many ranks ask, each let go of in another order. */
static uint64_t checks_of(int ranks, int layouts)
{
	struct maker m = { .world = ranks, .slots = 2, .replicated = true };
	struct sk_cat_state *states[MOST];
	struct desk d;
	uint64_t checks;

	srandom(SEED);
	desk_open(&d, false);
	for (int i = 0; i < ranks; i++)
		states[i] = enter(&d, i, &m);
	for (int64_t step = 1; step <= 50; step++) {
		int first = (int)(random() % ranks);

		for (int i = 0; i < ranks && layouts > 1; i++) {
			m.salt = (int)(step % layouts);
			leave(&d, states[i]);
		}
		for (int i = 0; i < ranks && layouts > 1; i++)
			states[i] = enter(&d, i, &m);
		for (int i = 0; i < ranks; i++)
			snap(states[(first + i * 3 % ranks) % ranks], step);
		cr_assert(sk_cat_complete(at_step(&d, step)));
		write_snapshot(&d, at_step(&d, step));
	}
	checks = d.cat.coverage_checks;
	desk_close(&d);
	return checks;
}

Test(verdict, one_question_for_all_snapshots_of_a_set)
{
	/* In memory, where replicas are; and on disk. */
	cr_assert_eq(checks_of(4, 1), 2);
	cr_assert_eq(checks_of(100, 1), 2);
	/* A layout that comes again is known again. */
	cr_assert_eq(checks_of(5, 2), checks_of(50, 2));
	cr_assert_leq(checks_of(50, 2), 8);
}

/* Visits that a snapshot of one rank takes, with so many kept on disk. */
static uint64_t visits_of(int kept)
{
	const struct maker m = { .world = 1, .slots = 2 };
	struct sk_cat_state *state;
	uint64_t before = 0;
	struct desk d;

	desk_open(&d, false);
	d.cat.has_store = true;
	state = enter(&d, 0, &m);
	for (int64_t step = 1; step <= kept; step++) {
		before = d.cat.visits;
		snap(state, step);
		cr_assert(sk_cat_complete(at_step(&d, step)));
		write_snapshot(&d, at_step(&d, step));
		(void)sk_cat_refresh(job_of(&d));
		(void)sk_cat_job_trim(job_of(&d));
	}
	before = d.cat.visits - before;
	cr_assert_eq(job_of(&d)->n_snapshots, (size_t)kept);
	desk_close(&d);
	return before;
}

/* What only the disk has is forgotten, oldest first, and its ranks cannot take
 * those steps anew. */
Test(verdict, old_steps_are_left_to_the_disk)
{
	const struct maker m = { .world = 1, .slots = 2 };
	struct sk_cat_slot *slot;
	struct sk_cat_state *state;
	unsigned evicted;
	struct desk d;

	desk_open(&d, false);
	d.cat.has_store = true;
	state = enter(&d, 0, &m);
	for (int64_t step = 1; step <= 20; step++) {
		snap(state, step);
		write_snapshot(&d, at_step(&d, step));
	}
	at_step(&d, 3)->pinned = true;
	sk_cat_image_bad(sk_cat_image_find(at_step(&d, 4), 0,
					   SK_IMAGE_PRIMARY), true, 0);
	cr_assert_eq(sk_cat_stored_leave(job_of(&d), 8, 5), 5);
	cr_assert_eq(job_of(&d)->n_snapshots, 15);
	cr_assert_not_null(job_of(&d)->leaves);
	cr_assert_eq(sk_cat_stored_leave(job_of(&d), 8, 50), 5);
	cr_assert_null(job_of(&d)->leaves);
	cr_assert_eq(sk_cat_stored_leave(job_of(&d), 8, 50), 0);
	/* The newest eight, and beside them two that stay. */
	cr_assert_eq(job_of(&d)->n_snapshots, 10);
	cr_assert_not_null(at_step(&d, 13));
	cr_assert_null(at_step(&d, 12));
	cr_assert_not_null(at_step(&d, 3));
	cr_assert_not_null(at_step(&d, 4));
	cr_assert_eq(sk_cat_newest(job_of(&d))->step, 20);
	cr_assert_eq(sk_cat_slot_take(state, 2, 0, false, &slot, &evicted,
				      NULL), -EEXIST);
	/* Nothing is left but what slots hold or somebody wants. */
	(void)sk_cat_stored_leave(job_of(&d), 0, 50);
	cr_assert_eq(job_of(&d)->n_snapshots, 4);
	desk_close(&d);
}

Test(verdict, kept_steps_cost_nothing)
{
	uint64_t few = visits_of(10);

	cr_assert_eq(visits_of(1000), few);
	cr_assert_eq(visits_of(10000), few);
}

/* Visits that a rank takes that goes, and one that comes in its stead, beside
 * so many steps that are known; every other one is on disk. */
static uint64_t visits_of_a_restart(int kept)
{
	const struct maker m = { .world = 1, .slots = 2 };
	struct sk_cat_state *state;
	uint64_t before;
	struct desk d;

	desk_open(&d, false);
	d.cat.has_store = true;
	state = enter(&d, 0, &m);
	for (int64_t step = 1; step <= kept; step++) {
		snap(state, step);
		cr_assert(sk_cat_complete(at_step(&d, step)));
		write_snapshot(&d, at_step(&d, step));
	}
	cr_assert_eq(job_of(&d)->n_snapshots, (size_t)kept);
	before = d.cat.visits;
	sk_cat_state_end(state);
	state = enter(&d, 0, &m);
	cr_assert_eq(state->run->number, 2);
	cr_assert_eq(sk_cat_newest(job_of(&d))->step, kept);
	snap(state, kept + 1);
	cr_assert(sk_cat_complete(at_step(&d, kept + 1)));
	before = d.cat.visits - before;
	desk_close(&d);
	return before;
}

Test(verdict, a_restart_beside_kept_steps_costs_nothing_more)
{
	uint64_t few = visits_of_a_restart(10);

	cr_assert_eq(visits_of_a_restart(1000), few);
	cr_assert_eq(visits_of_a_restart(10000), few);
}

/* The same for so many ranks, that take their slots together. */
static uint64_t visits_of_ranks(int ranks)
{
	const struct maker m = { .world = ranks, .slots = 2 };
	struct sk_cat_state *states[MOST];
	struct sk_cat_slot *slots[MOST];
	uint64_t before = 0;
	struct desk d;

	desk_open(&d, false);
	for (int i = 0; i < ranks; i++)
		states[i] = enter(&d, i, &m);
	for (int64_t step = 1; step <= 4; step++) {
		before = d.cat.visits;
		for (int i = 0; i < ranks; i++)
			cr_assert_eq(fill(states[i], step, &slots[i]), 0);
		for (int i = 0; i < ranks; i++) {
			seal(slots[i]);
			(void)sk_cat_complete(at_step(&d, step));
		}
		cr_assert(sk_cat_complete(at_step(&d, step)));
	}
	before = d.cat.visits - before;
	desk_close(&d);
	return before;
}

Test(verdict, a_rank_more_costs_what_the_others_do)
{
	uint64_t few = visits_of_ranks(8);

	/* For each rank what it takes itself, and nothing for the others. */
	cr_assert_leq(visits_of_ranks(64), 9 * few);
	cr_assert_leq(visits_of_ranks(128), 18 * few);
}
