/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of XXH3's lines. Its long form adds lines up in lanes, block by
 * block; the last line, which begins where that many bytes are left, counts
 * otherwise, so it is held back until all is there.
 */
#include "bytes/pass.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/cursor.h"

/* So much stays in the first level cache on its way. */
#define STEP_BYTES ((uint64_t)16 << 10)
/* Short inputs have a form of their own. */
#define LINES_LEAST ((uint64_t)1024)

const uint8_t sk_xxh3_secret[SK_XXH3_SECRET] = {
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c,
	0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
	0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
	0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
	0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
	0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
	0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97,
	0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
	0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
	0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
	0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83,
	0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
	0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26,
	0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
	0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
	0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* ---- by xxHash ---- */

/* Steps end on whole lines of the destination. */
static void take_twice(struct sk_pass *pass, char *dst, const char *src,
		       uint64_t n)
{
	char buf[STEP_BYTES] __attribute__((aligned(SK_LINE)));

	for (uint64_t at = 0, step; at < n; at += step) {
		step = STEP_BYTES - (uintptr_t)(dst + at) % SK_LINE;
		step = step < n - at ? step : n - at;
		sk_stream_copy_twice(dst + at, buf, src + at, step);
		sk_xxh3_add(&pass->sum, buf, step);
	}
}

static void take_by_xxhash(struct sk_pass *pass, char *dst, const char *src,
			   uint64_t n)
{
	if (dst)
		take_twice(pass, dst, src, n);
	else
		sk_xxh3_add(&pass->sum, src, n);
	pass->at += n;
}

/* ---- by lines ---- */

static size_t place_in_block(const struct sk_pass *pass)
{
	return pass->at / SK_LINE % SK_XXH3_BLOCK;
}

/* Bytes before the last whole line: what is behind counts with it. */
static uint64_t in_lines(const struct sk_pass *pass)
{
	return (pass->bytes / SK_LINE - 1) * SK_LINE;
}

/* Part of a line, and all that is held back. Returns how much it took. */
static uint64_t take_rest(struct sk_pass *pass, char *dst, const char *src,
			  uint64_t n)
{
	bool held = pass->at - pass->fill >= in_lines(pass);
	uint64_t room = (held ? sizeof(pass->rest) : SK_LINE) - pass->fill;
	char *to = pass->rest + pass->fill;

	n = n < room ? n : room;
	memcpy(to, src, n);
	if (dst)
		memcpy(dst, to, n);
	pass->fill += n;
	if (!held && pass->fill == SK_LINE) {
		pass->at -= SK_LINE - n;	/* where the line began */
		pass->lines->hash(pass->lanes, pass->rest, 1,
				  place_in_block(pass));
		pass->at += SK_LINE;
		pass->fill = 0;
	} else {
		pass->at += n;
	}
	return n;
}

/* To where no line begins: out of the cache, in whole lines. */
static void take_shifted(struct sk_pass *pass, char *dst, const char *src,
			 uint64_t n)
{
	char buf[STEP_BYTES] __attribute__((aligned(SK_LINE)));

	for (uint64_t at = 0, step; at < n; at += step) {
		step = STEP_BYTES < n - at ? STEP_BYTES : n - at;
		pass->lines->keep(pass->lanes, buf, src + at, step / SK_LINE,
				  place_in_block(pass));
		sk_stream_copy(dst + at, buf, step);
		pass->at += step;
	}
}

static uint64_t take_lines(struct sk_pass *pass, char *dst, const char *src,
			   uint64_t n)
{
	uint64_t most = in_lines(pass) - pass->at;
	size_t place = place_in_block(pass);

	n = (n < most ? n : most) / SK_LINE * SK_LINE;
	if (dst && n >= SK_STREAM_LEAST && (uintptr_t)dst % SK_LINE) {
		take_shifted(pass, dst, src, n);
		return n;
	}
	if (!dst)
		pass->lines->hash(pass->lanes, src, n / SK_LINE, place);
	else if (n < SK_STREAM_LEAST)
		pass->lines->keep(pass->lanes, dst, src, n / SK_LINE, place);
	else
		pass->lines->stream(pass->lanes, dst, src, n / SK_LINE, place);
	pass->at += n;
	return n;
}

static uint64_t read_u64(const uint8_t *from)
{
	uint64_t v;

	memcpy(&v, from, sizeof(v));
	return v;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* XXH3's end, of the lanes and the length. */
static uint64_t merge(const uint64_t *lanes, uint64_t bytes)
{
	const uint8_t *secret = sk_xxh3_secret + 11;
	uint64_t h = bytes * UINT64_C(0x9e3779b185ebca87);

	for (unsigned i = 0; i < SK_XXH3_LANES; i += 2)
		h += fold(lanes[i] ^ read_u64(secret + 8 * i),
			  lanes[i + 1] ^ read_u64(secret + 8 * i + 8));
	h ^= h >> 37;
	h *= UINT64_C(0x165667919e3779f9);
	return h ^ h >> 32;
}

/* ---- both ---- */

void sk_pass_begin_by(struct sk_pass *pass, const struct sk_lines *lines,
		      uint64_t bytes)
{
	static const uint64_t lanes[SK_XXH3_LANES] = {
		UINT64_C(0x00000000c2b2ae3d), UINT64_C(0x9e3779b185ebca87),
		UINT64_C(0xc2b2ae3d27d4eb4f), UINT64_C(0x165667b19e3779f9),
		UINT64_C(0x85ebca77c2b2ae63), UINT64_C(0x0000000085ebca77),
		UINT64_C(0x27d4eb2f165667c5), UINT64_C(0x000000009e3779b1),
	};

	pass->lines = bytes < LINES_LEAST ? NULL : lines;
	pass->bytes = bytes;
	pass->at = 0;
	pass->fill = 0;
	memcpy(pass->lanes, lanes, sizeof(lanes));
	if (!pass->lines)
		sk_xxh3_begin(&pass->sum);
}

void sk_pass_begin(struct sk_pass *pass, uint64_t bytes)
{
	sk_pass_begin_by(pass, sk_lines_best(), bytes);
}

void sk_pass_take(struct sk_pass *pass, char *dst, const char *src, uint64_t n)
{
	assert(n <= pass->bytes - pass->at);
	if (!pass->lines) {
		take_by_xxhash(pass, dst, src, n);
		return;
	}
	for (uint64_t taken; n; n -= taken) {
		if (pass->fill || n < SK_LINE || pass->at >= in_lines(pass))
			taken = take_rest(pass, dst, src, n);
		else
			taken = take_lines(pass, dst, src, n);
		dst = dst ? dst + taken : NULL;
		src += taken;
	}
}

uint64_t sk_pass_end(struct sk_pass *pass)
{
	assert(pass->at == pass->bytes);
	if (!pass->lines)
		return sk_xxh3_end(&pass->sum);
	assert(pass->fill >= SK_LINE && pass->fill < sizeof(pass->rest));
	if (pass->fill > SK_LINE) {
		pass->at = in_lines(pass);
		pass->lines->hash(pass->lanes, pass->rest, 1,
				  place_in_block(pass));
	}
	pass->lines->end(pass->lanes, pass->rest + pass->fill - SK_LINE);
	return merge(pass->lanes, pass->bytes);
}

/* ---- over a copy ---- */

const char *sk_pass_run(struct sk_pass *pass, const struct sk_copy *copy,
			uint64_t from, uint64_t to, const char *at)
{
	uint64_t skip = from % copy->run;
	struct sk_cursor cursor;

	assert(from <= to && to <= copy->bytes);
	if (from == to)
		return at;
	sk_cursor_seek(&cursor, copy, from / copy->run);
	for (uint64_t n; from < to; from += n) {
		const char *src = cursor.src + skip;

		n = copy->run - skip < to - from ? copy->run - skip :
						   to - from;
		assert(at <= src);
		if (at < src)
			sk_pass_take(pass, NULL, at, (uint64_t)(src - at));
		sk_pass_take(pass, cursor.dst + skip, src, n);
		at = src + n;
		skip = 0;
		sk_cursor_advance(&cursor, copy->ndim - 1, 1);
	}
	return at;
}
