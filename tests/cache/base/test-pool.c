/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>

#include "base/pool.h"

static struct sk_pool *make_pool(unsigned threads)
{
	struct sk_pool *pool = NULL;
	struct sk_err err = { 0 };

	cr_assert_eq(sk_pool_new(threads, -1, "test", &pool, &err), 0, "%s",
		     err.text);
	return pool;
}

/* ---- a task that counts ---- */

struct counting {
	struct sk_task task;
	unsigned ran[200];
	unsigned units_at_done, done;
	sem_t finished;
};

static void count_run(struct sk_task *task, size_t unit)
{
	struct counting *c = (struct counting *)task;

	__atomic_add_fetch(&c->ran[unit], 1, __ATOMIC_RELAXED);
}

static unsigned count_units(const struct counting *c)
{
	unsigned n = 0;

	for (size_t i = 0; i < SK_ARRAY_SIZE(c->ran); i++)
		n += __atomic_load_n(&c->ran[i], __ATOMIC_RELAXED);
	return n;
}

static void count_done(struct sk_task *task)
{
	struct counting *c = (struct counting *)task;

	c->units_at_done = count_units(c);
	c->done++;
	sem_post(&c->finished);
}

static void count_init(struct counting *c, size_t units)
{
	*c = (struct counting){
		.task = {
			.units = units,
			.run = count_run,
			.done = count_done,
		},
	};
	sem_init(&c->finished, 0, 0);
}

Test(pool, runs_every_unit_once_and_done_behind_them)
{
	for (unsigned threads = 1; threads <= 5; threads++) {
		struct sk_pool *pool = make_pool(threads);

		cr_assert_eq(sk_pool_threads(pool), threads);
		for (size_t units = 0; units <= 200; units += 25) {
			struct counting c;

			count_init(&c, units);
			sk_pool_submit(pool, &c.task);
			sem_wait(&c.finished);
			cr_assert_eq(c.done, 1);
			cr_assert_eq(c.units_at_done, units);
			for (size_t i = 0; i < units; i++)
				cr_assert_eq(c.ran[i], 1);
			sem_destroy(&c.finished);
		}
		cr_assert_null(sk_pool_free(pool));
	}
}

Test(pool, run_waits_for_units_and_done)
{
	struct sk_pool *pool = make_pool(3);

	for (unsigned i = 0; i < 500; i++) {
		struct counting c;

		count_init(&c, i % 200);
		sk_pool_run(pool, &c.task);
		cr_assert_eq(c.done, 1);
		cr_assert_eq(c.units_at_done, i % 200);
		sem_destroy(&c.finished);
	}
	sk_pool_free(pool);
}

Test(pool, run_needs_no_done)
{
	struct sk_pool *pool = make_pool(2);
	struct counting c;

	count_init(&c, 150);
	c.task.done = NULL;
	sk_pool_run(pool, &c.task);
	cr_assert_eq(count_units(&c), 150);
	c.task.units = 0;
	sk_pool_run(pool, &c.task);
	sk_pool_free(pool);
}

/* ---- order and sharing ---- */

struct ordered {
	struct sk_task task;
	unsigned *clock;
	unsigned at;
};

static void order_run(struct sk_task *task, size_t unit)
{
	struct ordered *o = (struct ordered *)task;

	(void)unit;
	o->at = ++*o->clock;
}

Test(pool, tasks_run_first_in_first_out)
{
	struct sk_pool *pool = make_pool(1);
	struct ordered tasks[50];
	unsigned clock = 0;

	for (unsigned i = 0; i < 50; i++) {
		tasks[i] = (struct ordered){
			.task = { .units = 1, .run = order_run },
			.clock = &clock,
		};
		sk_pool_submit(pool, &tasks[i].task);
	}
	sk_pool_free(pool);
	for (unsigned i = 0; i < 50; i++)
		cr_assert_eq(tasks[i].at, i + 1);
}

struct meeting {
	struct sk_task task;
	pthread_barrier_t barrier;
};

static void meet_run(struct sk_task *task, size_t unit)
{
	(void)unit;
	pthread_barrier_wait(&((struct meeting *)task)->barrier);
}

/* Would hang if the units of a task ran one after the other. */
Test(pool, units_of_one_task_run_on_all_threads, .timeout = 300)
{
	struct sk_pool *pool = make_pool(4);
	struct meeting m = { .task = { .units = 4, .run = meet_run } };

	pthread_barrier_init(&m.barrier, NULL, 4);
	for (int i = 0; i < 50; i++)
		sk_pool_run(pool, &m.task);
	pthread_barrier_destroy(&m.barrier);
	sk_pool_free(pool);
}

/* ---- ends ---- */

struct chained {
	struct sk_task task;
	struct sk_pool *pool;
	unsigned left;
	unsigned *ran;
};

static void chain_run(struct sk_task *task, size_t unit)
{
	(void)unit;
	__atomic_add_fetch(((struct chained *)task)->ran, 1,
			   __ATOMIC_RELAXED);
}

static void chain_done(struct sk_task *task)
{
	struct chained *c = (struct chained *)task;
	struct chained *next;

	if (c->left) {
		next = malloc(sizeof(*next));
		*next = *c;
		next->left--;
		sk_pool_submit(c->pool, &next->task);
	}
	free(c);
}

Test(pool, done_may_submit_and_free_even_while_the_pool_ends)
{
	struct sk_pool *pool = make_pool(3);
	unsigned ran = 0;

	for (int i = 0; i < 10; i++) {
		struct chained *c = malloc(sizeof(*c));

		*c = (struct chained){
			.task = {
				.units = 5,
				.run = chain_run,
				.done = chain_done,
			},
			.pool = pool,
			.left = 20,
			.ran = &ran,
		};
		sk_pool_submit(pool, &c->task);
	}
	sk_pool_free(pool);
	cr_assert_eq(ran, 10 * 21 * 5);
}

Test(pool, free_of_nothing_is_fine)
{
	cr_assert_null(sk_pool_free(NULL));
}

Test(pool, no_threads_are_refused)
{
	struct sk_pool *pool = (void *)&pool;
	struct sk_err err = { 0 };

	cr_assert_eq(sk_pool_new(0, -1, "none", &pool, &err), -EINVAL);
	cr_assert(strstr(err.text, "none"), "%s", err.text);
	cr_assert_eq((void *)pool, (void *)&pool);
}

/* ---- what the threads look like ---- */

struct look {
	struct sk_task task;
	char name[16];
	sigset_t blocked;
};

static void look_run(struct sk_task *task, size_t unit)
{
	struct look *look = (struct look *)task;

	(void)unit;
	pthread_getname_np(pthread_self(), look->name, sizeof(look->name));
	pthread_sigmask(SIG_SETMASK, NULL, &look->blocked);
}

Test(pool, threads_are_named_and_deaf)
{
	struct look look = { .task = { .units = 1, .run = look_run } };
	struct sk_pool *pool;
	sigset_t before, after;

	pthread_sigmask(SIG_SETMASK, NULL, &before);
	cr_assert_eq(sk_pool_new(1, 0, "a very long name", &pool, NULL), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	for (int i = 1; i < NSIG; i++)
		cr_assert_eq(sigismember(&before, i), sigismember(&after, i));
	sk_pool_run(pool, &look.task);
	cr_assert_str_eq(look.name, "a very lon-0");
	cr_assert(sigismember(&look.blocked, SIGTERM));
	cr_assert(sigismember(&look.blocked, SIGCHLD));
	cr_assert_not(sigismember(&look.blocked, SIGBUS));
	sk_pool_free(pool);
}
