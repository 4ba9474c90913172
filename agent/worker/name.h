/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that sees its device. Of GPUs that are split into instances (MIG) a
 * process sees one, and of others those that its environment lists: the
 * agent's, which has no part in what its clients use.
 */
#ifndef SK_AGENT_WORKER_NAME_H
#define SK_AGENT_WORKER_NAME_H

#include "base/os.h"
#include "cuda/share.h"

/**
 * Before the first order is taken off @sock: where its device is not seen,
 * this program is begun anew, as a worker of @sock, with the device's name in
 * $CUDA_VISIBLE_DEVICES. It does not return then. Waits until @until_ns for
 * that order.
 */
void worker_name(const struct sk_os *os, int sock, struct sk_cuda *cuda,
		 uint64_t until_ns);

/** The device is named and not seen all the same: says so, with what the
 * driver has said, which is in @err. Returns -ENODEV. */
int worker_sees_none(const struct sk_cuda_uuid *uuid, struct sk_err *err);

#endif
