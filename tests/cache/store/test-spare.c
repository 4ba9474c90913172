/* SPDX-License-Identifier: Apache-2.0 */
/* A step directory in which one agent's ranks have written, and another's. */
#include "common.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STEP "step-000000000005"

/* Rank 0 is its own, and no other one. */
static int retire_own(struct sk_store *store)
{
	const struct sk_store_run run = run_named(1);
	static const bool own[4] = { true };

	return sk_store_retire_own(store, "job", STEP, &run, own, 4, NULL);
}

Test(spare, what_others_wrote_stays)
{
	struct sk_store *store, *other;
	struct place p;

	store = make_store(&p, NULL);
	other = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(put(other, 1, 5, 1), 0);
	cr_assert_eq(retire_own(store), -EEXIST);
	cr_assert(holds(store, 1, 5, 0));
	cr_assert(holds(store, 1, 5, 1));
	cr_assert_eq(delete(store, "job", STEP, 1, NULL), 0);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	make_file(&p, "job/" STEP "/of-somebody", "");
	cr_assert_eq(retire_own(store), -EEXIST);
	cr_assert_eq(delete(store, "job", STEP, 1, NULL), 0);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(retire_own(store), 0);
	cr_assert_eq(retire_own(store), -ENOENT);
	sk_store_close(other);
	sk_store_close(store);
	place_remove(&p);
}

struct writer {
	struct sk_store *store;
	int result;
};

static void write_there(void *ctx)
{
	struct writer *w = ctx;

	w->result = put(w->store, 1, 5, 1);
}

/* At whichever call it writes: what it was told is durable is there. */
Test(spare, who_writes_while_it_goes)
{
	struct writer w = { .result = -ENODATA };
	struct sk_store *store;
	struct sk_fault_os fault;
	bool came = true;
	struct place p;
	int r;

	store = make_store(&p, &fault);
	w.store = open_store(sk_os_linux(), &p);
	for (uint64_t nth = 1; came; nth++) {
		cr_assert_eq(put(store, 1, 5, 0), 0);
		sk_fault_os_forget(&fault);
		sk_fault_os_meddle(&fault, SK_FAULT_ANY, nth, write_there, &w);
		r = retire_own(store);
		came = sk_fault_os_calls(&fault, SK_FAULT_ANY) >= nth;
		sk_fault_os_forget(&fault);
		cr_assert(r == 0 || r == -EEXIST || r == -ENOTEMPTY ||
			  r == -ESTALE, "call %d: %d", (int)nth, r);
		if (!came)
			break;
		cr_assert_eq(w.result, 0, "call %d: %d", (int)nth, w.result);
		cr_assert(holds(w.store, 1, 5, 1), "call %d: %d", (int)nth, r);
		if (r == -EEXIST)
			cr_assert(holds(store, 1, 5, 0), "call %d", (int)nth);
		cr_assert_eq(delete(store, "job", STEP, 1, NULL), 0);
	}
	sk_store_close(w.store);
	sk_store_close(store);
	place_remove(&p);
}
