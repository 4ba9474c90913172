/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows: wants that go from one rank to another as one row of bytes, cut into
 * rounds. Both ends cut alike, so nothing is said of where parts begin. Of
 * what is passed on (trees.h) there may be several between two ranks: on the
 * host they are one message in a round, one behind the other; from device to
 * device each is one, for it goes on from where it landed.
 */
#ifndef SK_LIBCLIENT_RESTORE_FLOW_H
#define SK_LIBCLIENT_RESTORE_FLOW_H

#include "restore/terms.h"

/** Parts of wants that one rank gets in a round, about. */
#define SK_FLOW_UNITS 1024u
/** Of those, times that other ranks of the node get what comes than got what
 * came before, about: each is a message to each of them (relay.h). */
#define SK_FLOW_RUNS 64u
/** Where a flow's bytes begin in a window: multiples of it. */
#define SK_FLOW_ALIGN 32u

struct sk_flow {
	int32_t rank;			/* the other end */
	const struct sk_want *wants;
	const struct sk_sourced *sourced;	/* of the source */
	size_t first;			/* of the fetcher: among its wants */
	size_t n;
	uint64_t cap;			/* bytes of one round */
	size_t units;			/* parts of one round */
	size_t runs;			/* and for so many sets of ranks */
	uint64_t base;			/* in the window, of a round */
	/* Of what is passed on: */
	uint64_t delay;			/* rounds before its first */
	const struct sk_flow *from;	/* as it came to this rank; NULL: it
					 * is the source */
	int32_t children[2];		/* to whom it goes on; -1: nobody */
	bool apart;			/* a message of its own */
	int32_t source;			/* with its number, which tree it is */
	uint32_t number;
	/* How far it is: */
	size_t at;
	uint64_t done;			/* of that want */
	uint64_t bytes;			/* of the round that was cut last */
};

/** A part of a want that goes in one round. */
struct sk_flow_part {
	const struct sk_flow *flow;
	size_t want;			/* of the flow */
	uint64_t from, to;		/* of the packed box */
	uint64_t offset;		/* in the window */
};

/** Cuts off a round; *n_parts are added to. Returns its bytes. */
uint64_t sk_flow_cut(struct sk_flow *flow, struct sk_flow_part *parts,
		     size_t *n_parts);
/** The same of @n flows, for @round, one after the other from 0: and where in
 * the window they lie in it. */
void sk_flows_cut(struct sk_flow *flows, size_t n, uint64_t round,
		  uint64_t sum_bytes, struct sk_flow_part *parts,
		  size_t *n_parts);
/** How many flows from @i on are one message, the first of them there. */
size_t sk_flows_together(const struct sk_flow *flows, size_t n, size_t i);
/** The bytes of that message in the round that was cut last; @ret_sums: those
 * of them that are sums. */
uint64_t sk_flows_message(const struct sk_flow *flows, size_t n,
			  uint64_t sum_bytes, uint64_t *ret_sums);
/** In which round the last of it goes, and one. */
uint64_t sk_flow_rounds(const struct sk_flow *flow);

/** All of a rank, by the other end's number. */
struct sk_flows {
	struct sk_flow *in, *out;
	size_t n_in, n_out;
	uint64_t sum_bytes;	/* after the bytes of each in a round, or 0 */
	uint64_t window;	/* of what is packed for a round, at most; 0:
				 * nothing is */
};

/** From what all have said, which has to outlive it. Both ends give a flow as
 * much of a round; those of a rank begin apart from each other in its windows.
 * Collective, and the errors, as sk_terms_trees(); -ENOMEM, of this rank alone.
 * @ret is to be freed in any case. */
int sk_flows_make(struct sk_restoring *rs, struct sk_terms *terms,
		  struct sk_flows *ret);
void sk_flows_free(struct sk_flows *flows);
/** The most rounds that one of this rank's takes. */
uint64_t sk_flows_rounds(const struct sk_flows *flows);
/** Parts of a round, at most, of @n flows. */
size_t sk_flows_units(const struct sk_flow *flows, size_t n);
/** The same of their runs. */
size_t sk_flows_runs(const struct sk_flow *flows, size_t n);

#endif
