/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/box.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/util.h"

int64_t sk_box_volume(int ndim, const struct sk_box *box)
{
	int64_t volume = 1;

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++)
		volume *= box->size[d];
	return volume;
}

bool sk_box_empty(int ndim, const struct sk_box *box)
{
	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++)
		if (box->size[d] == 0)
			return true;
	return false;
}

bool sk_box_equal(int ndim, const struct sk_box *a, const struct sk_box *b)
{
	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++)
		if (a->offset[d] != b->offset[d] || a->size[d] != b->size[d])
			return false;
	return true;
}

bool sk_box_intersect(int ndim, const struct sk_box *a,
		      const struct sk_box *b, struct sk_box *ret_box)
{
	struct sk_box box = { 0 };

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++) {
		int64_t from = sk_max_i64(a->offset[d], b->offset[d]);
		int64_t to = sk_min_i64(a->offset[d] + a->size[d],
					b->offset[d] + b->size[d]);

		if (from >= to)
			return false;
		box.offset[d] = from;
		box.size[d] = to - from;
	}
	*ret_box = box;
	return true;
}

int sk_box_check(int ndim, const int64_t *shape, const struct sk_box *box,
		 struct sk_err *err)
{
	char text[256];

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++)
		if (box->offset[d] < 0 || box->size[d] < 0 ||
		    box->offset[d] > shape[d] ||
		    box->size[d] > shape[d] - box->offset[d])
			return sk_err_set(err, -EINVAL, "box %s leaves the "
					  "tensor: dimension %d has %lld",
					  sk_box_format(ndim, box, text,
							sizeof(text)),
					  d, (long long)shape[d]);
	return 0;
}

struct sk_box sk_box_whole(int ndim, const int64_t *shape)
{
	struct sk_box box = { 0 };

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++)
		box.size[d] = shape[d];
	return box;
}

char *sk_box_format(int ndim, const struct sk_box *box, char *buf, size_t size)
{
	size_t at = (size_t)snprintf(buf, size, "[");

	assert(size && ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = 0; d < ndim && at < size; d++) {
		int64_t end;

		/* It may be one that is to be refused. */
		if (__builtin_add_overflow(box->offset[d], box->size[d], &end))
			end = box->size[d] > 0 ? INT64_MAX : INT64_MIN;
		at += (size_t)snprintf(buf + at, size - at, "%s%lld:%lld",
				       d ? ", " : "",
				       (long long)box->offset[d],
				       (long long)end);
	}
	if (at < size)
		(void)snprintf(buf + at, size - at, "]");
	return buf;
}

int sk_shape_count(int ndim, const int64_t *shape, int64_t *ret_count,
		   struct sk_err *err)
{
	int64_t count = 1;
	bool empty = false;

	if (ndim < 0 || ndim > SK_MAX_DIMS)
		return sk_err_set(err, -EINVAL,
				  "%d dimensions, there may be 0 to %d", ndim,
				  SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++) {
		if (shape[d] < 0)
			return sk_err_set(err, -EINVAL,
					  "dimension %d has size %lld", d,
					  (long long)shape[d]);
		/* The others must fit even where one is 0: offsets of empty
		 * boxes are computed from them. */
		if (shape[d] == 0)
			empty = true;
		else if (__builtin_mul_overflow(count, shape[d], &count) ||
			 count > (int64_t)1 << 62)
			return sk_err_set(err, -EOVERFLOW,
					  "the shape has more than 2^62 "
					  "elements");
	}
	*ret_count = empty ? 0 : count;
	return 0;
}
