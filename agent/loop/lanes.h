/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: work in the background that is fair among users.
 *
 * Each user has one piece of work under way at most: however much a user asks
 * for, another's turn comes as soon as a thread is free, and there are as many
 * threads as users who may be slow at once. What waits of a user goes round
 * among its jobs, and of a job in the order in which it came: a job waits for
 * one piece of each other one, however many those have.
 *
 * Thread-safety: as struct work.
 */
#ifndef SK_AGENT_LOOP_LANES_H
#define SK_AGENT_LOOP_LANES_H

#include <stdint.h>
#include <sys/types.h>

#include "loop/work.h"

struct lanes {
	struct works *works;
	struct sk_pool *pool;
	struct sk_link waiting;		/* of struct lane_work, oldest first */
	struct sk_link running;
};

/** Embedded in whatever the work is about, as struct work is. */
struct lane_work {
	void (*run)(struct lane_work *work);	/* in the background */
	void (*finish)(struct lane_work *work);	/* back here; may free it */
	/* private: */
	struct work work;
	struct sk_link link;
	struct lanes *lanes;
	uid_t uid;
	uint64_t job;
	uint64_t round;
};

void lanes_init(struct lanes *lanes, struct works *works,
		struct sk_pool *pool);
/** How much the user has waiting there. */
unsigned lanes_waiting(const struct lanes *lanes, uid_t uid);
/** Of the user's job of that name. Never fails; run and finish must stand in
 * @work. */
void lanes_submit(struct lanes *lanes, uid_t uid, const char *job,
		  struct lane_work *work);

#endif
