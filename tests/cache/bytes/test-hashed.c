/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that are hashed in step: the same bytes, and the sum of them. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "bytes/copy.h"
#include "support/random.h"

#define ROOM ((size_t)1 << 17)
#define GUARD 128

struct memory {
	char *src, *got, *want;
};

static struct memory take(uint64_t *state)
{
	struct memory m = { malloc(ROOM), malloc(ROOM), malloc(ROOM) };

	cr_assert(m.src && m.got && m.want);
	for (size_t i = 0; i < ROOM; i++)
		m.src[i] = (char)draw_any(state);
	return m;
}

static void let_go(struct memory *m)
{
	free(m->src);
	free(m->got);
	free(m->want);
}

/* The bytes [from, to) by either, into what else stays as it is. */
static void compare(struct memory *m, const struct sk_copy *copy, size_t at,
		    uint64_t from, uint64_t to)
{
	struct sk_copy c = *copy;
	uint64_t sum;

	memset(m->got, 0x5a, ROOM);
	memset(m->want, 0x5a, ROOM);
	c.dst = m->want + at;
	sk_copy_run_range(&c, from, to);
	c.dst = m->got + at;
	sum = sk_copy_run_hashed(&c, from, to);
	sk_stream_fence();
	cr_assert_eq(memcmp(m->got, m->want, ROOM), 0,
		     "bytes %llu to %llu at %zu", (unsigned long long)from,
		     (unsigned long long)to, at);
	cr_assert_eq(sum, sk_xxh3(m->got + at + from, to - from));
}

Test(hashed, contiguous_bytes)
{
	static const uint64_t sizes[] = { 0, 1, 240, 241, 2048, 16383, 16384,
					  16385, 32767, 32768, 100001 };
	uint64_t state = 11;
	struct memory m = take(&state);

	for (int i = 0; i < 600; i++) {
		struct sk_copy c = { .src = m.src + draw(&state, 70) };
		size_t at = GUARD + draw(&state, 70);
		uint64_t from;

		c.bytes = i % 2 ? draw(&state, 60000) :
				  sizes[draw(&state, SK_ARRAY_SIZE(sizes))];
		c.run = c.bytes;
		from = draw(&state, c.bytes + 1);
		compare(&m, &c, at, 0, c.bytes);
		compare(&m, &c, at, from, from + draw(&state,
						      c.bytes - from + 1));
	}
	let_go(&m);
}

/* Columns of a matrix, and rows upside down. */
Test(hashed, bytes_from_here_and_there)
{
	uint64_t state = 12;
	struct memory m = take(&state);

	for (int i = 0; i < 300; i++) {
		const int64_t size[] = { 1 + (int64_t)draw(&state, 90),
					 1 + (int64_t)draw(&state, 90) };
		const int64_t turned[] = { 1, size[0] };
		const int64_t spread[] = { size[1] + 7, 1 };
		int64_t dense[2];
		struct sk_copy c;

		sk_dense_strides(2, size, dense);
		cr_assert_eq(sk_copy_init(&c, 32, 2, size, m.got, dense,
					  m.src, i % 2 ? turned : spread,
					  NULL), 0);
		compare(&m, &c, GUARD, 0, c.bytes);
	}
	let_go(&m);
}
