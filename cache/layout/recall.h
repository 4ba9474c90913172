/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts read before, so that few headers are read as JSON.
 *
 * A restart meets the same headers again and again: the agent when ranks come
 * back, a rank when it looks, plans and restores. A header whose layout is
 * known, or that follows by arithmetic from the layout of another rank of the
 * job, is compared byte for byte instead of parsed: the result is the same,
 * and nothing of the header is believed that parsing would not believe.
 *
 * Thread-safe: several threads may use one.
 */
#ifndef SK_CACHE_LAYOUT_RECALL_H
#define SK_CACHE_LAYOUT_RECALL_H

#include "layout/layout.h"

/** What is remembered goes, oldest first, beyond so many bytes of memory. */
#define SK_RECALL_BYTES ((uint64_t)128 << 20)

struct sk_recall;

/** NULL: no memory. */
struct sk_recall *sk_recall_new(void);
/** NULL is fine. Layouts that were handed out stay. Returns NULL. */
struct sk_recall *sk_recall_free(struct sk_recall *recall);
/** Forgets all. */
void sk_recall_clear(struct sk_recall *recall);
/** Remembers @layout; takes a reference of its own. NULL is fine. */
void sk_recall_add(struct sk_recall *recall, struct sk_layout *layout);
/** Bytes of memory that what is remembered takes, for itself or together with
 * those that use it. */
uint64_t sk_recall_bytes(struct sk_recall *recall);
/** How many layouts were looked at so far, for tests of growth: a few for
 * each header, however many are remembered. */
uint64_t sk_recall_looks(struct sk_recall *recall);

/**
 * As sk_layout_parse(), of a header that should be that of rank @rank's @kind
 * image of @job; whose it really is, is for the caller to check. What was
 * parsed is remembered.
 */
int sk_recall_get(struct sk_recall *recall, const char *job, int32_t rank,
		  enum sk_image_kind kind, const void *header, size_t size,
		  uint64_t image_bytes, struct sk_layout **ret_layout,
		  struct sk_err *err);

/**
 * What sk_layout_new_over() would give, where a layout of these very items, in
 * this order, is remembered; items are normalised. A reference, or NULL. At
 * the cost of comparing them.
 */
struct sk_layout *sk_recall_same(struct sk_recall *recall, const char *job,
				 int32_t rank, int32_t world,
				 enum sk_image_kind kind,
				 const struct sk_nodes *nodes,
				 const struct sk_item *items, uint32_t n_items);

/** Forgets that one: what follows from another one need not be kept. */
void sk_recall_drop(struct sk_recall *recall, const struct sk_layout *layout);
/** A layout of that job, world and description that says no boxes one by one,
 * mostly the same one each time; a reference, or NULL. */
struct sk_layout *sk_recall_described(struct sk_recall *recall,
				      const struct sk_layout *like);

/**
 * The layout of that digest without its header: remembered, or computed from
 * @base (NULL: none), the layout of a rank that describes the same.
 * Errors: -ENOENT neither gives it, -ENOMEM.
 */
int sk_recall_find(struct sk_recall *recall, struct sk_layout *base,
		   int32_t rank, enum sk_image_kind kind,
		   const struct sk_digest *digest,
		   struct sk_layout **ret_layout);

#endif
