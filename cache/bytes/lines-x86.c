/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3's long loop for x86-64. Its arithmetic fits in while a line is waited
 * for, so that a copy which hashes takes no longer than one that does not: two
 * passes over a small buffer took 1.7 to 1.9 times as long (Zen 4, AVX-512).
 * The sum wants its bytes in order, in one stream. Some CPUs want to be asked
 * for lines NEAR bytes ahead, over the ends of pages, where they do not guess;
 * others guess better, and want to be left alone where the bytes are stored
 * past the cache (29 GB/s instead of 26, Zen 5), or asked FAR ahead where they
 * are not (43 instead of 40). Which of both bytes/choice.c measures.
 */
#include "bytes/lines.h"

#include <immintrin.h>
#include <stdbool.h>

#include "base/util.h"
#include "bytes/isa-x86.h"
#include "bytes/stream.h"

#define NEAR 2048u
#define FAR 8192u
#define PRIME 0x9e3779b1
#define SCRAMBLED_BY (SK_XXH3_SECRET - SK_LINE)
#define ENDED_BY (SK_XXH3_SECRET - SK_LINE - 7)

enum way { NOWHERE, STREAM, KEEP };

/*
 * The walk that all kernels share, over an isa's load, store, mix, scramble
 * and save. A macro, because a function of one target cannot be inlined into
 * another's.
 */
#define WALK(isa, way, ahead) do {					\
	struct lanes_##isa a_ = load_##isa(lanes);			\
									\
	for (; n; n--) {						\
		struct lanes_##isa line_ = load_##isa(src);		\
									\
		if (ahead)						\
			__builtin_prefetch((const void *)		\
					   ((uintptr_t)src + (ahead)));	\
		store_##isa(dst, line_, way);				\
		a_ = mix_##isa(a_, line_, sk_xxh3_secret + 8 * at);	\
		if (way != NOWHERE)					\
			dst += SK_LINE;					\
		src += SK_LINE;						\
		if (++at < SK_XXH3_BLOCK)				\
			continue;					\
		a_ = scramble_##isa(a_);				\
		at = 0;							\
	}								\
	save_##isa(lanes, a_);						\
} while (0)

#define WALKER(isa, target, name, way, ahead)				\
	target								\
	static void name##_##isa(uint64_t *lanes, char *dst,		\
				 const char *src, size_t n, size_t at)	\
	{								\
		WALK(isa, way, ahead);					\
	}

#define HASHER(isa, target, name, ahead)				\
	target								\
	static void name##_##isa(uint64_t *lanes, const char *src,	\
				 size_t n, size_t at)			\
	{								\
		char *dst = NULL;					\
									\
		WALK(isa, NOWHERE, ahead);				\
	}

/* A kernel, of its way to do that. */
#define KERNEL(isa, target)						\
	HASHER(isa, target, hash_near, NEAR)				\
	HASHER(isa, target, hash_far, FAR)				\
	WALKER(isa, target, stream_near, STREAM, NEAR)			\
	WALKER(isa, target, stream_alone, STREAM, 0)			\
	WALKER(isa, target, keep, KEEP, NEAR)				\
									\
	target								\
	static void end_##isa(uint64_t *lanes, const char *src)		\
	{								\
		save_##isa(lanes, mix_##isa(load_##isa(lanes),		\
					    load_##isa(src),		\
					    sk_xxh3_secret + ENDED_BY)); \
	}

/* ---- AVX-512 ---- */

#define AVX512 __attribute__((target("avx512f")))
#define INLINE_AVX512 __attribute__((target("avx512f"), always_inline)) \
	static inline

struct lanes_avx512 {
	__m512i v;
};

INLINE_AVX512 struct lanes_avx512 load_avx512(const void *from)
{
	return (struct lanes_avx512){ _mm512_loadu_si512(from) };
}

INLINE_AVX512 void save_avx512(void *to, struct lanes_avx512 a)
{
	_mm512_storeu_si512(to, a.v);
}

INLINE_AVX512 void store_avx512(char *dst, struct lanes_avx512 line,
				enum way way)
{
	if (way == STREAM)
		_mm512_stream_si512((void *)dst, line.v);
	else if (way == KEEP)
		_mm512_storeu_si512(dst, line.v);
}

INLINE_AVX512 struct lanes_avx512 mix_avx512(struct lanes_avx512 a,
					     struct lanes_avx512 line,
					     const void *secret)
{
	__m512i key = _mm512_xor_si512(line.v, _mm512_loadu_si512(secret));
	__m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
	__m512i swapped = _mm512_shuffle_epi32(line.v, _MM_PERM_BADC);

	a.v = _mm512_add_epi64(a.v, _mm512_add_epi64(product, swapped));
	return a;
}

INLINE_AVX512 struct lanes_avx512 scramble_avx512(struct lanes_avx512 a)
{
	__m512i by = _mm512_loadu_si512(sk_xxh3_secret + SCRAMBLED_BY);
	__m512i prime = _mm512_set1_epi64(PRIME);
	__m512i low, high;

	a.v = _mm512_xor_si512(a.v, _mm512_srli_epi64(a.v, 47));
	a.v = _mm512_xor_si512(a.v, by);
	low = _mm512_mul_epu32(a.v, prime);
	high = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), prime);
	a.v = _mm512_add_epi64(low, _mm512_slli_epi64(high, 32));
	return a;
}

KERNEL(avx512, AVX512)

/* ---- AVX2: halves ---- */

#define AVX2 __attribute__((target("avx2")))
#define INLINE_AVX2 __attribute__((target("avx2"), always_inline)) \
	static inline

struct lanes_avx2 {
	__m256i v[2];
};

INLINE_AVX2 struct lanes_avx2 load_avx2(const void *from)
{
	const __m256i *v = from;

	return (struct lanes_avx2){ { _mm256_loadu_si256(v),
				      _mm256_loadu_si256(v + 1) } };
}

INLINE_AVX2 void save_avx2(void *to, struct lanes_avx2 a)
{
	__m256i *v = to;

	_mm256_storeu_si256(v, a.v[0]);
	_mm256_storeu_si256(v + 1, a.v[1]);
}

INLINE_AVX2 void store_avx2(char *dst, struct lanes_avx2 line, enum way way)
{
	__m256i *v = (void *)dst;

	if (way == KEEP)
		save_avx2(dst, line);
	if (way != STREAM)
		return;
	_mm256_stream_si256(v, line.v[0]);
	_mm256_stream_si256(v + 1, line.v[1]);
}

INLINE_AVX2 struct lanes_avx2 mix_avx2(struct lanes_avx2 a,
				       struct lanes_avx2 line,
				       const void *secret)
{
	struct lanes_avx2 by = load_avx2(secret);

	for (int i = 0; i < 2; i++) {
		__m256i key = _mm256_xor_si256(line.v[i], by.v[i]);
		__m256i product = _mm256_mul_epu32(
			key, _mm256_srli_epi64(key, 32));
		__m256i swapped = _mm256_shuffle_epi32(line.v[i], 0x4e);

		a.v[i] = _mm256_add_epi64(a.v[i],
					  _mm256_add_epi64(product, swapped));
	}
	return a;
}

INLINE_AVX2 struct lanes_avx2 scramble_avx2(struct lanes_avx2 a)
{
	struct lanes_avx2 by = load_avx2(sk_xxh3_secret + SCRAMBLED_BY);
	__m256i prime = _mm256_set1_epi64x(PRIME);

	for (int i = 0; i < 2; i++) {
		__m256i v = a.v[i], low, high;

		v = _mm256_xor_si256(v, _mm256_srli_epi64(v, 47));
		v = _mm256_xor_si256(v, by.v[i]);
		low = _mm256_mul_epu32(v, prime);
		high = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), prime);
		a.v[i] = _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
	}
	return a;
}

KERNEL(avx2, AVX2)

/* ---- which ---- */

#define ENTRIES(isa)							\
	{ .name = #isa, .hash = hash_near_##isa,			\
	  .stream = stream_near_##isa, .keep = keep_##isa,		\
	  .end = end_##isa },						\
	{ .name = #isa ", left alone", .hash = hash_far_##isa,		\
	  .stream = stream_alone_##isa, .keep = keep_##isa,		\
	  .end = end_##isa }

static const struct sk_lines kernels[] = {
	ENTRIES(avx512), ENTRIES(avx2),
};

const struct sk_lines *sk_lines_at(unsigned i)
{
	i += sk_isa_first() * SK_LINES_WAYS;
	return i < SK_ARRAY_SIZE(kernels) ? &kernels[i] : NULL;
}
