/* SPDX-License-Identifier: Apache-2.0 */
/* Copies are checked and simplified once, then run as often as wanted. */
#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>

#include "base/util.h"
#include "bytes/copy.h"

static int check_arguments(unsigned bits, int ndim, const int64_t *size,
			   struct sk_err *err)
{
	bool sub_byte = bits == 4 || bits == 6;

	if (!sub_byte && (!bits || bits % 8 || bits > 1024))
		return sk_err_set(err, -EINVAL, "cannot copy elements of %u "
				  "bits", bits);
	if (ndim < 0 || ndim > SK_MAX_DIMS)
		return sk_err_set(err, -EINVAL, "cannot copy %d dimensions; "
				  "at most %d", ndim, SK_MAX_DIMS);
	for (int d = 0; d < ndim; d++)
		if (size[d] < 0)
			return sk_err_set(err, -EINVAL, "cannot copy "
					  "dimension %d of size %" PRId64, d,
					  size[d]);
	return 0;
}

/* *ret_bytes = @stride elements of @bits bits; false: none, or too many. */
static bool stride_bytes(int64_t stride, unsigned bits, int64_t *ret_bytes)
{
	int64_t n;

	if (__builtin_mul_overflow(stride, (int64_t)bits, &n) || n % 8)
		return false;
	*ret_bytes = n / 8;
	return true;
}

/* @size steps of @stride bytes fit 63 bits. */
static bool reach_fits(int64_t size, int64_t stride)
{
	int64_t reach;

	return !__builtin_mul_overflow(size, stride, &reach);
}

/* Appends dimension @d behind those there; size 1 is left out. */
static int add_dim(struct sk_copy *copy, unsigned bits, int d, int64_t size,
		   int64_t dst, int64_t src, struct sk_err *err)
{
	int n = copy->ndim;

	assert(n < SK_MAX_DIMS);
	if (size == 1)
		return 0;
	if (!dst)
		return sk_err_set(err, -EINVAL, "cannot copy to dimension %d "
				  "with stride 0", d);
	if (!stride_bytes(dst, bits, &copy->dst_stride[n]) ||
	    !stride_bytes(src, bits, &copy->src_stride[n]))
		return sk_err_set(err, -EINVAL, "dimension %d has strides %"
				  PRId64 " and %" PRId64 " of %u bit elements,"
				  " which are no whole bytes or too large", d,
				  dst, src, bits);
	if (!reach_fits(size, copy->dst_stride[n]) ||
	    !reach_fits(size, copy->src_stride[n]))
		return sk_err_set(err, -EINVAL, "dimension %d of %" PRId64
				  " elements with strides %" PRId64 " and %"
				  PRId64 " reaches beyond any memory", d,
				  size, dst, src);
	copy->size[n] = size;
	copy->ndim++;
	return 0;
}

/* Joins every dimension that continues the one inside of it. */
static void join_dims(struct sk_copy *copy)
{
	int n = copy->ndim;

	while (n > 0 && copy->dst_stride[n - 1] == (int64_t)copy->run &&
	       copy->src_stride[n - 1] == (int64_t)copy->run)
		copy->run *= (uint64_t)copy->size[--n];
	copy->ndim = n;
	for (int d = n - 2; d >= 0; d--) {
		int in = d + 1;

		if (copy->dst_stride[d] !=
			    copy->dst_stride[in] * copy->size[in] ||
		    copy->src_stride[d] !=
			    copy->src_stride[in] * copy->size[in])
			continue;
		copy->size[in] *= copy->size[d];
		copy->ndim--;
		for (int at = d; at < copy->ndim; at++) {
			copy->size[at] = copy->size[at + 1];
			copy->dst_stride[at] = copy->dst_stride[at + 1];
			copy->src_stride[at] = copy->src_stride[at + 1];
		}
	}
}

/* Sub-byte: the innermost dimension is the first run. */
static int take_packed_run(struct sk_copy *copy, unsigned bits, int64_t size,
			   int64_t dst, int64_t src, struct sk_err *err)
{
	if (size != 1 && (dst != 1 || src != 1))
		return sk_err_set(err, -EINVAL, "elements of %u bits need a "
				  "dense innermost dimension, the strides are "
				  "%" PRId64 " and %" PRId64, bits, dst, src);
	if (!stride_bytes(size, bits, (int64_t *)&copy->run))
		return sk_err_set(err, -EINVAL, "a row of %" PRId64
				  " elements of %u bits is no whole bytes",
				  size, bits);
	return 0;
}

/* Overflow is looked for even where another dimension is empty. */
static int count_bytes(struct sk_copy *copy, int ndim, const int64_t *size,
		       struct sk_err *err)
{
	uint64_t bytes = copy->run;
	bool fits = true;

	for (int d = 0; d < ndim; d++)
		fits = fits && sk_mul_u64(bytes, (uint64_t)size[d], &bytes);
	if (!fits || bytes > INT64_MAX)
		return sk_err_set(err, -EINVAL, "a copy of %d dimensions is "
				  "larger than any memory", ndim);
	copy->bytes = bytes;
	return 0;
}

int sk_copy_init(struct sk_copy *ret_copy, unsigned bits, int ndim,
		 const int64_t *size, void *dst, const int64_t *dst_stride,
		 const void *src, const int64_t *src_stride,
		 struct sk_err *err)
{
	struct sk_copy copy = { .dst = dst, .src = src };
	int outer = ndim, r;

	r = check_arguments(bits, ndim, size, err);
	if (r < 0)
		return r;
	copy.run = bits / 8;
	if (bits % 8) {
		if (ndim == 0)
			return sk_err_set(err, -EINVAL, "one element of %u "
					  "bits is no whole bytes", bits);
		outer = ndim - 1;
		r = take_packed_run(&copy, bits, size[outer],
				    dst_stride[outer], src_stride[outer],
				    err);
		if (r < 0)
			return r;
	}
	r = count_bytes(&copy, outer, size, err);
	for (int d = 0; r >= 0 && copy.bytes && d < outer; d++)
		r = add_dim(&copy, bits, d, size[d], dst_stride[d],
			    src_stride[d], err);
	if (r < 0)
		return r;
	if (copy.bytes && (!dst || !src))
		return sk_err_set(err, -EINVAL, "cannot copy %" PRIu64
				  " bytes %s a null pointer", copy.bytes,
				  dst ? "from" : "to");
	join_dims(&copy);
	*ret_copy = copy;
	return 0;
}

/* Nobody looks at dimensions that there are not. */
void sk_copy_flat(struct sk_copy *ret_copy, void *dst, const void *src,
		  uint64_t bytes)
{
	assert(dst && src && bytes && bytes <= INT64_MAX);
	ret_copy->dst = dst;
	ret_copy->src = src;
	ret_copy->run = ret_copy->bytes = bytes;
	ret_copy->ndim = 0;
}

void sk_dense_strides(int ndim, const int64_t *size, int64_t *ret_stride)
{
	int64_t stride = 1;

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	for (int d = ndim - 1; d >= 0; d--) {
		ret_stride[d] = stride;
		stride *= size[d];
	}
}
