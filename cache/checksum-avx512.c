/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled for avx512 (meson.build); called only where the CPU has it. */
#include "checksum-private.h"

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX512
#include <xxhash.h>

static uint64_t hash(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

static void begin(void *state)
{
	XXH3_INITSTATE((XXH3_state_t *)state);
	(void)XXH3_64bits_reset(state);
}

static void add(void *state, const void *data, size_t size)
{
	(void)XXH3_64bits_update(state, data, size);
}

static uint64_t end(const void *state)
{
	return XXH3_64bits_digest(state);
}

const struct sk_xxh3_code sk_xxh3_avx512 = { .name = "avx512", .hash = hash,
					     .begin = begin, .add = add,
					     .end = end };
