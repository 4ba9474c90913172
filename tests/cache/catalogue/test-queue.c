/* SPDX-License-Identifier: Apache-2.0 */
/* The queue to the disk against a look at all that is in it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "catalogue/queue.h"
#include "support/random.h"

#define USERS 4
#define JOBS 24			/* of all of them */
#define STEPS 4000
#define TURNS 5			/* few: many are alike */

struct entry {
	struct sk_cat_job *job;
	struct sk_cat_snapshot *s;	/* NULL: it is not in it */
	struct sk_cat_queue_place at;
};

static void open_jobs(struct sk_catalogue *cat, struct entry v[JOBS])
{
	char name[16];

	sk_cat_init(cat);
	for (unsigned i = 0; i < JOBS; i++) {
		(void)snprintf(name, sizeof(name), "job-%u", i);
		v[i] = (struct entry){
			.job = sk_cat_job_get(cat, name, i % USERS) };
		cr_assert(v[i].job);
	}
}

/* One that is not there yet. */
static struct sk_cat_snapshot *snapshot(struct sk_cat_job *job, uint64_t when)
{
	struct sk_cat_snapshot *s;

	s = sk_cat_snapshot_get(job, 1, 1, (int64_t)job->n_snapshots, 1);
	cr_assert(s);
	s->created_ns = when;
	return s;
}

static bool is_before(const struct entry *a, const struct entry *b)
{
	const uint64_t of_a[] = { a->at.before, a->job->user->flush_turn,
				  a->at.turn, a->at.served, a->s->created_ns };
	const uint64_t of_b[] = { b->at.before, b->job->user->flush_turn,
				  b->at.turn, b->at.served, b->s->created_ns };

	for (size_t i = 0; i < sizeof(of_a) / sizeof(*of_a); i++)
		if (of_a[i] != of_b[i])
			return of_a[i] < of_b[i];
	return false;
}

static struct sk_cat_snapshot *naive_first(const struct entry v[JOBS])
{
	const struct entry *first = NULL;

	for (int i = 0; i < JOBS; i++)
		if (v[i].s && (!first || is_before(&v[i], first)))
			first = &v[i];
	return first ? first->s : NULL;
}

static void put(struct entry *e, uint64_t *seed, uint64_t when)
{
	e->s = snapshot(e->job, when);
	e->at = (struct sk_cat_queue_place){
		.before = draw(seed, 2), .turn = draw(seed, TURNS),
		.served = draw(seed, TURNS),
	};
	sk_cat_queue_put(e->s, &e->at);
}

/* It is written, which is its user's turn. */
static void serve(struct entry v[JOBS], const struct sk_cat_snapshot *s,
		  uint64_t *turns)
{
	for (int i = 0; i < JOBS; i++) {
		if (v[i].s != s)
			continue;
		v[i].s = NULL;
		v[i].job->user->flush_turn = ++*turns;
		sk_cat_queue_leave(v[i].job);
		return;
	}
	cr_assert(false, "it is not in it");
}

Test(queue, the_first_is_that_of_all)
{
	uint64_t seed = 1, turns = 0;
	struct sk_catalogue cat;
	struct entry v[JOBS];

	open_jobs(&cat, v);
	for (uint64_t step = 1; step <= STEPS; step++) {
		struct entry *e = &v[draw(&seed, JOBS)];
		struct sk_cat_snapshot *first;

		if (draw(&seed, 3)) {
			put(e, &seed, step);
		} else {
			sk_cat_queue_leave(e->job);
			e->s = NULL;
		}
		first = sk_cat_queue_first(&cat);
		cr_assert_eq(first, naive_first(v), "%d", (int)step);
		if (first && draw(&seed, 2))
			serve(v, first, &turns);
	}
	sk_cat_destroy(&cat);
}

Test(queue, what_goes_is_in_it_no_more)
{
	const struct sk_cat_queue_place at = { .turn = 1 };
	struct sk_cat_snapshot *s, *other;
	struct sk_catalogue cat;
	struct entry v[JOBS];

	open_jobs(&cat, v);
	s = snapshot(v[0].job, 1);
	sk_cat_queue_put(s, &at);
	other = snapshot(v[1].job, 2);
	sk_cat_queue_put(other, &at);
	cr_assert_eq(sk_cat_queue_first(&cat), s);
	cr_assert(sk_cat_snapshot_trim(s));
	cr_assert_eq(sk_cat_queue_first(&cat), other);
	cr_assert(sk_cat_snapshot_trim(other));
	cr_assert_null(sk_cat_queue_first(&cat));
	/* With its job, and its user with that. */
	sk_cat_queue_put(snapshot(v[2].job, 3), &at);
	sk_cat_destroy(&cat);
	cr_assert_null(cat.queue.root);
}
