/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent where memory ends: each allocation of it and of what it links is
 * failed, once and from then on.
 *
 * $SK_EVERY: only every so many allocations.
 */
#include <sys/mman.h>

#include "agent/whole.h"
#include "fault-alloc.h"

/* Shared with the agent: its memory alone ends. */
struct allocations {
	uint64_t first, times;	/* that fail */
	uint64_t n;		/* that it asked for */
};

static void begin(void *ctx)
{
	const struct allocations *a = ctx;

	sk_fault_alloc_fail(a->first, a->times);
}

static void end(void *ctx)
{
	struct allocations *a = ctx;

	a->n = sk_fault_alloc_calls();
}

static struct story run(uint64_t first, uint64_t times,
			struct allocations *shared)
{
	struct story story;
	struct whole w;

	*shared = (struct allocations){ .first = first, .times = times };
	whole_init(&w);
	w.options.retention.keep_last = 1;
	w.options.retention_said = true;
	whole_metrics(&w);
	w.before = begin;
	w.after = end;
	w.ctx = shared;
	whole_start(&w);
	story = whole_story(&w);
	whole_remove(&w);
	return story;
}

int main(void)
{
	uint64_t stride = sk_fault_every(), last;
	struct allocations *shared;
	struct story s;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED, "mmap");
	s = run(0, 0, shared);
	CHECK(s.restored && s.status == 0, "with memory all is well");
	last = shared->n;
	for (uint64_t n = 1; n <= last; n += stride) {
		fprintf(stderr, "allocation %llu of %llu\n",
			(unsigned long long)n, (unsigned long long)last);
		(void)run(n, 1, shared);
		(void)run(n, UINT64_MAX, shared);
	}
	return 0;
}
