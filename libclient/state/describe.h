/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptions that are made some at a time, and all taken at once or none:
 * who has thousands of them need not have them all as struct sk_tensor first.
 */
#ifndef SK_LIBCLIENT_STATE_DESCRIBE_H
#define SK_LIBCLIENT_STATE_DESCRIBE_H

#include "state/state.h"

struct sk_describing {
	struct sk_state *state;
	struct sk_local *made;
	size_t n, room;
};

/** For at most @n descriptions; the state is as it was. @ret is to be freed by
 * sk_describe_free() in any case. Errors: -ENOMEM, those of a state that
 * cannot be used. */
int sk_describe_begin(struct sk_state *state, size_t n,
		      struct sk_describing *ret, struct sk_err *err);
/** @n more. Errors: as sk_state_tensor(). */
int sk_describe_more(struct sk_describing *d, const struct sk_tensor *tensors,
		     size_t n, enum sk_item_kind kind, struct sk_err *err);
/** The state has all of them. Waits for its copy. Errors: as
 * sk_state_tensors(); then it has none of them. */
int sk_describe_end(struct sk_describing *d, struct sk_err *err);
void sk_describe_free(struct sk_describing *d);

#endif
