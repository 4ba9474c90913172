/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Standby: a second process that has all that this one has, while there is no
 * other. Who has taken an agent's place is alone with what that one held until
 * its own agent is begun; killed in between, it would take all of it along.
 * The standby waits for a word that it is not needed, and where that does not
 * come before everybody who could give it has died, it goes on in their place.
 */
#ifndef SK_AGENT_KEEPER_STANDBY_H
#define SK_AGENT_KEEPER_STANDBY_H

#include "base/os.h"

struct standby {
	int sock;		/* -1: there is none */
	pid_t pid;
};
#define STANDBY_NULL { .sock = -1, .pid = -1 }
#define STANDBY_TAKES 1		/* what standby_begin() returns in it */

/**
 * Like fork(), it returns twice: 0 here, with the standby in @ret, and
 * STANDBY_TAKES in the standby, if it ever returns there. All processes that
 * are forked from here on and keep ret->sock open can dismiss it, and must die
 * before it goes on. Errors: those of socketpair() and fork(); there is none.
 */
int standby_begin(const struct sk_os *os, struct standby *ret);
/** It ends; harmless where there is none, or another process said so. */
void standby_dismiss(const struct sk_os *os, struct standby *s);

#endif
