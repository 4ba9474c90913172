/* SPDX-License-Identifier: Apache-2.0 */
/* Small copies by a table that stays on the device, simulated or real. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/private.h"
#include "cuda/table.h"
#include "sim/trainer.h"

#define CELLS 6000u
#define CELL 160u
#define ROOM ((size_t)CELLS * CELL)
#define FAILED 304		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */

struct fixture {
	struct trainer_cuda t;
	struct sk_cuda *cuda;
	struct sk_cuda_device *device;
	struct sk_cuda_lane *lane;
	sk_cu_ptr from, to;		/* ROOM bytes each */
	char *source, *wanted, *got;	/* of the first; of the second */
	struct sk_cuda_table_copy v[CELLS];
	size_t n;
	uint64_t stamp;
};

static struct fixture *f;
static uint64_t random_state = 1;

static uint64_t below(uint64_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963u;
	return (random_state >> 33) % n;
}

static void set_up(void)
{
	f = calloc(1, sizeof(*f));
	cr_assert_not_null(f);
	trainer_cuda_begin(&f->t, 0);
	f->from = trainer_cuda_alloc(&f->t, ROOM);
	f->to = trainer_cuda_alloc(&f->t, ROOM);
	f->source = calloc(3, ROOM);
	cr_assert_not_null(f->source);
	f->wanted = f->source + ROOM;
	f->got = f->wanted + ROOM;
	for (size_t i = 0; i < ROOM; i++)
		f->source[i] = (char)below(256);
	trainer_cuda_put(&f->t, f->from, f->source, ROOM);
	trainer_cuda_put(&f->t, f->to, f->wanted, ROOM);
	cr_assert_eq(sk_cuda_new(sk_os_linux(), &f->cuda, NULL), 0);
	cr_assert_eq(sk_cuda_device(f->cuda, 0, &f->device, NULL), 0);
	cr_assert_eq(sk_cuda_lane_new(f->device, &f->lane, NULL), 0);
}

static void tear_down(void)
{
	sk_cuda_lane_free(f->lane);
	sk_cuda_free(f->cuda);
	free(f->source);
	free(f);
}

TestSuite(table, .init = set_up, .fini = tear_down);

/* Other bytes of all of @n cells, each to its own. */
static void draw(size_t n)
{
	f->n = n;
	for (size_t i = 0; i < n; i++) {
		uint64_t cell = i * CELL, bytes = 1 + below(CELL);

		f->v[i] = (struct sk_cuda_table_copy){
			f->to + cell + below(CELL - bytes + 1),
			f->from + below(ROOM - bytes + 1), bytes };
	}
}

/* What the copies come to. */
static void expect(void)
{
	for (size_t i = 0; i < f->n; i++)
		memcpy(f->wanted + (f->v[i].dst - f->to),
		       f->source + (f->v[i].src - f->from), f->v[i].bytes);
}

static bool ask_for(size_t n)
{
	return sk_cuda_lane_table(f->lane, f->v, n, &f->stamp);
}

static bool ask(void)
{
	bool asked = ask_for(f->n);

	/* Of its caller, who writes there the next time. */
	if (asked)
		expect();
	return asked;
}

static void check(void)
{
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	trainer_cuda_get(&f->t, f->got, f->to, ROOM);
	cr_assert_eq(memcmp(f->got, f->wanted, ROOM), 0);
}

static uint64_t in(void)
{
	return f->t.count ? f->t.count("in") : 0;
}

static uint64_t calls(const char *function)
{
	return f->t.calls ? f->t.calls(function) : 0;
}

static bool ask_by_stamp(void)
{
	bool asked = sk_cuda_lane_table_again(f->lane, f->stamp);

	if (asked)
		expect();
	return asked;
}

/* The same again: told nothing, and one launch. */
static void again_by(bool (*how)(void))
{
	uint64_t before = in(), launches = calls("cuLaunchKernel");
	uint64_t stamp = f->stamp;

	cr_assert(how());
	cr_assert_eq(in(), before);
	check();
	cr_assert(!f->t.calls || calls("cuLaunchKernel") == launches + 1);
	cr_assert_eq(f->stamp, stamp);
}

/* Other bytes are where they come from. */
static void change(void)
{
	for (size_t i = 0; i < ROOM; i++)
		f->source[i] ^= (char)(i + 1);
	trainer_cuda_put(&f->t, f->from, f->source, ROOM);
}

static void again(void)
{
	cr_assert(sk_cuda_lane_has_table(f->lane, f->stamp));
	change();
	again_by(ask);
	change();
	again_by(ask_by_stamp);
}

/* A stamp is that of the copies that the device had with it. */
Test(table, of_others_by_now)
{
	uint64_t stamp;

	cr_assert_not(ask_by_stamp());	/* of none */
	draw(1000);
	cr_assert(ask());
	stamp = f->stamp;
	cr_assert(stamp);
	draw(1000);
	cr_assert(ask());
	cr_assert_neq(f->stamp, stamp);
	check();
	again();
	cr_assert_not(sk_cuda_lane_has_table(f->lane, stamp));
	cr_assert_not(sk_cuda_lane_table_again(f->lane, stamp));
	cr_assert_not(sk_cuda_lane_table_again(f->lane, 0));
	draw(CELLS);			/* by another table */
	cr_assert(ask());
	check();
	cr_assert_not(sk_cuda_lane_has_table(f->lane, stamp));
	again();
}

Test(table, is_told_once)
{
	cr_assert(ask_for(0));
	cr_assert_eq(f->stamp, 0);
	for (int round = 0; round < 12; round++) {
		uint64_t before;

		draw(4 + below(CELLS - 4));
		before = in();
		cr_assert(ask());
		check();
		cr_assert(!f->t.count ||
			  in() == before + f->n * sizeof(f->v[0]));
		again();
	}
}

/* One that is other than it was. */
Test(table, is_told_what_changed)
{
	draw(1000);
	cr_assert(ask());
	check();
	f->v[999].src = f->v[999].src > f->from ? f->v[999].src - 1 :
						  f->v[999].src + 1;
	cr_assert(ask());
	check();
	f->n = 999;
	f->v[998].bytes = 1;
	cr_assert(ask());
	check();
	again();
}

/* What the device has not got to yet is not written over. */
Test(table, while_others_are_under_way)
{
	for (int round = 0; round < 6; round++) {
		draw(500 + below(CELLS - 500));
		cr_assert(ask());
	}
	check();
}

/* What was asked for before, and waits for more of its kind, comes first: by
 * this it would not. */
Test(table, after_what_was_asked_for)
{
	const uint64_t bytes = 100;
	sk_cu_ptr between = trainer_cuda_alloc(&f->t, bytes);
	const struct sk_copy copy = {
		.dst = (char *)(uintptr_t)between,
		.src = (const char *)(uintptr_t)f->from,
		.run = bytes, .bytes = bytes };

	draw(10);
	cr_assert(ask());	/* there is a kernel */
	check();
	cr_assert_eq(sk_cuda_lane_across(f->lane, &copy, 0, bytes, NULL), 0);
	f->v[0] = (struct sk_cuda_table_copy){ f->to, between, bytes };
	cr_assert_not(ask_for(f->n));
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	cr_assert(ask_for(f->n));
	memcpy(f->wanted, f->source, bytes);
	check();
}

/* Slices of what is long; beside it what is short. */
Test(table, long_and_short)
{
	const uint64_t most = SK_CUDA_TABLE_MOST - 1;
	sk_cu_ptr from = trainer_cuda_alloc(&f->t, most);
	sk_cu_ptr to = trainer_cuda_alloc(&f->t, most);
	char *a = malloc(most), *b = malloc(most);

	cr_assert(a && b);
	for (size_t i = 0; i < most; i++)
		a[i] = (char)(i * 7 >> 3);
	trainer_cuda_put(&f->t, from, a, most);
	draw(100);
	f->v[f->n] = (struct sk_cuda_table_copy){ to, from, most };
	cr_assert(ask_for(f->n + 1));
	expect();
	check();
	trainer_cuda_get(&f->t, b, to, most);
	cr_assert_eq(memcmp(a, b, most), 0);
	free(a);
	free(b);
}

/* Whichever call fails: it is as if nothing had been asked for, and the next
 * time it is all there. */
Test(table, any_call_fails)
{
	static const char *const names[] = {
		"cuMemAlloc", "cuEventCreate", "cuMemHostRegister",
		"cuCtxPushCurrent", "cuMemcpyHtoDAsync", "cuLaunchKernel",
		"cuEventRecord", "cuEventSynchronize" };

	if (!f->t.fail)
		cr_skip_test("on a simulated driver only");
	draw(10);
	cr_assert(ask());	/* the code is loaded */
	check();
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++)
		for (unsigned k = 0; k < 4; k++) {
			/* More room, too; other copies, as many. */
			draw(f->n + (k < 2 ? 200 : 0));
			f->t.fail(names[i], 1 + k % 2, FAILED);
			(void)ask();
			f->t.fail(names[i], 0, 0);
			cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
			f->lane->table_again.at_ns = 0;
			cr_assert(ask(), "%s", names[i]);
			check();
			again();
		}
}

/* Who cannot tell when the table was read waits until it was. */
Test(table, nobody_knows_when_it_was_read)
{
	if (!f->t.fail)
		cr_skip_test("on a simulated driver only");
	draw(1000);
	cr_assert(ask());
	check();
	for (int round = 0; round < 4; round++) {
		draw(1000);
		f->t.fail("cuEventRecord", 1, FAILED);
		cr_assert_not(ask());
		f->t.fail("cuEventRecord", 0, 0);
		expect();
		draw(1000);
		cr_assert(ask());
		check();
	}
}

/* A device that is full is not asked each time. */
Test(table, no_room)
{
	uint64_t asked;

	if (!f->t.fail)
		cr_skip_test("on a simulated driver only");
	draw(10);
	cr_assert(ask());
	draw(2000);
	f->t.fail("cuMemAlloc", 1, 2);
	cr_assert_not(ask());
	asked = calls("cuMemAlloc");
	cr_assert_not(ask());
	cr_assert_eq(calls("cuMemAlloc"), asked);
	f->lane->table_again.at_ns = 0;
	cr_assert(ask());
	check();
}

Test(table, few_go_alone)
{
	draw(3);
	cr_assert_not(ask());
	draw(4);
	cr_assert(ask());
	check();
}

Test(table, without_a_kernel)
{
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	setenv("VCUDA_MODE", "no-compiler", 1);
	draw(10);
	cr_assert_not(ask());
	check();
}
