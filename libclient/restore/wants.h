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

/** From the plan: what does not go from device to device, or what does, each
 * of which is fetched by whoever wants it. Collective; @r as of
 * sk_restore_trade(). */
int sk_restore_wants(struct sk_restoring *rs, int r, bool across,
		     struct sk_wants *ret);
void sk_restore_free_wants(struct sk_wants *wants);

#endif
