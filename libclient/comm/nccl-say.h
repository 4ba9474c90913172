/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks with NCCL say to each other by the other comm.
 *
 * While there is a communicator, whatever they do together ends with a word of
 * each, and so does every moment for which one has waited for the others: one
 * that has failed says so there, and nobody waits for it in NCCL, which would
 * not tell.
 */
#ifndef SK_LIBCLIENT_COMM_NCCL_SAY_H
#define SK_LIBCLIENT_COMM_NCCL_SAY_H

#include "comm/nccl.h"

struct sk_nccl_word {
	int32_t status;
	int32_t version;
	uint32_t waits;		/* for others, in an exchange */
	uint32_t reserved;
	sk_nccl_id id;		/* of rank 0 */
	char text[192];
};

/**
 * Every rank says whether it can, @r with the reason in c->why, or has a word
 * for the others. *ret_all, where wanted, are all of them, until the next.
 * -ENODEV: the first that cannot has said why for all, or versions differ; else
 * the errors of the other comm, which is of no more use then.
 */
int sk_nccl_say(struct sk_nccl_comm *c, int r, struct sk_nccl_word *word,
		const struct sk_nccl_word **ret_all, uint32_t timeout_ms);
/** Has waited for a while. Errors as above; of -ENODEV all know then. */
int sk_nccl_say_waiting(struct sk_nccl_comm *c, uint32_t timeout_ms);
/** Has done all that it was to do; returns when all have. Errors as above. */
int sk_nccl_say_done(struct sk_nccl_comm *c, uint32_t timeout_ms);
/** Has failed, for the reason in c->why. Nothing, where all know. */
void sk_nccl_say_failed(struct sk_nccl_comm *c, uint32_t timeout_ms);

#endif
