/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker: the process that uses GPUs for the agent, which itself never opens
 * the driver. It makes device slots, and brings what dead ranks left in them
 * into the memory of the node. It is started when there is something to do,
 * ends when there is nothing, and at the first error: what a driver breaks, it
 * breaks in a process that nobody misses.
 */
#ifndef SK_AGENT_WORKER_WORKER_H
#define SK_AGENT_WORKER_WORKER_H

#include "base/os.h"

/** Most that an order may take without getting further, however much there is
 * to do; the kernel then ends the process. */
#define WORKER_STILL_S 60u

/**
 * Serves the orders that come on @sock, an AF_UNIX socket of packets: each
 * MAKE_DEVICE_SLOT or DRAIN of wire/message.h gets one answer, and DRAIN says
 * before it that it gets further; -EUSERS: the GPU is one process's alone.
 * Returns when the other side is gone, when nothing has come for a while, or
 * after an order that failed: 0, or 1; but where it holds memory (cuda/held.h)
 * not before nobody has that any more. Such a process outlives the agent, but
 * where it is sent SIGTERM, as all of a service are when it is stopped: then it
 * ends with the agent, which may have it drained before.
 */
int worker_run(const struct sk_os *os, int sock);

#endif
