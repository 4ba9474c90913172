/* SPDX-License-Identifier: Apache-2.0 */
#include "bytes/tile.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/*
 * A line of the source holds neighbours of one column, so all of them are
 * taken at once: ROWS_MOST rows are gathered side by side, CHUNK bytes of
 * each, and leave in whole lines. The pad keeps rows out of each other's
 * sets of the first level cache.
 */
#define CHUNK 1024u
#define PITCH (CHUNK + SK_LINE)
#define ROWS_MOST 32u
/* No CPU guesses such strides: lines are asked for this many columns ahead,
 * which makes it three times as fast. */
#define AHEAD 32

bool sk_tile_pays(const struct sk_tile *tile)
{
	uint64_t run = tile->run;
	int64_t row = llabs(tile->src_row), col = llabs(tile->src_col);

	if (run != 1 && run != 2 && run != 4 && run != 8 && run != 16)
		return false;
	return row && row <= (int64_t)SK_LINE / 2 && col >= (int64_t)SK_LINE &&
	       tile->cols >= SK_LINE / run && tile->rows >= 2;
}

#define GATHER(RUN) do {						\
	for (uint64_t c_ = 0; c_ < cols; c_++) {			\
		const char *from_ = src + (int64_t)c_ * tile->src_col;	\
		char *to_ = stage + c_ * (RUN);				\
									\
		__builtin_prefetch((const void *)((uintptr_t)from_ +	\
						  ahead));		\
		for (uint64_t r_ = 0; r_ < rows; r_++) {		\
			memcpy(to_, from_, RUN);			\
			to_ += PITCH;					\
			from_ += tile->src_row;				\
		}							\
	}								\
} while (0)

static void gather(const struct sk_tile *tile, char *stage, const char *src,
		   uint64_t rows, uint64_t cols)
{
	uintptr_t ahead = (uintptr_t)(AHEAD * tile->src_col);

	assert(rows <= ROWS_MOST && cols * tile->run <= CHUNK);
	switch (tile->run) {
	case 1:
		GATHER(1);
		break;
	case 2:
		GATHER(2);
		break;
	case 4:
		GATHER(4);
		break;
	case 8:
		GATHER(8);
		break;
	default:
		GATHER(16);
		break;
	}
}

/* @rows rows, all their columns. */
static void copy_band(const struct sk_tile *tile,
		      const struct sk_stream *kernel, char *dst,
		      const char *src, uint64_t rows)
{
	char stage[ROWS_MOST * PITCH] __attribute__((aligned(64)));
	/* The first chunk is shorter, so that the others begin on a line. */
	uint64_t chunk = (CHUNK - (uintptr_t)dst % SK_LINE) / tile->run;

	assert(rows && rows <= ROWS_MOST);
	for (uint64_t col = 0, n; col < tile->cols; col += n) {
		n = tile->cols - col < chunk ? tile->cols - col : chunk;
		chunk = CHUNK / tile->run;
		gather(tile, stage, src + (int64_t)col * tile->src_col, rows,
		       n);
		for (uint64_t r = 0; r < rows; r++)
			sk_stream_span(kernel, dst + col * tile->run +
				       (int64_t)r * tile->dst_row,
				       stage + r * PITCH, n * tile->run);
	}
}

void sk_tile_copy(const struct sk_tile *tile, const struct sk_stream *kernel)
{
	uint64_t band = SK_LINE / (uint64_t)llabs(tile->src_row);

	assert(tile->run);
	band = band < ROWS_MOST ? band : ROWS_MOST;
	for (uint64_t row = 0, n; row < tile->rows; row += n) {
		n = tile->rows - row < band ? tile->rows - row : band;
		copy_band(tile, kernel,
			  tile->dst + (int64_t)row * tile->dst_row,
			  tile->src + (int64_t)row * tile->src_row, n);
	}
}
