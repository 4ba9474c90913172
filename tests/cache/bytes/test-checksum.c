/* SPDX-License-Identifier: Apache-2.0 */
/* Each instruction set that this CPU has gives what the library gives. */
#include <criterion/criterion.h>
#include <string.h>
#include <xxhash.h>

#include "bytes/checksum-code.h"

#define BYTES 5000

static char data[BYTES + 64];

static void check(const struct sk_xxh3_code *code)
{
	for (size_t size = 0; size <= BYTES; size += 1 + size / 9) {
		const char *at = data + size % 64;
		XXH128_canonical_t both;
		struct sk_xxh3_stream s;
		uint8_t got[16];

		cr_assert_eq(code->hash(at, size), XXH3_64bits(at, size));
		code->begin(&s);
		code->add(&s, at, size / 3);
		code->add(&s, at + size / 3, size - size / 3);
		cr_assert_eq(code->end(&s), XXH3_64bits(at, size));
		code->hash_128(at, size, got);
		XXH128_canonicalFromHash(&both, XXH3_128bits(at, size));
		cr_assert_eq(memcmp(got, both.digest, 16), 0);
	}
}

Test(checksum, is_the_same_by_every_instruction_set)
{
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)(i * 31 + i / 7);
	check(&sk_xxh3_plain);
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2"))
		check(&sk_xxh3_avx2);
	if (__builtin_cpu_supports("avx512f"))
		check(&sk_xxh3_avx512);
#endif
}
