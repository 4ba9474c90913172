/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks offer to restore, brought together. A list of offers is long, and
 * most often all have the same: ranks say a digest of theirs first, and only
 * where those differ the lists, in portions, so that no rank ever has all
 * lists of a large world.
 */
#ifndef SK_LIBCLIENT_RESTORE_BALLOT_H
#define SK_LIBCLIENT_RESTORE_BALLOT_H

#include "restore/agree.h"
#include "restore/limits.h"

/** A rank's part of the choice. */
struct sk_restore_ballot {
	int32_t status;
	uint32_t says;			/* of its error, or what follows */
	uint64_t agent;			/* its instance */
	uint64_t run, run_id;		/* that it registered in; 0: none */
	uint64_t fresh;			/* its agent alone said which */
	uint64_t digest;		/* of its offers */
	/* The newest of them that is complete and was not tried; run 0: there
	 * is none. */
	struct sk_restore_offer newest;
	uint32_t n_offers;
	uint32_t n_complete;		/* of them */
	uint32_t gaps;			/* it says something of them */
	uint32_t damaged;		/* or of a damaged image */
	uint32_t cut;			/* it has older ones */
	uint32_t exchanges;		/* its comm does more than gather */
	uint32_t devices;		/* and between devices, too */
	uint32_t broadcasts;		/* and from one to all */
	struct sk_restore_limits limits;	/* it offers by these */
};

/** Over the rank's own offers; equal where lists are, whoever made them. */
uint64_t sk_restore_offers_digest(const struct sk_restore_offer *offers,
				  uint32_t n);
/** Of this rank's own offers. */
struct sk_restore_offer sk_restore_newest_offer(const struct sk_restoring *rs);
/**
 * Whether ranks of one agent, which has the same for all, have listed it at
 * moments between which something came and something went: what all have, the
 * pooled rs->offers, is older than what each of them has. Another list will
 * be newer. The same on all ranks.
 */
bool sk_restore_out_of_step(const struct sk_restoring *rs,
			    const struct sk_restore_ballot *ballots);
/** Whether it is the same snapshot, whatever is known of it. */
bool sk_restore_same_offer(const struct sk_restore_offer *a,
			   const struct sk_restore_offer *b);
/**
 * Makes of this rank's rs->offers those that may be tried, newest first: what
 * all offer as complete, or, where nodes are apart, what any node does, for it
 * may be whole with what the others have. What was tried before is left out.
 * Of the flags of each, complete is then what some agent says, durable what
 * all say of the same images.
 * Collective; @ballots are those of all ranks, the nodes are known.
 */
int sk_restore_pool_offers(struct sk_restoring *rs,
			   const struct sk_restore_ballot *ballots);

#endif
