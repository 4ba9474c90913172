/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loop: waits for descriptors, times and finished work, and tells those who
 * asked for them. It knows nothing of what they are.
 *
 * One thread turns it; what it calls runs to the end before anything else
 * does.
 */
#ifndef SK_AGENT_LOOP_LOOP_H
#define SK_AGENT_LOOP_LOOP_H

#include "loop/timer.h"
#include "loop/turns.h"
#include "loop/work.h"

/** A descriptor that is watched. It stays its owner's. */
struct source {
	/** @events: of epoll. The source must live to the turn's end: other
	 * events of the turn may still name it. */
	void (*ready)(struct source *source, uint32_t events);
	int fd;			/* -1: none */
	bool watched;
};

struct loop {
	const struct sk_os *os;
	struct timers timers;
	struct works works;
	struct turns chores;
	struct source wake;	/* of works */
	int epoll;
	uint64_t n_turns;
	uint64_t turn_ns;	/* when the last wait ended */
	uint64_t longest_ns;	/* that a turn took, all that follows too */
};

/** A negative errno: nothing is open. */
int loop_open(struct loop *loop, const struct sk_os *os);
/** Harmless for one that did not open; no work may be out. */
void loop_close(struct loop *loop);
/** Watches, or (events 0) forgets, the source's descriptor. What is ready is
 * served at once, before all chores: it has to be little. */
int loop_watch(struct loop *loop, struct source *s, uint32_t events);
/** @chore's next portion is due; it is idle. */
void loop_queue(struct loop *loop, struct chore *chore);
/** Waits until something is ready, due, or a time has come; serves what is
 * ready, and for a moment what is due. */
void loop_turn(struct loop *loop);
/** Serves what is due already, whatever time that takes, if not for ever:
 * before the last turn ends. */
void loop_serve(struct loop *loop);

static inline uint64_t loop_now(const struct loop *loop)
{
	return loop->os->now_ns(loop->os);
}

#endif
