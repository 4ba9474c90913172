/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot's tensors that lie on GPUs, on their way to the slot. */
#ifndef SK_LIBCLIENT_SNAPSHOT_FROM_GPUS_H
#define SK_LIBCLIENT_SNAPSHOT_FROM_GPUS_H

#include "snapshot/copying.h"

/**
 * Copies them: to the rank's device slot first, where there is one, else
 * straight into the slot. Fences let go of them as soon as they are safe to
 * overwrite; when it returns, they are in the slot. On the thread that waits
 * for GPUs. -EIO: c->pending.err says why.
 */
int sk_copying_from_gpus(struct sk_copying *c);

/** Waits until they are safe to overwrite, once all have been asked for, and
 * releases them. Any thread, which has a reference. False: nobody can tell but
 * who copies. */
bool sk_copying_reach(struct sk_pending *p);

/** Asks for what goes to the device slot, where that is a few calls: then who
 * fences a stream waits for nobody. On the thread that takes the snapshot,
 * before it is handed over, and while the one that waits for GPUs has none. */
void sk_copying_ask_ahead(struct sk_copying *c);

#endif
