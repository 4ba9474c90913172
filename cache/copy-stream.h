/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streaming kernels behind copy.c: copy-stream-x86.c where the CPU has
 * them, copy-stream-none.c elsewhere. Thread-safety: pure functions.
 */
#ifndef SK_CACHE_COPY_STREAM_H
#define SK_CACHE_COPY_STREAM_H

#include <stddef.h>

#define SK_LINE 64u	/* bytes of a cache line */

struct sk_stream {
	const char *name;
	/** @dst lies on a line, @size is whole lines; @src lies anywhere. */
	void (*copy)(char *dst, const char *src, size_t size);
	void (*fence)(void);
};

/** The @i-th kernel that this CPU has, the fastest first; NULL behind the
 * last. Where there is none at all: use memcpy. */
const struct sk_stream *sk_stream_at(unsigned i);

/** Copies anything: whole lines by @kernel, the ends (and everything where
 * @kernel is NULL) through the cache. No fence. In copy.c. */
void sk_stream_span(const struct sk_stream *kernel, char *dst,
		    const char *src, size_t size);

#endif
