/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoint: where clients connect. A directory that nobody else can write, a
 * lock in it that one agent holds, and the socket.
 */
#ifndef SK_AGENT_LOOP_ENDPOINT_H
#define SK_AGENT_LOOP_ENDPOINT_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/os.h"

struct endpoint {
	char path[108];		/* what a socket's address holds */
	int lock;
	int sock;		/* listens */
	bool chosen;		/* the path was not said: its directory is
				 * ours alone */
	dev_t dev;		/* of the socket's file */
	ino_t ino;
};

/** The path alone; as endpoint_open() finds it. */
int endpoint_find(const struct sk_os *os, const char *path,
		  struct endpoint *ret, struct sk_err *err);
/** Finds the path (@path NULL: the system's, the user's, or in /tmp), makes
 * the directory, takes the lock, listens. 1: another agent answers there, and
 * ret->path alone is set. A negative errno comes with a sentence. */
int endpoint_open(const struct sk_os *os, const char *path,
		  struct endpoint *ret, struct sk_err *err);
/** One that was kept while there was no agent: takes its lock and, where it
 * still listens under that name, its socket over; -1: it has none. As
 * endpoint_open() for the rest. */
int endpoint_adopt(const struct sk_os *os, const char *path, int lock,
		   int sock, struct endpoint *ret, struct sk_err *err);
/** Whether the file by which clients find us is still ours: a cleaner of
 * temporary files, or a hand, may have removed it. */
bool endpoint_is_there(const struct sk_os *os, const struct endpoint *e);
/** Makes directory, lock and socket anew as far as they are gone; @e->sock is
 * another then. 1: another agent answers there by now. On errors @e stays as
 * it is. */
int endpoint_renew(const struct sk_os *os, struct endpoint *e,
		   struct sk_err *err);
/** "agent.log" beside the socket, where an agent in the background writes. */
void endpoint_log_path(const struct endpoint *e, char *ret, size_t size);
/** This process is done with it; whoever keeps lock and socket is not. */
void endpoint_leave(struct endpoint *e);
/** Nobody can connect any more, and another agent may take the path. */
void endpoint_close(const struct sk_os *os, struct endpoint *e);

#endif
