/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for one instruction set: checksum-code.c, compiled once for each.
 * Private to the room. */
#ifndef SK_CACHE_BYTES_CHECKSUM_CODE_H
#define SK_CACHE_BYTES_CHECKSUM_CODE_H

#include <stddef.h>
#include <stdint.h>

#include "bytes/checksum.h"

struct sk_xxh3_code {
	uint64_t (*hash)(const void *data, size_t size);
	void (*begin)(struct sk_xxh3_stream *s);
	void (*add)(struct sk_xxh3_stream *s, const void *data, size_t size);
	uint64_t (*end)(struct sk_xxh3_stream *s);
	void (*hash_128)(const void *data, size_t size, uint8_t ret[16]);
};

extern const struct sk_xxh3_code sk_xxh3_plain;
/* x86-64 only; to be called only where the CPU has it. */
extern const struct sk_xxh3_code sk_xxh3_avx2;
extern const struct sk_xxh3_code sk_xxh3_avx512;

#endif
