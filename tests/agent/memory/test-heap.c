/* SPDX-License-Identifier: Apache-2.0 */
/* What is freed goes back to the system, each time that it is much. */
#include "memory/heap.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "agent.h"

#define MUCH ((uint64_t)32 << 20)

static void come_to_an_end(struct agent *a)
{
	while (a->trimming_heap)
		loop_turn(&a->loop);
}

Test(heap, is_given_back_each_time_that_much_was_freed, .timeout = 120)
{
	struct agent *a = calloc(1, sizeof(*a));
	struct sk_err err = { "" };

	cr_assert(a);
	cr_assert_eq(loop_open(&a->loop, sk_os_linux()), 0);
	cr_assert_eq(sk_pool_new(1, -1, "slow", &a->slow, &err), 0, "%s",
		     err.text);
	for (int i = 0; i < 3; i++) {
		heap_freed(a, MUCH - 1);
		cr_assert_not(a->heap_timer.set, "%d", i);
		heap_freed(a, 1);
		cr_assert(a->heap_timer.set, "%d", i);
		timer_clear(&a->loop.timers, &a->heap_timer);
		a->heap_timer.fire(&a->heap_timer);
		cr_assert(a->trimming_heap, "%d", i);
		cr_assert_eq(a->freed_bytes, 0);
		/* What is freed meanwhile goes next time. */
		a->freed_bytes = 7;
		a->heap_timer.fire(&a->heap_timer);
		cr_assert_eq(a->freed_bytes, 7);
		come_to_an_end(a);
		a->freed_bytes = 0;
	}
	heap_close(a);
	sk_pool_free(a->slow);
	loop_close(&a->loop);
	free(a);
}
