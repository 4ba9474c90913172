/* SPDX-License-Identifier: Apache-2.0 */
/* An operator who says at random what is to stay of a job, and what is to go:
 * commands of cachectl, as a process of its own. */
#ifndef SK_TESTS_SOAK_OPERATOR_H
#define SK_TESTS_SOAK_OPERATOR_H

#include <stdatomic.h>

#include "soak/soak.h"

/** Shared by all processes of a trial. */
struct operating {
	_Atomic(int64_t) complete, durable;	/* newest that ranks were
						 * told; -1 */
	atomic_uint kills;		/* of agents; odd: one is under way */
	bool apart;			/* other ranks are on another node */
	atomic_bool over;
	atomic_ullong commands, refused;
};

/** Until it is over. Each command ends as it may, what is pinned stays where
 * it was, and nothing is ever damaged. */
void operate(struct scene *scene, const char *job, struct operating *shared,
	     uint64_t seed);
/** One command; its exit code. Arguments up to NULL. */
int operator_run(const struct scene *scene, ...);
/** Lists them, for whoever looks at a failure. */
void operator_show(const struct scene *scene, const char *job);
/** What the agent has in memory is evicted, of all jobs, whoever wants it. */
void operator_evict_all(const struct scene *scene);
/** Of the agent's figures. */
double operator_figure(const struct scene *scene, const char *name);
/** Step directories of the job on the scene's store. */
int operator_steps(const struct scene *scene, const char *job);

#endif
