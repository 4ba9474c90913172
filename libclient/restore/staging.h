/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that bytes of other nodes pass through. Each rank has a region: a few
 * windows, used in turn, into which it receives, with a table of what lies
 * there. The regions of a node are one memory, which all of its ranks map; of
 * a rank that is alone on its node it is just its own.
 */
#ifndef SK_LIBCLIENT_RESTORE_STAGING_H
#define SK_LIBCLIENT_RESTORE_STAGING_H

#include "comm/node.h"
#include "restore/restoring.h"

/** Windows that a region has: see remote.c. Most bytes of one. */
#define SK_WINDOWS 4u
#define SK_WINDOW_BYTES ((uint64_t)4 << 20)

/** A part of a want that lies in a window, for one of those who have it. */
struct sk_landed {
	uint64_t index;		/* among those that the rank gave */
	uint64_t from, to;	/* of the packed box */
	uint64_t offset;	/* in the window */
	int32_t rank;
	uint32_t reserved;
};

struct sk_staging {
	const struct sk_os *os;
	char *memory;		/* NULL: nothing is received on this node */
	uint64_t bytes;		/* of a region */
	uint64_t window;	/* of data in a window */
	uint64_t entries;	/* of a window's table, at most */
	int32_t n;		/* regions */
	bool shared;
	struct sk_node_share share;	/* until it is there */
};

/** What all ranks of a node compute alike. */
struct sk_staging_size {
	int32_t ranks;
	uint64_t flows;		/* most that one of them receives */
	uint64_t units;		/* parts of wants in one window, about */
	uint64_t window;	/* its bytes, where there is room for that */
};

/** Bytes of data in a window of such a node. */
uint64_t sk_staging_window(const struct sk_staging_size *size);
/** Memory for it; several ranks meet in it by that number, and come here.
 * -ENOMEM, -E2BIG and the errors of sk_node_come(); @ret is to be freed in any
 * case. */
int sk_staging_new(struct sk_restoring *rs, const struct sk_staging_size *size,
		   uint64_t meeting, struct sk_staging *ret);
/** When all of them have come. Errors as of sk_node_memory(). */
int sk_staging_meet(struct sk_restoring *rs, struct sk_staging *staging);
void sk_staging_free(struct sk_staging *staging);
/** Which region is this rank's. */
int32_t sk_staging_region(const struct sk_restoring *rs);

/** Of that region: the window of a round. */
char *sk_staging_data(const struct sk_staging *s, int32_t region,
		      uint64_t round);
uint64_t *sk_staging_count(const struct sk_staging *s, int32_t region,
			   uint64_t round);
struct sk_landed *sk_staging_table(const struct sk_staging *s, int32_t region,
				   uint64_t round);

#endif
