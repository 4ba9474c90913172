/* SPDX-License-Identifier: Apache-2.0 */
/* A copy and the checksum of what it wrote, in step. */
#include <assert.h>

#include "bytes/checksum.h"
#include "bytes/copy.h"

/* So much stays in the first level cache between copying and hashing. */
#define STEP_BYTES ((uint64_t)16 << 10)
#define LINE 64u	/* bytes of a cache line */

/* Steps end on whole lines of the destination. */
static uint64_t straight(char *dst, const char *src, uint64_t bytes)
{
	char buf[STEP_BYTES] __attribute__((aligned(LINE)));
	struct sk_xxh3_stream sum;
	uint64_t n;

	if (bytes <= STEP_BYTES) {
		sk_stream_copy_twice(dst, buf, src, bytes);
		return sk_xxh3(buf, bytes);
	}
	sk_xxh3_begin(&sum);
	for (uint64_t at = 0; at < bytes; at += n) {
		n = STEP_BYTES - (uintptr_t)(dst + at) % LINE;
		n = n < bytes - at ? n : bytes - at;
		sk_stream_copy_twice(dst + at, buf, src + at, n);
		sk_xxh3_add(&sum, buf, n);
	}
	return sk_xxh3_end(&sum);
}

uint64_t sk_copy_run_hashed(const struct sk_copy *copy, uint64_t from,
			    uint64_t to)
{
	assert(from <= to && to <= copy->bytes);
	if (!copy->ndim)
		return straight(copy->dst + from, copy->src + from, to - from);
	/* What is gathered from here and there is read again. */
	sk_copy_run_unfenced(copy, from, to);
	sk_stream_fence();
	return sk_xxh3(copy->dst + from, to - from);
}
