/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xxHash, compiled in: meson.build says for which instruction set, and names
 * the table SK_XXH3_CODE. The library's own choice at run time fetches memory
 * less far ahead, which costs 7 % of the rate from memory (bare MiB chunks,
 * one thread, AVX-512).
 */
#include "bytes/checksum-code.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(struct sk_xxh3_stream) >= sizeof(XXH3_state_t),
	       "room for xxHash's state");
_Static_assert(_Alignof(struct sk_xxh3_stream) >= _Alignof(XXH3_state_t),
	       "aligned as xxHash's state");

static XXH3_state_t *state(struct sk_xxh3_stream *s)
{
	return (XXH3_state_t *)(void *)s;
}

static uint64_t hash(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

static void begin(struct sk_xxh3_stream *s)
{
	XXH3_INITSTATE(state(s));
	(void)XXH3_64bits_reset(state(s));
}

static void add(struct sk_xxh3_stream *s, const void *data, size_t size)
{
	(void)XXH3_64bits_update(state(s), data, size);
}

static uint64_t end(struct sk_xxh3_stream *s)
{
	return XXH3_64bits_digest(state(s));
}

static void hash_128(const void *data, size_t size, uint8_t ret[16])
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits(data, size));
	memcpy(ret, c.digest, sizeof(c.digest));
}

const struct sk_xxh3_code SK_XXH3_CODE = {
	.hash = hash,
	.begin = begin,
	.add = add,
	.end = end,
	.hash_128 = hash_128,
};
