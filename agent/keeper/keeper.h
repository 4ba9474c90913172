/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeper, the agent's side: whoever holds the agent's descriptors while there
 * is no agent. Under systemd that is its descriptor store, else a parent of
 * the agent's own (keeper/parent.h). Both are told the same, in words of
 * sd_notify(3).
 *
 * What was told is kept, from the return of the call on: it stands in the
 * keeper's queue, and is read there before another agent is begun. No call
 * waits for a keeper that does not read for longer than a second, and that
 * only once.
 *
 * Thread-safety: one thread at a time.
 */
#ifndef SK_AGENT_KEEPER_KEEPER_H
#define SK_AGENT_KEEPER_KEEPER_H

#include <stdbool.h>

#include "base/os.h"

enum keeper_kind {
	KEEPER_NONE = 0,	/* nothing outlives the agent */
	KEEPER_PARENT,
	KEEPER_SYSTEMD,
};

struct keeper {
	enum keeper_kind kind;
	int sock;		/* -1: none */
	bool slow;		/* it did not read, the last time */
	bool lost;		/* it is gone, and keeps nothing any more */
	unsigned refused;	/* descriptors that it could not be given */
};
#define KEEPER_NULL { .sock = -1 }

/** systemd's, where $NOTIFY_SOCKET says that it listens. */
struct keeper keeper_from_environment(const struct sk_os *os);
/** Harmless where there is none. */
void keeper_close(const struct sk_os *os, struct keeper *k);

/** Keeps a copy of @fd as @name. False: it is not kept. */
bool keeper_give(const struct sk_os *os, struct keeper *k, const char *name,
		 int fd);
/** Lets go of what has that name. */
void keeper_forget(const struct sk_os *os, struct keeper *k,
		   const char *name);
/** Clients can connect from now on. */
void keeper_ready(const struct sk_os *os, struct keeper *k);
/** When this agent ends, no other shall be begun. */
void keeper_stopping(const struct sk_os *os, struct keeper *k);

#endif
