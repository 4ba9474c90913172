/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parent: a keeper where there is no systemd. It holds descriptors, waits for
 * the agent, which is its child, and begins another one where the last was
 * killed. It does nothing else, so that nothing of it can fail.
 */
#ifndef SK_AGENT_KEEPER_PARENT_H
#define SK_AGENT_KEEPER_PARENT_H

#include "keeper/keeper.h"
#include "keeper/kept.h"
#include "keeper/standby.h"
#include "loop/log.h"

struct parent {
	const struct sk_os *os;
	const struct log *log;
	const char *log_path;	/* its file, which may have been moved away, or
				 * put aside by an agent; NULL: it has none */
	struct kept kept;	/* what it holds */
	int ready_fd;		/* open until an agent is ready; -1: none */
	struct keeper keeper;	/* the child's: how it tells its parent */
	unsigned lives;		/* agents that were begun */
	struct standby *standby; /* dismissed by the first agent; NULL: none */
	bool was_ready;		/* one was: what it holds is of worth, and the
				 * next is tried until it is, too */
	/* private: */
	int sock, signals;
	pid_t child;
	bool ready, stopping;
	unsigned failed;	/* in a row, not ready before they ended */
	unsigned quick;		/* in a row, soon after they began */
	uint64_t began_ns;
	int told;		/* a signal to pass on; 0: none */
};
#define PARENT_CHILD (-1)	/* what parent_run() returns in the agent */

/**
 * Begins the agent, and another one for each that is killed or could not
 * begin again; like fork(), it returns in each of them: PARENT_CHILD, with
 * what is kept and how to tell. In the parent it returns the exit status when
 * an agent has ended by itself; what is kept is the caller's to close then. os,
 * log, kept, ready_fd and was_ready are set before.
 *
 * SIGTERM and SIGINT go to the agent; they are blocked in it. One that ends in
 * order, or says that it is stopping, is the last one. Where three in a row are
 * killed before they are ready, slots and their table are let go, which is
 * said in the log: what they hold may be why.
 */
int parent_run(struct parent *p);
/** Of open files, as far as the system lets us: it holds as many as the agent
 * may give it. */
void parent_raise_limit(const struct sk_os *os);

#endif
