/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What runs on a GPU, as this machine runs it: the same source, thread by
 * thread, against xxHash on random bytes, lengths and addresses.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "bytes/copy.h"

#include "cuda/kernels.cl"

#define MIB ((size_t)1 << 20)
#define SPANS 64

static uint64_t draw(uint64_t *random)
{
	*random = *random * 6364136223846793005u + 1442695040888963407u;
	return *random >> 33;
}

static char *random_bytes(size_t n, uint64_t *random)
{
	char *p = malloc(n + 1);

	cr_assert_not_null(p);
	for (size_t i = 0; i < n; i++)
		p[i] = (char)draw(random);
	return p;
}

static uint64_t blocks_of_largest(const struct sk_kernel_span *spans,
				  uint64_t n)
{
	uint64_t most = 0;

	for (uint64_t i = 0; i < n; i++)
		if (spans[i].bytes > SK_SHORT &&
		    sk_blocks_of(spans[i].bytes) > most)
			most = sk_blocks_of(spans[i].bytes);
	return most;
}

/* All threads of a launch, the last one first: none waits for another. @most:
 * blocks of a span that are taken side by side. */
static void hash_by(const struct sk_kernel_span *spans, uint64_t n,
		    uint64_t most, uint64_t *ret)
{
	sk_u64 sums[SPANS * SK_LANES], sum[SPANS];
	sk_u64 *parts = malloc(n * most * SK_LANES * 8 + 1);

	cr_assert_not_null(parts);
	memset(parts, 0x5a, n * most * SK_LANES * 8);
	memset(sums, 0xa5, sizeof(sums));
	for (uint64_t t = most ? n * most * SK_LANES / 2 + 40 : 0; t-- > 0;)
		sk_kernel_parts(t, spans, n, parts, most);
	for (uint64_t t = n * SK_LANES + 40; t-- > 0;)
		sk_kernel_lanes(t, spans, n, sums, parts, most);
	for (uint64_t t = n + 40; t-- > 0;)
		sk_kernel_merge(t, spans, n, sums, sum);
	for (uint64_t i = 0; i < n; i++)
		ret[i] = sum[i];
	free(parts);
}

/* Side by side, and, where there is no room for that, one by one. */
static void hash(const struct sk_kernel_span *spans, uint64_t n, uint64_t *ret)
{
	uint64_t other[SPANS];

	hash_by(spans, n, blocks_of_largest(spans, n), ret);
	hash_by(spans, n, 0, other);
	cr_assert_arr_eq(ret, other, n * sizeof(*ret));
}

static void check(const char *p, size_t bytes)
{
	const struct sk_kernel_span span = { (uintptr_t)p, bytes };
	uint64_t sum;

	hash(&span, 1, &sum);
	cr_assert_eq(sum, sk_xxh3(p, bytes), "%zu bytes at %p", bytes,
		     (const void *)p);
}

Test(kernels, each_short_length)
{
	uint64_t random = 1;
	char *all = random_bytes(2200, &random);

	for (size_t n = 0; n <= 2100; n++)
		for (size_t at = 0; at < 9; at++)
			check(all + at, n);
	free(all);
}

/* Where stripes and blocks end, up to whole chunks. */
Test(kernels, lengths_about_the_ends)
{
	uint64_t random = 2;
	char *all = random_bytes(MIB + 64, &random);

	for (size_t n = 2048; n <= MIB; n *= 2)
		for (int by = -66; by <= 1; by++)
			if (n + by <= MIB)
				check(all, n + by);
	check(all + 1, MIB);
	free(all);
}

Test(kernels, many_spans)
{
	struct sk_kernel_span spans[SPANS];
	uint64_t random = 3, sums[SPANS];
	char *all = random_bytes(MIB, &random);

	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < SPANS; i++) {
			uint64_t at = draw(&random) % MIB;
			uint64_t most = round % 2 ? 300 : MIB / 4;

			most = most < MIB - at ? most : MIB - at;
			spans[i].at = (uintptr_t)all + at;
			spans[i].bytes = draw(&random) % (most + 1);
		}
		hash(spans, SPANS, sums);
		for (int i = 0; i < SPANS; i++)
			cr_assert_eq(sums[i], sk_xxh3((char *)spans[i].at,
						      spans[i].bytes));
	}
	free(all);
}

Test(kernels, copies)
{
	uint64_t random = 4;
	const size_t room = 3 * SK_SLICE;
	char *from = random_bytes(room, &random), *to = malloc(room);
	char *want = malloc(room);

	for (int round = 0; round < 2000; round++) {
		uint64_t src = draw(&random) % 64, dst = draw(&random) % 64;
		uint64_t n = draw(&random) % (round % 2 ? 4900 : 40);
		uint64_t slices = 1 + draw(&random) % 3;
		uint64_t threads = 1 + draw(&random) % 256;
		struct sk_kernel_copy copy = { (uintptr_t)to + dst,
					       (uintptr_t)from + src, n };

		if (round % 50 == 0)	/* of several slices */
			copy.bytes = n = draw(&random) % (room - 64);
		slices = n / SK_SLICE + slices;
		memset(to, round, room);
		memset(want, round, room);
		memcpy(want + dst, from + src, n);
		for (uint64_t s = slices; s-- > 0;)
			for (uint64_t t = threads; t-- > 0;)
				sk_kernel_copies(t, threads, s, &copy);
		cr_assert_arr_eq(to, want, room);
	}
	free(from);
	free(to);
	free(want);
}

/* ---- boxes ---- */

#define BOX_ROOM ((size_t)1 << 18)

/* Elements of a random shape, their dimensions in a random order on either
 * side, one of them backwards now and then. */
static struct sk_copy random_box(char *dst, const char *src, uint64_t *random)
{
	struct sk_copy c = { .run = 1u << draw(random) % 5,
			     .ndim = (int)(1 + draw(random) % 4) };
	int64_t far[2] = { (int64_t)c.run, (int64_t)c.run };

	c.bytes = c.run;
	for (int d = 0; d < c.ndim; d++) {
		c.size[d] = (int64_t)(1 + draw(random) % (d < 2 ? 40 : 2));
		c.bytes *= (uint64_t)c.size[d];
	}
	for (int side = 0; side < 2; side++) {
		int64_t *strides = side ? c.src_stride : c.dst_stride;
		bool turned = draw(random) % 2;

		for (int i = 0; i < c.ndim; i++) {
			int d = turned ? i : c.ndim - 1 - i;

			strides[d] = far[side];
			far[side] *= c.size[d] + (int64_t)(draw(random) % 2);
		}
	}
	cr_assert(far[0] <= (int64_t)BOX_ROOM && far[1] <= (int64_t)BOX_ROOM);
	c.dst = dst;
	c.src = src;
	if (draw(random) % 4 == 0) {
		c.src += (c.size[0] - 1) * c.src_stride[0];
		c.src_stride[0] = -c.src_stride[0];
	}
	return c;
}

static void run_box(const struct sk_copy *c)
{
	struct sk_kernel_box box = { .dst = (uintptr_t)c->dst,
				     .src = (uintptr_t)c->src,
				     .run = c->run };

	for (unsigned d = 0; d < SK_BOX_DIMS; d++) {
		bool used = (int)d < c->ndim;

		box.size[d] = used ? (sk_u64)c->size[d] : 1;
		box.dst_stride[d] = used ? (sk_u64)c->dst_stride[d] : 0;
		box.src_stride[d] = used ? (sk_u64)c->src_stride[d] : 0;
	}
	for (uint64_t tile = sk_box_tiles(&box); tile-- > 0;)
		for (uint64_t t = 100; t-- > 0;)
			sk_kernel_tile(t, 100, tile, &box);
}

Test(kernels, boxes_are_copied_as_the_host_does)
{
	char *dst = calloc(1, BOX_ROOM + 8), *same = calloc(1, BOX_ROOM + 8);
	uint64_t random = 5;
	char *src = random_bytes(BOX_ROOM + 8, &random);

	cr_assert(dst && same);
	for (int i = 0; i < 300; i++) {
		size_t shift = draw(&random) % 8;
		struct sk_copy c = random_box(dst + shift, src, &random);

		run_box(&c);
		c.dst = same + shift;
		sk_copy_run(&c);
		cr_assert_eq(memcmp(dst, same, BOX_ROOM + 8), 0, "%d", i);
	}
	free(dst);
	free(same);
	free(src);
}
