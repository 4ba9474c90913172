/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "copy-stream.h"
#include "copy-tile.h"
#include "util.h"

/*
 * Measured thresholds. A run shorter than STREAM_LEAST costs more in partial
 * lines than it gains; those are gathered in a stage that stays in the first
 * level cache, and leave it in whole lines. A destination of less than
 * SINK_LEAST altogether goes through the cache.
 */
#define STREAM_LEAST 2048u
#define SINK_LEAST 4096u
#define STAGE 8192u

/* ---- preparing ---- */

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

void sk_dense_strides(int ndim, const int64_t *size, int64_t *ret_stride)
{
	int64_t stride = 1;

	for (int d = ndim - 1; d >= 0; d--) {
		ret_stride[d] = stride;
		stride *= size[d];
	}
}

/* ---- streaming ---- */

void sk_stream_span(const struct sk_stream *kernel, char *dst,
		    const char *src, size_t size)
{
	size_t head = -(uintptr_t)dst % SK_LINE;
	size_t body;

	if (!kernel || size < head + SK_LINE) {
		memcpy(dst, src, size);
		return;
	}
	body = (size - head) / SK_LINE * SK_LINE;
	memcpy(dst, src, head);
	kernel->copy(dst + head, src + head, body);
	memcpy(dst + head + body, src + head + body, size - head - body);
}

void sk_stream_copy(void *dst, const void *src, size_t size)
{
	if (size < STREAM_LEAST) {
		if (size)
			memcpy(dst, src, size);
		return;
	}
	sk_stream_span(sk_stream_at(0), dst, src, size);
}

void sk_stream_fence(void)
{
	const struct sk_stream *kernel = sk_stream_at(0);

	if (kernel)
		kernel->fence();
}

const char *sk_copy_backend(void)
{
	const struct sk_stream *kernel = sk_stream_at(0);

	return kernel ? kernel->name : "memcpy";
}

/* ---- rows ---- */

/* @count rows of @run bytes; the fixed widths become single moves. */
#define COPY_FIXED(RUN) do {						\
	for (uint64_t i_ = 0; i_ < count; i_++) {			\
		memcpy(dst, src, RUN);					\
		dst += dst_stride;					\
		src += src_stride;					\
	}								\
} while (0)

static void copy_rows(char *dst, int64_t dst_stride, const char *src,
		      int64_t src_stride, uint64_t run, uint64_t count)
{
	switch (run) {
	case 1:
		COPY_FIXED(1);
		break;
	case 2:
		COPY_FIXED(2);
		break;
	case 4:
		COPY_FIXED(4);
		break;
	case 8:
		COPY_FIXED(8);
		break;
	case 16:
		COPY_FIXED(16);
		break;
	default:
		COPY_FIXED(run);
		break;
	}
}

/*
 * Gathers short rows that lie one behind the other in the destination, and
 * lets them out in whole lines. The stage has the alignment of what it holds.
 */
struct sink {
	const struct sk_stream *kernel;
	char *dst;	/* where the first byte in the stage belongs */
	size_t fill;
	char stage[STAGE + SK_LINE] __attribute__((aligned(64)));
};

static char *stage_of(struct sink *sink)
{
	return sink->stage + (uintptr_t)sink->dst % SK_LINE;
}

static void sink_flush(struct sink *sink)
{
	if (sink->fill)
		sk_stream_span(sink->kernel, sink->dst, stage_of(sink),
			       sink->fill);
	sink->dst += sink->fill;
	sink->fill = 0;
}

/* Bytes that fit before the stage ends on a line of the destination. */
static size_t sink_room(const struct sink *sink)
{
	return STAGE - (uintptr_t)sink->dst % SK_LINE - sink->fill;
}

static void sink_rows(struct sink *sink, char *dst, const char *src,
		      int64_t src_stride, uint64_t run, uint64_t count)
{
	if (dst != sink->dst + sink->fill) {
		sink_flush(sink);
		sink->dst = dst;
	}
	while (count) {
		size_t room = sink_room(sink);
		uint64_t n = count * run <= room ? count : room / run;

		copy_rows(stage_of(sink) + sink->fill, (int64_t)run, src,
			  src_stride, run, n);
		sink->fill += n * run;
		src += (int64_t)n * src_stride;
		count -= n;
		if (count)
			sink_flush(sink);
	}
}

/* ---- walking ---- */

/* A place in a copy: the index of every dimension, and both addresses. */
struct cursor {
	const struct sk_copy *copy;
	struct sink *sink;		/* NULL: straight to dst */
	int64_t index[SK_MAX_DIMS];
	char *dst;
	const char *src;
};

static void cursor_seek(struct cursor *cursor, uint64_t row)
{
	const struct sk_copy *copy = cursor->copy;

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

/* On by @count along dimension @d, at most to its end. */
static void cursor_advance(struct cursor *cursor, int d, uint64_t count)
{
	const struct sk_copy *copy = cursor->copy;
	int64_t step = (int64_t)count;

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

/* Part of one row, for the ends of a range. */
static void copy_part(struct cursor *cursor, uint64_t from, uint64_t to)
{
	sk_stream_copy(cursor->dst + from, cursor->src + from, to - from);
}

/* @count rows along the innermost dimension. */
static void copy_inner(struct cursor *cursor, uint64_t count)
{
	const struct sk_copy *copy = cursor->copy;
	int in = copy->ndim - 1;
	int64_t dst_stride = in < 0 ? 0 : copy->dst_stride[in];
	int64_t src_stride = in < 0 ? 0 : copy->src_stride[in];

	if (cursor->sink && (count == 1 || dst_stride == (int64_t)copy->run)) {
		sink_rows(cursor->sink, cursor->dst, cursor->src, src_stride,
			  copy->run, count);
		return;
	}
	if (copy->run < STREAM_LEAST) {
		copy_rows(cursor->dst, dst_stride, cursor->src, src_stride,
			  copy->run, count);
		return;
	}
	for (uint64_t i = 0; i < count; i++)
		sk_stream_copy(cursor->dst + (int64_t)i * dst_stride,
			       cursor->src + (int64_t)i * src_stride,
			       copy->run);
}

/*
 * Copies the next two dimensions, as far as @rows go, if they are a matrix
 * that lies transposed in the source. Returns how many rows that were.
 */
static uint64_t copy_transposed(struct cursor *cursor, uint64_t rows)
{
	const struct sk_copy *copy = cursor->copy;
	int in = copy->ndim - 1, out = in - 1;
	struct sk_tile tile;
	uint64_t left;

	if (out < 0 || cursor->index[in] ||
	    copy->dst_stride[in] != (int64_t)copy->run)
		return 0;
	left = (uint64_t)(copy->size[out] - cursor->index[out]);
	tile = (struct sk_tile){
		.dst = cursor->dst,
		.src = cursor->src,
		.run = copy->run,
		.rows = rows / (uint64_t)copy->size[in],
		.cols = (uint64_t)copy->size[in],
		.dst_row = copy->dst_stride[out],
		.src_row = copy->src_stride[out],
		.src_col = copy->src_stride[in],
	};
	tile.rows = tile.rows < left ? tile.rows : left;
	if (!sk_tile_pays(&tile))
		return 0;
	sk_tile_copy(&tile, sk_stream_at(0));
	cursor_advance(cursor, out, tile.rows);
	return tile.rows * tile.cols;
}

static void copy_rows_from(struct cursor *cursor, uint64_t rows)
{
	int in = cursor->copy->ndim - 1;

	while (rows) {
		uint64_t n = copy_transposed(cursor, rows);

		rows -= n;
		if (n)
			continue;
		n = 1;
		if (in >= 0)
			n = (uint64_t)(cursor->copy->size[in] -
				       cursor->index[in]);
		n = n < rows ? n : rows;
		copy_inner(cursor, n);
		cursor_advance(cursor, in, n);
		rows -= n;
	}
}

/* Whether short rows fill large parts of the destination without gaps. */
static bool wants_sink(const struct sk_copy *copy, uint64_t bytes)
{
	uint64_t dense = copy->run;

	if (bytes < SINK_LEAST || copy->run >= STREAM_LEAST)
		return false;
	for (int d = copy->ndim - 1; d >= 0; d--) {
		if (copy->dst_stride[d] != (int64_t)dense)
			break;
		dense *= (uint64_t)copy->size[d];
	}
	return dense >= SINK_LEAST;
}

/* Whole rows, through a stage. Its own function for the size of the stack. */
static void copy_staged(struct cursor *cursor, const struct sk_stream *kernel,
			uint64_t rows)
{
	struct sink sink;

	sink.kernel = kernel;
	sink.dst = NULL;
	sink.fill = 0;
	cursor->sink = &sink;
	copy_rows_from(cursor, rows);
	sink_flush(&sink);
	cursor->sink = NULL;
}

static void run_range(const struct sk_copy *copy, uint64_t from, uint64_t to)
{
	const struct sk_stream *kernel = sk_stream_at(0);
	struct cursor cursor = { .copy = copy };
	uint64_t skip = from % copy->run;
	uint64_t rows;

	cursor_seek(&cursor, from / copy->run);
	if (skip) {
		uint64_t end = skip + (to - from);

		end = end < copy->run ? end : copy->run;
		copy_part(&cursor, skip, end);
		from += end - skip;
		if (from == to)
			return;
		cursor_advance(&cursor, copy->ndim - 1, 1);
	}
	rows = (to - from) / copy->run;
	if (kernel && wants_sink(copy, rows * copy->run))
		copy_staged(&cursor, kernel, rows);
	else
		copy_rows_from(&cursor, rows);
	from += rows * copy->run;
	if (from < to)
		copy_part(&cursor, 0, to - from);
}

void sk_copy_run_unfenced(const struct sk_copy *copy, uint64_t from,
			  uint64_t to)
{
	to = to < copy->bytes ? to : copy->bytes;
	if (from < to)
		run_range(copy, from, to);
}

void sk_copy_run_range(const struct sk_copy *copy, uint64_t from,
		       uint64_t to)
{
	sk_copy_run_unfenced(copy, from, to);
	sk_stream_fence();
}

void sk_copy_run(const struct sk_copy *copy)
{
	sk_copy_run_range(copy, 0, copy->bytes);
}
