/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums: XXH3 (xxHash), the widest vector code that this CPU has.
 *
 * Thread-safety: pure functions.
 */
#ifndef SK_CACHE_BYTES_CHECKSUM_H
#define SK_CACHE_BYTES_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/** XXH3-64, seed 0: the value `xxhsum -H3` prints. */
uint64_t sk_xxh3(const void *data, size_t size);

/** A running XXH3-64; on the stack, 64-byte aligned. */
struct sk_xxh3_stream {
	uint64_t bytes[80];
} __attribute__((aligned(64)));

/** The same value over pieces that come one after another: taken in step
 * with a copy, each piece is still in the cache. */
void sk_xxh3_begin(struct sk_xxh3_stream *s);
void sk_xxh3_add(struct sk_xxh3_stream *s, const void *data, size_t size);
uint64_t sk_xxh3_end(struct sk_xxh3_stream *s);

/** XXH3-128, seed 0, canonical (big-endian) bytes. */
void sk_xxh3_128(const void *data, size_t size, uint8_t ret[16]);

#endif
