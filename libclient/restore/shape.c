/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/shape.h"

#include <assert.h>

#include "tensor/box.h"
#include "tensor/dtype.h"

/* True if the box is dense memory of the trainer as well as of the entry. */
static bool is_flat(const struct sk_part *part, const struct sk_item *item,
		    const struct sk_entry *entry, const struct sk_box *box)
{
	int64_t dense[SK_MAX_DIMS];

	assert(item->spec.ndim >= 0 && item->spec.ndim <= SK_MAX_DIMS);
	if (!sk_box_equal(item->spec.ndim, box, &entry->box) ||
	    !sk_box_equal(item->spec.ndim, box, &part->box))
		return false;
	sk_dense_strides(item->spec.ndim, box->size, dense);
	for (int d = 0; d < item->spec.ndim; d++)
		if (box->size[d] > 1 && part->strides[d] != dense[d])
			return false;
	return true;
}

static void make_flat(uint64_t bytes, struct sk_restore_shape *ret)
{
	assert(bytes <= INT64_MAX);
	ret->ndim = 1;
	ret->entry[0] = ret->size[0] = (int64_t)bytes;
	ret->offset[0] = 0;
}

/* Of all that there is, which may be nothing. */
static int make_flat_copy(const struct sk_part *part, uint64_t bytes,
			  struct sk_copy *ret, struct sk_err *err)
{
	int64_t n = (int64_t)bytes, flat = 1;

	if (!bytes || !part->data)
		return sk_copy_init(ret, 8, 1, &n, part->data, &flat,
				    part->data, &flat, err);
	sk_copy_flat(ret, part->data, part->data, bytes);
	return 0;
}

void sk_restore_shape(const struct sk_item *item, const struct sk_entry *entry,
		      const struct sk_box *box,
		      struct sk_restore_shape *ret_shape)
{
	unsigned bits = sk_dtype_bits(item->spec.dtype);
	int n = item->spec.ndim;

	assert(n >= 0 && n <= SK_MAX_DIMS);
	if (!n || sk_box_equal(n, box, &entry->box)) {
		make_flat(entry->bytes, ret_shape);
		return;
	}
	*ret_shape = (struct sk_restore_shape){ .ndim = n };
	for (int d = 0; d < n; d++) {
		ret_shape->entry[d] = entry->box.size[d];
		ret_shape->offset[d] = box->offset[d] - entry->box.offset[d];
		ret_shape->size[d] = box->size[d];
	}
	ret_shape->entry[n - 1] = ret_shape->entry[n - 1] * bits / 8;
	ret_shape->offset[n - 1] = ret_shape->offset[n - 1] * bits / 8;
	ret_shape->size[n - 1] = ret_shape->size[n - 1] * bits / 8;
}

void sk_restore_shape_of(const struct sk_restoring *rs,
			 const struct sk_restore_piece *piece,
			 struct sk_restore_shape *ret_shape)
{
	if (piece->flat)
		make_flat(piece->entry->bytes, ret_shape);
	else
		sk_restore_shape(&rs->state->locals[piece->local].item,
				 piece->entry, &piece->box, ret_shape);
}

uint64_t sk_restore_before(const struct sk_restore_shape *shape, uint64_t at)
{
	int64_t stride[SK_MAX_DIMS], volume[SK_MAX_DIMS];
	uint64_t before = 0;
	int64_t s = 1, v = 1;

	assert(shape->ndim > 0);
	for (int d = shape->ndim - 1; d >= 0; d--) {
		stride[d] = s;
		volume[d] = v;
		s *= shape->entry[d];
		v *= shape->size[d];
	}
	if (at >= (uint64_t)s)
		return (uint64_t)v;
	for (int d = 0; d < shape->ndim; d++) {
		int64_t i = (int64_t)at / stride[d] - shape->offset[d];

		at = (uint64_t)((int64_t)at % stride[d]);
		if (i < 0)
			break;
		if (i >= shape->size[d])
			return before + (uint64_t)(shape->size[d] * volume[d]);
		before += (uint64_t)(i * volume[d]);
	}
	return before;
}

uint64_t sk_restore_position(const struct sk_restore_shape *s, uint64_t n)
{
	uint64_t at = 0;
	int64_t stride = 1;

	assert(s->ndim > 0);
	for (int d = s->ndim - 1; d >= 0; d--) {
		int64_t i = (int64_t)(n % (uint64_t)s->size[d]);

		n /= (uint64_t)s->size[d];
		at += (uint64_t)((i + s->offset[d]) * stride);
		stride *= s->entry[d];
	}
	return at;
}

static int explain_cut(const struct sk_item *item, const struct sk_box *box,
		       struct sk_err *err)
{
	char text[128];

	return sk_err_set(err, -EINVAL, "%s of tensor \"%.100s\" (%s) begins "
			  "or ends inside of a byte and cannot be cut out",
			  sk_box_format(item->spec.ndim, box, text,
					sizeof(text)),
			  item->spec.name, sk_dtype_name(item->spec.dtype));
}

/* Rows of sub-byte elements must be whole bytes, in the entry and of it. */
static bool is_whole_bytes(const struct sk_restore_piece *piece, int ndim,
			   unsigned bits, int64_t to, int64_t from)
{
	assert(bits && ndim >= 0);
	if (bits % 8 == 0)
		return true;
	if (to * bits % 8 || from * bits % 8 || !ndim)
		return false;
	return piece->box.size[ndim - 1] * bits % 8 == 0 &&
	       piece->entry->box.size[ndim - 1] * bits % 8 == 0;
}

int sk_restore_copy(const struct sk_restoring *rs,
		    const struct sk_restore_piece *piece,
		    struct sk_copy *ret_copy, uint64_t *ret_skip,
		    struct sk_err *err)
{
	const struct sk_local *local = &rs->state->locals[piece->local];
	const struct sk_part *part;
	int64_t dense[SK_MAX_DIMS], to = 0, from = 0, bits;
	int n, r;

	assert(piece->local < rs->state->n_locals);
	*ret_skip = 0;
	/* Mostly so, and asked for of each chunk several times. */
	if (piece->flat) {
		sk_copy_flat(ret_copy, piece->flat, piece->flat,
			     piece->entry->bytes);
		return 0;
	}
	assert((int)piece->part < local->item.n_boxes);
	part = &local->parts[piece->part];
	if (is_flat(part, &local->item, piece->entry, &piece->box))
		return make_flat_copy(part, piece->entry->bytes, ret_copy,
				      err);
	bits = sk_dtype_bits(local->item.spec.dtype);
	n = local->item.spec.ndim;
	sk_dense_strides(n, piece->entry->box.size, dense);
	for (int d = 0; d < n; d++) {
		int64_t at = piece->box.offset[d];

		to += (at - part->box.offset[d]) * part->strides[d];
		from += (at - piece->entry->box.offset[d]) * dense[d];
	}
	if (!is_whole_bytes(piece, n, (unsigned)bits, to, from))
		return explain_cut(&local->item, &piece->box, err);
	r = sk_copy_init(ret_copy, (unsigned)bits, n, piece->box.size,
			 (char *)part->data + to * bits / 8, part->strides,
			 part->data, dense, err);
	if (r < 0)
		return sk_err_prefix(err, r, "tensor \"%.100s\"",
				     local->item.spec.name);
	*ret_skip = (uint64_t)(from * bits / 8);
	return 0;
}

/* ---- packed ---- */

int sk_restore_pack(const struct sk_item *item, const struct sk_entry *entry,
		    const struct sk_box *box, void *dst,
		    struct sk_copy *ret_copy, uint64_t *ret_skip,
		    struct sk_err *err)
{
	int64_t bits = sk_dtype_bits(item->spec.dtype), flat = 1, from = 0;
	int64_t packed[SK_MAX_DIMS], lying[SK_MAX_DIMS];
	int n = item->spec.ndim;

	assert(n >= 0 && n <= SK_MAX_DIMS);
	*ret_skip = 0;
	if (!n || sk_box_equal(n, box, &entry->box)) {
		int64_t bytes = (int64_t)entry->bytes;

		return sk_copy_init(ret_copy, 8, 1, &bytes, dst, &flat, dst,
				    &flat, err);
	}
	sk_dense_strides(n, entry->box.size, lying);
	sk_dense_strides(n, box->size, packed);
	for (int d = 0; d < n; d++)
		from += (box->offset[d] - entry->box.offset[d]) * lying[d];
	*ret_skip = (uint64_t)(from * bits / 8);
	return sk_copy_init(ret_copy, (unsigned)bits, n, box->size, dst,
			    packed, dst, lying, err);
}

int sk_restore_unpack(const struct sk_restoring *rs,
		      const struct sk_restore_piece *piece,
		      struct sk_copy *ret_copy, struct sk_err *err)
{
	const struct sk_local *local = &rs->state->locals[piece->local];
	const struct sk_part *part = &local->parts[piece->part];
	int64_t bits = sk_dtype_bits(local->item.spec.dtype);
	int64_t packed[SK_MAX_DIMS], to = 0;
	int n = local->item.spec.ndim;

	if (is_flat(part, &local->item, piece->entry, &piece->box))
		return make_flat_copy(part, piece->entry->bytes, ret_copy,
				      err);
	sk_dense_strides(n, piece->box.size, packed);
	for (int d = 0; d < n; d++)
		to += (piece->box.offset[d] - part->box.offset[d]) *
		      part->strides[d];
	return sk_copy_init(ret_copy, (unsigned)bits, n, piece->box.size,
			    (char *)part->data + to * bits / 8, part->strides,
			    part->data, packed, err);
}
