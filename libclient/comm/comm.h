/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's comm: ranks of one node meet through their agent. */
#ifndef SK_LIBCLIENT_COMM_COMM_H
#define SK_LIBCLIENT_COMM_COMM_H

#include "conn/client.h"

/** Who meets: @id's rank of its world, in its job and run. */
struct sk_agent_comm {
	struct sk *sk;
	struct sk_wire_id id;
	/* Counts the meetings of one restore. From 0 each time: a rank that
	 * was there too early, and alone, meets the others when they come. */
	uint64_t round;
};

/** @ctx is the comm's and must outlive it. */
void sk_comm_of_agent(struct sk_agent_comm *ctx, struct sk_comm *ret_comm);

#endif
