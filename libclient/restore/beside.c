/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/beside.h"

#include <assert.h>

#include "base/link.h"

static void run(struct sk_task *task, size_t unit)
{
	struct sk_beside *b = sk_link_object(task, struct sk_beside, task);
	struct sk_err err = { "" };
	int r = b->run(b->ctx, unit, &err);

	if (r < 0 && !__atomic_exchange_n(&b->failed, r, __ATOMIC_RELAXED))
		b->err = err;
}

static void done(struct sk_task *task)
{
	struct sk_beside *b = sk_link_object(task, struct sk_beside, task);

	(void)pthread_mutex_lock(&b->lock);
	b->running = false;
	(void)pthread_cond_signal(&b->cond);
	(void)pthread_mutex_unlock(&b->lock);
}

void sk_beside_init(struct sk_beside *b)
{
	(void)pthread_mutex_init(&b->lock, NULL);
	(void)pthread_cond_init(&b->cond, NULL);
}

void sk_beside_fini(struct sk_beside *b)
{
	assert(!b->running);
	(void)pthread_cond_destroy(&b->cond);
	(void)pthread_mutex_destroy(&b->lock);
}

void sk_beside_begin(struct sk_beside *b, size_t units)
{
	assert(!b->running);
	b->task = (struct sk_task){ .units = units, .run = run, .done = done };
	b->running = true;
	sk_pool_submit(b->pool, &b->task);
}

void sk_beside_wait(struct sk_beside *b)
{
	(void)pthread_mutex_lock(&b->lock);
	while (b->running)
		(void)pthread_cond_wait(&b->cond, &b->lock);
	(void)pthread_mutex_unlock(&b->lock);
}
