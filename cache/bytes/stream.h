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
	void (*fence)(void);
};

/** The @i-th kernel that this CPU has, the fastest first; NULL behind the
 * last. Where there is none at all: use memcpy. */
const struct sk_stream *sk_stream_at(unsigned i);

/** Copies anything: whole lines by @kernel, the ends (and everything where
 * @kernel is NULL) through the cache. No fence. */
void sk_stream_span(const struct sk_stream *kernel, char *dst,
		    const char *src, size_t size);

#endif
