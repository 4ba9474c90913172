/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streaming kernels below copies: stream-x86.c where the CPU has them,
 * stream-none.c elsewhere. Private to the room. Thread-safety: pure functions.
 */
#ifndef SK_CACHE_BYTES_STREAM_H
#define SK_CACHE_BYTES_STREAM_H

#include <stddef.h>

#define SK_LINE 64u	/* bytes of a cache line */
/* Measured: a shorter run costs more in partial lines than it gains. */
#define SK_STREAM_LEAST 2048u

struct sk_stream {
	const char *name;
	/** @dst lies on a line, @size is whole lines; @src lies anywhere. */
	void (*copy)(char *dst, const char *src, size_t size);
	/** The same, and @twin, anywhere, gets the very same bytes through the
	 * cache: each is read once. */
	void (*copy_twice)(char *dst, char *twin, const char *src,
			   size_t size);
	/** As copy(), of a row that the one at @next follows, or comes again:
	 * what is asked for ahead is never read. NULL: copy() is as good. */
	void (*copy_row)(char *dst, const char *src, size_t size,
			 const char *next);
	void (*fence)(void);
};

/** How many ways to walk each of a CPU's sets of vectors comes in. */
#define SK_WALKS 2u

/** The @i-th kernel that this CPU has: its widest vectors first, SK_WALKS of
 * each; NULL behind the last. Where there is none at all: use memcpy. */
const struct sk_stream *sk_stream_at(unsigned i);
/** The one that is to be used: what sk_copy_measure() found, or the first. */
const struct sk_stream *sk_stream_best(void);

/** Copies anything: whole lines by @kernel, the ends (and everything where
 * @kernel is NULL) through the cache. No fence. */
void sk_stream_span(const struct sk_stream *kernel, char *dst,
		    const char *src, size_t size);
/** The same of a row that the one at @next follows. */
void sk_stream_row(const struct sk_stream *kernel, char *dst, const char *src,
		   size_t size, const char *next);

#endif
