/* SPDX-License-Identifier: Apache-2.0 */
/* What a device slot holds, into the slot that its rank was filling. */
#ifndef SK_AGENT_WORKER_DRAIN_H
#define SK_AGENT_WORKER_DRAIN_H

#include "cuda/share.h"
#include "wire/message.h"

/** Bytes that are copied, or hashed, between two words that it gets further. */
#define DRAIN_STEP ((uint64_t)64 << 20)

/** Whom to tell that it gets further. */
struct drain_watch {
	void (*further)(void *ctx);
	void *ctx;
};

/**
 * As SK_MSG_DRAIN of wire/message.h says it; @fds stay the caller's. When it
 * returns 0 the slot has whole images, but for the agent's word.
 * Errors: -EINVAL, -EBADMSG what came makes no sense; -ENOMEM; -EIO the
 * driver; those of reading and mapping.
 */
int drain(const struct sk_os *os, struct sk_cuda_device *device,
	  const struct sk_wire_worker *order, const int *fds, int n_fds,
	  const struct drain_watch *watch, struct sk_err *err);

#endif
