/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include <assert.h>
#include <numa.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/thread.h"

#define NAME_BYTES 16	/* what the system keeps of a thread's name */

struct sk_pool {
	pthread_mutex_t lock;
	pthread_cond_t work;		/* a task came, or the end */
	pthread_cond_t finished;	/* a task of sk_pool_run() is done */
	struct sk_task *first, *last;	/* those with units to hand out */
	bool stopping;
	int numa_node;
	unsigned count;
	char name[NAME_BYTES];
	pthread_t threads[];
};

/* What sk_pool_run() queues in place of the caller's task. */
struct waited_task {
	struct sk_task task;	/* first: done() and run() get this one */
	struct sk_task *inner;
	struct sk_pool *pool;
	bool finished;
};

static void unqueue_first(struct sk_pool *pool)
{
	assert(pool->first && pool->last);
	pool->first = pool->first->queue_next;
	if (!pool->first)
		pool->last = NULL;
}

/* Runs one unit, or the end, of the first task. Locked before and after. */
static void run_one(struct sk_pool *pool)
{
	struct sk_task *task = pool->first;
	bool has_unit = task->next < task->units;
	size_t unit = task->next;
	bool is_last;

	assert(task->next <= task->units && task->left <= task->units);
	if (has_unit)
		task->next++;
	if (task->next == task->units)
		unqueue_first(pool);
	if (has_unit) {
		pthread_mutex_unlock(&pool->lock);
		task->run(task, unit);
		pthread_mutex_lock(&pool->lock);
		assert(task->left);
		task->left--;
	}
	is_last = task->left == 0;
	if (!is_last || !task->done)
		return;
	/* Nobody else knows the task any more; it may free itself. */
	pthread_mutex_unlock(&pool->lock);
	task->done(task);
	pthread_mutex_lock(&pool->lock);
}

static void *thread_main(void *arg)
{
	struct sk_pool *pool = arg;

	/* A preference only: any CPU gives the right result. */
	if (pool->numa_node >= 0 && numa_available() >= 0)
		(void)numa_run_on_node(pool->numa_node);
	/* Woken, it must not push whoever submitted off its CPU. */
	(void)sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 });
	pthread_mutex_lock(&pool->lock);
	for (;;) {
		while (pool->first)
			run_one(pool);
		/* What a done() submits from now on, its thread will run. */
		if (pool->stopping)
			break;
		pthread_cond_wait(&pool->work, &pool->lock);
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

static int start_thread(struct sk_pool *pool)
{
	char name[NAME_BYTES];
	unsigned i = pool->count;
	int r = sk_thread_start(&pool->threads[i], thread_main, pool);

	if (r < 0)
		return r;
	pool->count++;
	(void)snprintf(name, sizeof(name), "%.10s-%u", pool->name, i % 1000);
	/* Cannot fail but for a name that is too long. */
	(void)pthread_setname_np(pool->threads[i], name);
	return 0;
}

static struct sk_pool *allocate(unsigned threads, int numa_node,
				const char *name)
{
	struct sk_pool *pool;

	pool = calloc(1, sizeof(*pool) + threads * sizeof(pool->threads[0]));
	if (!pool)
		return NULL;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->work, NULL);
	pthread_cond_init(&pool->finished, NULL);
	pool->numa_node = numa_node;
	(void)snprintf(pool->name, sizeof(pool->name), "%s", name);
	return pool;
}

int sk_pool_new(unsigned threads, int numa_node, const char *name,
		struct sk_pool **ret_pool, struct sk_err *err)
{
	struct sk_pool *pool;
	int r;

	if (!threads)
		return sk_err_set(err, -EINVAL, "thread pool %s would have 0 "
				  "threads; ask for at least 1", name);
	pool = allocate(threads, numa_node, name);
	if (!pool)
		return sk_err_set(err, -ENOMEM, "no memory for thread pool "
				  "%s of %u threads", name, threads);
	while (pool->count < threads) {
		r = start_thread(pool);
		if (r < 0) {
			r = sk_err_errno(err, r, "cannot start thread %u of "
					 "%u of pool %s; ask for fewer or "
					 "raise the limit of processes",
					 pool->count + 1, threads, name);
			sk_pool_free(pool);
			return r;
		}
	}
	*ret_pool = pool;
	return 0;
}

struct sk_pool *sk_pool_free(struct sk_pool *pool)
{
	if (!pool)
		return NULL;
	pthread_mutex_lock(&pool->lock);
	pool->stopping = true;
	pthread_cond_broadcast(&pool->work);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < pool->count; i++)
		pthread_join(pool->threads[i], NULL);
	assert(!pool->first && !pool->last);
	pthread_cond_destroy(&pool->finished);
	pthread_cond_destroy(&pool->work);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
	return NULL;
}

unsigned sk_pool_threads(const struct sk_pool *pool)
{
	return pool->count;
}

void sk_pool_submit(struct sk_pool *pool, struct sk_task *task)
{
	bool for_all = task->units > 1;

	assert(task->run || !task->units);
	task->next = 0;
	task->left = task->units;
	task->queue_next = NULL;
	pthread_mutex_lock(&pool->lock);
	if (pool->last)
		pool->last->queue_next = task;
	else
		pool->first = task;
	pool->last = task;
	pthread_mutex_unlock(&pool->lock);
	/* Who is woken wants the lock at once. */
	if (for_all)
		pthread_cond_broadcast(&pool->work);
	else
		pthread_cond_signal(&pool->work);
}

static void run_waited(struct sk_task *task, size_t unit)
{
	struct sk_task *inner = ((struct waited_task *)task)->inner;

	inner->run(inner, unit);
}

static void done_waited(struct sk_task *task)
{
	struct waited_task *waited = (struct waited_task *)task;
	struct sk_pool *pool = waited->pool;

	assert(!waited->finished);
	if (waited->inner->done)
		waited->inner->done(waited->inner);
	pthread_mutex_lock(&pool->lock);
	waited->finished = true;
	pthread_cond_broadcast(&pool->finished);
	pthread_mutex_unlock(&pool->lock);
}

void sk_pool_run(struct sk_pool *pool, struct sk_task *task)
{
	struct waited_task waited = {
		.task = {
			.units = task->units,
			.run = run_waited,
			.done = done_waited,
		},
		.inner = task,
		.pool = pool,
	};

	sk_pool_submit(pool, &waited.task);
	pthread_mutex_lock(&pool->lock);
	while (!waited.finished)
		pthread_cond_wait(&pool->finished, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
}
