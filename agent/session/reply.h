/* SPDX-License-Identifier: Apache-2.0 */
/* Replies that a connection's socket has no room for yet, in their order. */
#ifndef SK_AGENT_SESSION_REPLY_H
#define SK_AGENT_SESSION_REPLY_H

struct session;

void replies_init(struct session *s);
/** Sends what it takes now; what is left waits for room. */
void replies_send(struct session *s);
/** Nobody will read them. */
void replies_drop(struct session *s);

#endif
