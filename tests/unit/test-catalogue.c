/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalogue.h"
#include "mesh.h"
#include "util.h"
#include "wire.h"

#define WORLD_MAX 4
#define SEED 7041u

/* ---- a catalogue with a clock that counts seals ---- */

struct bench {
	struct sk_catalogue cat;
	unsigned released;
	uint64_t clock;
};

static void count_release(void *ctx, struct sk_cat_slot *slot)
{
	struct bench *b = ctx;

	(void)slot;
	b->released++;
}

static void start(struct bench *b)
{
	*b = (struct bench){ .clock = 1 };
	sk_cat_init(&b->cat);
	b->cat.budget = UINT64_MAX;
	b->cat.release = count_release;
	b->cat.ctx = b;
}

static void end(struct bench *b)
{
	sk_cat_destroy(&b->cat);
	cr_assert_eq(b->cat.used, 0);
	cr_assert(sk_link_empty(&b->cat.layouts), "a layout is left");
}

static struct sk_layout *layout(const char *job, int rank, int world,
				enum sk_image_kind kind, bool replicated)
{
	struct sk_item items[2] = {
		{ .spec = { .name = "w", .dtype = SK_F32, .ndim = 1,
			    .shape = { 8 * world },
			    .placements = { SK_SHARD(0) } } },
		{ .spec = { .name = "r", .dtype = SK_F32, .ndim = 1,
			    .shape = { 16 } } },
	};
	struct sk_layout *l = NULL;
	struct sk_mesh *mesh;
	struct sk_err err = { "" };

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ world }, NULL, NULL, &mesh,
				 &err), 0);
	items[0].spec.mesh = mesh;
	cr_assert_eq(sk_layout_new(job, rank, world, kind, items,
				   replicated ? 2 : 1, &l, &err), 0, "%s",
		     err.text);
	sk_mesh_unref(mesh);
	return l;
}

static struct sk_cat_layout *take(struct bench *b, const char *job, int rank,
				  int world, enum sk_image_kind kind,
				  bool replicated)
{
	return sk_cat_layout_take(&b->cat, layout(job, rank, world, kind,
						  replicated));
}

static struct sk_cat_job *job_of(struct bench *b)
{
	return sk_cat_job_get(&b->cat, "job", 0);
}

static struct sk_cat_state *enter(struct bench *b, uint64_t number, int rank,
				  int world, unsigned slots)
{
	struct sk_cat_layout *layouts[2] = { NULL, NULL };
	const uint64_t kinds[2] = { 8192, 0 };
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cat_run_open(job_of(b), number, rank, world, &run,
				     &err), 0, "%s", err.text);
	layouts[0] = take(b, "job", rank, world, SK_IMAGE_PRIMARY, false);
	state = sk_cat_state_new(run, rank, layouts);
	cr_assert(state);
	state->flush_every = 1;
	while (state->n_slots < slots &&
	       sk_cat_slot_inherit(state, kinds, NULL))
		;
	while (state->n_slots < slots)
		cr_assert(sk_cat_slot_add(state, kinds, NULL));
	return state;
}

static int fill(struct sk_cat_state *state, int64_t step,
		struct sk_cat_slot **ret)
{
	unsigned evicted;

	return sk_cat_slot_take(state, step, 0, false, ret, &evicted, NULL);
}

static void seal(struct bench *b, struct sk_cat_slot *slot)
{
	const struct sk_layout *l = slot->state->layouts[0]->layout;
	uint64_t *sums[2] = { calloc(l->n_sums + 1u, sizeof(uint64_t)),
			      NULL };

	cr_assert_eq(sk_cat_slot_seal(slot, sums, b->clock++), 0);
}

static void snap(struct bench *b, struct sk_cat_state *state, int64_t step)
{
	struct sk_cat_slot *slot;

	cr_assert_eq(fill(state, step, &slot), 0, "step %d", (int)step);
	seal(b, slot);
}

static struct sk_cat_snapshot *find(struct bench *b, uint64_t run,
				    int64_t step)
{
	struct sk_cat_snapshot *s = sk_cat_snapshot_find(job_of(b), run, step);

	return s && s->step == step ? s : NULL;
}

/* ---- runs ---- */

Test(catalogue, runs_are_numbered)
{
	struct sk_cat_state *a, *c;
	struct sk_cat_run *run;
	struct sk_err err;
	struct bench b;

	start(&b);
	a = enter(&b, 0, 0, 2, 2);
	cr_assert_eq(a->run->number, 1);
	c = enter(&b, 0, 1, 2, 2);
	cr_assert_eq(c->run, a->run, "the second rank joins");
	cr_assert_eq(sk_cat_run_open(job_of(&b), 0, 1, 2, &run, &err),
		     -EEXIST);
	cr_assert(strstr(err.text, "two jobs of one name?"));
	cr_assert_eq(sk_cat_run_open(job_of(&b), 1, 1, 2, &run, &err),
		     -EEXIST);
	cr_assert_eq(sk_cat_run_open(job_of(&b), 1, 2, 3, &run, &err),
		     -EINVAL, "another world");
	/* One died: whoever comes is of the next run, the other included. */
	sk_cat_state_end(c);
	c = enter(&b, 0, 1, 2, 2);
	cr_assert_eq(c->run->number, 2);
	cr_assert_eq(sk_cat_run_open(job_of(&b), 1, 1, 2, &run, &err),
		     -ESTALE);
	sk_cat_state_end(a);
	cr_assert_eq(enter(&b, 0, 0, 2, 2)->run->number, 2);
	/* An explicit number leaps, and 0 goes on from there. */
	cr_assert_eq(enter(&b, 10, 0, 1, 2)->run->number, 10);
	sk_cat_state_end(sk_cat_state_find(
		sk_cat_run_find(job_of(&b), 10), 0));
	cr_assert_eq(enter(&b, 0, 0, 1, 2)->run->number, 11);
	end(&b);
}

Test(catalogue, runs_on_disk_count)
{
	struct sk_cat_layout *l;
	struct bench b;

	start(&b);
	l = take(&b, "job", 0, 1, SK_IMAGE_PRIMARY, false);
	cr_assert_eq(sk_cat_stored_add(job_of(&b), 41, 5, l,
				       calloc(8, sizeof(uint64_t)), "step-5",
				       1, NULL), 0);
	sk_cat_refresh(job_of(&b));
	cr_assert(find(&b, 41, 5)->complete);
	cr_assert(find(&b, 41, 5)->on_disk);
	cr_assert_eq(enter(&b, 0, 0, 1, 2)->run->number, 42);
	end(&b);
}

/* ---- slots ---- */

Test(catalogue, slot_rules)
{
	struct sk_cat_slot *slot;
	struct sk_cat_state *s;
	struct sk_err err;
	unsigned evicted;
	struct bench b;

	start(&b);
	s = enter(&b, 0, 0, 1, 2);
	snap(&b, s, 1);
	cr_assert_eq(fill(s, 1, &slot), -EEXIST);
	cr_assert_eq(fill(s, 2, &slot), 0);
	cr_assert_eq(sk_cat_slot_take(s, 2, 0, false, &slot, &evicted, &err),
		     -EEXIST, "it is being filled");
	cr_assert_eq(sk_cat_slot_take(s, 3, 0, false, &slot, &evicted, &err),
		     -EBUSY);
	cr_assert(strstr(err.text, "newest complete"), "%s", err.text);
	cr_assert(strstr(err.text, "being filled"), "%s", err.text);
	seal(&b, slot);
	cr_assert_eq(sk_cat_slot_take(s, 3, 0, true, NULL, NULL, &err), 0);
	cr_assert(find(&b, 1, 1), "asking evicts nothing");
	cr_assert_eq(sk_cat_slot_take(s, 3, 0, false, &slot, &evicted, &err),
		     0);
	cr_assert_eq(evicted, 1);
	cr_assert(!find(&b, 1, 1));
	/* Discarded: the step may be tried again. */
	sk_cat_slot_clear(slot);
	cr_assert(!find(&b, 1, 3));
	cr_assert_eq(fill(s, 3, &slot), 0);
	end(&b);
}

Test(catalogue, what_is_protected)
{
	struct sk_cat_state *s;
	struct sk_cat_snapshot *one;
	struct bench b;

	start(&b);
	s = enter(&b, 0, 0, 1, 3);
	snap(&b, s, 1);
	snap(&b, s, 2);
	one = find(&b, 1, 1);
	cr_assert_null(sk_cat_protected(one));
	cr_assert_str_eq(sk_cat_protected(find(&b, 1, 2)),
			 "the newest complete snapshot");
	one->pinned = true;
	cr_assert_str_eq(sk_cat_protected(one), "pinned");
	one->pinned = false;
	one->flushing = true;
	cr_assert_str_eq(sk_cat_protected(one), "being flushed");
	one->flushing = false;
	sk_cat_lease(sk_cat_image_find(one, 0, SK_IMAGE_PRIMARY), 1);
	cr_assert_str_eq(sk_cat_protected(one), "in use by a restore");
	sk_cat_lease(sk_cat_image_find(one, 0, SK_IMAGE_PRIMARY), -1);
	b.cat.has_store = true;
	cr_assert(sk_cat_flushable(one), "every step is wanted");
	cr_assert_str_eq(sk_cat_protected(one), "not durable yet");
	one->on_disk = true;
	cr_assert_null(sk_cat_protected(one));
	/* A bad image is no image. */
	sk_cat_image_bad(sk_cat_image_find(find(&b, 1, 2), 0,
					   SK_IMAGE_PRIMARY), false);
	cr_assert(!find(&b, 1, 2)->complete);
	cr_assert_eq(sk_cat_newest(job_of(&b)), one);
	end(&b);
}

Test(catalogue, wanted_steps)
{
	static const struct {
		uint32_t every, flags;
		int64_t step;
		bool wanted;
	} cases[] = {
		{ 1, 0, 7, true },
		{ 0, 0, 7, true },
		{ 10, 0, 7, false },
		{ 10, 0, 20, true },
		{ 10, SK_SLOT_FLUSH, 7, true },
		{ 10, SK_SLOT_NO_FLUSH, 20, false },
		{ UINT32_MAX, 0, 0, false },
		{ UINT32_MAX, SK_SLOT_FLUSH, 3, true },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		struct sk_cat_slot *slot;
		struct sk_cat_state *s;
		struct bench b;
		unsigned evicted;

		start(&b);
		s = enter(&b, 0, 0, 1, 2);
		s->flush_every = cases[i].every;
		cr_assert_eq(sk_cat_slot_take(s, cases[i].step, cases[i].flags,
					      false, &slot, &evicted, NULL),
			     0);
		seal(&b, slot);
		cr_assert_eq(find(&b, 1, cases[i].step)->wanted,
			     cases[i].wanted, "case %zu", i);
		end(&b);
	}
}

/* A rank that skips a step must not block the others for good. */
Test(catalogue, a_lost_step_makes_room)
{
	struct sk_cat_state *s[2];
	struct sk_cat_slot *slot;
	struct bench b;

	start(&b);
	for (int i = 0; i < 2; i++)
		s[i] = enter(&b, 0, i, 2, 2);
	snap(&b, s[0], 1);
	snap(&b, s[1], 1);
	snap(&b, s[0], 2);
	cr_assert(!sk_cat_hopeless(find(&b, 1, 2)));
	cr_assert_eq(fill(s[0], 3, &slot), -EBUSY,
		     "step 2 may still become complete");
	cr_assert_eq(fill(s[1], 2, &slot), 0);
	sk_cat_slot_clear(slot);
	cr_assert(sk_cat_hopeless(find(&b, 1, 2)));
	cr_assert_eq(fill(s[0], 3, &slot), 0);
	cr_assert(find(&b, 1, 1)->complete, "the older one stands");
	end(&b);
}

/* A rank that will wait for a slot has not lost its step: others that wait for
 * the step must not be told that it never comes. */
Test(catalogue, a_rank_that_waits_has_lost_nothing)
{
	struct sk_cat_state *s[2];
	struct sk_cat_image *leased;
	struct sk_cat_slot *slot;
	unsigned evicted;
	struct bench b;

	start(&b);
	s[0] = enter(&b, 0, 0, 2, 3);
	s[1] = enter(&b, 0, 1, 2, 2);
	for (int64_t step = 1; step < 3; step++)
		for (int i = 0; i < 2; i++)
			snap(&b, s[i], step);
	leased = sk_cat_image_find(find(&b, 1, 1), 1, SK_IMAGE_PRIMARY);
	sk_cat_lease(leased, 1);
	snap(&b, s[0], 3);
	cr_assert_eq(sk_cat_slot_take(s[1], 3, SK_SLOT_WILL_WAIT, false, &slot,
				      &evicted, NULL), -EBUSY);
	cr_assert(!sk_cat_hopeless(find(&b, 1, 3)));
	cr_assert_eq(sk_cat_slot_take(s[1], 3, 0, false, &slot, &evicted,
				      NULL), -EBUSY);
	cr_assert(sk_cat_hopeless(find(&b, 1, 3)));
	sk_cat_lease(leased, -1);
	cr_assert_eq(fill(s[1], 3, &slot), 0);
	cr_assert(!sk_cat_hopeless(find(&b, 1, 3)));
	end(&b);
}

/* ---- death ---- */

Test(catalogue, death_while_filling)
{
	struct sk_cat_state *s[2], *next;
	struct sk_cat_slot *slot;
	struct bench b;

	start(&b);
	for (int i = 0; i < 2; i++)
		s[i] = enter(&b, 0, i, 2, 2);
	snap(&b, s[0], 1);
	snap(&b, s[1], 1);
	snap(&b, s[0], 2);
	cr_assert_eq(fill(s[1], 2, &slot), 0);
	cr_assert_eq(sk_cat_state_end(s[1]), 1);
	cr_assert(sk_cat_hopeless(find(&b, 1, 2)));
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 1));
	cr_assert_eq(b.released, 0, "the slot waits for the successor");
	next = enter(&b, 0, 1, 2, 1);
	cr_assert_eq(next->run->number, 2);
	cr_assert_eq(s[1]->n_slots, 1, "the free slot has moved");
	cr_assert_eq(next->n_slots, 1);
	end(&b);
}

/* Replicas of the others cover what a dead rank did not save. */
Test(catalogue, replicas_cover)
{
	struct sk_cat_layout *layouts[2][2];
	struct sk_cat_state *s[2];
	const uint64_t kinds[2] = { 8192, 8192 };
	struct sk_cat_snapshot *snapshot;
	struct sk_cat_run *run;
	struct sk_err err;
	struct bench b;

	start(&b);
	cr_assert_eq(sk_cat_run_open(job_of(&b), 0, 0, 2, &run, &err), 0);
	for (int i = 0; i < 2; i++) {
		struct sk_item item = { .spec = { .name = "r",
			.dtype = SK_F32, .ndim = 1, .shape = { 16 } } };

		for (int kind = 0; kind < 2; kind++) {
			struct sk_layout *l;

			cr_assert_eq(sk_layout_new("job", i, 2,
				(enum sk_image_kind)kind, &item, 1, &l, &err),
				0);
			layouts[i][kind] = sk_cat_layout_take(&b.cat, l);
		}
		s[i] = sk_cat_state_new(run, i, layouts[i]);
		for (int k = 0; k < 2; k++)
			cr_assert(sk_cat_slot_add(s[i], kinds, NULL));
	}
	/* The one that is not primary for "r" seals, the other dies. */
	for (int i = 0; i < 2; i++) {
		struct sk_cat_slot *slot;
		uint64_t *sums[2] = { calloc(8, 8), calloc(8, 8) };

		if (s[i]->layouts[0]->layout->n_entries) {
			free(sums[0]);
			free(sums[1]);
			continue;
		}
		cr_assert_eq(fill(s[i], 1, &slot), 0);
		cr_assert_eq(sk_cat_slot_seal(slot, sums, 1), 0);
		snapshot = slot->snapshot;
		cr_assert(!snapshot->complete, "the other one may seal");
		sk_cat_state_end(s[1 - i]);
		cr_assert(snapshot->complete, "%s", snapshot->missing);
	}
	end(&b);
}

/* ---- room ---- */

Test(catalogue, room)
{
	struct sk_cat_state *dead, *other;
	struct sk_cat_slot *slot;
	struct sk_err err;
	struct bench b;

	start(&b);
	dead = enter(&b, 0, 0, 1, 3);
	snap(&b, dead, 1);
	snap(&b, dead, 2);
	sk_cat_state_end(dead);
	b.cat.budget = b.cat.used;
	/* A free slot and an old image can go, the newest cannot. */
	cr_assert_eq(sk_cat_make_room(&b.cat, 3 * 8192, job_of(&b), &err),
		     -ENOMEM);
	cr_assert(strstr(err.text, "job 24.0 KiB"), "%s", err.text);
	cr_assert(find(&b, 1, 1), "nothing goes for nothing");
	cr_assert_eq(sk_cat_make_room(&b.cat, 8192, job_of(&b), &err), 0);
	cr_assert_eq(sk_cat_make_room(&b.cat, 2 * 8192, job_of(&b), &err), 1);
	cr_assert(!find(&b, 1, 1));
	cr_assert(find(&b, 1, 2));
	cr_assert_eq(b.released, 2);
	/* The successor may take the last one with the image in it. */
	other = enter(&b, 0, 0, 1, 0);
	cr_assert(sk_cat_slot_adopt(other, (uint64_t[]){ 8192, 0 }, NULL));
	cr_assert(find(&b, 1, 2)->complete);
	cr_assert_eq(fill(other, 3, &slot), -EBUSY,
		     "its only slot holds the newest complete snapshot");
	end(&b);
}

/* ---- disk ---- */

static int store(struct bench *b, uint64_t run, int64_t step, int rank,
		 uint64_t sum, struct sk_err *err)
{
	struct sk_cat_layout *l = take(b, "job", rank, 2, SK_IMAGE_PRIMARY,
				       false);
	uint64_t *sums = calloc(l->layout->n_sums + 1u, sizeof(*sums));

	sums[0] = sum;
	return sk_cat_stored_add(job_of(b), run, step, l, sums, "step-1", 1,
				 err);
}

Test(catalogue, disk_and_memory_are_one)
{
	struct sk_cat_snapshot *snapshot;
	struct sk_cat_image *image;
	struct sk_cat_state *s[2];
	struct sk_err err;
	struct bench b;
	uint64_t id;

	start(&b);
	for (int i = 0; i < 2; i++) {
		s[i] = enter(&b, 0, i, 2, 2);
	}
	snap(&b, s[0], 1);
	snap(&b, s[1], 1);
	snapshot = find(&b, 1, 1);
	image = sk_cat_image_find(snapshot, 0, SK_IMAGE_PRIMARY);
	id = image->id;
	cr_assert_eq(store(&b, 1, 1, 0, 5, &err), -ESTALE,
		     "other bytes under that name");
	cr_assert_eq(store(&b, 1, 1, 0, 0, &err), 0, "%s", err.text);
	sk_cat_refresh(job_of(&b));
	cr_assert(!snapshot->on_disk);
	cr_assert_eq(store(&b, 1, 1, 1, 0, &err), 0);
	sk_cat_refresh(job_of(&b));
	cr_assert(snapshot->on_disk);
	cr_assert_eq(sk_cat_image_by_id(&b.cat, id), image);
	/* Memory goes, the disk stays, and the other way round. */
	cr_assert_eq(sk_cat_evict_memory(snapshot), 2);
	cr_assert(find(&b, 1, 1)->complete);
	cr_assert_eq(sk_cat_image_by_id(&b.cat, id), image);
	sk_cat_stored_remove(image);
	sk_cat_refresh(job_of(&b));
	cr_assert(!find(&b, 1, 1)->complete);
	cr_assert_null(sk_cat_image_by_id(&b.cat, id));
	end(&b);
}

Test(catalogue, users_do_not_share)
{
	struct bench b;

	start(&b);
	cr_assert_neq(sk_cat_job_get(&b.cat, "x", 1),
		      sk_cat_job_get(&b.cat, "x", 2));
	cr_assert_null(sk_cat_job_find(&b.cat, "x", 3));
	cr_assert(sk_cat_job_trim(sk_cat_job_find(&b.cat, "x", 1)));
	cr_assert_null(sk_cat_job_find(&b.cat, "x", 1));
	end(&b);
}

/* ---- random lives ---- */

/* Coverage without replicas is: every rank has an image. */
static bool whole(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;
	int n = 0;

	sk_link_each(image, &s->images, link)
		n += image->slot != NULL;
	return n == s->world;
}

static void check_all(struct bench *b, unsigned seed, int turn)
{
	struct sk_cat_job *job = job_of(b);
	struct sk_cat_snapshot *s, *before = NULL;
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;
	struct sk_cat_run *run;
	uint64_t used = 0;

	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
	sk_link_each(slot, &state->slots, link) {
		used += slot->bytes;
		cr_assert_eq(slot->use == SK_CAT_FREE, !slot->snapshot,
			     "seed %u, turn %d", seed, turn);
		cr_assert_eq(slot->use == SK_CAT_SEALED, !!slot->images[0],
			     "seed %u, turn %d", seed, turn);
	}
	cr_assert_eq(used, b->cat.used, "seed %u, turn %d", seed, turn);
	cr_assert_eq(used, sk_cat_job_bytes(job));
	sk_link_each(s, &job->snapshots, link) {
		cr_assert_eq(s->complete, whole(s), "seed %u, turn %d: run %d "
			     "step %d: %s", seed, turn, (int)s->run,
			     (int)s->step, s->missing);
		cr_assert(!before ||
			  sk_cat_order(before->run, before->step, s) > 0,
			  "seed %u, turn %d: order", seed, turn);
		before = s;
	}
}

static void live(unsigned seed)
{
	struct sk_cat_state *states[WORLD_MAX] = { NULL };
	int64_t step = 0, complete_step = 0;
	uint64_t newest_run = 0;
	int64_t newest_step = -1;
	int world, turn;
	struct bench b;

	srandom(seed);
	world = 1 + (int)(random() % WORLD_MAX);
	start(&b);
	for (int i = 0; i < world; i++)
		states[i] = enter(&b, 0, i, world, 2);
	for (turn = 0; turn < 120; turn++) {
		const struct sk_cat_snapshot *newest;
		int first = (int)(random() % world);

		step++;
		for (int k = 0; k < world; k++) {
			struct sk_cat_state *s = states[(first + k) % world];
			struct sk_cat_slot *slot;

			if (random() % 8 == 0 || fill(s, step, &slot) < 0)
				continue;
			if (random() % 16 == 0)
				sk_cat_slot_clear(slot);
			else
				seal(&b, slot);
			check_all(&b, seed, turn);
		}
		if (random() % 40 == 0) {
			for (int i = 0; i < world; i++)
				sk_cat_state_end(states[i]);
			check_all(&b, seed, turn);
			for (int i = 0; i < world; i++)
				states[i] = enter(&b, 0, i, world, 2);
		}
		newest = sk_cat_newest(job_of(&b));
		if (!newest)
			continue;
		/* What was once the newest complete one is never lost. */
		cr_assert(sk_cat_order(newest_run, newest_step, newest) <= 0,
			  "seed %u, turn %d: the newest went back", seed,
			  turn);
		if (sk_cat_order(newest_run, newest_step, newest) < 0)
			complete_step = step;
		newest_run = newest->run;
		newest_step = newest->step;
		/* And the ranks do get on, however they fall out of step. */
		cr_assert_lt(step - complete_step, 60, "seed %u, turn %d: "
			     "stuck since step %d", seed, turn,
			     (int)complete_step);
	}
	end(&b);
}

Test(catalogue, random_lives)
{
	for (unsigned i = 0; i < 60; i++)
		live(SEED + i);
}
