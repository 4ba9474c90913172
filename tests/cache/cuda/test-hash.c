/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums taken on a device, on the simulated driver that $SHARDKEEP_LIBCUDA
 * names or on the machine's: each test is a process of its own.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "cuda/hash.h"
#include "sim/trainer.h"

#define BYTES ((size_t)5 << 20)

struct fixture {
	struct trainer_cuda t;
	struct sk_cuda *cuda;
	struct sk_cuda_device *device;
	struct sk_cuda_lane *lane;
	sk_cu_ptr there;
	char *here;
};

static struct fixture *f;

static void set_up(void)
{
	f = calloc(1, sizeof(*f));
	cr_assert_not_null(f);
	trainer_cuda_begin(&f->t, 0);
	cr_assert_eq(sk_cuda_new(sk_os_linux(), &f->cuda, NULL), 0);
	cr_assert_eq(sk_cuda_device(f->cuda, 0, &f->device, NULL), 0);
	cr_assert_eq(sk_cuda_lane_new(f->device, &f->lane, NULL), 0);
	f->there = trainer_cuda_alloc(&f->t, BYTES);
	f->here = malloc(BYTES);
	for (size_t i = 0; i < BYTES; i++)
		f->here[i] = (char)(i * i >> 7);
	trainer_cuda_put(&f->t, f->there, f->here, BYTES);
}

static void tear_down(void)
{
	(void)sk_cuda_lane_free(f->lane);
	(void)sk_cuda_free(f->cuda);
	if (f->t.count)
		cr_assert_eq(f->t.count("modules"), 0);
	free(f->here);
	free(f);
}

TestSuite(hash, .init = set_up, .fini = tear_down);

static struct sk_cuda_hash *begin(void)
{
	struct sk_cuda_hash *hash = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cuda_hash_new(f->device, &hash, &err), 0, "%s",
		     err.text);
	return hash;
}

Test(hash, as_on_the_host)
{
	static const size_t ends[] = { 0, 0, 1, 3, 8, 20, 150, 240, 241, 5000,
				       1 << 20, 3 << 20, (3 << 20) + 77,
				       BYTES };
	struct sk_cuda_span spans[SK_ARRAY_SIZE(ends) - 1];
	size_t n = SK_ARRAY_SIZE(spans);
	struct sk_cuda_hash *hash = begin();
	uint64_t sums[SK_ARRAY_SIZE(spans)], in = 0, out = 0, slow = 0;

	for (size_t i = 0; i < n; i++)
		spans[i] = (struct sk_cuda_span){ f->there + ends[i],
						  ends[i + 1] - ends[i] };
	if (f->t.count) {
		in = f->t.count("in");
		out = f->t.count("out");
		slow = f->t.count("pageable");
	}
	cr_assert_eq(sk_cuda_hash_run(hash, f->lane, spans, n, sums, NULL), 0);
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(sums[i], sk_xxh3(f->here + ends[i],
					      spans[i].bytes), "%zu", i);
	/* What crosses the link. */
	if (f->t.count) {
		cr_assert_eq(f->t.count("in") - in, 16 * n);
		cr_assert_eq(f->t.count("out") - out, 8 * n);
		cr_assert_eq(f->t.count("hashed"), BYTES);
		cr_assert_eq(f->t.count("pageable"), slow);
	}
	(void)sk_cuda_hash_free(hash);
}

/* After what the lane was asked for before. */
Test(hash, in_the_order_of_the_lane)
{
	sk_cu_ptr copy = trainer_cuda_alloc(&f->t, BYTES);
	const struct sk_copy across = {
		.dst = (char *)(uintptr_t)copy,
		.src = (const char *)(uintptr_t)f->there,
		.run = BYTES, .bytes = BYTES };
	struct sk_cuda_span spans[4];
	struct sk_cuda_hash *hash = begin();
	uint64_t sums[4];

	for (size_t i = 0; i < 4; i++)
		spans[i] = (struct sk_cuda_span){ copy + (i << 20), 1 << 20 };
	cr_assert_eq(sk_cuda_lane_across(f->lane, &across, 0, BYTES, NULL), 0);
	cr_assert_eq(sk_cuda_hash_run(hash, f->lane, spans, 4, sums, NULL), 0);
	for (size_t i = 0; i < 4; i++)
		cr_assert_eq(sums[i], sk_xxh3(f->here + (i << 20), 1 << 20));
	(void)sk_cuda_hash_free(hash);
}

Test(hash, after_a_fork)
{
	struct sk_cuda_hash *hash = begin();

	for (size_t from = 0; from < 2; from++) {
		const struct sk_cuda_span span = { f->there + from, BYTES / 2 };
		pid_t child = trainer_fork();
		uint64_t sum = 0;

		cr_assert_eq(sk_cuda_hash_run(hash, f->lane, &span, 1, &sum,
					      NULL), 0);
		cr_assert_eq(sum, sk_xxh3(f->here + from, BYTES / 2));
		trainer_reap(child);
	}
	sk_cuda_hash_free(hash);
}

Test(hash, as_many_as_one_call_takes)
{
	static struct sk_cuda_span spans[SK_CUDA_SPANS_MAX];
	static uint64_t sums[SK_CUDA_SPANS_MAX];
	struct sk_cuda_hash *hash = begin();

	for (size_t i = 0; i < SK_CUDA_SPANS_MAX; i++)
		spans[i] = (struct sk_cuda_span){ f->there + 8 * i, i };
	for (int twice = 0; twice < 2; twice++)
		cr_assert_eq(sk_cuda_hash_run(hash, f->lane, spans,
					      SK_CUDA_SPANS_MAX, sums, NULL),
			     0);
	for (size_t i = 0; i < SK_CUDA_SPANS_MAX; i++)
		cr_assert_eq(sums[i], sk_xxh3(f->here + 8 * i, i));
	(void)sk_cuda_hash_free(hash);
}

/* Of whatever sizes, many of which lie in the same memory: more blocks than
 * there is room for side by side, several times. */
static void hash_at_random(struct sk_cuda_hash *hash)
{
	struct sk_cuda_span spans[300];
	uint64_t sums[SK_ARRAY_SIZE(spans)], state = 7;
	size_t n = SK_ARRAY_SIZE(spans);

	for (size_t i = 0; i < n; i++) {
		uint64_t most = i % 23 == 5 ? BYTES : i % 3 ? 4000 : 300, at;

		state = state * 6364136223846793005u + 1442695040888963u;
		at = (state >> 40) % 99;
		spans[i].at = f->there + at;
		spans[i].bytes = (state >> 16) % (most - at);
		if (i % 50 == 9)
			spans[i].bytes = 0;
	}
	cr_assert_eq(sk_cuda_hash_run(hash, f->lane, spans, n, sums, NULL), 0);
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(sums[i], sk_xxh3(f->here + (spans[i].at -
							 f->there),
					      spans[i].bytes), "%zu", i);
}

Test(hash, of_more_than_there_is_room_for)
{
	struct sk_cuda_hash *hash = begin();
	uint64_t before = f->t.calls ? f->t.calls("cuLaunchKernel") : 0;

	hash_at_random(hash);
	if (f->t.calls)
		cr_assert_gt(f->t.calls("cuLaunchKernel") - before, 6);
	(void)sk_cuda_hash_free(hash);
}

/* One block after the other. */
Test(hash, without_room_for_the_parts)
{
	struct sk_cuda_hash *hash;

	if (!f->t.fail)
		cr_skip_test("on a simulated driver only");
	f->t.fail("cuMemAlloc", 2, SK_CU_OUT_OF_MEMORY);
	hash = begin();
	hash_at_random(hash);
	(void)sk_cuda_hash_free(hash);
}

/* What cannot be had is asked for once, and told each time. */
static void refused(const char *what)
{
	struct sk_cuda_hash *hash;

	for (int twice = 0; twice < 2; twice++) {
		struct sk_err err = { "" };

		cr_assert_eq(sk_cuda_hash_new(f->device, &hash, &err),
			     -ENODEV);
		cr_assert(strstr(err.text, what), "%s", err.text);
		cr_assert_eq(sk_cuda_hash_can(f->device, NULL), -ENODEV);
	}
	cr_assert(f->t.calls("cuModuleLoadData") <= 1);
}

Test(hash, without_a_compiler)
{
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	setenv("VCUDA_MODE", "no-compiler", 1);
	refused("cuModuleLoadData failed");
	unsetenv("VCUDA_MODE");
	refused("cuModuleLoadData failed");
}

/* Whichever call finds no room: it is for that time, and nothing is left. */
Test(hash, without_room)
{
	static const char *const calls[] = { "cuModuleLoadData",
					     "cuModuleGetFunction",
					     "cuFuncLoad" };
	struct sk_cuda_hash *hash = NULL;

	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	for (size_t i = 0; i < SK_ARRAY_SIZE(calls); i++) {
		f->t.fail(calls[i], 1, SK_CU_OUT_OF_MEMORY);
		cr_assert_eq(sk_cuda_hash_new(f->device, &hash, NULL),
			     -ENOMEM, "%s", calls[i]);
		/* Who asks for each tensor does not ask the driver. */
		cr_assert_eq(sk_cuda_hash_can(f->device, NULL), -ENOMEM);
		cr_assert_eq(f->t.calls("cuModuleLoadData"), i ? 2 : 1);
	}
	(void)sk_cuda_hash_free(begin());
	cr_assert_eq(sk_cuda_hash_can(f->device, NULL), 0);
	cr_assert_eq(f->t.count("modules"), 1);
}

static void set_up_without(void)
{
	setenv("VCUDA_MISSING", "cuLaunchKernel", 1);
	set_up();
}

Test(hash_without, functions, .init = set_up_without, .fini = tear_down)
{
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	refused("no function");
}

Test(hash, a_launch_that_fails)
{
	const struct sk_cuda_span span = { f->there, BYTES };
	struct sk_cuda_hash *hash = begin();
	struct sk_err err = { "" };
	uint64_t sum;

	if (!f->t.fail)
		cr_skip_test("on a simulated driver only");
	f->t.fail("cuLaunchKernel", 2, 304);
	cr_assert_eq(sk_cuda_hash_run(hash, f->lane, &span, 1, &sum, &err),
		     -EIO);
	cr_assert(strstr(err.text, "cuLaunchKernel"), "%s", err.text);
	(void)sk_cuda_hash_free(hash);
}
