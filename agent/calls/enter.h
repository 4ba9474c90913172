/* SPDX-License-Identifier: Apache-2.0 */
/* Enter: how a rank comes into the catalogue, once its layouts are read. */
#ifndef SK_AGENT_CALLS_ENTER_H
#define SK_AGENT_CALLS_ENTER_H

#include "catalogue/catalogue.h"
#include "wire/message.h"

struct session;

/** Registers the rank of @reg as a state of the connection. @layouts (the
 * replica's may be NULL) are taken, and those that are, NULL afterwards.
 * Errors come with a sentence, and as if it had not been. */
int rank_enter(struct session *s, const struct sk_wire_register *reg,
	       struct sk_layout *layouts[2], struct sk_cat_state **ret_state,
	       struct sk_err *err);

#endif
