/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work: what a thread in the background does for the loop's thread.
 *
 * A struct work is embedded in whatever the work is about. Until it is handed
 * back the background alone has that object; it touches nothing else that the
 * loop's thread writes.
 *
 * Thread-safety: all functions are the loop's thread's; run() alone is called
 * on another.
 */
#ifndef SK_AGENT_LOOP_WORK_H
#define SK_AGENT_LOOP_WORK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/link.h"
#include "base/os.h"
#include "base/pool.h"

/** What is out in the background, and what came back. */
struct works {
	const struct sk_os *os;
	int wake;		/* readable when something came back */
	unsigned out;		/* handed out and not finished yet */
	pthread_mutex_t lock;
	struct sk_link back;	/* under the lock */
};

struct work {
	void (*run)(struct work *work);		/* in the background */
	void (*finish)(struct work *work);	/* back here; may free it */
	/* private: */
	struct sk_task task;
	struct sk_link link;
	struct works *works;
};

/** A negative errno: nothing is open. */
int works_open(struct works *ws, const struct sk_os *os);
/** Nothing may be out any more. */
void works_close(struct works *ws);
/** Never fails; run and finish must stand in @work. */
void work_submit(struct works *ws, struct sk_pool *pool, struct work *work);
/** Finishes what has come back. */
void works_finish(struct works *ws);
/** Waits for all that is out, and finishes it. */
void works_drain(struct works *ws);
/** The same, but no longer than until then. False: some is out. */
bool works_drain_until(struct works *ws, uint64_t until_ns);

#endif
