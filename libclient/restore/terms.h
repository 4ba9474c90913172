/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks know of each other before bytes go between nodes: what each wants
 * of whom, and with how many it has to do, from which all compute how much
 * goes between any two of them at once.
 */
#ifndef SK_LIBCLIENT_RESTORE_TERMS_H
#define SK_LIBCLIENT_RESTORE_TERMS_H

#include "restore/branches.h"
#include "restore/staging.h"

/** As a rank says it to all others. */
struct sk_term {
	uint64_t flows_in, flows_out;
	uint64_t meeting;	/* of the lowest rank of a node */
	uint64_t end_to_end;	/* sums of what is sent are sent, too */
	uint64_t round_bytes;	/* sk_comm's */
	uint64_t passed;	/* several ask it for the same */
};

struct sk_terms {
	struct sk_wants wants;
	struct sk_asked asked;		/* of this rank, */
	struct sk_trees trees;		/* and to whom it sends it */
	struct sk_branch *branches;	/* of what it fetches, by source, */
	size_t n_branches;		/* where something is passed on */
	struct sk_term *ranks;		/* per rank */
	uint64_t *most_in;		/* per node: flows into one of it */
	size_t n_in, n_out;		/* flows of this rank */
	bool end_to_end;		/* somebody said so */
	bool passed;			/* the same */
	enum sk_way way;
	uint64_t round_bytes;		/* the most that somebody said */
};

/** From the plan, as sk_restore_wants(). Collective; @r as of
 * sk_restore_trade(). -ENOMEM, -EPROTO and the errors of the comm; @ret is to
 * be freed in any case. */
int sk_restore_terms(struct sk_restoring *rs, int r, enum sk_way way,
		     struct sk_terms *ret);
/** To whom this rank sends what it is asked for, and from whom it gets what it
 * fetches: once. Collective where terms->passed; an error may be this rank's
 * alone, to be told in the next step. -ENOMEM, and the errors of
 * sk_branches_tell(). */
int sk_terms_trees(struct sk_restoring *rs, struct sk_terms *terms);
/** What the comm may still read when it has failed stays. */
void sk_restore_free_terms(const struct sk_restoring *rs,
			   struct sk_terms *terms);

/** Bytes that go at once where a rank has so many flows: few on the host, where
 * what was packed is then still in the cache when it is sent, and what came
 * when it is delivered; but of each flow enough for a message. Whole pages. */
uint64_t sk_terms_window(const struct sk_terms *terms, uint64_t flows);
/** What the staging memory of that node is made for; from device to device,
 * what a rank of it receives into. */
struct sk_staging_size sk_terms_staging(const struct sk_restoring *rs,
					const struct sk_terms *terms,
					int32_t node);
/** -ENOMEM, and the sentence of all that is made for rounds. */
int sk_terms_no_memory(struct sk_restoring *rs);

#endif
