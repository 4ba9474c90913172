/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of one node share for a while. */
#ifndef SK_LIBCLIENT_COMM_NODE_H
#define SK_LIBCLIENT_COMM_NODE_H

#include "conn/client.h"

/** Who meets to share: each is @rank of @n of that job, and all name the same
 * @meeting, a number that nobody else has. */
struct sk_node_meeting {
	const char *job;
	uint64_t agent;		/* the instance of the node's */
	uint64_t meeting;
	int32_t rank, n;
	uint32_t timeout_ms;
};

/** One that has said that it comes. */
struct sk_node_share {
	struct sk_conn conn;
	struct sk_msg msg;
	uint64_t bytes;		/* of all */
	uint64_t until_ns;
};
#define SK_NODE_SHARE_NULL { .conn = SK_CONN_NULL }

/**
 * Asks the agent for memory of @n times @bytes (at most SK_GATHER_MAX
 * together), zeroed: then this rank has come, whatever the others do, and who
 * has heard that of all of them does not wait in vain. @ret is to be left in
 * any case.
 * Errors: as sk_conn_call(), and of the system; -ECONNRESET that agent is gone,
 * whoever serves by now: nobody else will come to that one.
 */
int sk_node_come(struct sk *sk, const struct sk_node_meeting *who,
		 uint32_t bytes, struct sk_node_share *ret,
		 struct sk_err *err);
/**
 * When all have come: it is mapped by all who meet; *ret_map is the caller's,
 * for os->munmap(). It is what GATHER gives: one memfd, the same to each.
 * Errors: as sk_conn_call(); -ETIMEDOUT somebody did not come; -ECONNRESET the
 * agent is gone.
 */
int sk_node_memory(struct sk *sk, struct sk_node_share *share, void **ret_map,
		   struct sk_err *err);
/** Comes no more. One that never came is fine. */
void sk_node_leave(struct sk_node_share *share);

#endif
