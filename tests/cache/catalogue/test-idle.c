/* SPDX-License-Identifier: Apache-2.0 */
/* What is done for one job looks at that one, however many others there are;
 * and what has gone is on no list any more. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "catalogue/private.h"

#define FEW 10
#define MANY 500
#define USER 1000u
#define SLOTS 2

static const uint64_t kinds[2] = { 4096, 0 };

static void cat_open(struct sk_catalogue *cat)
{
	sk_cat_init(cat);
	cat->budget = cat->user_budget = UINT64_MAX;
	cat->user_layouts = UINT64_MAX;
	cat->has_store = true;
}

static void cat_close(struct sk_catalogue *cat)
{
	sk_cat_destroy(cat);
	cr_assert_eq(cat->used, 0);
	cr_assert(sk_link_empty(&cat->users), "a user is left");
	cr_assert(sk_link_empty(&cat->detained), "a slot is left");
	cr_assert(sk_link_empty(&cat->failing), "a snapshot is left");
}

static struct sk_cat_layout *layout(struct sk_catalogue *cat)
{
	const struct sk_item item = { .spec = {
		.name = "w", .dtype = SK_F32, .ndim = 1, .shape = { 8 } } };
	struct sk_layout *l = NULL;

	cr_assert_eq(sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY, &item, 1, &l,
				   NULL), 0);
	return sk_cat_layout_take(cat, l);
}

static struct sk_cat_state *enter_as(struct sk_catalogue *cat,
				     const char *name, uid_t uid)
{
	const struct sk_cat_ask ask = { .world = 1,
					.fresh_id = 1 + cat->next_id };
	struct sk_cat_layout *layouts[2] = { layout(cat), NULL };
	struct sk_err err = { "" };
	struct sk_cat_state *state;
	struct sk_cat_run *run;

	cr_assert_eq(sk_cat_run_open(sk_cat_job_get(cat, name, uid), &ask,
				     &run, &err), 0, "%s", err.text);
	state = sk_cat_state_new(run, 0, layouts);
	cr_assert(state);
	state->flush_every = UINT32_MAX;
	for (int i = 0; i < SLOTS; i++)
		cr_assert(sk_cat_slot_add(state, kinds, NULL));
	return state;
}

static struct sk_cat_state *enter(struct sk_catalogue *cat, const char *name)
{
	return enter_as(cat, name, USER);
}

static struct sk_cat_snapshot *snapshot(struct sk_cat_state *state,
					int64_t step, uint64_t when)
{
	uint64_t *sums[2] = { calloc(8, sizeof(uint64_t)), NULL };
	struct sk_cat_slot *slot = NULL;
	struct sk_cat_snapshot *s;
	unsigned evicted;

	cr_assert_eq(sk_cat_slot_take(state, step, 0, false, &slot, &evicted,
				      NULL), 0);
	s = slot->snapshot;
	cr_assert_eq(sk_cat_slot_seal(slot, sums, NULL, when), 0);
	return s;
}

/* Each has two images, of which the older may go. */
static void make_idle(struct sk_catalogue *cat, int n)
{
	struct sk_cat_state *state;
	struct sk_cat_job *job;
	char name[16];

	for (int i = 0; i < n; i++) {
		(void)snprintf(name, sizeof(name), "idle-%d", i);
		state = enter(cat, name);
		job = state->run->job;
		for (int64_t step = 1; step <= SLOTS; step++)
			(void)snapshot(state, step, (uint64_t)(n - i));
		(void)sk_cat_state_end(state);
		cr_assert_not(sk_cat_job_trim(job));
	}
}

/* ---- what is looked at ---- */

static void ask_for_room(struct sk_catalogue *cat, struct sk_cat_state *state)
{
	struct sk_err err = { "" };

	cr_assert_eq(sk_cat_make_room(cat, 4096, 1, SK_CAT_AS_OLD,
				      state->run->job, &err), 0, "%s",
		     err.text);
}

static void ask_for_layouts(struct sk_catalogue *cat,
			    struct sk_cat_state *state)
{
	const struct sk_layout *const layouts[2] = {
		state->layouts[0]->layout, NULL };
	struct sk_err err = { "" };

	cr_assert_eq(sk_cat_room_for_layouts(cat, USER, layouts, &err), 0, "%s",
		     err.text);
}

static void trim_one(struct sk_catalogue *cat, struct sk_cat_state *state)
{
	(void)sk_cat_state_end(state);
	cr_assert_eq(sk_cat_trim_free(cat, state->run->job), SLOTS * kinds[0]);
}

static void detain_one(struct sk_catalogue *cat, struct sk_cat_state *state)
{
	sk_cat_state_detain(state, cat);
	(void)sk_cat_state_end(state);
	cr_assert_eq(sk_cat_detained(cat, cat), SLOTS * kinds[0]);
	sk_cat_detain_end(cat, cat);
	cr_assert_eq(sk_cat_detained(cat, NULL), 0);
}

typedef void deed_run(struct sk_catalogue *cat, struct sk_cat_state *state);

static uint64_t visits_of(deed_run *deed, int idle)
{
	struct sk_cat_state *state;
	struct sk_catalogue cat;
	uint64_t before;

	cat_open(&cat);
	make_idle(&cat, idle);
	state = enter(&cat, "one");
	before = cat.visits;
	deed(&cat, state);
	before = cat.visits - before;
	cat_close(&cat);
	return before;
}

Test(idle, what_is_done_for_one_looks_at_no_other)
{
	static deed_run *const deeds[] = {
		ask_for_room, ask_for_layouts, trim_one, detain_one,
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(deeds); i++)
		cr_assert_eq(visits_of(deeds[i], FEW),
			     visits_of(deeds[i], MANY), "deed %zu", i);
}

static uint64_t visits_to_evict(int n)
{
	struct sk_cat_state *state;
	struct sk_err err = { "" };
	struct sk_catalogue cat;
	uint64_t before;

	cat_open(&cat);
	make_idle(&cat, MANY);
	state = enter(&cat, "one");
	cat.budget = cat.used;
	before = cat.visits;
	cr_assert_eq(sk_cat_make_room(&cat, (uint64_t)n * kinds[0], 0,
				      SK_CAT_AS_OLD, state->run->job, &err), n,
		     "%s", err.text);
	/* They were the oldest. */
	for (int i = 0; i < MANY; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "idle-%d", i);
		cr_assert_eq(sk_cat_job_find(&cat, name, USER)->used.bytes,
			     (i < MANY - n ? 2 : 1) * kinds[0], "job %d", i);
	}
	before = cat.visits - before;
	cat_close(&cat);
	return before;
}

Test(idle, what_goes_is_not_looked_for_after_each)
{
	cr_assert_lt(visits_to_evict(20), visits_to_evict(1) + MANY);
	/* Once: what protects each of two takes four, and giving back one. */
	cr_assert_lt(visits_to_evict(1), 10 * MANY);
}

/* ---- who is on which list ---- */

Test(idle, a_user_has_so_many_ranks_and_takes_so_much)
{
	struct sk_cat_state *state, *next, *other;
	struct sk_catalogue cat;

	cat_open(&cat);
	cr_assert_eq(sk_cat_user_ranks(&cat, USER), 0);
	state = enter(&cat, "a");
	other = enter_as(&cat, "a", USER + 1);
	cr_assert_eq(sk_cat_user_ranks(&cat, USER), 1);
	cr_assert_eq(sk_cat_user_ranks(&cat, USER + 1), 1);
	cr_assert_eq(other->run->job->user->used.bytes, SLOTS * kinds[0]);
	next = sk_cat_state_new(state->run, 0, (struct sk_cat_layout *[2]){
		layout(&cat), NULL });
	cr_assert_eq(sk_cat_user_ranks(&cat, USER), 2);
	(void)sk_cat_state_replace(state, next);
	cr_assert_eq(sk_cat_user_ranks(&cat, USER), 1);
	cr_assert_eq(next->run->job->user->used.fds, 0, "they are free");
	(void)sk_cat_slot_add(next, kinds, NULL);
	cr_assert_eq(next->run->job->user->used.fds, 1);
	cr_assert_eq(next->run->job->user->used.bytes +
		     other->run->job->user->used.bytes, cat.used);
	sk_cat_state_cancel(next);
	cr_assert_eq(sk_cat_user_ranks(&cat, USER), 0);
	cr_assert_eq(cat.used, SLOTS * kinds[0]);
	cat_close(&cat);
}

Test(idle, who_lives_no_more_is_nobodys)
{
	struct sk_cat_state *states[3], *next;
	struct sk_catalogue cat;
	struct sk_link list;
	static const char *const names[3] = { "a", "b", "c" };

	cat_open(&cat);
	sk_link_init(&list);
	for (int i = 0; i < 3; i++) {
		states[i] = enter(&cat, names[i]);
		sk_cat_state_own(states[i], &list, &list);
	}
	(void)sk_cat_state_end(states[1]);
	cr_assert_null(states[1]->owner);
	next = sk_cat_state_new(states[0]->run, 0, (struct sk_cat_layout *[2]){
		layout(&cat), NULL });
	(void)sk_cat_state_replace(states[0], next);
	cr_assert_eq(list.next, &states[2]->owned);
	cr_assert_eq(list.prev, &states[2]->owned, "one is left");
	sk_cat_state_own(next, &list, &list);
	sk_cat_state_cancel(next);
	cr_assert_eq(list.prev, &states[2]->owned);
	cat_close(&cat);
	cr_assert(sk_link_empty(&list), "they went with the catalogue");
}

Test(idle, slots_that_go_are_detained_no_more)
{
	struct sk_cat_state *state;
	struct sk_catalogue cat;
	int who[2];

	cat_open(&cat);
	state = enter(&cat, "a");
	(void)snapshot(state, 1, 1);
	sk_cat_state_detain(state, &who[0]);
	sk_cat_state_detain(state, &who[1]);
	cr_assert_eq(sk_cat_detained(&cat, &who[0]), 0);
	cr_assert_eq(sk_cat_detained(&cat, NULL), SLOTS * kinds[0], "once");
	(void)sk_cat_state_end(state);
	/* What an operator gives back is still kept from others. */
	(void)sk_cat_evict_memory(sk_cat_snapshot_find(state->run->job, 0, 0,
						       1));
	(void)sk_cat_trim_free(&cat, NULL);
	cr_assert_eq(sk_cat_detained(&cat, &who[1]), SLOTS * kinds[0]);
	sk_cat_detain_end(&cat, &who[1]);
	cr_assert_eq(cat.used, 0);
	(void)enter(&cat, "b");
	sk_cat_state_detain(enter(&cat, "c"), &who[0]);
	cat_close(&cat);
}

Test(idle, a_snapshot_fails_until_it_does_not_or_goes)
{
	struct sk_cat_snapshot *s, *other;
	struct sk_cat_state *state;
	struct sk_catalogue cat;

	cat_open(&cat);
	state = enter(&cat, "a");
	s = snapshot(state, 1, 1);
	other = snapshot(state, 2, 2);
	sk_cat_set_failure(s, "why");
	sk_cat_set_failure(other, "why");
	sk_cat_set_failure(s, "why else");
	cr_assert_eq(cat.failing.next, &other->failing);
	cr_assert_eq(cat.failing.prev, &s->failing, "once");
	sk_cat_set_failure(other, NULL);
	cr_assert_eq(cat.failing.next, &s->failing);
	(void)sk_cat_evict_memory(s);
	cr_assert(sk_link_empty(&cat.failing));
	sk_cat_set_failure(other, "why");
	cat_close(&cat);
}

Test(idle, who_gets_a_snapshot_may_know_too_many)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_state *state;
	struct sk_catalogue cat;
	struct sk_cat_job *job;

	cat_open(&cat);
	state = enter(&cat, "a");
	job = state->run->job;
	sk_cat_sleep(job, SK_CAT_LEAVE);
	s = sk_cat_snapshot_get(job, state->run->number, state->run->id, 1, 1);
	cr_assert(s);
	cr_assert(!sk_link_empty(&job->awake[SK_CAT_LEAVE]));
	cr_assert(sk_cat_snapshot_trim(s));
	cat_close(&cat);
}

/* ---- by name ---- */

static unsigned count_named(const struct sk_catalogue *cat, const char *name)
{
	struct sk_cat_jobs walk = sk_cat_jobs_named(cat, name);
	const struct sk_cat_job *job;
	unsigned n = 0;

	while ((job = sk_cat_jobs_next(&walk))) {
		cr_assert(!name[0] || strcmp(job->name, name) == 0);
		n++;
	}
	return n;
}

Test(idle, jobs_of_one_name_are_found_whoevers_they_are)
{
	struct sk_catalogue cat;

	cat_open(&cat);
	cr_assert_eq(count_named(&cat, ""), 0);
	cr_assert_eq(count_named(&cat, "a"), 0);
	make_idle(&cat, FEW);
	for (uid_t uid = 0; uid < 3; uid++)
		(void)enter_as(&cat, "a", uid);
	cr_assert_eq(count_named(&cat, "a"), 3);
	cr_assert_eq(count_named(&cat, "idle-1"), 1);
	cr_assert_eq(count_named(&cat, "idle"), 0);
	cr_assert_eq(count_named(&cat, ""), FEW + 3);
	for (uid_t uid = 0; uid < 3; uid++)
		cr_assert_eq(sk_cat_job_find(&cat, "a", uid)->uid, uid);
	cr_assert_null(sk_cat_job_find(&cat, "a", 3));
	cat_close(&cat);
}

/* ---- in the order in which they are listed ---- */

static void check_order(const struct sk_catalogue *cat,
			const struct sk_cat_job *const jobs[], size_t n)
{
	const struct sk_cat_job *job = sk_cat_job_after(cat, NULL, 0);

	for (size_t i = 0; i < n; i++) {
		cr_assert_eq(job, jobs[i], "%zu", i);
		job = sk_cat_job_after(cat, job->name, job->uid);
	}
	cr_assert_null(job);
}

Test(idle, jobs_come_by_name_and_user_descending)
{
	const struct sk_cat_job *jobs[4];
	struct sk_catalogue cat;

	cat_open(&cat);
	check_order(&cat, NULL, 0);
	jobs[1] = enter_as(&cat, "b", 2)->run->job;
	jobs[3] = enter_as(&cat, "a", 1)->run->job;
	jobs[2] = enter_as(&cat, "b", 1)->run->job;
	jobs[0] = enter_as(&cat, "ba", 1)->run->job;
	check_order(&cat, jobs, 4);
	cr_assert_eq(sk_cat_job_after(&cat, "b", (uid_t)-1), jobs[1],
		     "the first of a name");
	cr_assert_eq(sk_cat_job_after(&cat, "aa", 0), jobs[3]);
	cat_close(&cat);
}

static void leave(struct sk_catalogue *cat, const char *name)
{
	struct sk_cat_job *job = sk_cat_job_find(cat, name, USER);
	struct sk_cat_state *state;

	state = sk_cat_state_find(sk_cat_run_find(job, 0, 0), 0);
	(void)sk_cat_state_end(state);
	(void)sk_cat_trim_free(cat, job);
	cr_assert(sk_cat_job_trim(job));
}

static void come_or_go(struct sk_catalogue *cat, const char *kind, int i)
{
	char name[32];

	(void)snprintf(name, sizeof(name), "%s-%d", kind, i);
	if (sk_cat_job_find(cat, name, USER))
		leave(cat, name);
	else
		(void)enter(cat, name);
}

/* Who goes on from the name of a job that has gone since meets each of those
 * that stay, and none twice. */
Test(idle, who_stays_is_met_once_whoever_comes_and_goes)
{
	char at[SK_JOB_MAX + 1] = "";
	const struct sk_cat_job *job;
	struct sk_catalogue cat;
	int met = 0, steps = 0;

	cat_open(&cat);
	for (int i = 0; i < FEW; i++) {
		come_or_go(&cat, "mid", i);
		come_or_go(&cat, "stays", i);
	}
	while ((job = sk_cat_job_after(&cat, at[0] ? at : NULL, USER))) {
		cr_assert(!at[0] || strcmp(job->name, at) < 0);
		met += strncmp(job->name, "stays", 5) == 0;
		(void)snprintf(at, sizeof(at), "%s", job->name);
		if (at[0] != 's')
			leave(&cat, at);
		come_or_go(&cat, "a", steps % FEW);
		come_or_go(&cat, "st", steps % 7);
		come_or_go(&cat, "z", steps++ % FEW);
	}
	cr_assert_eq(met, FEW);
	cr_assert_geq(steps, 2 * FEW);
	cat_close(&cat);
}
