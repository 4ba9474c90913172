/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection to the agent: requests and their replies.
 *
 * Every call says until when it may take, on the clock of os->now_ns(); a
 * call that serves another carries the same deadline on. Sockets never block:
 * only waits that know the deadline do.
 *
 * Thread-safety: any threads may make requests on one connection, which
 * excludes them from each other; opening and closing exclude everything.
 */
#ifndef SK_LIBCLIENT_CONN_CONN_H
#define SK_LIBCLIENT_CONN_CONN_H

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/os.h"
#include "wire/message.h"

struct sk_conn_ahead;

struct sk_conn {
	const struct sk_os *os;
	pthread_mutex_t lock;
	int sock;			/* -1: not connected */
	uint32_t seq;
	unsigned version;		/* of the wire, that both speak */
	uint64_t generation;		/* counts connections made */
	struct sk_conn_ahead *ahead;	/* not heard of yet, or NULL */
	struct sk_wire_hello_reply agent;
	uid_t user;			/* who connected, for the agent */
};
#define SK_CONN_NULL { .sock = -1 }

/** The deadline @ms from now. */
static inline uint64_t sk_until_ms(const struct sk_os *os, uint64_t ms)
{
	return os->now_ns(os) + ms * UINT64_C(1000000);
}

/** What is left until then, for a request that carries a timeout. */
uint32_t sk_left_ms(const struct sk_os *os, uint64_t until_ns);

/** Where root may have made a directory for an agent that is another user. */
#define SK_SYSTEM_SOCKET "/run/shardkeep/agent.sock"

/**
 * Connects and says hello to an agent that is run by this user or by root:
 * anybody else would be given all tensors, and would give what a restore
 * believes.
 * Errors: -ENOENT, -ECONNREFUSED, -ETIMEDOUT, -ENAMETOOLONG; -EACCES another
 * user's; -EPROTO no version that both speak; ...
 */
int sk_conn_open(const struct sk_os *os, const char *socket_path,
		 uint64_t until_ns, struct sk_conn *ret_conn,
		 struct sk_err *err);
/** Either of these. */
typedef int (*sk_conn_opener)(const struct sk_os *os, const char *socket_path,
			      uint64_t until_ns, struct sk_conn *ret_conn,
			      struct sk_err *err);
/** The same of any user's agent, for who only looks at what it has. */
int sk_conn_open_any(const struct sk_os *os, const char *socket_path,
		     uint64_t until_ns, struct sk_conn *ret_conn,
		     struct sk_err *err);
/**
 * One more connection of a handle, beside @handle. Who has one had an agent:
 * that nobody answers any more is -ECONNRESET, and not what sk_conn_open()
 * says, which is told apart from a snapshot that is not there; and so is that
 * this process is another user by now, who has none of that one's: -EACCES. Else
 * its errors.
 * It begins with the version that the handle has found: some agents log who
 * greets in one that they do not know.
 */
int sk_conn_open_more(const struct sk_os *os, struct sk_conn *handle,
		      const char *socket_path, uint64_t until_ns,
		      struct sk_conn *ret_conn, struct sk_err *err);
/** So many agents may be killed, one after the other, under a request that can
 * be asked of the next one as well. */
#define SK_AGENTS_MOST 8
/** Nothing more is asked. Until the agent has let go of what the connection
 * had open, as images, or half a second is over; it is to be closed then. */
void sk_conn_leave(struct sk_conn *conn);
/** One that is not connected is fine. */
void sk_conn_close(struct sk_conn *conn);
/** Connects an open handle again where its connection was lost, by now or at a
 * request before. Other threads may use it meanwhile. Errors: as
 * sk_conn_open_more(). */
int sk_conn_again(const char *socket_path, uint64_t until_ns,
		  struct sk_conn *conn, struct sk_err *err);
/** Whether it is connected, and nobody hung up by now. */
bool sk_conn_stands(struct sk_conn *conn);
/** Whether it is connected; and to what, as of the last connection. */
bool sk_conn_is_open(struct sk_conn *conn, uint64_t *ret_generation,
		     uint64_t *ret_instance);
/** Whether the agent gives memory of GPUs, as of the last connection. */
bool sk_conn_makes_device_slots(struct sk_conn *conn);
/** Whether slots are faulted in by the agent alone, since what this process
 * touches first would be charged to another memory cgroup. */
bool sk_conn_agent_faults(struct sk_conn *conn);

/**
 * One request and its reply (in @msg). @fds/@n_fds are sent, and received
 * ones are written to @ret_fds (room for SK_MSG_FDS, the caller closes them;
 * NULL: none expected, any are closed). A reply with a status < 0 is returned
 * as that with the agent's sentence, the rest of it in @msg. A lost connection
 * is -ECONNRESET, one that does not answer -ETIMEDOUT; both leave sock -1. What
 * the agent's version has no word for is -EOPNOTSUPP, and not sent.
 */
int sk_conn_call(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fds, int *ret_n_fds, uint64_t until_ns,
		 struct sk_err *err);

/** The two halves of it, between which nobody else uses the connection: the
 * request is with the agent, and the reply to @msg as that left it. Who does
 * not hear it closes the connection, which takes the request back. */
int sk_conn_ask(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		int n_fds, uint64_t until_ns, struct sk_err *err);
int sk_conn_hear(struct sk_conn *conn, struct sk_msg *msg, int *ret_fds,
		 int *ret_n_fds, uint64_t until_ns, struct sk_err *err);

/** A request that is made before its reply is needed. */
struct sk_conn_ahead {
	struct sk_msg msg;		/* then its reply */
	int r;				/* what became of it */
	struct sk_err err;		/* for r < 0 */
};

/** One such request without descriptors, on the connection of that
 * @generation. @ahead stays where it is until it was heard, or the connection
 * closed; meanwhile others use the connection, who take in the reply before
 * they ask. Errors: -EBUSY there is one already; as sk_conn_call_in(). */
int sk_conn_ask_ahead(struct sk_conn *conn, uint64_t generation,
		      struct sk_conn_ahead *ahead, uint64_t until_ns,
		      struct sk_err *err);
/** Its reply, as that of sk_conn_call_in(). */
int sk_conn_hear_ahead(struct sk_conn *conn, struct sk_conn_ahead *ahead,
		       uint64_t until_ns, struct sk_err *err);

/** Requests that are sent before the first of them is answered: fewer than an
 * agent of any version lets wait on one connection. */
#define SK_CONN_AT_ONCE 8

/** One of several requests. */
struct sk_conn_request {
	struct sk_msg msg;		/* then its reply */
	int fds[SK_MSG_FDS];		/* that came with it, for the caller */
	int n_fds;
	int r;				/* as of sk_conn_call() */
	struct sk_err err;		/* for r < 0 */
	bool answered;			/* within the call */
};

/** At most SK_CONN_AT_ONCE requests in one round trip; the agent may answer
 * them in any order. 0: each has its own result. A lost connection, or what
 * the agent's version has no word for, is returned, as by sk_conn_call(), and
 * nothing is left to close. */
int sk_conn_call_all(struct sk_conn *conn, struct sk_conn_request *asks, int n,
		     uint64_t until_ns, struct sk_err *err);

/** A request without descriptors, on the connection of that @generation and
 * no later one: -ECONNRESET there. */
int sk_conn_call_in(struct sk_conn *conn, uint64_t generation,
		    struct sk_msg *msg, uint64_t until_ns,
		    struct sk_err *err);
/** The same with descriptors, as sk_conn_call(). */
int sk_conn_call_fds_in(struct sk_conn *conn, uint64_t generation,
			struct sk_msg *msg, const int *fds, int n_fds,
			int *ret_fds, int *ret_n_fds, uint64_t until_ns,
			struct sk_err *err);

#endif
