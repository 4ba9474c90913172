/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device had no room for is asked for again, a minute later and not at
 * each copy: on the simulated driver, and a clock that the test moves.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>

#include "cuda/gather.h"
#include "cuda/kernels.h"
#include "cuda/private.h"
#include "sim/trainer.h"
#include "support/fault-os.h"

#define SECOND UINT64_C(1000000000)
#define ROWS 300
#define COLUMNS 200

struct fixture {
	struct trainer_cuda t;
	struct sk_fault_os fault;
	struct sk_cuda *cuda;
	struct sk_cuda_device *device;
	struct sk_cuda_lane *lane;
	sk_cu_ptr there;
	uint32_t *here;
};

static struct fixture *f;

static void set_up(void)
{
	f = calloc(1, sizeof(*f));
	cr_assert_not_null(f);
	trainer_cuda_begin(&f->t, 0);
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	sk_fault_os_init(&f->fault, sk_os_linux());
	sk_fault_os_clock(&f->fault, SECOND, SECOND);
	cr_assert_eq(sk_cuda_new(&f->fault.os, &f->cuda, NULL), 0);
	cr_assert_eq(sk_cuda_device(f->cuda, 0, &f->device, NULL), 0);
	cr_assert_eq(sk_cuda_lane_new(f->device, &f->lane, NULL), 0);
	f->here = calloc(ROWS * COLUMNS, sizeof(*f->here));
	f->there = trainer_cuda_alloc(&f->t, 4 * ROWS * COLUMNS);
}

static void tear_down(void)
{
	sk_cuda_lane_free(f->lane);
	sk_cuda_free(f->cuda);
	free(f->here);
	free(f);
}

TestSuite(again, .init = set_up, .fini = tear_down);

static bool loads(void)
{
	return sk_cuda_kernels_load(f->device, NULL) >= 0;
}

static bool gathers(void)
{
	return sk_cuda_can_gather(f->lane);
}

/* Transposed: as rows it is a call for each element. */
static bool crosses(void)
{
	const int64_t size[] = { ROWS, COLUMNS }, from[] = { 1, ROWS },
		      to[] = { COLUMNS, 1 };
	uint64_t launched = f->t.calls("cuLaunchKernel");
	struct sk_copy copy;

	cr_assert_eq(sk_copy_init(&copy, 32, 2, size, f->here, to,
				  (void *)(uintptr_t)f->there, from, NULL), 0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, copy.bytes, NULL,
				      NULL), 0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	return f->t.calls("cuLaunchKernel") > launched;
}

/* Refused three times: nobody asks before its time, and then once. */
static void check(bool (*can)(void), const char *call)
{
	static const unsigned minutes[] = { 1, 2, 4 };
	uint64_t asked;

	for (size_t i = 0; i < 3; i++) {
		f->t.fail(call, 1, SK_CU_OUT_OF_MEMORY);
		cr_assert_not(can());
		asked = f->t.calls(call);
		sk_fault_os_advance(&f->fault, minutes[i] * 60 * SECOND - 1);
		for (int k = 0; k < 3; k++)
			cr_assert_not(can());
		cr_assert_eq(f->t.calls(call), asked);
		sk_fault_os_advance(&f->fault, 1);
	}
	cr_assert(can());
	cr_assert(can());
}

Test(again, kernels)
{
	check(loads, "cuModuleLoadData");
}

Test(again, tables_of_copies)
{
	cr_assert(loads());
	check(gathers, "cuMemAlloc");
}

Test(again, room_to_cross_in)
{
	cr_assert(loads());
	check(crosses, "cuMemAlloc");
}
