/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz targets: each is a program of its own that takes bytes for input and
 * ends, by abort(), where it finds what must not be. tools/fuzz builds them
 * with libFuzzer; with any other compiler they are linked with replay.c, which
 * tries the corpus and what it mutates of it.
 *
 *   header.c    an image's header, parsed and recalled
 *   index.c     the store's index
 *   options.c   shardkeepd's command line and environment
 *   plan.c      meshes, placements and plans, against cells one by one
 *   session.c   connections to an agent: messages and descriptors
 *   table.c     the table of slots that outlives an agent
 *   text.c      sizes, placements, and the store's names
 */
#ifndef SK_TESTS_FUZZ_H
#define SK_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** libFuzzer's entry; returns 0. @data is not the target's to change. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** Input that is taken piece by piece; beyond its end all is 0. */
struct feed {
	const uint8_t *at;
	size_t left;
};

static inline uint8_t feed_byte(struct feed *f)
{
	if (!f->left)
		return 0;
	f->left--;
	return *f->at++;
}

/** 0 to @n - 1; @n is at most 256. */
static inline unsigned feed_below(struct feed *f, unsigned n)
{
	return feed_byte(f) % n;
}

static inline uint64_t feed_u64(struct feed *f)
{
	uint64_t v = 0;

	for (int i = 0; i < 8; i++)
		v |= (uint64_t)feed_byte(f) << 8 * i;
	return v;
}

/** Fills @buf; what is beyond the end is 0. */
static inline void feed_bytes(struct feed *f, void *buf, size_t size)
{
	size_t n = size < f->left ? size : f->left;

	memset(buf, 0, size);
	if (n)
		memcpy(buf, f->at, n);
	f->at += n;
	f->left -= n;
}

#define FUZZ_CHECK(cond)						\
	do {								\
		if (cond)						\
			break;						\
		fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
		abort();						\
	} while (0)

#endif
