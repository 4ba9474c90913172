/* SPDX-License-Identifier: Apache-2.0 */
/* The walk over a prepared copy: rows, tiles, and where it may be cut. */
#include "bytes/copy.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "base/util.h"
#include "bytes/cursor.h"
#include "bytes/stream.h"
#include "bytes/tile.h"

/*
 * Measured thresholds. Runs shorter than SK_STREAM_LEAST are gathered in a
 * stage that stays in the first level cache, and leave it in whole lines. A
 * destination of less than SINK_LEAST altogether goes through the cache.
 */
#define SINK_LEAST 4096u
#define STAGE 8192u

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

/* Where a copy is, and what its rows go through. */
struct walk {
	struct sk_cursor at;
	struct sink *sink;		/* NULL: straight to dst */
};

/* Part of one row, for the ends of a range. */
static void copy_part(struct walk *walk, uint64_t from, uint64_t to)
{
	assert(from <= to && to <= walk->at.copy->run);
	sk_stream_copy(walk->at.dst + from, walk->at.src + from, to - from);
}

static void copy_long_rows(const struct walk *walk, int64_t dst_stride,
			   int64_t src_stride, uint64_t count)
{
	const struct sk_stream *kernel = sk_stream_best();
	const char *src = walk->at.src;
	char *dst = walk->at.dst;

	for (; count; count--) {
		/* Rows may lie anywhere, so the next one is a number. */
		uintptr_t next = (uintptr_t)src + (uintptr_t)src_stride;

		sk_stream_row(kernel, dst, src, walk->at.copy->run,
			      count > 1 ? (const char *)next : NULL);
		src = (const char *)next;
		dst += dst_stride;
	}
}

/* @count rows along the innermost dimension. */
static void copy_inner(struct walk *walk, uint64_t count)
{
	const struct sk_copy *copy = walk->at.copy;
	int in = copy->ndim - 1;
	int64_t dst_stride = in < 0 ? 0 : copy->dst_stride[in];
	int64_t src_stride = in < 0 ? 0 : copy->src_stride[in];

	assert(count);
	if (walk->sink && (count == 1 || dst_stride == (int64_t)copy->run)) {
		sink_rows(walk->sink, walk->at.dst, walk->at.src, src_stride,
			  copy->run, count);
		return;
	}
	if (copy->run < SK_STREAM_LEAST) {
		copy_rows(walk->at.dst, dst_stride, walk->at.src, src_stride,
			  copy->run, count);
		return;
	}
	copy_long_rows(walk, dst_stride, src_stride, count);
}

/*
 * Copies the next two dimensions, as far as @rows go, if they are a matrix
 * that lies transposed in the source. Returns how many rows that were.
 */
static uint64_t copy_transposed(struct walk *walk, uint64_t rows)
{
	const struct sk_copy *copy = walk->at.copy;
	int in = copy->ndim - 1, out = in - 1;
	struct sk_tile tile;
	uint64_t left;

	if (out < 0 || walk->at.index[in] ||
	    copy->dst_stride[in] != (int64_t)copy->run)
		return 0;
	left = (uint64_t)(copy->size[out] - walk->at.index[out]);
	tile = (struct sk_tile){
		.dst = walk->at.dst,
		.src = walk->at.src,
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
	sk_tile_copy(&tile, sk_stream_best());
	sk_cursor_advance(&walk->at, out, tile.rows);
	return tile.rows * tile.cols;
}

static void copy_rows_from(struct walk *walk, uint64_t rows)
{
	int in = walk->at.copy->ndim - 1;

	while (rows) {
		uint64_t n = copy_transposed(walk, rows);

		rows -= n;
		if (n)
			continue;
		n = 1;
		if (in >= 0)
			n = (uint64_t)(walk->at.copy->size[in] -
				       walk->at.index[in]);
		n = n < rows ? n : rows;
		copy_inner(walk, n);
		sk_cursor_advance(&walk->at, in, n);
		rows -= n;
	}
}

/* Whether short rows fill large parts of the destination without gaps. */
static bool wants_sink(const struct sk_copy *copy, uint64_t bytes)
{
	uint64_t dense = copy->run;

	if (bytes < SINK_LEAST || copy->run >= SK_STREAM_LEAST)
		return false;
	for (int d = copy->ndim - 1; d >= 0; d--) {
		if (copy->dst_stride[d] != (int64_t)dense)
			break;
		dense *= (uint64_t)copy->size[d];
	}
	return dense >= SINK_LEAST;
}

/* Whole rows, through a stage. Its own function for the size of the stack. */
static void copy_staged(struct walk *walk, const struct sk_stream *kernel,
			uint64_t rows)
{
	struct sink sink;

	sink.kernel = kernel;
	sink.dst = NULL;
	sink.fill = 0;
	walk->sink = &sink;
	copy_rows_from(walk, rows);
	sink_flush(&sink);
	walk->sink = NULL;
}

static void run_range(const struct sk_copy *copy, uint64_t from, uint64_t to)
{
	const struct sk_stream *kernel = sk_stream_best();
	struct walk walk = { 0 };
	uint64_t skip = from % copy->run;
	uint64_t rows;

	assert(from < to && to <= copy->bytes);
	sk_cursor_seek(&walk.at, copy, from / copy->run);
	if (skip) {
		uint64_t end = skip + (to - from);

		end = end < copy->run ? end : copy->run;
		copy_part(&walk, skip, end);
		from += end - skip;
		if (from == to)
			return;
		sk_cursor_advance(&walk.at, copy->ndim - 1, 1);
	}
	rows = (to - from) / copy->run;
	if (kernel && wants_sink(copy, rows * copy->run))
		copy_staged(&walk, kernel, rows);
	else
		copy_rows_from(&walk, rows);
	from += rows * copy->run;
	if (from < to)
		copy_part(&walk, 0, to - from);
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
