/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank receives of other nodes, a round at a time: into a window of its
 * region of the staging memory, with a table beside it of what lies there for
 * whom.
 */
#ifndef SK_LIBCLIENT_RESTORE_RECEIVE_H
#define SK_LIBCLIENT_RESTORE_RECEIVE_H

#include "restore/flow.h"

struct sk_receiving {
	struct sk_restoring *rs;
	const struct sk_wants *wants;
	const struct sk_staging *staging;
	int32_t region;			/* this rank's */
	struct sk_flow *flows;
	size_t n_flows;
	uint64_t sum_bytes;		/* struct sk_flows's */
	struct sk_flow_part *parts;	/* of the round */
	size_t n;
};

/** Of @flows those that come in, whose progress is its own from then on; the
 * others are kept, not copied. -ENOMEM; to be freed in any case. */
int sk_receiving_new(struct sk_restoring *rs, const struct sk_wants *wants,
		     const struct sk_staging *staging,
		     const struct sk_flows *flows, struct sk_receiving *ret);
void sk_receiving_free(struct sk_receiving *r);

/** Appends what comes in @round, one after the other from 0, to the @n parts,
 * and returns how many there are then; one per flow at most. */
size_t sk_receiving_list(struct sk_receiving *r, uint64_t round,
			 struct sk_comm_part *parts, size_t n);
/** When it has come: says where in the window each of those who wait finds
 * its part. Also of a round in which nothing came. -EBADMSG: a sum was sent
 * that is not that of the bytes. */
int sk_receiving_land(const struct sk_receiving *r, uint64_t round);

#endif
