/* SPDX-License-Identifier: Apache-2.0 */
/* Work in the background, and how it comes back. */
#include <sys/eventfd.h>

#include "agent.h"

static void run_unit(struct sk_task *task, size_t unit)
{
	struct work *work = sk_link_object(task, struct work, task);

	(void)unit;
	work->run(work);
}

static void hand_back(struct sk_task *task)
{
	struct work *work = sk_link_object(task, struct work, task);
	struct agent *a = work->agent;

	pthread_mutex_lock(&a->work_lock);
	sk_link_insert(&a->finished, &work->link);
	/* Cannot block: the counter would have to reach 2^64. Within the
	 * lock, so that the agent does not end before it. */
	(void)eventfd_write(a->wake.fd, 1);
	pthread_mutex_unlock(&a->work_lock);
}

void work_submit(struct agent *a, struct sk_pool *pool, struct work *work)
{
	work->agent = a;
	work->task = (struct sk_task){ .units = 1, .run = run_unit,
				       .done = hand_back };
	a->working++;
	sk_pool_submit(pool, &work->task);
}

static struct work *take_finished(struct agent *a)
{
	struct work *work = NULL;

	pthread_mutex_lock(&a->work_lock);
	if (!sk_link_empty(&a->finished)) {
		work = sk_link_object(a->finished.next, struct work, link);
		sk_link_remove(&work->link);
	}
	pthread_mutex_unlock(&a->work_lock);
	return work;
}

void work_finish_all(struct agent *a)
{
	struct work *work;
	eventfd_t n;

	(void)eventfd_read(a->wake.fd, &n);
	while ((work = take_finished(a))) {
		a->working--;
		work->finish(work);
	}
}
