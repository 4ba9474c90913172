/* SPDX-License-Identifier: Apache-2.0 */
/* Finding what is described by its name. */
#ifndef SK_LIBCLIENT_STATE_NAMES_H
#define SK_LIBCLIENT_STATE_NAMES_H

#include "state/state.h"

/** A name's hash; never 0. */
uint64_t sk_name_hash(const char *name);
/** Index into locals, or -1. */
int64_t sk_state_find(const struct sk_state *state, const char *name);
/** Of the name that @like has: it is looked at only where one is found. */
int64_t sk_state_find_as(const struct sk_state *state,
			 const struct sk_local *like);

/** Has room for @more names than there are locals; -ENOMEM. */
int sk_names_reserve(struct sk_state *state, uint32_t more);
/** The local of that number can be found. There is room. */
void sk_names_put(struct sk_state *state, uint32_t number);
/** It can no longer be found. */
void sk_names_take(struct sk_state *state, uint32_t number);
/** Forgets all. */
void sk_names_clear(struct sk_state *state);

#endif
