/* SPDX-License-Identifier: Apache-2.0 */
/* How a piece lies in its entry, and the copy that takes it out. */
#ifndef SK_LIBCLIENT_RESTORE_SHAPE_H
#define SK_LIBCLIENT_RESTORE_SHAPE_H

#include "bytes/copy.h"
#include "restore/restoring.h"

/** In bytes. */
struct sk_restore_shape {
	int ndim;
	int64_t entry[SK_MAX_DIMS];
	int64_t offset[SK_MAX_DIMS];
	int64_t size[SK_MAX_DIMS];
};

/** The shape of @box of @item in its entry; whole entries are one run. */
void sk_restore_shape(const struct sk_item *item,
		      const struct sk_entry *entry, const struct sk_box *box,
		      struct sk_restore_shape *ret_shape);
/** The same of a piece. */
void sk_restore_shape_of(const struct sk_restoring *rs,
			 const struct sk_restore_piece *piece,
			 struct sk_restore_shape *ret_shape);
/** Bytes of the shape that lie before byte @at of the entry. */
uint64_t sk_restore_before(const struct sk_restore_shape *shape, uint64_t at);
/** The byte of the entry where the shape's byte @n lies: the inverse. */
uint64_t sk_restore_position(const struct sk_restore_shape *shape,
			     uint64_t n);
/** The copy of a piece; its src is to be set to entry base + *ret_skip. */
int sk_restore_copy(const struct sk_restoring *rs,
		    const struct sk_restore_piece *piece,
		    struct sk_copy *ret_copy, uint64_t *ret_skip,
		    struct sk_err *err);
/** The copy that packs @box of an entry, row-major, at @dst; its src as that
 * of sk_restore_copy(). -EINVAL. */
int sk_restore_pack(const struct sk_item *item, const struct sk_entry *entry,
		    const struct sk_box *box, void *dst,
		    struct sk_copy *ret_copy, uint64_t *ret_skip,
		    struct sk_err *err);
/** The copy of a packed piece into the trainer's tensor; its src is to be set
 * to where byte 0 of the piece would be. -EINVAL. */
int sk_restore_unpack(const struct sk_restoring *rs,
		      const struct sk_restore_piece *piece,
		      struct sk_copy *ret_copy, struct sk_err *err);

#endif
