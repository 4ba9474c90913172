/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xxHash is compiled in once per instruction set (checksum-*.c give the
 * target flags by themselves); the widest that this CPU has is called.
 */
#include "checksum.h"

#include "checksum-private.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static uint64_t plain_64(const void *data, size_t size)
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

static const struct sk_xxh3_code plain = {
	.name = "baseline",
	.hash = plain_64,
	.begin = begin,
	.add = add,
	.end = end,
};

_Static_assert(sizeof(struct sk_xxh3_stream) >= sizeof(XXH3_state_t),
	       "room for xxHash's state");

static const struct sk_xxh3_code *code(void)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx512f"))
		return &sk_xxh3_avx512;
	if (__builtin_cpu_supports("avx2"))
		return &sk_xxh3_avx2;
#endif
	return &plain;
}

uint64_t sk_xxh3(const void *data, size_t size)
{
	return code()->hash(data, size);
}

void sk_xxh3_begin(struct sk_xxh3_stream *s)
{
	code()->begin(s);
}

void sk_xxh3_add(struct sk_xxh3_stream *s, const void *data, size_t size)
{
	code()->add(s, data, size);
}

uint64_t sk_xxh3_end(struct sk_xxh3_stream *s)
{
	return code()->end(s);
}

void sk_xxh3_128(const void *data, size_t size, uint8_t ret[16])
{
	XXH128_canonical_t c;

	/* Only headers are hashed so: the baseline is fast enough. */
	XXH128_canonicalFromHash(&c, XXH3_128bits(data, size));
	for (int i = 0; i < 16; i++)
		ret[i] = c.digest[i];
}

const char *sk_xxh3_backend(void)
{
	return code()->name;
}
