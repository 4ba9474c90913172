/* SPDX-License-Identifier: Apache-2.0 */
/* What the pool does beside a round of the ranks. */
#ifndef SK_LIBCLIENT_RESTORE_BESIDE_H
#define SK_LIBCLIENT_RESTORE_BESIDE_H

#include <pthread.h>

#include "base/error.h"
#include "base/pool.h"

struct sk_beside {
	struct sk_pool *pool;
	/** One unit, on any thread of the pool. */
	int (*run)(void *ctx, size_t unit, struct sk_err *err);
	void *ctx;
	int failed;		/* the first error, and its sentence */
	struct sk_err err;
	/* private: */
	struct sk_task task;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool running;
};

/** Once pool, run and ctx are set. */
void sk_beside_init(struct sk_beside *beside);
void sk_beside_fini(struct sk_beside *beside);
/** Runs @units in the background; nothing of it may be running. */
void sk_beside_begin(struct sk_beside *beside, size_t units);
/** Until all have run. */
void sk_beside_wait(struct sk_beside *beside);

#endif
