/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pool: a few threads that run parallel loops in the background.
 *
 * A task is a loop of @units independent calls. Tasks run first in, first
 * out; units of one task run on all threads. Any thread may submit. Threads
 * block all signals but those of their own faults, and are named for people
 * who look at /proc.
 */
#ifndef SK_CACHE_BASE_POOL_H
#define SK_CACHE_BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/util.h"

struct sk_pool;

struct sk_task {
	size_t units;
	/** One unit, on any thread of the pool. */
	void (*run)(struct sk_task *task, size_t unit);
	/** After the last unit, on the thread that ran it; may submit other
	 * tasks and may free @task. NULL: nothing. With 0 units it is called
	 * on a pool thread all the same. */
	void (*done)(struct sk_task *task);
	/* private: */
	size_t next, left;
	struct sk_task *queue_next;
};

/** @threads >= 1; @numa_node < 0: no binding. Threads are named @name-0 and
 * so on, cut to the 15 bytes that the system keeps.
 * Errors: -EINVAL no threads, -ENOMEM, -EAGAIN no more threads allowed. */
int sk_pool_new(unsigned threads, int numa_node, const char *name,
		struct sk_pool **ret_pool, struct sk_err *err);
/** Finishes what was submitted, then ends the threads. NULL is fine. Not from
 * a pool thread. Returns NULL. */
struct sk_pool *sk_pool_free(struct sk_pool *pool);
SK_DEFINE_CLEANUP(struct sk_pool *, sk_pool_free)
unsigned sk_pool_threads(const struct sk_pool *pool);

/** Never fails; @task lives until its done() was called. */
void sk_pool_submit(struct sk_pool *pool, struct sk_task *task);
/** Submits and waits until all units and done() ran. Not from a pool thread. */
void sk_pool_run(struct sk_pool *pool, struct sk_task *task);

#endif
