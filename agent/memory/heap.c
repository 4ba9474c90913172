/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/heap.h"

#include <assert.h>
#include <malloc.h>

#include "agent.h"

#define MUCH ((uint64_t)32 << 20)
#define SOON_NS UINT64_C(1000000000)	/* more may be freed at once */

static void give_back(struct work *work)
{
	(void)work;
#ifdef __GLIBC__
	(void)malloc_trim(0);
#endif
}

static void given_back(struct work *work)
{
	struct agent *a = sk_link_object(work, struct agent, trim_heap);

	assert(a->trimming_heap);
	a->trimming_heap = false;
}

static void time_to(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, heap_timer);

	if (a->trimming_heap)
		return;		/* what was freed meanwhile goes next time */
	a->freed_bytes = 0;
	a->trimming_heap = true;
	a->trim_heap.run = give_back;
	a->trim_heap.finish = given_back;
	work_submit(&a->loop.works, a->slow, &a->trim_heap);
}

void heap_freed(struct agent *a, uint64_t bytes)
{
	a->freed_bytes += bytes;
	if (a->freed_bytes < MUCH)
		return;
	a->heap_timer.fire = time_to;
	timer_set(&a->loop.timers, &a->heap_timer, agent_now(a) + SOON_NS);
}

void heap_close(struct agent *a)
{
	timer_clear(&a->loop.timers, &a->heap_timer);
}
