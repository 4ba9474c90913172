/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads submit to one pool at once: tasks that free themselves, tasks
 * that submit more, tasks that are waited for. For ThreadSanitizer and leak
 * checks; exits 0 if every unit ran once. Work is counted without atomics
 * wherever the pool itself promises the order.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/pool.h"

#define ROUNDS 8u
#define SUBMITTERS 4u
#define TASKS 100u
#define UNITS 7u
#define FOLLOWERS 3u

struct submitter {
	struct sk_pool *pool;
	unsigned units;		/* atomic: by all threads of the pool */
	unsigned wrong;		/* by the submitter alone */
};

struct job {
	struct sk_task task;
	struct submitter *owner;
	unsigned followers;
	unsigned ran[UNITS];	/* each by one unit, read by done() */
};

static void job_run(struct sk_task *task, size_t unit)
{
	struct job *job = (struct job *)task;

	job->ran[unit]++;
	__atomic_add_fetch(&job->owner->units, 1, __ATOMIC_RELAXED);
}

static void job_done(struct sk_task *task);

static void submit_job(struct submitter *owner, unsigned followers)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		abort();
	job->task.units = UNITS;
	job->task.run = job_run;
	job->task.done = job_done;
	job->owner = owner;
	job->followers = followers;
	sk_pool_submit(owner->pool, &job->task);
}

static void job_done(struct sk_task *task)
{
	struct job *job = (struct job *)task;

	for (unsigned i = 0; i < UNITS; i++)
		if (job->ran[i] != 1)
			abort();
	if (job->followers)
		submit_job(job->owner, job->followers - 1);
	free(job);
}

/* A task on this stack: the pool must be through with it in time. */
static void run_one(struct submitter *owner, size_t units)
{
	struct job job = {
		.task = { .units = units, .run = job_run },
		.owner = owner,
	};

	sk_pool_run(owner->pool, &job.task);
	for (size_t i = 0; i < units; i++)
		owner->wrong += job.ran[i] != 1;
}

static void *submitter_main(void *arg)
{
	struct submitter *owner = arg;

	for (unsigned i = 0; i < TASKS; i++) {
		submit_job(owner, FOLLOWERS);
		run_one(owner, i % (UNITS + 1));
	}
	return NULL;
}

static unsigned units_expected(void)
{
	unsigned n = TASKS * (FOLLOWERS + 1) * UNITS;

	for (unsigned i = 0; i < TASKS; i++)
		n += i % (UNITS + 1);
	return n;
}

static int run_round(unsigned threads)
{
	struct submitter owners[SUBMITTERS] = { 0 };
	pthread_t ids[SUBMITTERS];
	struct sk_pool *pool;
	struct sk_err err;

	if (sk_pool_new(threads, -1, "stress", &pool, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	for (unsigned i = 0; i < SUBMITTERS; i++) {
		owners[i].pool = pool;
		if (pthread_create(&ids[i], NULL, submitter_main, &owners[i]))
			abort();
	}
	for (unsigned i = 0; i < SUBMITTERS; i++)
		pthread_join(ids[i], NULL);
	/* Followers are still under way: the pool finishes them. */
	sk_pool_free(pool);
	for (unsigned i = 0; i < SUBMITTERS; i++)
		if (owners[i].wrong || owners[i].units != units_expected()) {
			fprintf(stderr, "%u threads: %u units, %u wrong, not "
				"%u\n", threads, owners[i].units,
				owners[i].wrong, units_expected());
			return 1;
		}
	return 0;
}

int main(void)
{
	int failed = 0;

	for (unsigned threads = 1; threads <= ROUNDS; threads++)
		failed |= run_round(threads);
	return failed;
}
