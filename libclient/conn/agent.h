/* SPDX-License-Identifier: Apache-2.0 */
/* This node's agent: where it listens, and starting a private one. */
#ifndef SK_LIBCLIENT_CONN_AGENT_H
#define SK_LIBCLIENT_CONN_AGENT_H

#include <stddef.h>

#include "conn/conn.h"

/** Room for a socket's path. */
#define SK_PATH_ROOM 4096u

/** The one socket that was named, by the caller or by the environment; NULL:
 * the usual places. */
const char *sk_agent_named(const char *option);

/**
 * Connects, by sk_conn_open() or sk_conn_open_any(), to the agent that
 * answers, at the named socket or in the usual places, whose path is written to
 * @ret_path (room for SK_PATH_ROOM) whatever happens. Starts nothing.
 * Errors: as those; -ENOENT none answers in the usual places; -EACCES the
 * private agent's directory is another user's.
 */
int sk_agent_connect(const struct sk_os *os, const char *option,
		     sk_conn_opener open, uint64_t until_ns, char *ret_path,
		     struct sk_conn *ret_conn, struct sk_err *err);

/**
 * All that an agent does not honour of the environment, because it ran already:
 * NULL where it is and has what $SHARDKEEP_STORE and $SHARDKEEP_MEMORY say, or
 * they say nothing; else a sentence for people, the caller's to free().
 */
char *sk_agent_differs(const struct sk_os *os,
		       const struct sk_wire_hello_reply *agent,
		       const char *socket_path);

/**
 * Starts a private agent at @path, in a directory that this user alone can
 * write to, and connects to it, or to that of another process which was
 * quicker. Errors: -EACCES the directory is another's; those of spawning; as
 * sk_conn_open().
 */
int sk_agent_start(const struct sk_os *os, const char *path,
		   uint64_t until_ns, struct sk_conn *ret_conn,
		   struct sk_err *err);

#endif
