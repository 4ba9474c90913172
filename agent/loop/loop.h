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
#include "loop/work.h"

/** A descriptor that is watched. It stays its owner's. */
struct source {
	/** @events: of epoll. The source must live to the turn's end: other
	 * events of the turn may still name it. */
	void (*ready)(struct source *source, uint32_t events);
	int fd;			/* -1: none */
	bool watched;
};

/** What takes long and must be done by the loop's thread: in portions, one
 * each turn, so that nobody waits for all of it. Those that are queued take
 * turns. */
struct chore {
	/** Does a portion, which is bounded. Queued no more meanwhile: what has
	 * more to do queues itself anew. May free the chore. */
	void (*run)(struct chore *chore);
	struct sk_link link;		/* in the loop; on its own: idle */
};

struct loop {
	const struct sk_os *os;
	struct timers timers;
	struct works works;
	struct sk_link chores;
	struct source wake;	/* of works */
	int epoll;
	uint64_t turns;
	uint64_t turn_ns;	/* when the last wait ended */
	uint64_t longest_ns;	/* that a turn took, all that follows too */
};

/** A negative errno: nothing is open. */
int loop_open(struct loop *loop, const struct sk_os *os);
/** Harmless for one that did not open; no work may be out. */
void loop_close(struct loop *loop);
/** Watches, or (events 0) forgets, the source's descriptor. */
int loop_watch(struct loop *loop, struct source *s, uint32_t events);
/** @chore's next portion is due; it is idle. */
void loop_queue(struct loop *loop, struct chore *chore);
/** Waits until something is ready or a time has come, and serves all that
 * is. */
void loop_turn(struct loop *loop);

static inline uint64_t loop_now(const struct loop *loop)
{
	return loop->os->now_ns(loop->os);
}

#endif
