/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three agents on one store: one is killed, after another did all it does
 * between two of its calls, and a third one cleans up. What was said to be
 * durable is there afterwards.
 */
#include "common.h"

#include <stdio.h>

struct newer {
	struct sk_store *store;
	int r;
};

static void put_newer(void *ctx)
{
	struct newer *newer = ctx;

	newer->r = put(newer->store, 3, 5, 0);
}

static int delete_first(struct sk_store *store)
{
	return delete(store, "job", "step-000000000005", 1, NULL);
}

static int put_second(struct sk_store *store)
{
	return put(store, 2, 5, 0);
}

static int settle_second(struct sk_store *store)
{
	return settle(store, "job", 5, 2);
}

/* A killed agent makes no more calls, and its lock is gone. */
static void kill_at(struct sk_fault_os *fault, uint64_t call)
{
	sk_fault_os_fail(fault, SK_FAULT_ANY, call, SK_FAULT_ALWAYS, EIO);
}

/* Run 3 comes before call @n of what run 1's agent does with the step, which
 * is killed at call @m. Whether both came to pass. */
static bool killed(int (*fn)(struct sk_store *store), uint64_t n, uint64_t m)
{
	struct sk_store *store, *third;
	struct newer newer = { 0 };
	struct sk_fault_os fault;
	struct place p;
	uint64_t hits;

	store = make_store(&p, &fault);
	newer.store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	if (fn == settle_second)
		cr_assert_eq(put(store, 2, 5, 0), 0);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_meddle(&fault, SK_FAULT_ANY, n, put_newer, &newer);
	kill_at(&fault, m);
	(void)fn(store);
	hits = sk_fault_os_hits(&fault);
	fault.rule_count = 0;
	kill_store(store);
	third = open_store(sk_os_linux(), &p);
	cr_assert(!hits || (newer.r == 0 && holds(third, 3, 5, 0)),
		  "before call %d, killed at %d: %d, run 3 is lost", (int)n,
		  (int)m, newer.r);
	sk_store_close(third);
	sk_store_close(newer.store);
	place_remove(&p);
	return hits > 1;
}

/* At each of the next @reach calls, after every call. */
static void kill_everywhere(int (*fn)(struct sk_store *store), uint64_t reach)
{
	uint64_t n, m;

	for (n = 1;; n++) {
		for (m = n + 1; m <= n + reach && killed(fn, n, m);)
			m++;
		if (m == n + 1)
			break;
	}
	cr_assert_gt(n, 10, "only %d calls", (int)n);
}

Test(store_killed, who_deletes_takes_no_other_step_along, .timeout = 300)
{
	kill_everywhere(delete_first, UINT64_MAX / 2);
}

Test(store_killed, who_writes_takes_no_other_step_along, .timeout = 300)
{
	kill_everywhere(put_second, 5);
}

Test(store_killed, who_settles_takes_no_other_step_along, .timeout = 300)
{
	kill_everywhere(settle_second, 5);
}

/* What it was deleting itself is deleted by who cleans up. */
Test(store_killed, who_deletes_is_not_undone, .timeout = 300)
{
	struct sk_store *store, *third;
	struct sk_fault_os fault;
	struct place p;
	bool gone = false;

	for (uint64_t m = 1; !gone; m++) {
		store = make_store(&p, &fault);
		cr_assert_eq(put(store, 1, 5, 0), 0);
		sk_fault_os_init(&fault, sk_os_linux());
		kill_at(&fault, m);
		gone = delete_first(store) == 0;
		fault.rule_count = 0;
		kill_store(store);
		third = open_store(sk_os_linux(), &p);
		/* All of it or nothing: a half removed one is never back. */
		cr_assert(gone ? scan(third, NULL) == 0 :
			  holds(third, 1, 5, 0) || !exists(&p,
			  "job/step-000000000005"), "killed at %d", (int)m);
		sk_store_close(third);
		place_remove(&p);
	}
}
