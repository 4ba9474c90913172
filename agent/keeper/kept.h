/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept: descriptors that outlive the agent, each under a name.
 *
 * They are told, and told apart, as systemd's descriptor store does it (see
 * sd_notify(3) and sd_listen_fds(3)): "FDSTORE=1" and "FDNAME=" with the
 * descriptors beside it, "FDSTOREREMOVE=1" and "FDNAME=".
 */
#ifndef SK_AGENT_KEEPER_KEPT_H
#define SK_AGENT_KEEPER_KEPT_H

#include <stddef.h>

#include "base/os.h"
#include "base/table.h"

#define KEPT_NAME 48u

/* Names of what every agent keeps. */
#define KEPT_LISTENER "listener"
#define KEPT_LOCK "lock"
#define KEPT_TABLE "table"

struct kept_fd {
	char name[KEPT_NAME];
	int fd;			/* -1: taken out */
	size_t next_free;	/* and 1; 0: none. Of one that was */
};

/** Zeroed: empty. The descriptors are the list's. */
struct kept {
	struct kept_fd *v;
	size_t n, room;
	size_t free;			/* and 1, the first; 0: none */
	struct sk_table by_name;
	uint64_t visits;		/* names that were compared: tests tell
					 * by it how work grows */
};

/** Takes @fd over; one of the same name that is there already is closed.
 * -ENOMEM: @fd is closed; -EINVAL: so it is, the name is none. */
int kept_add(const struct sk_os *os, struct kept *kept, const char *name,
	     int fd);
/** The descriptor, which is the caller's from then on; -1: there is none. */
int kept_take(struct kept *kept, const char *name);
/** Closes those whose names begin so; "": all. Returns how many. */
size_t kept_drop(const struct sk_os *os, struct kept *kept,
		 const char *prefix);
/** Closes all; the list is empty then. */
void kept_clear(const struct sk_os *os, struct kept *kept);
/** What systemd gives to a service that starts again: LISTEN_PID, LISTEN_FDS
 * and LISTEN_FDNAMES, which nobody after us shall read. -ENOMEM. */
int kept_from_environment(const struct sk_os *os, struct kept *ret);

#endif
