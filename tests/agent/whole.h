/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole agent in a child of the test, on a table of operations that the
 * test holds: it lies in memory that both share, so that the test can fail
 * calls and move the clock while the agent runs.
 */
#ifndef SK_TEST_AGENT_WHOLE_H
#define SK_TEST_AGENT_WHOLE_H

#include "agent/rig.h"
#include "options.h"
#include "support/fault-os.h"

struct whole {
	struct rig rig;			/* no program of its own */
	struct sk_fault_os *fault;	/* shared */
	struct options options;		/* may be changed before the start */
	/** Called in the child before anything else, and when the agent has
	 * ended by itself; NULL: nothing. */
	void (*before)(void *ctx);
	void (*after)(void *ctx);
	void *ctx;
	char metrics[2][96];		/* where figures go */
	bool hangs;			/* something of it, for good */
	bool serves;
};

/** A directory, a store in it, no faults, a clock that stands. */
void whole_init(struct whole *w);
/** It writes its figures to a file as well, and serves them if it can. */
void whole_metrics(struct whole *w);
/** Starts it; w->serves says whether it can be connected to. */
void whole_start(struct whole *w);
/** Moves the clock, by so much a tick of some milliseconds, until it has
 * ended. Ends the test where it does not end. */
void whole_pass(struct whole *w, uint64_t tick_ns);
/** The same; its exit status, 128 + signal. */
int whole_wait(struct whole *w);
/** True once it has ended by itself; takes no notice of the clock. */
bool whole_ended(struct whole *w);
/** For sk_fault_os_meddle(): from then on the agent's next descriptor is 0, as
 * where it is started without standard input; and no longer, where it is none
 * yet. */
void whole_free_zero(void *ctx);
void whole_take_zero(void *ctx);
void whole_remove(struct whole *w);
/** What the agent said on standard error; static memory. */
const char *whole_log(const struct whole *w);

/** What became of one rank's life, from registration to the agent's end. */
struct story {
	bool registered, sealed, durable, restored;
	int status;		/* the agent's exit status */
	char said[16384];	/* the sentences of refusals, and the log */
};

/**
 * Connects, registers, seals step 1, waits for the disk, reads it back, stops
 * the agent. Whatever is refused must come with a sentence; what the agent
 * says it has done must be so.
 */
struct story whole_story(struct whole *w);

#endif
