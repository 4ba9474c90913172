/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of what a state describes. */
#ifndef SK_LIBCLIENT_STATE_LAYOUT_H
#define SK_LIBCLIENT_STATE_LAYOUT_H

#include "state/state.h"

/** The layout of the primary image of what is described now, of which the
 * agent need not know. A reference. With state->lock held.
 * Errors: -ENOMEM, and what is wrong with the description. */
int sk_state_layout(const struct sk_state *state, struct sk_layout **ret,
		    struct sk_err *err);

#endif
