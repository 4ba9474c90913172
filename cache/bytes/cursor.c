/* SPDX-License-Identifier: Apache-2.0 */
#include "bytes/cursor.h"

#include <assert.h>

void sk_cursor_seek(struct sk_cursor *cursor, const struct sk_copy *copy,
		    uint64_t row)
{
	cursor->copy = copy;
	cursor->dst = copy->dst;
	cursor->src = copy->src;
	for (int d = copy->ndim - 1; d >= 0; d--) {
		int64_t i = (int64_t)(row % (uint64_t)copy->size[d]);

		row /= (uint64_t)copy->size[d];
		cursor->index[d] = i;
		cursor->dst += i * copy->dst_stride[d];
		cursor->src += i * copy->src_stride[d];
	}
}

void sk_cursor_advance(struct sk_cursor *cursor, int d, uint64_t count)
{
	const struct sk_copy *copy = cursor->copy;
	int64_t step = (int64_t)count;

	assert(d < copy->ndim);
	for (; d >= 0; d--) {
		cursor->index[d] += step;
		cursor->dst += step * copy->dst_stride[d];
		cursor->src += step * copy->src_stride[d];
		if (cursor->index[d] < copy->size[d])
			return;
		cursor->dst -= copy->size[d] * copy->dst_stride[d];
		cursor->src -= copy->size[d] * copy->src_stride[d];
		cursor->index[d] = 0;
		step = 1;
	}
}
