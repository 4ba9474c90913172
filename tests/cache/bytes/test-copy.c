/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bytes/choice.h"
#include "bytes/copy.h"
#include "bytes/lines.h"
#include "bytes/stream.h"
#include "bytes/tile.h"
#include "support/random.h"

#define SEED 20240607u
#define CASES 2500
#define GUARD 256

static void fill(uint64_t *state, char *buf, size_t size)
{
	for (size_t i = 0; i < size; i++)
		buf[i] = (char)draw_any(state);
}

/* ---- one random case ---- */

struct side {
	int64_t stride[SK_MAX_DIMS];
	int64_t first;		/* element 0, in elements from the start */
	int64_t extent;		/* elements from the lowest to the highest */
};

struct problem {
	uint64_t seed;
	unsigned bits;
	int ndim;
	int64_t size[SK_MAX_DIMS];
	struct side dst, src;
	size_t shift;		/* bytes off a line, of the destination */
	char *dst_buf, *src_buf, *want;
	size_t dst_bytes, src_bytes;
};

static size_t to_bytes(const struct problem *p, int64_t elements)
{
	return (size_t)elements * p->bits / 8;
}

/* Dense, or dimensions in any order with gaps and backwards. */
static void make_side(uint64_t *state, const struct problem *p,
		      struct side *side)
{
	int order[SK_MAX_DIMS], fixed = p->bits % 8 ? 1 : 0;
	bool dense = draw(state, 2);
	int64_t step = 1;

	for (int d = 0; d < p->ndim; d++)
		order[d] = d;
	for (int d = p->ndim - 1 - fixed; !dense && d > 0; d--) {
		int other = (int)draw(state, (uint64_t)d + 1);
		int swap = order[d];

		order[d] = order[other];
		order[other] = swap;
	}
	*side = (struct side){ 0 };
	for (int i = p->ndim - 1; i >= 0; i--) {
		int d = order[i];
		bool packed = fixed && d == p->ndim - 1;
		int64_t size = p->size[d] ? p->size[d] : 1;

		if (!dense && !packed && !draw(state, 3))
			step *= 1 + (int64_t)draw(state, 3);
		side->stride[d] = step;
		if (!dense && !packed && !draw(state, 4)) {
			side->first += (size - 1) * step;
			side->stride[d] = -step;
		}
		step *= size;
		if (!dense && !packed && !draw(state, 3))
			step += step / size;
	}
	side->extent = step;
}

static void make_shape(uint64_t *state, struct problem *p)
{
	static const unsigned widths[] = { 8, 16, 32, 64, 4, 6, 128 };
	static const int64_t most[] = { 1, 2, 3, 5, 17, 70, 600, 4000 };
	int64_t left = 6000;

	p->bits = widths[draw(state, SK_ARRAY_SIZE(widths))];
	p->ndim = (int)draw(state, 6);
	if (p->bits % 8 && p->ndim == 0)
		p->ndim = 1;
	for (int d = p->ndim - 1; d >= 0; d--) {
		int64_t n = most[draw(state, SK_ARRAY_SIZE(most))];

		p->size[d] = 1 + (int64_t)draw(state, (uint64_t)n);
		if (p->size[d] > left)
			p->size[d] = left;
		if (p->bits % 8 && d == p->ndim - 1)
			p->size[d] *= 4;
		left = left / p->size[d] + 1;
		if (!draw(state, 100))
			p->size[d] = 0;
	}
}

static void make_problem(struct problem *p, uint64_t seed)
{
	uint64_t state = seed;

	*p = (struct problem){ .seed = seed };
	make_shape(&state, p);
	make_side(&state, p, &p->dst);
	make_side(&state, p, &p->src);
	/* A source may say the same again and again. */
	for (int d = 0; d < p->ndim - (p->bits % 8 ? 1 : 0); d++)
		if (!draw(&state, 12) && p->src.stride[d] > 0)
			p->src.stride[d] = 0;
	p->shift = draw(&state, 3) ? draw(&state, 64) : 0;
	p->dst_bytes = to_bytes(p, p->dst.extent) + p->shift + 2 * GUARD;
	p->src_bytes = to_bytes(p, p->src.extent);
	p->dst_buf = aligned_alloc(64, sk_round_up(p->dst_bytes, 64));
	p->want = malloc(p->dst_bytes);
	p->src_buf = malloc(p->src_bytes + 1);
	cr_assert(p->dst_buf && p->want && p->src_buf);
	fill(&state, p->src_buf, p->src_bytes);
	fill(&state, p->dst_buf, p->dst_bytes);
	memcpy(p->want, p->dst_buf, p->dst_bytes);
}

static void free_problem(struct problem *p)
{
	free(p->dst_buf);
	free(p->src_buf);
	free(p->want);
}

static char *dst_first(const struct problem *p, char *buf)
{
	return buf + GUARD + p->shift + to_bytes(p, p->dst.first);
}

static struct sk_copy prepare(const struct problem *p)
{
	struct sk_copy copy;
	struct sk_err err = { 0 };
	int r;

	r = sk_copy_init(&copy, p->bits, p->ndim, p->size,
			 dst_first(p, p->dst_buf), p->dst.stride,
			 p->src_buf + to_bytes(p, p->src.first),
			 p->src.stride, &err);
	cr_assert_eq(r, 0, "seed %lu: %s", p->seed, err.text);
	return copy;
}

static uint64_t count_elements(const struct problem *p)
{
	uint64_t n = 1;

	for (int d = 0; d < p->ndim; d++)
		n *= (uint64_t)p->size[d];
	return n;
}

/* Where byte @at of the row-major order lies on a side. */
static int64_t place(const struct problem *p, const struct side *side,
		     uint64_t at)
{
	int64_t unit = p->bits % 8 ? 1 : p->bits / 8;
	int64_t offset = (int64_t)(at % (uint64_t)unit);
	uint64_t i = at / (uint64_t)unit;

	for (int d = p->ndim - 1; d >= 0; d--) {
		/* Sub-byte rows are counted, and lie, in bytes. */
		bool packed = p->bits % 8 && d == p->ndim - 1;
		uint64_t size = packed ? to_bytes(p, p->size[d]) :
					 (uint64_t)p->size[d];
		int64_t k = (int64_t)(i % size);

		i /= size;
		offset += packed ? k :
			  k * side->stride[d] * (int64_t)p->bits / 8;
	}
	return offset;
}

/* The reference: one byte after the other. */
static void copy_naively(struct problem *p, uint64_t from, uint64_t to)
{
	char *dst = dst_first(p, p->want);
	const char *src = p->src_buf + to_bytes(p, p->src.first);

	for (uint64_t at = from; at < to; at++)
		dst[place(p, &p->dst, at)] = src[place(p, &p->src, at)];
}

static void expect_equal(const struct problem *p, const char *what)
{
	if (!memcmp(p->dst_buf, p->want, p->dst_bytes))
		return;
	for (size_t i = 0; i < p->dst_bytes; i++)
		cr_assert_eq(p->dst_buf[i], p->want[i],
			     "seed %lu, %s: byte %zu of %zu is %02x, not %02x",
			     p->seed, what, i, p->dst_bytes,
			     (unsigned char)p->dst_buf[i],
			     (unsigned char)p->want[i]);
}

Test(copy, whole_copies_match_a_naive_loop)
{
	for (unsigned i = 0; i < CASES; i++) {
		struct problem p;
		struct sk_copy copy;

		make_problem(&p, SEED + i);
		copy = prepare(&p);
		cr_assert_eq(copy.bytes, count_elements(&p) * p.bits / 8,
			     "seed %lu", p.seed);
		copy_naively(&p, 0, copy.bytes);
		sk_copy_run(&copy);
		expect_equal(&p, "whole");
		free_problem(&p);
	}
}

Test(copy, ranges_touch_their_bytes_only)
{
	for (unsigned i = 0; i < CASES; i++) {
		struct problem p;
		struct sk_copy copy;
		uint64_t state = SEED ^ i, from, to;

		make_problem(&p, SEED + CASES + i);
		copy = prepare(&p);
		from = draw(&state, copy.bytes + 1);
		to = from + draw(&state, copy.bytes - from + 1);
		copy_naively(&p, from, to);
		sk_copy_run_range(&copy, from, to);
		expect_equal(&p, "range");
		free_problem(&p);
	}
}

Test(copy, ranges_together_are_the_whole)
{
	for (unsigned i = 0; i < CASES / 3; i++) {
		struct problem p;
		struct sk_copy copy;
		uint64_t state = SEED ^ i, at = 0;

		make_problem(&p, SEED + 2 * CASES + i);
		copy = prepare(&p);
		copy_naively(&p, 0, copy.bytes);
		while (at < copy.bytes) {
			uint64_t n = 1 + draw(&state, 9000);

			/* The last one asks for more than there is. */
			sk_copy_run_range(&copy, at, at + n);
			at += n;
		}
		expect_equal(&p, "ranges");
		free_problem(&p);
	}
}

Test(copy, dense_sides_become_one_run)
{
	int64_t size[] = { 3, 1, 5, 7 }, stride[4], odd[] = { 35, 99, 7, 1 };
	static char dst[420], src[420];
	struct sk_copy copy;

	sk_dense_strides(4, size, stride);
	cr_assert_eq(stride[0], 35);
	cr_assert_eq(stride[1], 35);
	cr_assert_eq(stride[2], 7);
	cr_assert_eq(stride[3], 1);
	/* What the stride of a dimension of size 1 says does not matter. */
	cr_assert_eq(sk_copy_init(&copy, 32, 4, size, dst, stride, src, odd,
				  NULL), 0);
	cr_assert_eq(copy.ndim, 0);
	cr_assert_eq(copy.run, sizeof(dst));
}

Test(copy, outer_dimensions_join_behind_a_gap)
{
	int64_t size[] = { 4, 6, 8 }, gap[] = { 60, 10, 1 }, dense[3];
	static char dst[192], src[240];
	struct sk_copy copy;

	sk_dense_strides(3, size, dense);
	cr_assert_eq(sk_copy_init(&copy, 8, 3, size, dst, dense, src, gap,
				  NULL), 0);
	cr_assert_eq(copy.ndim, 1);
	cr_assert_eq(copy.size[0], 24);
	cr_assert_eq(copy.run, 8);
}

/* Elements of these sizes, neighbours in a column of the source within a line
 * of each other, those in a row not, and enough of both. */
Test(copy, when_tiles_pay)
{
	const struct sk_tile good = { .run = 4, .rows = 2, .cols = 16,
				      .src_row = 32, .src_col = 64 };
	struct sk_tile t = good;

	cr_assert(sk_tile_pays(&t));
	for (t.run = 1; t.run <= 20; t.run++) {
		t.cols = 64;
		cr_assert_eq(sk_tile_pays(&t), t.run == 1 || t.run == 2 ||
			     t.run == 4 || t.run == 8 || t.run == 16,
			     "%d bytes", (int)t.run);
	}
	t = good;
	t.rows = 1;
	cr_assert_not(sk_tile_pays(&t));
	t = good;
	t.cols = 15;
	cr_assert_not(sk_tile_pays(&t));
	t = good;
	t.src_row = -32;
	t.src_col = -64;
	cr_assert(sk_tile_pays(&t));
	t.src_row = 33;
	cr_assert_not(sk_tile_pays(&t));
	t.src_row = 0;
	cr_assert_not(sk_tile_pays(&t));
	t = good;
	t.src_col = 63;
	cr_assert_not(sk_tile_pays(&t));
}

Test(copy, a_scalar_is_one_element)
{
	double from = 2.5, to = 0;
	struct sk_copy copy;

	cr_assert_eq(sk_copy_init(&copy, 64, 0, NULL, &to, NULL, &from, NULL,
				  NULL), 0);
	sk_copy_run(&copy);
	cr_assert_eq(to, from);
}

Test(copy, nothing_is_copied_without_pointers)
{
	int64_t size[] = { 4, 0, 3 }, stride[3];
	struct sk_copy copy;

	sk_dense_strides(3, size, stride);
	cr_assert_eq(sk_copy_init(&copy, 8, 3, size, NULL, stride, NULL,
				  stride, NULL), 0);
	cr_assert_eq(copy.bytes, 0);
	sk_copy_run(&copy);
}

/* ---- errors ---- */

struct bad {
	const char *what;
	unsigned bits;
	int ndim;
	int64_t size[2], dst[2], src[2];
};

Test(copy, bad_arguments_are_refused_with_a_sentence)
{
	static const struct bad bad[] = {
		{ "no width", 0, 1, { 2 }, { 1 }, { 1 } },
		{ "odd width", 7, 1, { 8 }, { 1 }, { 1 } },
		{ "negative ndim", 8, -1 },
		{ "many ndim", 8, SK_MAX_DIMS + 1 },
		{ "negative size", 8, 1, { -2 }, { 1 }, { 1 } },
		{ "dst stride 0", 8, 1, { 2 }, { 0 }, { 1 } },
		{ "half bytes", 4, 1, { 3 }, { 1 }, { 1 } },
		{ "6 bits", 6, 2, { 4, 2 }, { 2, 1 }, { 2, 1 } },
		{ "sub-byte gaps", 4, 1, { 4 }, { 2 }, { 1 } },
		{ "sub-byte src", 4, 1, { 4 }, { 1 }, { -1 } },
		{ "half stride", 4, 2, { 2, 2 }, { 3, 1 }, { 2, 1 } },
		{ "scalar", 4, 0 },
		{ "overflow", 64, 2, { INT64_MAX / 4, 8 }, { 8, 1 },
		  { 8, 1 } },
		{ "reach", 64, 2, { 8, 2 }, { INT64_MAX / 16, 1 }, { 2, 1 } },
		{ "src reach", 8, 2, { 8, 2 }, { 2, 1 },
		  { INT64_MIN / 4, 1 } },
		{ "stride", 64, 2, { 2, 2 }, { 2, 1 }, { INT64_MAX / 8, 1 } },
	};
	static char a[64], b[64];

	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		const struct bad *t = &bad[i];
		struct sk_copy copy = { .run = 77 };
		struct sk_err err = { 0 };

		cr_assert_eq(sk_copy_init(&copy, t->bits, t->ndim, t->size, a,
					  t->dst, b, t->src, &err), -EINVAL,
			     "%s", t->what);
		cr_assert(err.text[0], "%s", t->what);
		cr_assert_eq(copy.run, 77, "%s", t->what);
		cr_assert_eq(sk_copy_init(&copy, t->bits, t->ndim, t->size, a,
					  t->dst, b, t->src, NULL), -EINVAL);
	}
}

Test(copy, null_pointers_are_refused)
{
	int64_t size = 2, stride = 1;
	struct sk_err err = { 0 };
	struct sk_copy copy;
	char buf[2] = { 0 };

	cr_assert_eq(sk_copy_init(&copy, 8, 1, &size, NULL, &stride, buf,
				  &stride, &err), -EINVAL);
	cr_assert(strstr(err.text, "to a null"), "%s", err.text);
	cr_assert_eq(sk_copy_init(&copy, 8, 1, &size, buf, &stride, NULL,
				  &stride, &err), -EINVAL);
	cr_assert(strstr(err.text, "from a null"), "%s", err.text);
}

/* ---- streaming ---- */

/* What is copied is what memcpy() copies, and nothing beside it changes; from
 * anywhere to anywhere, of all small sizes and those where the walk changes. */
static void check_stream(bool twice)
{
	static const size_t sizes[] = { 2047, 2048, 2049, 4096, 16383, 16384,
					16385, 40000, 65536, 100001 };
	size_t room = 100001 + 3 * GUARD;
	_cleanup_free_ char *dst = aligned_alloc(64, sk_round_up(room, 64));
	_cleanup_free_ char *want = malloc(room), *src = malloc(room);
	_cleanup_free_ char *twin = malloc(room), *both = malloc(room);
	uint64_t state = SEED;

	cr_assert(dst && want && src && twin && both);
	fill(&state, src, room);
	for (unsigned i = 0; i < 2000; i++) {
		size_t to = draw(&state, 130), from = draw(&state, 130);
		size_t too = draw(&state, 130);
		size_t n = i < 400 ? i : draw(&state, 6000);

		if (i >= 1900)
			n = sizes[i % SK_ARRAY_SIZE(sizes)];
		memset(dst, (int)i, n + 3 * GUARD);
		memset(want, (int)i, n + 3 * GUARD);
		memset(twin, (int)i, n + 3 * GUARD);
		memset(both, (int)i, n + 3 * GUARD);
		memcpy(want + to, src + from, n);
		if (twice) {
			memcpy(both + too, src + from, n);
			sk_stream_copy_twice(dst + to, twin + too, src + from,
					     n);
		} else {
			sk_stream_copy(dst + to, src + from, n);
		}
		sk_stream_fence();
		cr_assert_eq(memcmp(dst, want, n + 3 * GUARD), 0,
			     "%zu bytes from %zu to %zu", n, from, to);
		cr_assert_eq(memcmp(twin, both, n + 3 * GUARD), 0,
			     "%zu bytes from %zu to %zu", n, from, too);
	}
}

Test(copy, stream_copy_is_memcpy)
{
	check_stream(false);
}

Test(copy, stream_copy_twice_is_two_memcpys)
{
	check_stream(true);
}

Test(copy, every_kernel_of_this_cpu_copies_lines)
{
	size_t room = 40 * 1024;
	_cleanup_free_ char *dst = aligned_alloc(64, room);
	_cleanup_free_ char *src = malloc(room + 64);
	_cleanup_free_ char *twin = malloc(room + 64);
	uint64_t state = SEED;
	const struct sk_stream *kernel;

	cr_assert(dst && src && twin);
	fill(&state, src, room + 64);
	for (unsigned k = 0; (kernel = sk_stream_at(k)); k++) {
		for (size_t n = 0; n + SK_LINE <= room; n += SK_LINE) {
			size_t off = n / SK_LINE % 64;

			memset(dst, 0x5a, n + SK_LINE);
			kernel->copy(dst, src + off, n);
			kernel->fence();
			cr_assert_eq(memcmp(dst, src + off, n), 0,
				     "%s, %zu bytes", kernel->name, n);
			for (size_t i = n; i < n + SK_LINE; i++)
				cr_assert_eq(dst[i], 0x5a, "%s wrote on",
					     kernel->name);
			memset(dst, 0x5a, n + SK_LINE);
			kernel->copy_twice(dst, twin + off, src + off, n);
			kernel->fence();
			cr_assert(!memcmp(dst, src + off, n) &&
				  !memcmp(twin + off, src + off, n),
				  "%s, %zu bytes twice", kernel->name, n);
		}
	}
}

/* What is asked for ahead may lie nowhere. */
Test(copy, every_kernel_of_this_cpu_copies_rows)
{
	const char *const nowhere = (const char *)(uintptr_t)64;
	size_t room = 8 * 1024;
	_cleanup_free_ char *dst = aligned_alloc(64, room + SK_LINE);
	_cleanup_free_ char *src = malloc(room + 64);
	uint64_t state = SEED;
	const struct sk_stream *kernel;

	cr_assert(dst && src);
	fill(&state, src, room + 64);
	for (unsigned k = 0; (kernel = sk_stream_at(k)); k++) {
		for (size_t n = 0; n <= room; n += 1 + n % 191) {
			size_t to = n % 61, from = n % 64;
			size_t fits = n + to <= room ? n : room - to;

			memset(dst, 0x5a, room + SK_LINE);
			sk_stream_row(kernel, dst + to, src + from, fits,
				      n % 2 ? nowhere : src);
			kernel->fence();
			cr_assert_eq(memcmp(dst + to, src + from, fits), 0,
				     "%s, %zu bytes", kernel->name, fits);
			cr_assert_eq(dst[to + fits], 0x5a, "%s wrote on",
				     kernel->name);
			cr_assert(!to || dst[to - 1] == 0x5a,
				  "%s wrote before", kernel->name);
		}
	}
}

/* ---- which kernel ---- */

Test(copy, the_first_way_is_left_for_one_that_is_faster_by_a_tenth)
{
	static const struct {
		uint64_t ns[3];
		unsigned n, want;
	} cases[] = {
		{ { 100, 0, 0 }, 1, 0 },	{ { 100, 89, 200 }, 3, 1 },
		{ { 100, 91, 90 }, 3, 0 },	{ { 100, 89, 50 }, 3, 2 },
		{ { 50, 100, 200 }, 3, 0 },	{ { 100, 50, 50 }, 3, 1 },
		{ { 0, 0, 0 }, 3, 0 },		{ { 7, 7, 7 }, 3, 0 },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++)
		cr_assert_eq(sk_choose(cases[i].ns, cases[i].n),
			     cases[i].want, "case %zu", i);
}

/* A clock on which each look takes as long as the test wants. */
static uint64_t at_ns;
static unsigned looks;
static uint64_t (*took_ns)(unsigned run);

static uint64_t look(const struct sk_os *os)
{
	(void)os;
	if (looks++ % 2)
		at_ns += took_ns(looks / 2 - 1);
	return at_ns;
}

/* Two runs that do not count come before each kind's rounds. */
static uint64_t second_is_faster(unsigned run)
{
	return run % 2 ? 50 : 100;
}

static const struct sk_os *on_a_clock_of(uint64_t (*ns)(unsigned run))
{
	static struct sk_os os;

	os = *sk_os_linux();
	os.now_ns = look;
	took_ns = ns;
	at_ns = looks = 0;
	return &os;
}

Test(copy, backend_is_the_first_kernel_until_another_was_found_faster)
{
	const struct sk_stream *kernel = sk_stream_at(0);

	cr_assert_str_eq(sk_copy_backend(), kernel ? kernel->name : "memcpy");
	sk_copy_measure(on_a_clock_of(second_is_faster));
	if (!kernel) {
		cr_assert_eq(looks, 0);
		return;
	}
	cr_assert_str_eq(sk_copy_backend(), sk_stream_at(1)->name);
	cr_assert_eq(sk_copy_hash_is_free(), sk_lines_at(0) != NULL);
	cr_assert_eq(sk_lines_best(), sk_lines_at(1));
	/* Once and for all. */
	looks = 0;
	sk_copy_measure(on_a_clock_of(second_is_faster));
	cr_assert_eq(looks, 0);
	check_stream(false);
	check_stream(true);
}

static uint64_t hashing_takes_longer(unsigned run)
{
	return run < 14 ? 100 : 120;
}

static uint64_t stands_still(unsigned run)
{
	(void)run;
	return 0;
}

Test(copy, a_clock_that_stands_still_tells_nothing)
{
	sk_copy_measure(on_a_clock_of(stands_still));
	cr_assert_eq(sk_stream_best(), sk_stream_at(0));
	cr_assert(!sk_copy_hash_is_free());
}

Test(copy, a_hash_that_takes_longer_is_not_free)
{
	sk_copy_measure(on_a_clock_of(hashing_takes_longer));
	cr_assert_eq(sk_stream_best(), sk_stream_at(0));
	cr_assert_eq(sk_lines_best(), sk_lines_at(0));
	cr_assert(!sk_copy_hash_is_free());
}
