/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A living agent, what it is asked here, and what it knows: a job of two ranks
 * whose step 1 is durable, and one of a rank alone.
 */
#ifndef SK_TEST_AGENT_EACH_H
#define SK_TEST_AGENT_EACH_H

#include <limits.h>

#include "agent/whole.h"

#define EACH_JOB "each"
#define EACH_ALONE "alone"

struct scene {
	struct whole w;
	struct rank ranks[2];	/* of the job whose step 1 is durable */
	struct rank alone;	/* of a job of its own */
	int sock;
	int64_t step;		/* the last that @alone has sealed */
	uint64_t round;		/* of gathers */
	unsigned jobs;		/* that were found on disk */
	struct sk_msg msg;	/* the last reply */
	struct sk_msg why;	/* an earlier one, with an error */
	uint64_t hits;		/* what was failed until then */
	bool lost;		/* its connection */
	bool stored;		/* a job of the disk's alone */
};

#define ANY UINT_MAX		/* it works in the background as well */

/** Something to ask for. */
struct asked {
	const char *name;
	/** Asks, and looks at what came: 0, or the status of the refusal,
	 * whose sentence is in s->msg. */
	int (*fn)(struct scene *s);
	unsigned spared;	/* allocations that it can do without, each */
	bool unsure;		/* a failed call may come to it too late */
	bool keeps;		/* descriptors, when it is done */
	unsigned most;		/* of each that are failed, as what goes on
				 * beside it makes ever more; 0: all */
};

struct asked_set {
	const struct asked *v;
	size_t n;
};

/** What the agent is asked for, and what it is to do. */
extern const struct asked_set asked_for, asked_to;

/** What is failed, from now on is not. */
void mend(struct scene *s);
/** How much was, since something is. */
uint64_t hits_of(const struct scene *s);

/** One request, s->msg, on a connection, with @n_send descriptors: its status.
 * It takes those that come where @fds is not NULL. */
int ask_on(struct scene *s, int sock, const int *send, int n_send, int *fds,
	   int *n_fds);
int ask(struct scene *s, int sock);
/** One on a connection of the scene's that is answered with records, @most
 * bytes of which are read; how many there are. */
int ask_records(struct scene *s, int sock, void *ret, size_t most,
		uint64_t *ret_n);
/** Waits for the step, after so many milliseconds on a clock that goes on, for
 * what failed is tried again. The status. */
int await_step(struct scene *s, const char *job, int64_t step,
	       uint32_t until, int patience_ms);
/** The agent, its jobs, and their connections. */
void begin(struct scene *s);
/** The agent ends as it is asked to, and has given back all (whole.c). */
void end(struct scene *s);

#endif
