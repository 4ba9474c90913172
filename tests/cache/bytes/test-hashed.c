/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that are hashed in step: the same bytes, and the sum of them, by each
 * kernel of this CPU. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "bytes/copy.h"
#include "bytes/pass.h"
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

/* ---- passes ---- */

/* The kernels, and then none. */
static unsigned count_ways(void)
{
	unsigned n = 0;

	while (sk_lines_at(n))
		n++;
	return n + 1;
}

static void begin(struct memory *m)
{
	memset(m->got, 0x5a, ROOM);
	memset(m->want, 0x5a, ROOM);
}

static void check(const struct memory *m, uint64_t sum, const char *src,
		  uint64_t bytes, const char *what)
{
	sk_stream_fence();
	cr_assert_eq(memcmp(m->got, m->want, ROOM), 0, "%s: %llu bytes", what,
		     (unsigned long long)bytes);
	cr_assert_eq(sum, sk_xxh3(src, bytes), "%s: the sum of %llu bytes",
		     what, (unsigned long long)bytes);
}

/* How much is taken next: often odd, often whole lines, often all. */
static uint64_t next_part(uint64_t *state, uint64_t left)
{
	uint64_t n = draw(state, 3) ? 1 + draw(state, 300) :
				      draw(state, 9000) / 64 * 64;

	return n < left && draw(state, 8) ? n : left;
}

static void take_in_parts(uint64_t *state, struct memory *m,
			  const struct sk_lines *lines)
{
	static const uint64_t sizes[] = { 0, 1, 240, 241, 1023, 1024, 1025,
					  1087, 1088, 1089, 2048, 2049, 16384,
					  16448, 40000 };
	uint64_t bytes = draw(state, 2) ? draw(state, 40000) :
				sizes[draw(state, SK_ARRAY_SIZE(sizes))];
	const char *src = m->src + draw(state, 70);
	size_t to = GUARD + draw(state, 70);
	struct sk_pass pass;

	begin(m);
	sk_pass_begin_by(&pass, lines, bytes);
	for (uint64_t at = 0, n; at < bytes; at += n) {
		bool wanted = draw(state, 3);

		n = next_part(state, bytes - at);
		sk_pass_take(&pass, wanted ? m->got + to : NULL, src + at, n);
		if (!wanted)
			continue;
		memcpy(m->want + to, src + at, n);
		/* The next may begin on a line again. */
		to += n + draw(state, 2) * (-(to + n) % 64);
	}
	check(m, sk_pass_end(&pass), src, bytes, lines ? lines->name : "none");
}

Test(hashed, bytes_in_parts)
{
	uint64_t state = 21;
	struct memory m = take(&state);

	for (unsigned way = 0; way < count_ways(); way++)
		for (int i = 0; i < 1500; i++)
			take_in_parts(&state, &m, sk_lines_at(way));
	let_go(&m);
}

/* A box of a dense matrix, or part of it, and all that lies around it. */
static void take_box(uint64_t *state, struct memory *m,
		     const struct sk_lines *lines)
{
	int64_t full[] = { 1 + (int64_t)draw(state, 4),
			   1 + (int64_t)draw(state, 6),
			   1 + (int64_t)draw(state, 900) };
	int64_t size[3], skip = 0, step = 1, lying[3], to[3];
	uint64_t bytes = (uint64_t)(full[0] * full[1] * full[2]) * 4;
	struct sk_copy copy;
	struct sk_pass pass;
	uint64_t from, end;
	const char *at;

	sk_dense_strides(3, full, lying);
	for (int d = 2; d >= 0; d--) {
		int64_t first = (int64_t)draw(state, (uint64_t)full[d]);

		size[d] = 1 + (int64_t)draw(state,
					    (uint64_t)(full[d] - first));
		skip += first * lying[d];
		to[d] = step;
		step *= size[d] + (int64_t)draw(state, 2);
	}
	begin(m);
	cr_assert_eq(sk_copy_init(&copy, 32, 3, size, m->got + GUARD, to,
				  m->src + skip * 4, lying, NULL), 0);
	from = draw(state, copy.bytes);
	end = from + draw(state, copy.bytes - from + 1);
	sk_pass_begin_by(&pass, lines, bytes);
	at = sk_pass_run(&pass, &copy, from, end, m->src);
	sk_pass_take(&pass, NULL, at, (uint64_t)(m->src + bytes - at));
	copy.dst = m->want + GUARD;
	sk_copy_run_range(&copy, from, end);
	check(m, sk_pass_end(&pass), m->src, bytes,
	      lines ? lines->name : "none");
}

Test(hashed, boxes_among_other_bytes)
{
	uint64_t state = 22;
	struct memory m = take(&state);

	for (unsigned way = 0; way < count_ways(); way++)
		for (int i = 0; i < 1500; i++)
			take_box(&state, &m, sk_lines_at(way));
	let_go(&m);
}

/* ---- how often a byte is read ---- */

static uint64_t n_lines, n_ends;

static void count_hashed(uint64_t *lanes, const char *src, size_t n, size_t at)
{
	n_lines += n;
	sk_lines_at(0)->hash(lanes, src, n, at);
}

static void count_streamed(uint64_t *lanes, char *dst, const char *src,
			   size_t n, size_t at)
{
	n_lines += n;
	sk_lines_at(0)->stream(lanes, dst, src, n, at);
}

static void count_kept(uint64_t *lanes, char *dst, const char *src, size_t n,
		       size_t at)
{
	n_lines += n;
	sk_lines_at(0)->keep(lanes, dst, src, n, at);
}

static void count_end(uint64_t *lanes, const char *src)
{
	n_ends++;
	sk_lines_at(0)->end(lanes, src);
}

/* Whatever is wanted of them, and wherever it goes. */
Test(hashed, each_line_is_taken_once)
{
	static const struct sk_lines counting = {
		.name = "counting", .hash = count_hashed,
		.stream = count_streamed, .keep = count_kept,
		.end = count_end,
	};
	uint64_t state = 23;
	struct memory m;

	if (!sk_lines_at(0))
		return;
	m = take(&state);
	for (int i = 0; i < 200; i++) {
		uint64_t bytes = 1024 + draw(&state, 40000), at = 0;
		struct sk_pass pass;

		n_lines = n_ends = 0;
		sk_pass_begin_by(&pass, &counting, bytes);
		while (at < bytes) {
			uint64_t n = next_part(&state, bytes - at);
			char *to = m.got + GUARD + at + draw(&state, 2);

			sk_pass_take(&pass, draw(&state, 2) ? to : NULL,
				     m.src + at, n);
			at += n;
		}
		cr_assert_eq(sk_pass_end(&pass), sk_xxh3(m.src, bytes));
		/* The last one ends it, with what is behind it if need be. */
		cr_assert_eq(n_lines, bytes / 64 - !(bytes % 64));
		cr_assert_eq(n_ends, 1);
	}
	let_go(&m);
}
