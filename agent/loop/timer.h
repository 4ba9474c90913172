/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers: what is to happen at a time, embedded in whatever waits for it.
 *
 * They need no memory of their own, so setting one cannot fail: an agent that
 * could not set the timer of a retry or of its own end would hang.
 *
 * Times are nanoseconds of the clock of sk_os.now_ns(). One thread has them.
 */
#ifndef SK_AGENT_LOOP_TIMER_H
#define SK_AGENT_LOOP_TIMER_H

#include <stdbool.h>
#include <stdint.h>

struct timer {
	/** Called once; the timer is not set any more and may be set anew, or
	 * freed, by it. */
	void (*fire)(struct timer *timer);
	/* private: a node of a pairing heap */
	uint64_t at_ns;
	struct timer *child, *next;
	struct timer *prev;	/* the sibling before, or the parent */
	bool set;
};

struct timers {
	struct timer *first;	/* the root: what fires next */
};

/** Sets it, or sets it anew. Its fire must stand in it. */
void timer_set(struct timers *ts, struct timer *t, uint64_t at_ns);
/** Sets it, unless it fires by then already. Its fire must stand in it. */
void timer_set_by(struct timers *ts, struct timer *t, uint64_t at_ns);
/** It will not fire; harmless where it is not set. */
void timer_clear(struct timers *ts, struct timer *t);
/** When the first fires; SK_FOREVER: there is none. */
uint64_t timers_next(const struct timers *ts);
/** Fires all that are due by @now_ns, the earliest first. */
void timers_run(struct timers *ts, uint64_t now_ns);

#endif
