/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refusals: who was refused slots for want of memory, the budget's or its
 * user's share of it, and by that whether the agent is degraded. One stands
 * until there is room for it, the rank has come in after all, or it is long
 * gone: a trainer that ends for it is mostly started anew.
 */
#ifndef SK_AGENT_CALLS_REFUSALS_H
#define SK_AGENT_CALLS_REFUSALS_H

#include "session/session.h"

struct sk_wire_register;

/** It lacks so many bytes, with @err. */
void refusal_met(struct session *s, const struct sk_wire_register *reg,
		 uint64_t bytes, const struct sk_err *err);
/** The rank has what it asked for. */
void refusal_over(struct session *s, const struct sk_wire_register *reg);
/** The connection ends. */
void refusal_left(struct session *s);
/** Those that can be had now are over; the state is what it has to be. */
void refusals_look(struct agent *a);
/** Why, as the user may hear it; NULL: all. */
void refusals_why(const struct agent *a, const uid_t *user,
		  struct sk_err *ret_why);

#endif
