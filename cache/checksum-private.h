/* SPDX-License-Identifier: Apache-2.0 */
/* One XXH3 per instruction set; private to checksum*.c. */
#ifndef SK_CACHE_CHECKSUM_PRIVATE_H
#define SK_CACHE_CHECKSUM_PRIVATE_H

#include <stddef.h>
#include <stdint.h>

struct sk_xxh3_code {
	const char *name;
	uint64_t (*hash)(const void *data, size_t size);
	/* @state: room for an XXH3_state_t, aligned for it */
	void (*begin)(void *state);
	void (*add)(void *state, const void *data, size_t size);
	uint64_t (*end)(const void *state);
};

extern const struct sk_xxh3_code sk_xxh3_avx2;
extern const struct sk_xxh3_code sk_xxh3_avx512;

#endif
