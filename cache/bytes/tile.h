/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles: matrices whose elements lie column by column in the source and row
 * by row in the destination (a transposed view). Private to copy.c.
 */
#ifndef SK_CACHE_BYTES_TILE_H
#define SK_CACHE_BYTES_TILE_H

#include <stdbool.h>
#include <stdint.h>

#include "bytes/stream.h"

struct sk_tile {
	char *dst;
	const char *src;
	uint64_t run;			/* bytes of one element */
	uint64_t rows, cols;
	int64_t dst_row;		/* strides in bytes; dst is dense */
	int64_t src_row, src_col;	/* along its columns */
};

/** Whether neighbours in a column share a line of the source, those in a row
 * do not. */
bool sk_tile_pays(const struct sk_tile *tile);

/** Needs sk_tile_pays(). @kernel may be NULL. No fence. */
void sk_tile_copy(const struct sk_tile *tile,
		  const struct sk_stream *kernel);

#endif
