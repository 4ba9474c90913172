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

/** What each brings there: nothing, in as many bytes. A descriptor, or an
 * error of the system: then nobody should wait for this rank. */
int sk_node_bring(const struct sk_os *os, uint32_t bytes);
/**
 * Memory of @n times @bytes (at most SK_GATHER_MAX together) that is zeroed
 * and mapped by all who meet; *ret_map is the caller's, for os->munmap(), and
 * so stays @fd, of sk_node_bring().
 * It is what GATHER gives: one memfd, the same to each.
 * Errors: as sk_conn_call(); -ETIMEDOUT somebody did not come; -ECONNRESET that
 * agent is gone, whoever serves by now: nobody else will come to that one.
 */
int sk_node_memory(struct sk *sk, const struct sk_node_meeting *who, int fd,
		   uint32_t bytes, void **ret_map, struct sk_err *err);

#endif
