/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a restart and a snapshot cost where a job has kept few steps on disk,
 * and many; or where few other jobs have an agent, and many.
 */
#ifndef SK_BENCH_GROWTH_H
#define SK_BENCH_GROWTH_H

#include "bench.h"

#define GROWTH_RANKS 8
/** Snapshots in a row, of which one is the figure. */
#define GROWTH_SNAPSHOTS 20
#define GROWTH_DURABLE 5

/** Of one restart or snapshot, nanoseconds over the rounds. */
struct growth_cost {
	struct series passed;
	struct series agent;	/* CPU of it, all threads */
};

struct growth {
	int n;				/* steps kept, or other jobs */
	struct growth_cost new_agent;	/* a restart: the first of an agent
					 * that has never seen the store */
	uint64_t rest_cpu_ns;		/* of the agent after that, until it had
					 * looked at all of the store */
	struct growth_cost next_agent;	/* the first of the one after it */
	struct growth_cost restart;	/* each other one */
	struct growth_cost memory;	/* a snapshot, complete in memory */
	struct growth_cost durable;	/* the same on disk */
	uint64_t agent_bytes;		/* the agent's peak, without slots */
};

/* ---- growth-ranks.c; all start and end their own processes ---- */

/** Writes @jobs jobs of one rank, whose step is in memory and on disk. */
int growth_add_jobs(struct bench *b, int jobs);
/** Has GROWTH_RANKS ranks of a job come, restore the newest step and go. */
int growth_restart(struct bench *b, struct growth_cost *ret);
/** Has them come, restore, and take snapshots in all rounds. */
int growth_train(struct bench *b, struct growth *ret);
/** Writes @steps steps of that job. */
int growth_add_steps(struct bench *b, int steps);
/** Whose newest @steps are kept from here on. */
void growth_keep(int steps);

#endif
