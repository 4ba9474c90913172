/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent whose keeper outlives it, and a rank that goes on as the library
 * would: both processes are forked from the test, on a table of operations
 * that they share with it.
 */
#ifndef SK_TEST_AGENT_OUTLIVE_H
#define SK_TEST_AGENT_OUTLIVE_H

#include "agent/rig.h"
#include "options.h"
#include "support/fault-os.h"

#define OUTLIVE_JOB "points"

struct scene {
	struct rig rig;
	struct sk_fault_os *fault;	/* shared with all agents */
	struct sk_fault_os *over;	/* with those that take its place */
	struct options options;
	uint32_t flush_every;		/* of ranks; 0: 1 */
	unsigned hangs_s;		/* 0: the store never does */
	/** Called in each agent before it begins, and when it has ended by
	 * itself; NULL: nothing. */
	void (*before)(void *ctx);
	void (*after)(void *ctx);
	void *ctx;
};

/** For sk_fault_os_meddle(): the process that makes the call is killed. */
void die(void *ctx);
/** Who was to die at one of @fault's calls is dead: what answers from now on is
 * another one. */
void await_death(const struct sk_fault_os *fault);
/** The keeper and its first agent, which serves. */
void begin(struct scene *s);
void end(struct scene *s);
/** The rank registers, or comes back to where it was. */
void open_rank(struct scene *s, struct rank *r);
/** A snapshot, until it is sealed, whoever is killed meanwhile. */
void take(struct scene *s, struct rank *r, int64_t step);
/** The rank's life: it registers and takes @steps snapshots. */
void story(struct scene *s, struct rank *r, int64_t steps);
/** What was sealed is there, in each place that is told of. */
void check_step(struct scene *s, const struct rank *r, int64_t step);
/** The agent that answers; negative: none. */
pid_t serving(const struct scene *s);

#endif
