/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks of a node want comes to one of them, its fetcher, and in
 * the next round from there to the others, from device to device: straight out
 * of the window that it landed in. The fetcher says once, before the rounds,
 * where each want will begin in which round; from that both ends know what goes
 * in each, and nothing is said any more.
 *
 * What lies together there and goes to one rank is one message.
 */
#ifndef SK_LIBCLIENT_RESTORE_RELAY_H
#define SK_LIBCLIENT_RESTORE_RELAY_H

#include "restore/flow.h"

/** What a fetcher says of a want that another rank gave to it. */
struct sk_relay_word {
	uint64_t index;		/* among those given to it */
	uint64_t round;		/* in which it begins to come */
	uint64_t offset;	/* and where in the fetcher's window */
	uint64_t base, cap;	/* in later ones: there, so many bytes */
};

/** Those of one flow of a fetcher, in the order in which they come. */
struct sk_relay_row {
	int32_t rank;		/* the fetcher */
	const struct sk_relay_word *words;
	size_t n, at;
};

/** A part of this rank's that another one has passed on. */
struct sk_relay_part {
	uint32_t piece;
	uint64_t from, to;	/* of the packed box */
	uint64_t offset;	/* in the window of what is passed on */
};

/** What goes between two ranks in a round, up to here. */
struct sk_relay_run {
	size_t part;		/* the last one, and 1; 0: none yet */
	uint64_t end;		/* of it, in the fetcher's window */
};

struct sk_relaying {
	struct sk_restoring *rs;
	const struct sk_wants *wants;
	struct sk_relay_word *words;		/* that this rank says */
	struct sk_restore_parcel *heard;	/* per rank */
	struct sk_relay_row *rows;
	size_t n_rows;
	struct sk_relay_run *runs;		/* per rank */
	struct sk_relay_part *parts;		/* of one round */
	size_t n, most_parts;
	size_t most_sends, most_receives;	/* of one round, about: there
						 * is room for one more */
	uint64_t window;	/* bytes that come in a round, at most */
};

/** From the flows, whose progress stays. Collective; @r is what this rank has
 * to say, and an error is everybody's. -ENOMEM, -EPROTO and the errors of the
 * comm; @ret is to be freed in any case. */
int sk_relaying_new(struct sk_restoring *rs, int r,
		    const struct sk_terms *terms, const struct sk_flows *flows,
		    struct sk_relaying *ret);
/** What the comm may still read when it has failed stays. */
void sk_relaying_free(struct sk_relaying *relaying);

/** Appends what goes to other ranks of @landed, which lies in the window at
 * @window, to the @n parts, and returns how many there are then: ->most_sends
 * more at most. */
size_t sk_relaying_sends(struct sk_relaying *relaying,
			 const struct sk_flow_part *landed, size_t n_landed,
			 uint64_t window, struct sk_comm_part *parts,
			 size_t n);
/** Appends what of @round, one after the other from 0, comes from others to
 * the window at @window; ->n parts lie there then. */
size_t sk_relaying_receives(struct sk_relaying *relaying, uint64_t round,
			    uint64_t window, struct sk_comm_part *parts,
			    size_t n);

#endif
