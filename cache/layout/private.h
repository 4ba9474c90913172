/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout, inside. Lowest first: names, then lookup, split, items and header,
 * then layout, which makes one of all that; other, sketch, outline, stamp,
 * parse and recall stand on it.
 */
#ifndef SK_CACHE_LAYOUT_PRIVATE_H
#define SK_CACHE_LAYOUT_PRIVATE_H

#include <stdatomic.h>

#include "base/table.h"
#include "layout/layout.h"

#define SK_RUN_WIDTH 20		/* of run and step in a header */
#define SK_SUM_WIDTH 16		/* hexadecimal digits of checksums and ids */
/* Of the header; rises with any change. The second: of one that tells nodes,
 * which readers of the first do not know. */
#define SK_FORMAT_VERSION 3
#define SK_FORMAT_VERSION_NODES 4
/* What stands before DCP_SHARDING_INFO, and between it and ours. */
#define SK_HEADER_BEGIN "{\"__metadata__\":{\"format\":\"pt\"," \
	"\"DCP_VERSION\":\"1.0\",\"DCP_SHARDING_INFO\":\""
#define SK_HEADER_MIDDLE "\",\"shardkeep\":\""

/* Letters of a header: [from, to). */
struct sk_words {
	uint32_t from, to;
};

struct sk_layout_priv {
	atomic_uint extra_refs;	/* beyond the first */
	/* Where the stamp's fields lie in the header. */
	uint32_t sum_at, run_at, run_id_at, step_at;
	uint32_t *sums_at;
	struct sk_table entries, items;	/* indices, by name; see lookup.c */
	uint64_t memory;		/* see sk_layout_memory() */
	uint64_t header_most;		/* bytes; 0: SK_HEADER_MAX */
	/* What is described, in the header: [from, to). */
	uint32_t described_from, described_to;
	struct sk_words *boxes;		/* and of it each item's boxes */
	/* Of a sketch or an outline: whose items they are, and sizes of its
	 * local blobs. Of sk_layout_other(): the rank's first image. It is
	 * none of these itself. */
	struct sk_layout *base;
	int64_t *locals;
};

/** The layout that @base's description gives @rank's image. Errors: -EINVAL
 * it gives none; -ENOMEM. */
int sk_layout_compute(struct sk_layout *base, int32_t rank,
		      enum sk_image_kind kind, struct sk_layout **ret);

/** Whose items @layout has: itself, or its base. */
static inline struct sk_layout *sk_layout_root(struct sk_layout *layout)
{
	return layout->priv->base ? layout->priv->base : layout;
}

/** The tables of sk_layout_item() and sk_layout_find(). Errors: -EINVAL two
 * items of one name and kind, -ENOMEM. */
int sk_layout_index_items(struct sk_layout *layout, struct sk_err *err);
int sk_layout_index_entries(struct sk_layout *layout, struct sk_err *err);

/** As sk_layout_new_over(), of what is known to have a header of @most bytes:
 * what takes more is told before memory is taken for it. 0: of any length. */
int sk_layout_new_within(const char *job, int32_t rank, int32_t world,
			 enum sk_image_kind kind, struct sk_nodes *nodes,
			 const struct sk_item *items, uint32_t n_items,
			 uint64_t most,
			 struct sk_layout **ret_layout, struct sk_err *err);

/** Entries of a layout that has its items. Errors: as sk_layout_new(). */
int sk_layout_fill(struct sk_layout *layout, struct sk_err *err);
/** Gives back room that was for more entries than there are. */
void sk_layout_trim_entries(struct sk_layout *layout);
/** Writes the template header and sets header, header_bytes, description, the
 * stamp's places; shifts entries' offsets behind it. Of a layout that has a
 * base, what is described is that one's but for items that have boxes of their
 * own. Errors: -E2BIG, -ENOMEM. */
int sk_layout_write_header(struct sk_layout *layout, struct sk_err *err);

/** Both, and the digest, of a layout that has its items and nothing else, but
 * for the table of entries. Errors: as those. */
int sk_layout_finish(struct sk_layout *layout, struct sk_err *err);
/** Bytes of the heap that its entries take. */
uint64_t sk_layout_entries_memory(const struct sk_layout *layout);

/**
 * Whether @header (header_bytes long) is this layout's: 1 stamped, 0 the
 * template. The stamp is written to @stamp, its sums where it has room for
 * them (else NULL). Errors: -EBADMSG, -ENOMEM.
 */
int sk_layout_check(const struct sk_layout *layout, const void *header,
		    struct sk_stamp *stamp, struct sk_err *err);


/** As sk_layout_turns(), and whether the image has the item; either may be
 * NULL. Errors: -ENOMEM. */
int sk_layout_split(const struct sk_layout *layout, bool *ret_has,
		    int64_t *ret_turns, struct sk_err *err);

/**
 * The items of a description: @text, which is written to, begins after the
 * bracket of their list and ends with the description's brace. *ret_items,
 * for sk_items_free(), point into it. False where anything is not as
 * sk_layout_write_header() puts it, or there is no memory.
 */
bool sk_items_read(char *text, struct sk_mesh *const *meshes, size_t n_meshes,
		   struct sk_item **ret_items, size_t *ret_n);
void sk_items_free(struct sk_item *items, size_t n);

const char *sk_item_kind_name(enum sk_item_kind kind);

static inline const struct sk_item *sk_item_of(const struct sk_layout *layout,
					       const struct sk_entry *entry)
{
	return &layout->items[entry->item];
}

#endif
