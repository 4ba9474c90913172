/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What came from other nodes, delivered: read by whoever wants it out of the
 * windows of all ranks of its node, into the trainer's tensors.
 */
#ifndef SK_LIBCLIENT_RESTORE_DELIVER_H
#define SK_LIBCLIENT_RESTORE_DELIVER_H

#include "restore/staging.h"
#include "restore/wants.h"

/** A part of this rank's that lies in host memory, as in somebody's window. */
struct sk_delivery {
	uint32_t piece;
	uint64_t from, to;	/* of the packed box */
	const char *bytes;
};

/** Delivers it. Any thread of the pool; the errors of shape.h, and of gpu.h
 * where it goes to a GPU. */
int sk_deliver(struct sk_restoring *rs, const struct sk_delivery *delivery,
	       struct sk_err *err);

struct sk_delivering {
	struct sk_restoring *rs;
	const struct sk_wants *wants;
	const struct sk_staging *staging;
	struct sk_delivery *list;	/* of one round */
	size_t n;
};

/** @wants and @staging are kept, not copied. -ENOMEM; to be freed in any
 * case. */
int sk_delivering_new(struct sk_restoring *rs, const struct sk_wants *wants,
		      const struct sk_staging *staging,
		      struct sk_delivering *ret);
void sk_delivering_free(struct sk_delivering *d);

/** What came for this rank in @round, wherever on its node: ->n of them. */
void sk_delivering_list(struct sk_delivering *d, uint64_t round);
/** Delivers one of them, as sk_deliver(). */
int sk_delivering_run(const struct sk_delivering *d, size_t index,
		      struct sk_err *err);

#endif
