/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank's GPU runs of ours is loaded beside the trainer: by sk_prepare(),
 * before the first snapshot, and never by a call of the trainer's thread.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/gpu-rank.h"

#define ROWS 500
#define COLUMNS 400
#define KERNELS 4

/* Transposed: as rows it would be a call for each element. */
static void begin(struct gpu_rank *g, struct rank *rank)
{
	gpu_begin(g, rank, 0);
	gpu_add(g, &(struct sk_tensor){
		.name = "w", .dtype = SK_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .strides = { 1, ROWS },
		.device = g->device }, 4 * ROWS * COLUMNS, 1);
}

static uint64_t calls(const struct gpu_rank *g, const char *name)
{
	return g->cuda.calls(name);
}

static void snapshot(struct gpu_rank *g, int64_t step)
{
	uint64_t launched = calls(g, "cuLaunchKernel");

	gpu_fill(g, step);
	CHECK(!gpu_snapshot(g, step, 0), "%s", sk_error());
	CHECK(!sk_fence_stream(g->rank->state, (uintptr_t)g->stream), "%s",
	      sk_error());
	CHECK(!gpu_count(g, "loads"), "the trainer's thread loads code");
	CHECK(!sk_wait(g->rank->state, step, SK_COMPLETE, 60000), "%s",
	      sk_error());
	CHECK(calls(g, "cuLaunchKernel") > launched, "it runs none");
	CHECK(!gpu_count(g, "lazy"), "the first launch loads it");
}

static void prepared(struct rank *rank)
{
	bool loads = !getenv("VCUDA_VERSION");
	struct gpu_rank g;

	begin(&g, rank);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	CHECK(calls(&g, "cuModuleLoadData") == 1);
	CHECK(calls(&g, "cuFuncLoad") == (loads ? KERNELS : 0));
	for (int64_t step = 1; step < 4; step++)
		snapshot(&g, step);
	CHECK(calls(&g, "cuModuleLoadData") == 1);
	CHECK(calls(&g, "cuModuleGetFunction") == KERNELS);
	CHECK(calls(&g, "cuFuncLoad") == (loads ? KERNELS : 0));
}

static void unprepared(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	for (int64_t step = 1; step < 4; step++)
		snapshot(&g, step);
	CHECK(calls(&g, "cuModuleLoadData") == 1);
}

/* It goes on without. */
static void none(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	CHECK(!calls(&g, "cuLaunchKernel"));
	gpu_fill(&g, 2);
	CHECK(!rank_restore(rank, 1, 0, NULL), "%s", sk_error());
	CHECK(gpu_wrong(&g, 1, rank->rank) == 0);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	if (!t.calls)
		return 77;	/* a real one counts nothing */
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "prepared", 1, prepared, NULL);
	scene_ranks(&scene, "unprepared", 1, unprepared, NULL);
	CHECK(!setenv("VCUDA_VERSION", "12000", 1));
	scene_ranks(&scene, "older", 1, prepared, NULL);
	CHECK(!unsetenv("VCUDA_VERSION"));
	CHECK(!setenv("VCUDA_MODE", "no-compiler", 1));
	scene_ranks(&scene, "none", 1, none, NULL);
	CHECK(!unsetenv("VCUDA_MODE"));
	CHECK(!setenv("VCUDA_FAILS", "cuFuncLoad", 1));
	scene_ranks(&scene, "fails", 1, none, NULL);
	CHECK(!unsetenv("VCUDA_FAILS"));
	scene_close(&scene);
	return 0;
}
