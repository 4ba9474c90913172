/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole agent in a child, at a rig's socket and store, on a table of
 * operations whose rules the test sets from outside: @fault lies in memory
 * that both share.
 */
#ifndef SK_TEST_AGENT_FORKED_H
#define SK_TEST_AGENT_FORKED_H

#include "agent/rig.h"
#include "support/fault-os.h"

/** Serves when this returns; no rule of @fault is set any more. @option: one
 * more, as "--keep-last=2", or NULL. It goes with the test. */
void forked_start(struct rig *rig, struct sk_fault_os *fault,
		  const char *option);

#endif
