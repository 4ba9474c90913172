/* SPDX-License-Identifier: Apache-2.0 */
/* What sk_comm_nccl() makes. */
#ifndef SK_LIBCLIENT_COMM_NCCL_H
#define SK_LIBCLIENT_COMM_NCCL_H

#include "conn/client.h"
#include "nccl/nccl.h"

struct sk_nccl_word;

struct sk_nccl_comm {
	struct sk *sk;
	struct sk_comm base;		/* the caller's */
	int32_t rank, world;
	struct sk_comm_device device;
	struct sk_err why;		/* it was not used, or failed */
	struct sk_nccl_word *said;	/* room for one of each rank */
	uint32_t timeout_ms;		/* of the last call */
	bool told;			/* that it failed: to this rank, or by
					 * it; nothing more is said */
	bool hung;			/* an end never came */
	bool under_way;			/* an exchange that was asked for */
	/* While a restore has it: */
	struct sk_nccl lib;		/* version 0: not open; it stays */
	struct sk_cuda_device *gpu;
	struct sk_cuda_lane *lane;
	struct sk_cuda_mark *mark;
	sk_nccl_comm comm;		/* NULL: none */
};

/** What sk_comm_nccl_why() says of @comm from now on; NULL: that nothing is
 * wrong. A comm of another kind is left alone. */
void sk_comm_nccl_note(const struct sk_comm *comm, const struct sk_err *why);

#endif
