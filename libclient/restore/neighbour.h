/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In whose memory on this node a rank looks for what several hold, and who of
 * them has it: every rank computes the same of each other one, if it sees the
 * same images. So those who take one entry know of each other (jobs.h).
 */
#ifndef SK_LIBCLIENT_RESTORE_NEIGHBOUR_H
#define SK_LIBCLIENT_RESTORE_NEIGHBOUR_H

#include "restore/restoring.h"
#include "tensor/plan.h"

/**
 * The ranks in whose memory @rank looks for what @holders hold, nearest first;
 * *at is 0 at first. -1: no more. Not each need have it.
 */
int32_t sk_restore_neighbour(const struct sk_restoring *rs,
			     const struct sk_holders *holders, int32_t rank,
			     int64_t *at);

/** The entry of @image that is just @box, if its layout has one. Errors:
 * -ENOENT: none; others end the restore. */
int sk_restore_entry_in(struct sk_restoring *rs, uint32_t image,
			const struct sk_restore_key *key,
			const struct sk_box *box,
			const struct sk_entry **ret);

/** Those who hold a box and have it in memory. Its arrays are used again for
 * the next box. */
struct sk_restore_having {
	struct sk_restoring *rs;
	uint8_t *kinds;		/* per rank of memory: bit per image kind, and
				 * whether it keeps some of what it holds */
	bool all_kinds;		/* each has both: nothing of it is missing */

	/* of the box that was asked for last */
	const struct sk_holders *holders;	/* valid as they are */
	bool all;		/* whoever of them is in memory; else */
	bool by_holder;		/* these: places among the holders, or among
				 * the ranks of memory, ascending */
	int64_t *at;
	size_t n, room;
};

/** Looks which images there are, at each change of them. Errors: -ENOMEM. */
int sk_restore_having_begin(struct sk_restoring *rs,
			    struct sk_restore_having *ret);
/** Who of @holders, which stay until the next call, has @box. Costs as many
 * steps as ranks hold it in memory, but for where nothing is missing. Errors:
 * -ENOMEM; those of layouts that must be read. */
int sk_restore_having_find(struct sk_restore_having *having,
			   const struct sk_restore_key *key,
			   const struct sk_box *box,
			   const struct sk_holders *holders);
/** From whose memory @rank takes that box: of its neighbours the first that
 * has it. -1: none. In a few steps. */
int32_t sk_restore_having_for(const struct sk_restore_having *having,
			      int32_t rank);
void sk_restore_having_end(struct sk_restore_having *having);

#endif
