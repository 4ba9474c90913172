/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the widest XXH3 that this CPU has. */
#include "bytes/checksum.h"

#include <assert.h>

#include "bytes/checksum-code.h"

static const struct sk_xxh3_code *code(void)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx512f"))
		return &sk_xxh3_avx512;
	if (__builtin_cpu_supports("avx2"))
		return &sk_xxh3_avx2;
#endif
	return &sk_xxh3_plain;
}

uint64_t sk_xxh3(const void *data, size_t size)
{
	assert(data || !size);
	return code()->hash(data, size);
}

void sk_xxh3_begin(struct sk_xxh3_stream *s)
{
	code()->begin(s);
}

void sk_xxh3_add(struct sk_xxh3_stream *s, const void *data, size_t size)
{
	assert(data || !size);
	code()->add(s, data, size);
}

uint64_t sk_xxh3_end(struct sk_xxh3_stream *s)
{
	return code()->end(s);
}

void sk_xxh3_128(const void *data, size_t size, uint8_t ret[16])
{
	assert(data || !size);
	code()->hash_128(data, size, ret);
}
