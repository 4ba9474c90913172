/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wanted of other nodes. A want is the part of a piece that lies in a
 * few chunks of its entry; wherever it goes, its bytes are packed, row-major.
 *
 * Each rank gives its wants to ranks of its own node, by arithmetic, so that
 * of a want that several have all come to one: the fetcher, who asks a rank of
 * the node that has the image, the source, for it once.
 */
#ifndef SK_LIBCLIENT_RESTORE_WANTS_H
#define SK_LIBCLIENT_RESTORE_WANTS_H

#include "restore/agree.h"
#include "restore/restoring.h"

/** As ranks say it to each other. */
struct sk_want {
	struct sk_box box;
	struct sk_digest digest;	/* of the image's layout */
	uint64_t image;			/* its id at the source's agent */
	uint64_t from, to;		/* of the packed box */
	int32_t rank;			/* whose image */
	uint32_t kind;
	uint32_t place;			/* there: 0 memory, 1 disk */
	uint32_t entry;
	int32_t source;
	uint32_t reserved;
	/* Last, for it is the fetcher's: a number of which other ranks of its
	 * node have it; 0: none. */
	uint64_t others;
};

/** Who has a want that a rank fetches. */
struct sk_consumer {
	uint32_t want;		/* of the fetcher's */
	int32_t rank;
	uint64_t index;		/* among those that rank has given to it */
};

struct sk_wants {
	/* This rank's own, which it has given to fetchers, and which pieces
	 * they are of; those of one rank lie together. */
	struct sk_want *mine;
	uint32_t *pieces;
	size_t n, room, room_pieces;
	size_t *first_of;	/* per rank: where those given to it begin */

	/* What this rank fetches, by source: each once. */
	struct sk_want *fetched;
	size_t n_fetched;
	struct sk_consumer *consumers;	/* by want */
	size_t n_consumers;

	/* What others ask of this rank: per rank. */
	struct sk_restore_parcel *asked;
};

/** How what is wanted comes. */
enum sk_way {
	SK_WAY_HOST,	/* what does not go from device to device */
	SK_WAY_DEVICE,	/* what does: each is fetched by whoever wants it; in
			 * both ways nodes pass it on to each other: trees.h */
	SK_WAY_RELAYS,	/* the same, but what several ranks of a node want has
			 * one fetcher there, who passes it on: relay.h */
};

/** From the plan. Collective, all of one way; @r as of sk_restore_trade(). */
int sk_restore_wants(struct sk_restoring *rs, int r, enum sk_way way,
		     struct sk_wants *ret);
/** Who has what this rank fetches as its number @want: *ret_n of them, by
 * rank. */
const struct sk_consumer *sk_wants_consumers(const struct sk_wants *wants,
					     size_t want, size_t *ret_n);
/** Which rank of this node reads a chunk of an entry for other nodes, whoever
 * of them wants what of it, if any does. */
int32_t sk_wants_reader(const struct sk_restoring *rs,
			const struct sk_restore_image *image,
			const struct sk_entry *entry, uint32_t chunk);
/** An order of those of all fetchers; 0: the same, whoever else has it. */
int sk_want_compare(const struct sk_want *x, const struct sk_want *y);
void sk_restore_free_wants(struct sk_wants *wants);

#endif
