/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the background, and how it comes back. */
#include "loop/work.h"

#include <assert.h>

#define WAKE_TRIES 8

int works_open(struct works *ws, const struct sk_os *os)
{
	int fd = os->eventfd(os);

	if (fd < 0)
		return fd;
	*ws = (struct works){ .os = os, .wake = fd };
	sk_link_init(&ws->back);
	pthread_mutex_init(&ws->lock, NULL);
	return 0;
}

void works_close(struct works *ws)
{
	assert(!ws->out && sk_link_empty(&ws->back));
	ws->wake = sk_close_fd(ws->wake);
	pthread_mutex_destroy(&ws->lock);
}

static void run_unit(struct sk_task *task, size_t unit)
{
	struct work *work = sk_link_object(task, struct work, task);

	(void)unit;
	work->run(work);
}

/* A write to an eventfd cannot block, for its counter would have to reach
 * 2^64; should it fail all the same, a second one may do. */
static void wake_up(struct works *ws)
{
	const uint64_t one = 1;

	for (int i = 0; i < WAKE_TRIES; i++) {
		if (ws->os->write(ws->os, ws->wake, &one, sizeof(one)) ==
		    sizeof(one))
			return;
	}
}

static void hand_back(struct sk_task *task)
{
	struct work *work = sk_link_object(task, struct work, task);
	struct works *ws = work->works;

	pthread_mutex_lock(&ws->lock);
	sk_link_insert(&ws->back, &work->link);
	/* Within the lock, so that the loop does not end before it. */
	wake_up(ws);
	pthread_mutex_unlock(&ws->lock);
}

void work_submit(struct works *ws, struct sk_pool *pool, struct work *work)
{
	assert(work->run && work->finish);
	work->works = ws;
	work->task = (struct sk_task){ .units = 1, .run = run_unit,
				       .done = hand_back };
	ws->out++;
	sk_pool_submit(pool, &work->task);
}

static struct work *take_back(struct works *ws)
{
	struct work *work = NULL;

	pthread_mutex_lock(&ws->lock);
	if (!sk_link_empty(&ws->back)) {
		work = sk_link_object(ws->back.next, struct work, link);
		sk_link_remove(&work->link);
	}
	pthread_mutex_unlock(&ws->lock);
	return work;
}

void works_finish(struct works *ws)
{
	struct work *work;
	uint64_t n;

	/* Before the list is read: what comes back later wakes us anew. */
	(void)ws->os->read(ws->os, ws->wake, &n, sizeof(n));
	while ((work = take_back(ws))) {
		assert(ws->out);
		ws->out--;
		work->finish(work);
	}
}

bool works_drain_until(struct works *ws, uint64_t until_ns)
{
	struct pollfd p = { .fd = ws->wake, .events = POLLIN };

	while (ws->out) {
		if (ws->os->poll(ws->os, &p, 1, until_ns) == -ETIMEDOUT)
			return false;
		works_finish(ws);
	}
	return true;
}

void works_drain(struct works *ws)
{
	(void)works_drain_until(ws, SK_FOREVER);
}
