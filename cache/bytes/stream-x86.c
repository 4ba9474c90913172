/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming copies for x86-64, in two ways to walk, of which bytes/choice.c
 * measures which is the faster one here.
 *
 * Four streams, a page apart, keep more misses under way where a core waits
 * for the one stream it reads: 12 to 13 GB/s instead of 9 to 11 (Xeon), no
 * more with eight, and no gain from prefetching. One stream leaves that to the
 * CPU, where it knows better: 30 GB/s instead of 17 to 20 (Zen 5), a libc's
 * memcpy() 21. What it cannot guess is where the next row begins: that, and
 * what is left of this one, is asked for AHEAD bytes ahead, 23 GB/s instead of
 * 20 with rows of 8 KiB.
 */
#include "bytes/stream.h"

#include <immintrin.h>
#include <stdint.h>

#include "base/util.h"
#include "bytes/isa-x86.h"

#define STREAMS 4u
#define BLOCK (STREAMS * 4096u)
#define AHEAD 2048u

/*
 * The walks that all kernels share; MOVE(line, at) moves the line at that
 * offset. Macros, because a function of one target cannot be inlined into
 * another's.
 */
#define FOUR_STREAMS(MOVE, line, size) do {				\
	size_t from_ = 0;						\
	while (size - from_ >= STREAMS * SK_LINE) {			\
		size_t left_ = size - from_;				\
		size_t part_ = (left_ < BLOCK ? left_ : BLOCK) /	\
			       (STREAMS * SK_LINE) * SK_LINE;		\
		for (size_t at_ = 0; at_ < part_; at_ += SK_LINE) {	\
			MOVE(line, from_ + at_);			\
			MOVE(line, from_ + part_ + at_);		\
			MOVE(line, from_ + 2 * part_ + at_);		\
			MOVE(line, from_ + 3 * part_ + at_);		\
		}							\
		from_ += STREAMS * part_;				\
	}								\
	for (; from_ < size; from_ += SK_LINE)				\
		MOVE(line, from_);					\
} while (0)

#define ONE_STREAM(MOVE, line, size) do {				\
	for (size_t at_ = 0; at_ < size; at_ += SK_LINE)		\
		MOVE(line, at_);					\
} while (0)

#define MOVE(line, at) line(dst + (at), NULL, src + (at))
#define MOVE_TWICE(line, at) line(dst + (at), twin + (at), src + (at))

/* Lines of the row first, then as many of the next one. */
#define MOVE_AHEAD(line, at) do {					\
	size_t then_ = (at) + AHEAD;					\
	uintptr_t ask_ = then_ < size ? (uintptr_t)src + then_ :	\
				(uintptr_t)next + (then_ - size);	\
	__builtin_prefetch((const void *)ask_);				\
	MOVE(line, at);							\
} while (0)

/* A kernel, of its way to move a line, for each walk. */
#define WALKS(isa, target, walk, WALK)					\
	target								\
	static void copy_##walk##_##isa(char *dst, const char *src,	\
					size_t size)			\
	{								\
		WALK(MOVE, line_##isa, size);				\
	}								\
									\
	target								\
	static void twice_##walk##_##isa(char *dst, char *twin,		\
					 const char *src, size_t size)	\
	{								\
		WALK(MOVE_TWICE, line_##isa, size);			\
	}

#define KERNEL(isa, target)						\
	WALKS(isa, target, four, FOUR_STREAMS)				\
	WALKS(isa, target, one, ONE_STREAM)				\
									\
	target								\
	static void row_##isa(char *dst, const char *src, size_t size,	\
			      const char *next)				\
	{								\
		ONE_STREAM(MOVE_AHEAD, line_##isa, size);		\
	}

__attribute__((target("avx512f"), always_inline))
static inline void line_avx512(char *dst, char *twin, const char *src)
{
	__m512i a = _mm512_loadu_si512(src);

	_mm512_stream_si512((void *)dst, a);
	if (twin)
		_mm512_storeu_si512(twin, a);
}

KERNEL(avx512, __attribute__((target("avx512f"))))

__attribute__((target("avx2"), always_inline))
static inline void line_avx2(char *dst, char *twin, const char *src)
{
	const __m256i *from = (const void *)src;
	__m256i *to = (void *)dst;
	__m256i a = _mm256_loadu_si256(from);
	__m256i b = _mm256_loadu_si256(from + 1);

	_mm256_stream_si256(to, a);
	_mm256_stream_si256(to + 1, b);
	if (!twin)
		return;
	_mm256_storeu_si256((__m256i *)(void *)twin, a);
	_mm256_storeu_si256((__m256i *)(void *)twin + 1, b);
}

KERNEL(avx2, __attribute__((target("avx2"))))

__attribute__((always_inline))
static inline void line_sse2(char *dst, char *twin, const char *src)
{
	const __m128i *from = (const void *)src;
	__m128i *to = (void *)dst;
	__m128i a = _mm_loadu_si128(from);
	__m128i b = _mm_loadu_si128(from + 1);
	__m128i c = _mm_loadu_si128(from + 2);
	__m128i d = _mm_loadu_si128(from + 3);

	_mm_stream_si128(to, a);
	_mm_stream_si128(to + 1, b);
	_mm_stream_si128(to + 2, c);
	_mm_stream_si128(to + 3, d);
	if (!twin)
		return;
	to = (void *)twin;
	_mm_storeu_si128(to, a);
	_mm_storeu_si128(to + 1, b);
	_mm_storeu_si128(to + 2, c);
	_mm_storeu_si128(to + 3, d);
}

KERNEL(sse2, )

static void fence(void)
{
	_mm_sfence();
}

#define ENTRIES(isa)							\
	{ .name = #isa, .copy = copy_four_##isa,			\
	  .copy_twice = twice_four_##isa, .fence = fence },		\
	{ .name = #isa ", one stream", .copy = copy_one_##isa,		\
	  .copy_twice = twice_one_##isa, .copy_row = row_##isa,		\
	  .fence = fence }

static const struct sk_stream streams[] = {
	ENTRIES(avx512), ENTRIES(avx2), ENTRIES(sse2),
};

const struct sk_stream *sk_stream_at(unsigned i)
{
	unsigned first = sk_isa_first() * SK_WALKS;

	return i < SK_ARRAY_SIZE(streams) - first ? &streams[first + i] : NULL;
}
