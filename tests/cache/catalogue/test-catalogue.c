/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "catalogue/catalogue.h"
#include "catalogue/revive.h"
#include "tensor/mesh.h"
#include "base/util.h"
#include "memory/flags.h"

#define WORLD_MAX 4
#define SEED 7041u

/* ---- a catalogue with a clock that counts seals ---- */

struct bench {
	struct sk_catalogue cat;
	unsigned released;
	uint64_t clock;
	uint64_t drawn;		/* the last id of a run */
	bool lacking;		/* who enters does not describe its part */
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
	cr_assert_eq(b->cat.layouts.count, 0, "a layout is left");
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

static struct sk_layout *only_r(int rank, int world)
{
	const struct sk_item item = {
		.spec = { .name = "r", .dtype = SK_F32, .ndim = 1,
			  .shape = { 16 } } };
	struct sk_layout *l = NULL;

	cr_assert_eq(sk_layout_new("job", rank, world, SK_IMAGE_PRIMARY, &item,
				   1, &l, NULL), 0);
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

/* What a rank asks; runs that are made have ids of a row. */
static int open_run(struct bench *b, uint64_t number, uint64_t id, int rank,
		    int world, struct sk_cat_run **ret, struct sk_err *err)
{
	const struct sk_cat_ask ask = {
		.run = number, .run_id = id, .fresh_id = ++b->drawn,
		.rank = rank, .world = world,
	};

	return sk_cat_run_open(job_of(b), &ask, ret, err);
}

static struct sk_cat_state *enter(struct bench *b, uint64_t number, int rank,
				  int world, unsigned slots)
{
	struct sk_cat_layout *layouts[2] = { NULL, NULL };
	const uint64_t kinds[2] = { 8192, 0 };
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_err err = { "" };

	cr_assert_eq(open_run(b, number, 0, rank, world, &run, &err), 0,
		     "%s", err.text);
	layouts[0] = b->lacking ?
		     sk_cat_layout_take(&b->cat, only_r(rank, world)) :
		     take(b, "job", rank, world, SK_IMAGE_PRIMARY, false);
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

	cr_assert_eq(sk_cat_slot_seal(slot, sums, NULL, b->clock++), 0);
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
	struct sk_cat_snapshot *s = sk_cat_snapshot_find(job_of(b), run, 0,
							 step);

	return s && s->step == step ? s : NULL;
}

/* Why it is not complete. */
static const char *why(const struct sk_cat_snapshot *s)
{
	static struct sk_err err;

	err.text[0] = 0;
	(void)sk_cat_missing(s, &err);
	return err.text;
}

/* All checksums but the first are 0. */
static int add_stored(struct bench *b, struct sk_cat_found found,
		      struct sk_cat_layout *l, uint64_t sum,
		      struct sk_err *err)
{
	uint64_t *sums = calloc(l->layout->n_sums + 1u, sizeof(*sums));

	sums[0] = sum;
	sk_cat_hash_sums(l->layout, sums, found.content);
	free(sums);
	return sk_cat_stored_add(job_of(b), &found, l, err);
}

static int store_as(struct bench *b, uint64_t run, uint64_t id, int64_t step,
		    int rank, uint64_t sum, struct sk_err *err)
{
	struct sk_cat_layout *l = take(b, "job", rank, 2, SK_IMAGE_PRIMARY,
				       false);
	struct sk_cat_found found = {
		.run = run, .run_id = id, .step = step, .dir = "step-1",
		.file.mtime_ns = 1 };

	return add_stored(b, found, l, sum, err);
}

static int store(struct bench *b, uint64_t run, int64_t step, int rank,
		 uint64_t sum, struct sk_err *err)
{
	const struct sk_cat_run *known = sk_cat_run_find(job_of(b), run, 0);

	return store_as(b, run, known ? known->id : 1000 + run, step, rank,
			sum, err);
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
	cr_assert_eq(open_run(&b, 0, 0, 1, 2, &run, &err),
		     -EEXIST);
	cr_assert(strstr(err.text, "two jobs of one name? Or a state"));
	cr_assert_eq(open_run(&b, 1, 0, 1, 2, &run, &err),
		     -EEXIST);
	cr_assert_eq(open_run(&b, 1, 0, 2, 3, &run, &err),
		     -EINVAL, "another world");
	/* One died: whoever comes is of the next run, the other included. */
	sk_cat_state_end(c);
	c = enter(&b, 0, 1, 2, 2);
	cr_assert_eq(c->run->number, 2);
	cr_assert_eq(open_run(&b, 1, 0, 1, 2, &run, &err),
		     -ESTALE);
	sk_cat_state_end(a);
	cr_assert_eq(enter(&b, 0, 0, 2, 2)->run->number, 2);
	/* An explicit number leaps, and 0 goes on from there. */
	cr_assert_eq(enter(&b, 10, 0, 1, 2)->run->number, 10);
	sk_cat_state_end(sk_cat_state_find(
		sk_cat_run_find(job_of(&b), 10, 0), 0));
	cr_assert_eq(enter(&b, 0, 0, 1, 2)->run->number, 11);
	end(&b);
}

/* A job lives as long as none of its ranks has gone: another one of its name
 * is kept out, whatever its world. */
Test(catalogue, a_living_job_is_not_replaced)
{
	struct sk_cat_state *a, *c;
	struct sk_cat_run *run;
	struct sk_err err;
	struct bench b;

	start(&b);
	a = enter(&b, 0, 0, 2, 2);
	c = enter(&b, 0, 1, 2, 2);
	for (int world = 1; world < 5; world++)
		cr_assert_eq(open_run(&b, 0, 0, 0, world, &run, &err),
			     -EEXIST, "world %d", world);
	cr_assert(strstr(err.text, "two jobs of one name?"), "%s", err.text);
	/* Nor by one whose agent was lost, and which comes back. */
	cr_assert_eq(open_run(&b, 1, 99, 0, 2, &run, &err), -EEXIST);
	/* One rank has gone: what comes now is a restart, or its ranks move
	 * to the run that those of other agents are in. */
	sk_cat_state_end(c);
	cr_assert_eq(open_run(&b, 1, 99, 1, 2, &run, &err), 0);
	cr_assert_eq(run->id, 99);
	cr_assert_eq(enter(&b, 0, 0, 3, 2)->run->number, 2);
	sk_cat_state_end(a);
	end(&b);
}

/* A number that was given is one life, and not used again. */
Test(catalogue, numbers_are_used_once)
{
	struct sk_cat_state *a;
	struct sk_cat_run *run;
	struct sk_err err;
	struct bench b;
	uint64_t id;

	start(&b);
	a = enter(&b, 7, 0, 2, 2);
	id = a->run->id;
	cr_assert_eq(enter(&b, 7, 1, 2, 2)->run, a->run);
	sk_cat_state_end(a);
	cr_assert_eq(open_run(&b, 7, 0, 0, 2, &run, &err), -ESTALE);
	cr_assert(strstr(err.text, "has lost a rank"), "%s", err.text);
	/* Whoever was in it and lost its connection knows the id. */
	cr_assert_eq(open_run(&b, 7, id, 0, 2, &run, &err), 0);
	cr_assert_eq(run, a->run);
	end(&b);
}

Test(catalogue, numbers_on_disk_are_used_up)
{
	struct sk_cat_run *run;
	struct sk_err err;
	struct bench b;

	start(&b);
	sk_cat_run_seen(job_of(&b), 41);
	cr_assert_eq(open_run(&b, 41, 0, 0, 1, &run, &err), -ESTALE);
	cr_assert_eq(open_run(&b, 12, 0, 0, 1, &run, &err), -ESTALE);
	/* A rank that comes back to another agent names its life. */
	cr_assert_eq(open_run(&b, 41, 5, 0, 1, &run, &err), 0);
	cr_assert(run->number == 41 && run->id == 5);
	end(&b);
}

/* No number that anybody says leaves a job without a next one. */
Test(catalogue, run_numbers_are_bounded)
{
	static const uint64_t bad[] = { SK_RUN_GIVEN_MAX + 1, SK_RUN_MAX,
		INT64_MAX - 1, INT64_MAX, (uint64_t)INT64_MAX + 1,
		UINT64_MAX };
	struct sk_cat_run *run;
	struct sk_err err;
	struct bench b;

	start(&b);
	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		cr_assert_eq(open_run(&b, bad[i], 0, 0, 1, &run, &err),
			     -EINVAL);
		cr_assert(strstr(err.text, "out of range"), "%s", err.text);
	}
	cr_assert_eq(store_as(&b, SK_RUN_MAX + 1, 3, 1, 0, 0, &err), -EINVAL);
	cr_assert_eq(store_as(&b, 1, 0, 1, 0, 0, &err), -EINVAL, "no id");
	sk_cat_state_end(enter(&b, SK_RUN_GIVEN_MAX, 0, 1, 2));
	for (uint64_t i = 1; i < 100; i++) {
		struct sk_cat_state *s = enter(&b, 0, 0, 1, 2);

		cr_assert_eq(s->run->number, SK_RUN_GIVEN_MAX + i);
		sk_cat_state_end(s);
	}
	sk_cat_run_seen(job_of(&b), SK_RUN_MAX);
	cr_assert_eq(open_run(&b, 0, 0, 0, 1, &run, &err), -EOVERFLOW);
	end(&b);
}

/* Two agents gave one number to two lives: what one has on disk is not the
 * other's, completes nothing of it, and takes no memory from it. */
Test(catalogue, strangers_of_one_number_are_not_mixed)
{
	struct sk_cat_snapshot *mine, *theirs;
	struct sk_cat_state *s[2];
	struct sk_err err;
	struct bench b;

	start(&b);
	for (int i = 0; i < 2; i++)
		s[i] = enter(&b, 0, i, 2, 2);
	snap(&b, s[0], 5);
	cr_assert_eq(store_as(&b, 1, 77, 5, 1, 0, &err), 0, "%s", err.text);
	cr_assert_eq(store_as(&b, 1, 77, 9, 0, 0, &err), 0, "%s", err.text);
	cr_assert_eq(store_as(&b, 1, 77, 9, 1, 0, &err), 0, "%s", err.text);
	mine = sk_cat_snapshot_find(job_of(&b), 1, s[0]->run->id, 5);
	theirs = sk_cat_snapshot_find(job_of(&b), 1, 77, 5);
	cr_assert(mine && theirs && mine != theirs);
	cr_assert(!sk_cat_complete(mine) && !sk_cat_complete(theirs));
	snap(&b, s[1], 5);
	cr_assert(sk_cat_complete(mine) && !sk_cat_on_disk(mine));
	cr_assert(!sk_cat_complete(theirs));
	/* Theirs is the newest there is, and ours stays all the same. */
	cr_assert_eq(sk_cat_newest(job_of(&b))->run_id, 77);
	cr_assert_str_eq(sk_cat_protected(mine),
			 "the newest complete snapshot");
	cr_assert_null(sk_cat_protected(theirs));
	/* Also while a later one of ours is half there. */
	snap(&b, s[0], 6);
	cr_assert_str_eq(sk_cat_protected(mine),
			 "the newest complete snapshot");
	cr_assert(strstr(sk_cat_protected(sk_cat_snapshot_find(
		job_of(&b), 1, s[0]->run->id, 6)), "may still become"));
	end(&b);
}

/* Of no step in particular: the newest that is complete, else the newest. */
/* Whoever has read an image has hashed its checksums, and not on the thread
 * that seals it. */
Test(catalogue, hashes_are_taken_as_they_are)
{
	uint64_t content[2][2] = { { 3, 7 } };
	struct sk_cat_slot *slots[2];
	uint64_t *sums[2] = { NULL, NULL };
	struct sk_cat_image *image;
	struct sk_cat_state *state;
	struct bench b;

	start(&b);
	state = enter(&b, 0, 0, 1, 2);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(fill(state, i, &slots[i]), 0);
		sums[0] = calloc(64, sizeof(uint64_t));
		cr_assert_eq(sk_cat_slot_seal(slots[i], sums,
					      i ? NULL : content, 1), 0);
	}
	cr_assert_eq(slots[0]->images[0]->content[0], 3);
	cr_assert_eq(slots[0]->images[0]->content[1], 7);
	/* Where nobody has, they are made. */
	image = slots[1]->images[0];
	sk_cat_hash_sums(image->layout->layout, image->sums, slots[0]->images[0]
			 ->content);
	cr_assert(sk_cat_same_content(image, image->layout->layout,
				      slots[0]->images[0]->content));
	end(&b);
}

Test(catalogue, the_newest_of_a_run)
{
	struct sk_cat_state *ranks[2];
	struct sk_cat_job *job;
	struct bench b;

	start(&b);
	job = job_of(&b);
	for (int i = 0; i < 2; i++)
		ranks[i] = enter(&b, 0, i, 2, 3);
	for (int64_t step = 5; step <= 6; step++)
		for (int i = 0; i < 2; i++)
			snap(&b, ranks[i], step);
	for (int i = 0; i < 2; i++)
		sk_cat_state_end(ranks[i]);
	ranks[0] = enter(&b, 0, 0, 2, 3);
	cr_assert_eq(ranks[0]->run->number, 2);
	snap(&b, ranks[0], 7);
	cr_assert_eq(sk_cat_snapshot_find(job, 1, 0, -1)->step, 6);
	cr_assert_eq(sk_cat_snapshot_find(job, 2, 0, -1)->step, 7);
	cr_assert_eq(sk_cat_snapshot_find(job, 0, 0, -1)->step, 6);
	cr_assert_null(sk_cat_snapshot_find(job, 3, 0, -1));
	end(&b);
}

Test(catalogue, runs_on_disk_count)
{
	struct sk_cat_layout *l;
	struct bench b;

	start(&b);
	l = take(&b, "job", 0, 1, SK_IMAGE_PRIMARY, false);
	cr_assert_eq(add_stored(&b, (struct sk_cat_found){
		.run = 41, .run_id = 7, .step = 5, .dir = "step-5" }, l, 0,
		NULL), 0);
	cr_assert(sk_cat_complete(find(&b, 41, 5)));
	cr_assert(sk_cat_on_disk(find(&b, 41, 5)));
	cr_assert_eq(enter(&b, 0, 0, 1, 2)->run->number, 42);
	end(&b);
}

/* ---- places among snapshots ---- */

/* They are got in no order, and found in theirs by somebody who is under way
 * while they come and go. */
Test(catalogue, a_cursor_stays_good)
{
	static const int steps[] = { 5, 1, 9, 7, 3, 8, 2, 6, 4 };
	struct sk_cat_cursor c = { .job = NULL };
	struct sk_cat_snapshot *s;
	struct bench b;

	start(&b);
	for (size_t i = 0; i < SK_ARRAY_SIZE(steps); i++)
		cr_assert_eq(store(&b, 1, steps[i], 0, 1, NULL), 0);
	sk_cat_cursor_begin(&c, job_of(&b));
	for (int step = 9; step > 6; step--, sk_cat_cursor_next(&c))
		cr_assert_eq(sk_cat_cursor_at(&c)->step, step);
	/* The one that it stands on goes, and the one after it, and others
	 * come on both sides. */
	for (int step = 6; step > 4; step--) {
		s = find(&b, 1, step);
		sk_cat_stored_remove(sk_cat_image_find(s, 0,
						       SK_IMAGE_PRIMARY));
	}
	cr_assert_eq(sk_cat_cursor_at(&c)->step, 4);
	cr_assert_eq(store(&b, 1, 5, 0, 1, NULL), 0);
	cr_assert_eq(store(&b, 2, 1, 0, 1, NULL), 0);
	cr_assert_eq(store(&b, 1, 0, 0, 1, NULL), 0);
	for (int step = 4; step >= 0; step--, sk_cat_cursor_next(&c))
		cr_assert_eq(sk_cat_cursor_at(&c)->step, step);
	cr_assert_null(sk_cat_cursor_at(&c));
	sk_cat_cursor_end(&c);
	sk_cat_cursor_begin(&c, job_of(&b));
	end(&b);
	cr_assert_null(sk_cat_cursor_at(&c), "the job has gone");
}

/* However many there are, one is found beside the one before. */
static uint64_t visits_to_store(int steps, bool down)
{
	uint64_t visits;
	struct bench b;

	start(&b);
	for (int i = 0; i < steps; i++)
		cr_assert_eq(store(&b, 1, down ? steps - i : i, 0, 1, NULL),
			     0);
	for (int i = 0; i < steps; i++)
		cr_assert_not_null(find(&b, 1, down ? steps - i : i));
	visits = b.cat.visits;
	end(&b);
	return visits / (uint64_t)steps;
}

Test(catalogue, snapshots_in_order_cost_the_same_each)
{
	cr_assert_leq(visits_to_store(2000, false), 6);
	cr_assert_leq(visits_to_store(2000, true), 6);
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
	struct sk_cat_image *image;
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
	/* A disk that fails does not take the slot as well. */
	sk_cat_set_failure(one, "as if the disk were full");
	cr_assert_null(sk_cat_protected(one));
	sk_cat_set_failure(one, NULL);
	one->hopeless_on_disk = true;
	cr_assert_null(sk_cat_protected(one));
	cr_assert(!sk_cat_flushable(one), "it would not help");
	one->hopeless_on_disk = false;
	cr_assert_eq(add_stored(&b, (struct sk_cat_found){
		.run = 1, .run_id = one->run_id, .step = 1, .dir = "step-1" },
		take(&b, "job", 0, 1, SK_IMAGE_PRIMARY, false), 0, NULL), 0);
	cr_assert_null(sk_cat_protected(one));
	/* A bad image is no image. */
	image = sk_cat_image_find(find(&b, 1, 2), 0, SK_IMAGE_PRIMARY);
	sk_cat_image_bad(image, false, 1);
	cr_assert(!sk_cat_complete(find(&b, 1, 2)));
	cr_assert_str_eq(sk_cat_damaged(image, false),
			 image->layout->layout->items[0].spec.name);
	sk_cat_image_bad(image, true, image->layout->layout->n_entries + 1);
	cr_assert_null(sk_cat_damaged(image, true));
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

/* Two ranks, of which step 1 is complete, and one of them has sealed step 2. */
static void start_half_way(struct bench *b, struct sk_cat_state *s[2])
{
	start(b);
	for (int i = 0; i < 2; i++)
		s[i] = enter(b, 0, i, 2, 2);
	snap(b, s[0], 1);
	snap(b, s[1], 1);
	snap(b, s[0], 2);
}

/* A rank that skips a step must not block the others for good. */
Test(catalogue, a_lost_step_makes_room)
{
	struct sk_cat_state *s[2];
	struct sk_cat_slot *slot;
	struct bench b;

	start_half_way(&b, s);
	cr_assert(!sk_cat_hopeless(find(&b, 1, 2)));
	cr_assert_eq(fill(s[0], 3, &slot), -EBUSY,
		     "step 2 may still become complete");
	cr_assert_eq(fill(s[1], 2, &slot), 0);
	sk_cat_slot_clear(slot);
	cr_assert(sk_cat_hopeless(find(&b, 1, 2)));
	cr_assert_eq(fill(s[0], 3, &slot), 0);
	cr_assert(sk_cat_complete(find(&b, 1, 1)), "the older one stands");
	end(&b);
}

/* All have sealed, and what there is is not all: it stays so, and makes room
 * for what comes once the description was mended. */
Test(catalogue, what_nobody_describes_is_not_waited_for)
{
	struct sk_cat_state *s[2];
	struct sk_cat_slot *slot;
	struct bench b;

	start(&b);
	s[0] = enter(&b, 0, 0, 2, 2);
	b.lacking = true;
	s[1] = enter(&b, 0, 1, 2, 2);
	for (int64_t step = 1; step < 3; step++) {
		snap(&b, s[0], step);
		cr_assert(!sk_cat_hopeless(find(&b, 1, step)),
			  "rank 1 may bring the rest");
		snap(&b, s[1], step);
		cr_assert(!sk_cat_complete(find(&b, 1, step)));
		cr_assert(sk_cat_hopeless(find(&b, 1, step)));
	}
	cr_assert_eq(fill(s[0], 3, &slot), 0);
	cr_assert_eq(fill(s[1], 3, &slot), 0);
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

/* One that has a slot, and describes more before it fills it, will ask for
 * that step again; who goes on to the next one does not. */
Test(catalogue, a_rank_that_registers_anew_has_lost_nothing)
{
	struct sk_cat_layout *layouts[2] = { NULL, NULL };
	struct sk_cat_state *s[2], *next;
	struct sk_cat_slot *slot;
	struct bench b;

	start_half_way(&b, s);
	cr_assert_eq(fill(s[1], 2, &slot), 0);
	layouts[0] = take(&b, "job", 1, 2, SK_IMAGE_PRIMARY, false);
	next = sk_cat_state_new(s[1]->run, 1, layouts);
	cr_assert_eq(sk_cat_state_replace(s[1], next), 1);
	cr_assert(!sk_cat_hopeless(find(&b, 1, 2)));
	cr_assert(sk_cat_slot_add(next, (uint64_t[]){ 8192, 0 }, NULL));
	cr_assert_eq(fill(next, 3, &slot), 0);
	cr_assert(sk_cat_hopeless(find(&b, 1, 2)));
	end(&b);
}

/* ---- death ---- */

Test(catalogue, death_while_filling)
{
	struct sk_cat_state *s[2], *next;
	struct sk_cat_slot *slot;
	struct bench b;

	start_half_way(&b, s);
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

/* One rank is back before the other, and takes a snapshot: what both had is
 * still the newest. A second one tells that the other is elsewhere. */
Test(catalogue, who_comes_first_takes_nothing_away)
{
	struct sk_cat_state *s[2], *first;
	struct sk_cat_snapshot *both;
	struct bench b;

	start(&b);
	for (int i = 0; i < 2; i++)
		s[i] = enter(&b, 0, i, 2, 2);
	for (int i = 0; i < 2; i++)
		snap(&b, s[i], 10);
	both = find(&b, 1, 10);
	for (int i = 0; i < 2; i++)
		sk_cat_state_end(s[i]);
	first = enter(&b, 0, 0, 2, 2);
	snap(&b, first, 11);
	cr_assert(sk_cat_local(find(&b, 2, 11)));
	cr_assert_eq(sk_cat_newest(job_of(&b)), both);
	cr_assert_str_eq(sk_cat_protected(both),
			 "the newest complete snapshot");
	cr_assert(sk_cat_protected(find(&b, 2, 11)));
	snap(&b, first, 12);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 2, 12));
	cr_assert_null(sk_cat_protected(find(&b, 2, 11)));
	end(&b);
}

/* Where there is nothing else, it is what would be lost. */
Test(catalogue, a_first_local_snapshot_counts)
{
	struct sk_cat_state *s;
	struct bench b;

	start(&b);
	s = enter(&b, 0, 0, 2, 2);
	snap(&b, s, 1);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 1));
	end(&b);
}

/* Who registers after the other one has sealed was no other agent's. */
Test(catalogue, who_comes_late_had_not_been_elsewhere)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_state *late;
	struct sk_err err = { "" };
	struct bench b;

	start(&b);
	snap(&b, enter(&b, 0, 0, 2, 2), 10);
	s = find(&b, 1, 10);
	cr_assert(sk_cat_local(s) && s->elsewhere);
	cr_assert_eq(sk_cat_missing(s, &err), -ENODATA);
	cr_assert(strstr(err.text, "another agent"), "%s", err.text);
	late = enter(&b, 0, 1, 2, 2);
	cr_assert_eq(late->run->number, 1);
	cr_assert_not(sk_cat_complete(s));
	sk_cat_state_end(late);
	cr_assert_not(sk_cat_complete(s));
	cr_assert_not(sk_cat_local(s));
	cr_assert_not(s->elsewhere);
	cr_assert_eq(sk_cat_missing(s, &err), -ENODATA);
	cr_assert_not(strstr(err.text, "another agent"), "%s", err.text);
	end(&b);
}

/* On a store that nodes share, what the others wrote makes a snapshot complete
 * before it was ever local here, as after a restart of the agent: that it has
 * their images tells as well that they are elsewhere, and the next one is not
 * kept for ranks that never come. */
Test(catalogue, who_shares_a_store_is_not_waited_for)
{
	struct sk_cat_state *s;
	struct sk_cat_slot *slot;
	struct bench b;

	start(&b);
	s = enter(&b, 0, 0, 2, 2);
	cr_assert_eq(store_as(&b, 1, s->run->id, 10, 1, 0, NULL), 0);
	snap(&b, s, 10);
	cr_assert(sk_cat_complete(find(&b, 1, 10)));
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 10));
	snap(&b, s, 11);
	cr_assert(sk_cat_local(find(&b, 1, 11)));
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 11));
	cr_assert_eq(fill(s, 12, &slot), 0, "there is a slot for the next");
	end(&b);
}

/* ---- what a run began with ---- */

/* For so many slots. */
static int make_room(struct bench *b, unsigned n, enum sk_cat_turn until,
		     struct sk_err *err)
{
	return sk_cat_make_room(&b->cat, n * 8192, 0, until, job_of(b), err);
}

/* One of two ranks, with steps up to @last of a run that has ended, and in its
 * next life, with @slots of its own. */
static struct sk_cat_state *come_back(struct bench *b, int64_t last,
				      unsigned slots)
{
	struct sk_cat_state *s;

	start(b);
	s = enter(b, 0, 0, 2, 3);
	for (int64_t step = last - 2; step <= last; step++)
		snap(b, s, step);
	sk_cat_state_end(s);
	cr_assert_eq(sk_cat_newest(job_of(b)), find(b, 1, last));
	return enter(b, 0, 0, 2, slots);
}

static void begin(struct bench *b, const struct sk_cat_state *state,
		  uint64_t run, int64_t step, bool newest)
{
	const struct sk_cat_begun with = {
		.run = run, .run_id = find(b, run, step)->run_id,
		.step = step, .newest = newest };

	sk_cat_run_began(state->run, &with);
}

/* The other node is a step behind: what both had stays until there is more of
 * the new life than one step of this node's, and what is newer goes first. */
Test(catalogue, what_all_nodes_had_stays)
{
	struct sk_cat_state *next;
	struct sk_err err;
	struct bench b;

	next = come_back(&b, 10, 2);
	cr_assert_eq(sk_cat_turn(find(&b, 1, 10)), SK_CAT_STAYS);
	begin(&b, next, 1, 9, true);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 9));
	cr_assert_eq(sk_cat_snapshot_find(job_of(&b), 0, 0, -1),
		     find(&b, 1, 9));
	cr_assert_str_eq(sk_cat_protected(find(&b, 1, 9)),
			 "the newest complete snapshot");
	cr_assert(sk_cat_passed_over(find(&b, 1, 10)));
	cr_assert_null(sk_cat_protected(find(&b, 1, 10)));
	b.cat.budget = b.cat.used;
	cr_assert_eq(make_room(&b, 1, SK_CAT_AS_OLD, &err), 1);
	cr_assert(!find(&b, 1, 10) && find(&b, 1, 8));
	snap(&b, next, 10);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 9));
	snap(&b, next, 11);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 2, 11));
	cr_assert_null(sk_cat_protected(find(&b, 1, 9)));
	end(&b);
}

/* Who dies again before that begins with it once more, and what the life in
 * between had goes as well. */
Test(catalogue, what_all_nodes_had_stays_again)
{
	struct sk_cat_state *next;
	struct bench b;

	next = come_back(&b, 10, 3);
	begin(&b, next, 1, 9, true);
	snap(&b, next, 10);
	snap(&b, next, 11);
	sk_cat_state_end(next);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 2, 11));
	next = enter(&b, 0, 0, 2, 2);
	begin(&b, next, 1, 9, true);
	cr_assert_eq(next->run->number, 3);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 9));
	cr_assert_eq(sk_cat_turn(find(&b, 2, 10)), SK_CAT_FIRST);
	cr_assert_eq(sk_cat_turn(find(&b, 2, 11)), SK_CAT_FIRST);
	end(&b);
}

/* All slots that a rank has hold what it began with, and the first one since:
 * the third one comes about all the same. */
Test(catalogue, what_a_run_began_with_is_in_nobodys_way)
{
	const uint64_t kinds[2] = { 8192, 0 };
	struct sk_cat_state *next;
	struct sk_cat_slot *slot;
	struct bench b;

	next = come_back(&b, 10, 0);
	begin(&b, next, 1, 9, true);
	sk_cat_evict_memory(find(&b, 1, 8));
	while (next->n_slots < 2)
		cr_assert(sk_cat_slot_adopt(next, kinds, NULL));
	cr_assert_eq(fill(next, 10, &slot), 0);
	cr_assert(!find(&b, 1, 10), "what is passed over goes first");
	seal(&b, slot);
	cr_assert_eq(sk_cat_turn(find(&b, 1, 9)), SK_CAT_FOLLOWED);
	cr_assert(sk_cat_protected(find(&b, 1, 9)));
	cr_assert_eq(fill(next, 11, &slot), 0);
	cr_assert(!find(&b, 1, 9));
	end(&b);
}

/* A step that somebody named is not the newest for that: what is, stays; and
 * the other one as long as there is something else to go. */
Test(catalogue, what_was_asked_for_goes_last)
{
	struct sk_cat_state *next;
	struct sk_err err;
	struct bench b;

	next = come_back(&b, 10, 2);
	begin(&b, next, 1, 8, false);
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 1, 10));
	cr_assert_eq(sk_cat_turn(find(&b, 1, 10)), SK_CAT_STAYS);
	cr_assert_eq(sk_cat_turn(find(&b, 1, 9)), SK_CAT_AS_OLD);
	cr_assert_eq(sk_cat_turn(find(&b, 1, 8)), SK_CAT_LAST);
	cr_assert_str_eq(sk_cat_protected(find(&b, 1, 8)),
			 "what its job was restored from");
	b.cat.budget = b.cat.used;
	cr_assert_eq(make_room(&b, 1, SK_CAT_AS_OLD, &err), 1);
	cr_assert(find(&b, 1, 8) && !find(&b, 1, 9));
	cr_assert_eq(make_room(&b, 2, SK_CAT_AS_OLD, &err), -ENOMEM);
	cr_assert_eq(make_room(&b, 2, SK_CAT_LAST, &err), 1);
	cr_assert(!find(&b, 1, 8) && find(&b, 1, 10));
	end(&b);
}

/* Nor is what is whole passed over, or what comes of a run that nobody has
 * judged; and a life before has no say any more. */
Test(catalogue, nothing_whole_is_passed_over)
{
	struct sk_cat_state *next, *old;
	struct bench b;

	next = come_back(&b, 10, 2);
	old = next;
	snap(&b, next, 20);
	snap(&b, next, 21);
	sk_cat_state_end(next);
	next = enter(&b, 0, 0, 2, 2);
	begin(&b, next, 1, 9, true);
	cr_assert_eq(store_as(&b, 2, find(&b, 2, 21)->run_id, 21, 1, 0, NULL),
		     0);
	cr_assert(sk_cat_complete(find(&b, 2, 21)));
	cr_assert(!sk_cat_passed_over(find(&b, 2, 21)));
	cr_assert(sk_cat_passed_over(find(&b, 2, 20)));
	cr_assert_eq(sk_cat_newest(job_of(&b)), find(&b, 2, 21));
	begin(&b, old, 1, 10, true);
	cr_assert_eq(job_of(&b)->begun.step, 9, "of an older run");
	snap(&b, next, 10);
	cr_assert(!sk_cat_passed_over(find(&b, 3, 10)));
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
	cr_assert_eq(open_run(&b, 0, 0, 0, 2, &run, &err), 0);
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
		cr_assert_eq(sk_cat_slot_seal(slot, sums, NULL, 1), 0);
		snapshot = slot->snapshot;
		cr_assert(!sk_cat_complete(snapshot), "the other one may seal");
		sk_cat_state_end(s[1 - i]);
		cr_assert(sk_cat_complete(snapshot), "%s", why(snapshot));
	}
	end(&b);
}

/* ---- what nobody has read yet ---- */

/* It is charged as its slots will be, and the job stays, though there is
 * nothing of it. */
Test(catalogue, unread)
{
	const struct sk_cat_amount slots = { 16384, 2 };
	struct sk_cat_state *other;
	struct sk_err err;
	struct bench b;

	start(&b);
	b.cat.budget = 32768;
	b.cat.budget_fds = 4;
	other = enter(&b, 0, 0, 1, 1);
	sk_cat_state_end(other);
	sk_cat_job_unread(job_of(&b), &slots);
	cr_assert_eq(b.cat.n_unread, 1);
	cr_assert_eq(b.cat.used, 16384 + 8192);
	cr_assert_eq(b.cat.used_fds, 3);
	/* Nothing of it can go. */
	cr_assert_eq(sk_cat_make_room(&b.cat, 8192 + 16384, 1, SK_CAT_AS_OLD,
				      job_of(&b), &err), -ENOMEM);
	cr_assert_eq(sk_cat_make_room(&b.cat, 8192, 3, SK_CAT_AS_OLD,
				      job_of(&b), &err), -EMFILE);
	(void)sk_cat_trim_free(&b.cat, NULL);
	cr_assert(!sk_cat_job_trim(job_of(&b)), "it is gone");
	cr_assert_eq(b.cat.used, 16384);
	sk_cat_job_was_read(job_of(&b));
	cr_assert_eq(b.cat.n_unread, 0);
	cr_assert_eq(b.cat.used, 0);
	cr_assert_eq(b.cat.used_fds, 0);
	cr_assert(sk_cat_job_trim(job_of(&b)), "it stays");
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
	cr_assert_eq(make_room(&b, 3, SK_CAT_LAST, &err), -ENOMEM);
	cr_assert(strstr(err.text, "job 24.0 KiB"), "%s", err.text);
	cr_assert(strstr(err.text, "of the budget of 24.0 KiB only 16.0 KiB "
			 "can be had; held by: job"), "%s", err.text);
	cr_assert(find(&b, 1, 1), "nothing goes for nothing");
	/* It was larger: who asks for nothing more is told that, too. */
	b.cat.budget = 4096;
	cr_assert_eq(make_room(&b, 0, SK_CAT_LAST, &err), -ENOMEM);
	cr_assert(strstr(err.text, "the slots that it had, but 8.0 KiB that "
			 "cannot go are more than the budget of 4.0 KiB"), "%s", err.text);
	b.cat.budget = b.cat.used;
	cr_assert_eq(make_room(&b, 1, SK_CAT_AS_OLD, &err), 0);
	cr_assert_eq(make_room(&b, 2, SK_CAT_AS_OLD, &err), 1);
	cr_assert(!find(&b, 1, 1));
	cr_assert(find(&b, 1, 2));
	cr_assert_eq(b.released, 2);
	/* The successor may take the last one with the image in it. */
	other = enter(&b, 0, 0, 1, 0);
	cr_assert(sk_cat_slot_adopt(other, (uint64_t[]){ 8192, 0 }, NULL));
	cr_assert(sk_cat_complete(find(&b, 1, 2)));
	cr_assert_eq(fill(other, 3, &slot), -EBUSY,
		     "its only slot holds the newest complete snapshot");
	end(&b);
}

/* ---- images ---- */

#define MANY 48

static void expect_images(struct bench *b, const bool *there)
{
	const struct sk_cat_snapshot *s = find(b, 1, 1);
	const struct sk_cat_image *image;
	int next = 0;

	cr_assert(s);
	for (int r = 0; r < MANY; r++) {
		image = sk_cat_image_find(s, r, SK_IMAGE_PRIMARY);
		cr_assert_eq(image != NULL, there[r]);
		cr_assert(!image || (image->rank == r &&
				     sk_cat_image_by_id(&b->cat, image->id) ==
				     image));
		cr_assert_null(sk_cat_image_find(s, r, SK_IMAGE_REPLICA));
	}
	sk_link_each(image, &s->images, link) {
		while (!there[next])
			next++;
		cr_assert_eq(image->rank, next++);
	}
}

/* Whatever order they come and go in, they stand by rank. */
Test(catalogue, images_stand_by_rank)
{
	struct sk_cat_state *states[MANY];
	bool there[MANY] = { false };
	struct sk_cat_slot *slot;
	struct bench b;

	start(&b);
	for (int r = 0; r < MANY; r++)
		states[r] = enter(&b, 1, r, MANY, 1);
	/* Never all at once, nor none: neither may be let go of. */
	for (int i = 0, r = 5; i < 1000; i++, r = (r * 29 + i) % (MANY - 1)) {
		if (there[r]) {
			slot = sk_link_object(states[r]->slots.next,
					      struct sk_cat_slot, link);
			sk_cat_slot_clear(slot);
		} else {
			snap(&b, states[r], 1);
		}
		there[r] = !there[r];
		if (find(&b, 1, 1))
			expect_images(&b, there);
	}
	end(&b);
}

/* One layout for all that are alike, as long as anybody has it. */
Test(catalogue, layouts_are_shared)
{
	struct sk_cat_layout *l[MANY];
	struct bench b;

	start(&b);
	for (int r = 0; r < MANY; r++)
		l[r] = take(&b, "job", r, MANY, SK_IMAGE_PRIMARY, false);
	for (int r = 0; r < MANY; r++) {
		cr_assert_eq(take(&b, "job", r, MANY, SK_IMAGE_PRIMARY, false),
			     l[r]);
		cr_assert_eq(l[r]->refs, 2);
		for (int k = 0; k < r; k++)
			cr_assert_neq(l[r], l[k]);
	}
	cr_assert_eq(b.cat.layouts.count, MANY);
	for (int r = 0; r < MANY; r++) {
		sk_cat_layout_unref(l[r]);
		sk_cat_layout_unref(l[r]);
	}
	end(&b);
}

static int room_for(struct bench *b, uid_t uid, const struct sk_layout *l)
{
	return sk_cat_room_for_layouts(&b->cat, uid,
				       (const struct sk_layout *[2]){ l, NULL },
				       NULL);
}

/* What a user has is no more where it is described once again, whatever the
 * bound is by then; another user has nothing of it. */
Test(catalogue, a_description_is_counted_once)
{
	struct sk_layout *same, *other;
	struct sk_cat_layout *l[2] = { NULL, NULL };
	const struct sk_cat_ask ask = { .fresh_id = 1, .world = 2 };
	struct sk_cat_run *run;
	struct bench b;

	start(&b);
	same = layout("job", 0, 2, SK_IMAGE_PRIMARY, false);
	other = layout("job", 1, 2, SK_IMAGE_PRIMARY, false);
	cr_assert_eq(sk_cat_run_open(sk_cat_job_get(&b.cat, "job", 7), &ask,
				     &run, NULL), 0);
	l[0] = take(&b, "job", 0, 2, SK_IMAGE_PRIMARY, false);
	cr_assert(sk_cat_state_new(run, 0, l));
	b.cat.user_layouts = sk_layout_memory(same);
	cr_assert_eq(room_for(&b, 7, same), 0);
	cr_assert_eq(room_for(&b, 7, other), -EDQUOT);
	cr_assert_eq(room_for(&b, 8, same), 0);
	b.cat.user_layouts = 1;
	cr_assert_eq(room_for(&b, 7, same), 0);
	cr_assert_eq(room_for(&b, 8, same), -EDQUOT);
	sk_layout_free(same);
	sk_layout_free(other);
	end(&b);
}

/* ---- disk ---- */

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
	cr_assert(!sk_cat_on_disk(snapshot));
	cr_assert_eq(store(&b, 1, 1, 1, 0, &err), 0);
	cr_assert(sk_cat_on_disk(snapshot));
	cr_assert_eq(sk_cat_image_by_id(&b.cat, id), image);
	/* Memory goes, the disk stays, and the other way round. */
	cr_assert(image->sums);
	cr_assert_eq(sk_cat_evict_memory(snapshot), 2);
	cr_assert(sk_cat_complete(find(&b, 1, 1)));
	/* What is kept of the checksums tells other bytes all the same. */
	cr_assert_null(image->sums);
	cr_assert_eq(store(&b, 1, 1, 0, 5, &err), -ESTALE);
	cr_assert_eq(store(&b, 1, 1, 0, 0, &err), 0, "%s", err.text);
	cr_assert_null(image->sums);
	cr_assert_eq(sk_cat_image_by_id(&b.cat, id), image);
	sk_cat_stored_remove(image);
	cr_assert(!sk_cat_complete(find(&b, 1, 1)));
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
	cr_assert_eq(used, job->used.bytes);
	sk_link_each(s, &job->snapshots, link) {
		cr_assert_eq(sk_cat_complete(s), whole(s), "seed %u, turn %d: run %d "
			     "step %d: %s", seed, turn, (int)s->run,
			     (int)s->step, why(s));
		cr_assert(!before ||
			  sk_cat_order(before->run, before->run_id,
				       before->step, s) > 0,
			  "seed %u, turn %d: order", seed, turn);
		before = s;
	}
}

static void live(unsigned seed)
{
	struct sk_cat_state *states[WORLD_MAX] = { NULL };
	int64_t step = 0, complete_step = 0;
	uint64_t newest_run = 0, newest_id = 0;
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
		cr_assert(sk_cat_order(newest_run, newest_id, newest_step,
				       newest) <= 0,
			  "seed %u, turn %d: the newest went back", seed,
			  turn);
		if (sk_cat_order(newest_run, newest_id, newest_step,
				       newest) < 0)
			complete_step = step;
		newest_run = newest->run;
		newest_id = newest->run_id;
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
