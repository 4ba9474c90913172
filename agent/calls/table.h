/* SPDX-License-Identifier: Apache-2.0 */
/* Table: which function answers which message. */
#ifndef SK_AGENT_CALLS_TABLE_H
#define SK_AGENT_CALLS_TABLE_H

struct session;
struct sk_msg;

/** Answers the message, or has it answered later. What it keeps of @fds it
 * replaces by -1. */
void call_dispatch(struct session *s, const struct sk_msg *in, int *fds,
		   int n_fds);

#endif
