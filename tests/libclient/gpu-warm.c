/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank's GPU runs of ours is loaded beside the trainer: by sk_prepare(),
 * before the first snapshot, and never by a call of the trainer's thread.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libclient/gpu-rank.h"

#define ROWS 500
#define COLUMNS 400
#define KERNELS 5

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

/* ---- huge pages, before they are locked ---- */

#define POPULATE_WRITE 23	/* MADV_POPULATE_WRITE */
#define COLLAPSE 25		/* MADV_COLLAPSE */
#define LARGE ((size_t)12 << 20)
#define RANGES 32

/* What of this process was asked to lie in huge pages, since it was faulted
 * in; and what was locked then. */
static struct asked {
	const struct gpu_rank *rank;	/* NULL: nobody listens */
	const char *at[RANGES];
	uint64_t locked[RANGES];
	unsigned n;			/* atomic */
} asked;

/* Where there is no room: what is asked for beside what a thread has asked for
 * a page of just before, as who faults in does. */
static bool full;
static unsigned in_vain;		/* atomic */
static _Thread_local bool faults_in;

static int refuse(size_t size)
{
	if (size >= LARGE / 2 && !faults_in)
		__atomic_fetch_add(&in_vain, 1, __ATOMIC_RELAXED);
	errno = ENOMEM;
	return -1;
}

/* In the C library's place. */
int madvise(void *at, size_t size, int advice)
{
	unsigned n;

	if (full && advice == COLLAPSE)
		return refuse(size);
	faults_in = advice == POPULATE_WRITE && size == SK_PAGE;
	if (asked.rank && advice == COLLAPSE && size >= LARGE / 2) {
		n = __atomic_fetch_add(&asked.n, 1, __ATOMIC_RELAXED);
		CHECK(n < RANGES);
		asked.at[n] = at;
		asked.locked[n] = gpu_count(asked.rank, "locked");
		if (!n || asked.at[n - 1] != at) {
			errno = EAGAIN;	/* as if it had a page in hand */
			return -1;
		}
	}
	return (int)syscall(SYS_madvise, at, size, advice);
}

/* The last request before `n` for another slot than that one is for: where the
 * system has a page in hand, one is repeated. */
static unsigned before(unsigned n)
{
	unsigned i = n;

	while (i && asked.at[i - 1] == asked.at[n])
		i--;
	CHECK(i, "all are for one slot");
	return i - 1;
}

/* Each slot is asked for once more, right before it is locked: the last
 * requests are for one each, and what is locked grows from one to the next. */
static void collapsed(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	gpu_add(&g, &(struct sk_tensor){
		.name = "w", .dtype = SK_U8, .ndim = 1,
		.shape = { (int64_t)LARGE }, .device = g.device }, LARGE, 1);
	asked.rank = &g;
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	asked.rank = NULL;
	CHECK(gpu_count(&g, "locked") >= 2 * LARGE);
	CHECK(asked.n);
	CHECK(asked.locked[before(asked.n - 1)] < LARGE &&
	      asked.locked[asked.n - 1] >= LARGE, "not right before that");
}

/* Of each slot that is to be locked a few pieces are asked for, and then the
 * system has no room for the others either. */
static void no_room(struct rank *rank)
{
	const size_t bytes = 9 * ((size_t)32 << 20);
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	gpu_add(&g, &(struct sk_tensor){
		.name = "w", .dtype = SK_U8, .ndim = 1,
		.shape = { (int64_t)bytes }, .device = g.device }, bytes, 1);
	full = true;
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	full = false;
	CHECK(gpu_count(&g, "locked") >= 2 * bytes);
	CHECK(in_vain == 16, "%u times", in_vain);
}

int main(int argc, char **argv)
{
	const char *sched = getenv("VCUDA_SCHED");
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	if (!t.calls)
		return 77;	/* a real one counts nothing */
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "prepared", 1, prepared, NULL);
	scene_ranks(&scene, "unprepared", 1, unprepared, NULL);
	scene_ranks(&scene, "collapsed", 1, collapsed, NULL);
	/* However the device goes about it, once is enough: it is large. */
	if (sched && !strcmp(sched, "eager"))
		scene_ranks(&scene, "no-room", 1, no_room, NULL);
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
