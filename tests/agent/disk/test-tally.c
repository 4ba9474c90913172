/* SPDX-License-Identifier: Apache-2.0 */
/* What a job has on disk, counted a portion at a time. */
#include "disk/tally.h"

#include <criterion/criterion.h>
#include <stdio.h>

#include "base/util.h"
#include "agent/disk/rows.h"

#define WORLD 2
#define STEPS 4
#define RUNS 2

struct desk {
	struct sk_catalogue cat;
	struct sk_cat_job *job;
};

static void begin(struct desk *d)
{
	*d = (struct desk){ 0 };
	sk_cat_init(&d->cat);
	d->cat.budget = UINT64_MAX;
	d->job = sk_cat_job_get(&d->cat, "job", 0);
	cr_assert(d->job);
}

/* The disk has all of it; a rank's image is as long as its number says. */
static void fill_step(struct desk *d, uint64_t run, int64_t step)
{
	char dir[32];

	(void)snprintf(dir, sizeof(dir), "run-%d-step-%d", (int)run,
		       (int)step);
	for (int rank = 0; rank < WORLD; rank++) {
		const struct sk_cat_found found = {
			.run = run, .run_id = run + 70, .dir = dir,
			.step = step + 10 * (int64_t)run,
			.file = { .bytes = 100 + (uint64_t)rank } };
		struct sk_err err = { "" };

		cr_assert_eq(sk_cat_stored_add(d->job, &found,
					       row_of(&d->cat, rank, WORLD),
					       &err), 0,
			     "%s", err.text);
	}
}

static void fill_disk(struct desk *d)
{
	for (uint64_t run = 1; run <= RUNS; run++)
		for (int64_t step = 1; step <= STEPS; step++)
			fill_step(d, run, step);
}

/* A rank of the run lives. */
static struct sk_cat_state *enter(struct desk *d, uint64_t run)
{
	const struct sk_cat_ask ask = { .run = run, .run_id = run + 70,
					.fresh_id = run, .world = WORLD };
	struct sk_cat_layout *layouts[2] = { row_of(&d->cat, 0, WORLD), NULL };
	struct sk_cat_state *state;
	struct sk_cat_run *ret;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cat_run_open(d->job, &ask, &ret, &err), 0, "%s",
		     err.text);
	state = sk_cat_state_new(ret, 0, layouts);
	cr_assert(state);
	return state;
}

/* Steps being filled, of which nothing is anywhere. */
static void fill_memory(struct desk *d)
{
	struct sk_cat_state *state = enter(d, RUNS);
	const uint64_t kinds[2] = { 8192, 0 };
	unsigned evicted;

	for (int64_t step = 1; step <= STEPS; step++) {
		struct sk_cat_slot *slot;

		cr_assert(sk_cat_slot_add(state, kinds, NULL));
		cr_assert_eq(sk_cat_slot_take(state, 100 + step, 0, false,
					      &slot, &evicted, NULL), 0);
	}
}

static struct tally *counted(struct desk *d, unsigned most, unsigned *calls)
{
	struct tally *t = tally_begin(d->job);
	int r;

	cr_assert(t);
	*calls = 0;
	do {
		r = tally_go_on(t, most);
		++*calls;
	} while (r > 0);
	cr_assert_eq(r, 0);
	return t;
}

static void check_step(const struct tally *t, uint64_t run, int64_t step)
{
	const struct tally_step *s;

	s = tally_step(t, run, run + 70, step + 10 * (int64_t)run, "");
	cr_assert(s, "run %d, step %d", (int)run, (int)step);
	cr_assert(s->on_disk && !s->in_use && !s->pinned);
	cr_assert_eq(s->bytes, 201);
	cr_assert_eq(tally_ranks(t, s)[0], 3);
}

static void check_steps(const struct tally *t)
{
	for (uint64_t run = 1; run <= RUNS; run++)
		for (int64_t step = 1; step <= STEPS; step++)
			check_step(t, run, step);
}

Test(tally, is_the_same_by_portions_of_any_size)
{
	struct desk d;
	unsigned calls;

	begin(&d);
	fill_disk(&d);
	for (unsigned most = 1; most < 30; most++) {
		struct tally *t = counted(&d, most, &calls);

		check_steps(t);
		(void)tally_free(t);
	}
	sk_cat_destroy(&d.cat);
}

/* By number and id: either alone is another one's. */
Test(tally, tells_runs_by_number_and_id)
{
	const struct tally_run *got;
	struct desk d;
	struct tally *t;
	unsigned calls;

	begin(&d);
	(void)enter(&d, RUNS);
	t = counted(&d, 1000, &calls);
	got = tally_run(t, RUNS, RUNS + 70);
	cr_assert(got && got->number == RUNS && got->id == RUNS + 70);
	cr_assert(got->living && !got->n_kept);
	cr_assert_not(tally_run(t, RUNS, RUNS + 71));
	cr_assert_not(tally_run(t, RUNS + 1, RUNS + 70));
	(void)tally_free(t);
	sk_cat_destroy(&d.cat);
}

/* What is being filled is in use, and costs as much as an image, for nobody
 * says how many of them there are. */
Test(tally, steps_without_images_are_counted_too)
{
	struct desk d;
	struct tally *t;
	unsigned calls;

	begin(&d);
	fill_memory(&d);
	t = counted(&d, 1, &calls);
	cr_assert_geq(calls, STEPS, "%u calls", calls);
	for (int64_t step = 1; step <= STEPS; step++) {
		const struct tally_step *s =
			tally_step(t, RUNS, RUNS + 70, 100 + step, "");

		cr_assert(s && s->in_use && !s->on_disk && !s->bytes);
	}
	cr_assert(tally_run(t, RUNS, RUNS + 70)->living);
	(void)tally_free(t);
	sk_cat_destroy(&d.cat);
}
