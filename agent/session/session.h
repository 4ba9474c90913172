/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Session: one connection. Messages come in, replies go out.
 *
 * A session that is to end is marked by session_close(), and ended when the
 * turn is over (calls/leave.h): whoever replies, or walks a list, may go on.
 * What is replied to it meanwhile is dropped.
 */
#ifndef SK_AGENT_SESSION_SESSION_H
#define SK_AGENT_SESSION_SESSION_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/link.h"
#include "loop/loop.h"
#include "refusal.h"
#include "wire/channel.h"

struct agent;

/* Quotas. */
#define MAX_REQUESTS 16u	/* deferred, of one connection */
#define MAX_REPLIES 32u		/* unsent, of one connection */
#define MAX_LEASES 65536u	/* of one connection */

/* What the store was asked, for a call that is made once more. */
#define SESSION_LOOKED_STEP 1u
#define SESSION_LOOKED_NEWEST 2u

struct session {
	struct source source;
	uint32_t events;		/* of it, not served yet */
	struct chore chore;		/* to serve them */
	struct source peer;		/* its pidfd */
	struct sk_link link;		/* in agent->sessions, or ->closing */
	struct agent *agent;
	uint64_t id;
	uid_t uid;
	pid_t pid;
	bool heard;			/* it said something */
	bool greeted;
	unsigned version;		/* that it speaks; 0: ours */
	bool faults_nothing;		/* another memory cgroup is charged for
					 * what it touches: the agent faults
					 * its slots in alone */
	unsigned looked;		/* for what it asks: SESSION_LOOKED_ */
	bool gone;			/* its process is */
	bool closing;			/* marked; it ends with the turn */
	unsigned held;			/* and not before this is 0 */
	struct sk_link requests;
	unsigned n_requests;
	struct sk_link crowd;		/* those that are asked in its turn */
	struct sk_link crowded;		/* in agent->crowds, while there are */
	struct chore asking;		/* them */
	struct sk_link replies;		/* that its socket had no room for */
	unsigned n_replies;
	struct flight *flight;		/* its user's descriptors */
	unsigned in_flight;		/* of them, its own */
	bool short_of_fds;		/* why the first of replies waits */
	struct timer retry;		/* then */
	uint64_t retry_ns;
	struct sk_link states;		/* ranks that live on it */
	struct sk_link leases;
	unsigned n_leases;
	struct refusal refusal;
};

/** Takes those in who wait at the listening socket. */
void session_accept(struct agent *a);
/** Marks it. @why NULL: the other side went in order. */
void session_close(struct session *s, const char *why);
/** What it asked for is in the background, and is done before it ends: it is
 * marked so long, no more. Unless the agent ends. */
void session_hold(struct session *s);
void session_unhold(struct session *s);
/** Whether its process is gone; also where nobody can tell, and the connection
 * has ended. */
bool session_is_gone(const struct session *s);
/** Whether it ends, or will when its turn comes: nobody is at the other
 * side. */
bool session_is_ending(const struct session *s);
/** Counts an error of the other side, and marks it. */
void session_protocol_error(struct session *s, const char *why);
/** Sends or queues a reply of that @type to message @seq; the descriptors
 * are taken over. @msg: its body, or NULL; @err is read if @status < 0. */
void session_reply(struct session *s, uint16_t type, uint32_t seq, int status,
		   struct sk_msg *msg, const int *fds, int n_fds,
		   const struct sk_err *err);
/** Frees one that is marked and holds no request, lease or rank. */
void session_free(struct session *s);

#endif
