/* SPDX-License-Identifier: Apache-2.0 */
/* The signals that tell a process of ours to end, as a descriptor. */
#ifndef SK_AGENT_LOOP_SIGNALS_H
#define SK_AGENT_LOOP_SIGNALS_H

#include "base/os.h"

/** SIGTERM and SIGINT are blocked, and read from the descriptor that it
 * returns, the caller's; SIGPIPE and SIGHUP are ignored, and SIGCHLD is not.
 * Threads that are made after it, and children, inherit that. A negative
 * errno. */
int signals_open(const struct sk_os *os);

#endif
