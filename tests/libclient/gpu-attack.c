/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores out of device slots, attacked: two ranks of one GPU come back on
 * another mesh, and each call of the driver that one of them makes fails in its
 * turn, breaks its context, or is its end; the device has no room; the agent is
 * killed under it. Each restore ends in its time, bit for bit or with an error,
 * and so on both ranks; what comes after it finds all that was there.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"

#define RANKS 2
#define ROWS 900
#define MORE_ROWS 2200	/* then a quarter of what it wants will do */
#define COLUMNS 600
#define KILL UINT32_MAX		/* as a result: the call kills the process */
#define STOP (UINT32_MAX - 2)	/* or stops it */
#define ILLEGAL_ADDRESS 700u
#define OPERATING_SYSTEM 304u	/* breaks nothing */
#define UNCORRECTABLE 214u	/* of a device's memory */
#define TIMEOUT_MS 60000u
#define SHORT_MS 12000u		/* where a rank waits for a dead one so long */
#define STEPS 4096

/* What ranks and test share. */
struct shared {
	atomic_int taken[STEPS], served[STEPS];	/* ranks, of each step */
	atomic_int turn[STEPS];		/* ranks that have had it */
	_Atomic(bool) over;		/* the last call did not come up */
	_Atomic(int64_t) came[RANKS];	/* of the last restore */
};

static struct shared *shared;
static int rows = ROWS;		/* of ranks that are forked next */

static void meet(atomic_int *at)
{
	(*at)++;
	while (*at < RANKS)
		(void)sched_yield();
}

static void describe(struct gpu_rank *g, int dim)
{
	struct sk_mesh *mesh = mesh_of(g->rank->world, 0, NULL, NULL);
	struct sk_tensor w = {
		.name = "w", .dtype = SK_F32, .ndim = 2,
		.shape = { rows, COLUMNS }, .device = g->device,
		.mesh = mesh, .placements = { SK_SHARD(dim) } };
	struct sk_tensor norm = {
		.name = "norm", .dtype = SK_BF16, .ndim = 1,
		.shape = { 700 }, .device = g->device, .mesh = mesh,
		.placements = { SK_REPLICATE } };

	gpu_add(g, &w, rank_bytes(g->rank, &w), 0xee);
	gpu_add(g, &norm, rank_bytes(g->rank, &norm), 0xee);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "host", .dtype = SK_F32, .ndim = 1,
		.shape = { 1000 }, .mesh = mesh,
		.placements = { SK_SHARD(0) } },
		4000 / (size_t)g->rank->world, 0xee);
	sk_mesh_release(mesh);
}

static uint64_t on_device(const struct gpu_rank *g)
{
	return g->tensors[0].bytes + g->tensors[1].bytes;
}

/* ---- what stands there ---- */

static void save(struct rank *rank)
{
	struct gpu_rank g;
	int step = 0;

	gpu_begin(&g, rank, 0);
	describe(&g, 0);
	do {
		CHECK(++step < STEPS);
		gpu_fill(&g, step);
		gpu_complete(&g, step);
		shared->served[step] += gpu_device_bytes(&g) > 0;
		meet(&shared->taken[step]);
	} while (shared->served[step] < RANKS);
	gpu_fill(&g, ++step);
	gpu_complete(&g, step);
	rank_ready(rank);
}

static int restore_in(struct gpu_rank *g, uint32_t timeout_ms,
		      struct sk_report *ret_report)
{
	struct sk_restore_options o = { .timeout_ms = timeout_ms };

	return sk_restore(g->rank->state, SK_LATEST, NULL, &o, ret_report);
}

static int restore(struct gpu_rank *g, struct sk_report *ret_report)
{
	return restore_in(g, TIMEOUT_MS, ret_report);
}

/* All from device to device, as if nothing had been. */
static void load_well(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	describe(&g, 1);
	CHECK(!restore(&g, &report), "%s", sk_error());
	CHECK(!gpu_wrong(&g, report.step, -1));
	CHECK(report.bytes_device_slot == on_device(&g), "%" PRIu64,
	      report.bytes_device_slot);
	CHECK(!report.damaged);
}

/* ---- calls that fail ---- */

#define NTH_MOST 5u		/* of one call: what comes later is like it */

/* What the way takes, and what stands beside it. Those that can be without
 * room are the first. */
#define ROOM_CALLS 5
static const char *const calls[] = {
	"cuMemAlloc", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
	"cuMemHostRegister", "cuMemFree", "cuMemcpyBatchAsync", "cuMemcpyDtoDAsync",
	"cuMemcpy2DAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
	"cuLaunchKernel", "cuCtxSynchronize",
	"cuModuleLoadData", "cuModuleGetFunction", "cuDeviceGetUuid",
	"cuMemImportFromShareableHandle", "cuMemUnmap", "cuMemAddressFree",
	"cuMemRelease", "cuMemHostUnregister", "cuEventCreate",
	"cuEventRecord", "cuEventSynchronize", "cuEventDestroy",
	"cuCtxPushCurrent",
};

static bool is_good(int64_t came)
{
	return came >= 0;
}

/* One restore, of which rank 0's @nth call of @name comes to @becomes. Whether
 * it came up. */
static bool restore_failing(struct gpu_rank *g, const char *name, uint64_t nth,
			    unsigned becomes)
{
	uint64_t before = g->cuda.calls(name);
	struct sk_report report;
	bool came_up;
	int r;

	if (!g->rank->rank)
		g->cuda.fail(name, nth, becomes);
	r = restore(g, &report);
	came_up = g->cuda.calls(name) - before >= nth;
	if (!g->rank->rank)
		g->cuda.fail(name, 0, 0);
	shared->came[g->rank->rank] = r;
	if (r < 0)
		CHECK(sk_error()[0], "%s %d: nothing is said", name, (int)nth);
	else
		CHECK(!gpu_wrong(g, report.step, -1), "%s %d is not right",
		      name, (int)nth);
	return came_up;
}

struct failing {
	unsigned becomes;
	size_t n;		/* of the calls */
};

static void same_on_all(const char *what, uint64_t nth)
{
	CHECK(is_good(shared->came[0]) == is_good(shared->came[1]),
	      "%s %d: %d and %d", what, (int)nth, (int)shared->came[0],
	      (int)shared->came[1]);
}

/* One after the other, until rank 0 makes no more of them. */
static void fail_each(struct rank *rank)
{
	const struct failing *f = rank->arg;
	struct gpu_rank g;
	int turn = 0;

	gpu_begin(&g, rank, 0);
	describe(&g, 1);
	for (size_t i = 0; i < f->n; i++)
		for (uint64_t nth = 1; nth <= NTH_MOST; nth++) {
			bool up;

			gpu_fill(&g, 77);
			meet(&shared->turn[turn++]);
			up = restore_failing(&g, calls[i], nth, f->becomes);
			if (!rank->rank)
				shared->over = !up;
			meet(&shared->turn[turn++]);
			same_on_all(calls[i], nth);
			CHECK(turn + 4 < STEPS);
			if (shared->over)
				break;
		}
}

static void test_calls(struct scene *scene)
{
	static const struct failing all[] = {
		{ OPERATING_SYSTEM, SK_ARRAY_SIZE(calls) },
		{ SK_CU_OUT_OF_MEMORY, ROOM_CALLS },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(all); i++) {
		memset(shared->turn, 0, sizeof(shared->turn));
		scene_ranks(scene, "attacked", RANKS, fail_each, &all[i]);
		scene_ranks(scene, "attacked", RANKS, load_well, NULL);
	}
}

/* ---- a context that breaks, a process that ends ---- */

struct end {
	const char *call;
	uint64_t nth;
	unsigned becomes;
};

static const struct end *end_of(const struct rank *rank)
{
	return rank->arg;
}

/* Rank 0 meets the end on its way, if it does; what each has come to. */
static int restore_to_an_end(struct rank *rank, struct gpu_rank *g,
			     struct sk_report *report)
{
	const struct end *e = end_of(rank);
	int r;

	gpu_begin(g, rank, 0);
	describe(g, 1);
	if (!rank->rank)
		g->cuda.fail(e->call, e->nth, e->becomes);
	r = restore(g, report);
	shared->came[rank->rank] = r;
	CHECK(r >= 0 || sk_error()[0]);
	return r;
}

/* The one that is broken says so, and so do all; or all have all. */
static void load_broken(struct rank *rank)
{
	const struct end *e = end_of(rank);
	struct gpu_rank g;
	struct sk_report report;
	int r = restore_to_an_end(rank, &g, &report);

	if (rank->rank)
		CHECK(r < 0 || !gpu_wrong(&g, report.step, -1));
	meet(&shared->turn[0]);
	same_on_all(e->call, e->nth);
	/* What is broken stays so, and all are told again. */
	if (r < 0)
		CHECK(restore(&g, NULL) < 0);
}

static const struct end ends[] = {
	{ "cuMemcpyBatchAsync", 1, ILLEGAL_ADDRESS },
	{ "cuMemcpyBatchAsync", 1, UNCORRECTABLE },
	{ "cuMemcpyBatchAsync", 2, ILLEGAL_ADDRESS },
	{ "cuMemcpy2DAsync", 1, ILLEGAL_ADDRESS },
	{ "cuMemcpy2DAsync", 2, UNCORRECTABLE },
	{ "cuLaunchKernel", 1, ILLEGAL_ADDRESS },
	{ "cuLaunchKernel", 2, ILLEGAL_ADDRESS },
	{ "cuEventSynchronize", 1, ILLEGAL_ADDRESS },
	{ "cuEventSynchronize", 3, ILLEGAL_ADDRESS },
	{ "cuMemMap", 1, ILLEGAL_ADDRESS },
	{ "cuMemUnmap", 1, ILLEGAL_ADDRESS },
};

static void test_broken(struct scene *scene)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(ends); i++) {
		pid_t pids[RANKS];

		shared->turn[0] = 0;
		scene_ranks_start(scene, "attacked", RANKS, load_broken,
				  &ends[i], pids);
		scene_ranks_end("attacked", RANKS, pids);
	}
	scene_ranks(scene, "attacked", RANKS, load_well, NULL);
}

/* The other one ends within its time. */
static void load_ending(struct rank *rank)
{
	const struct end *e = end_of(rank);
	struct sk_report report;
	struct gpu_rank g;
	int r;

	gpu_begin(&g, rank, 0);
	describe(&g, 1);
	if (!rank->rank)
		g.cuda.fail(e->call, e->nth, e->becomes);
	r = restore_in(&g, SHORT_MS, &report);
	CHECK(rank->rank, "%s %d: it never came so far", e->call, (int)e->nth);
	CHECK(r < 0 ? sk_error()[0] != 0 : !gpu_wrong(&g, report.step, -1));
}

static void end_both(const pid_t *pids)
{
	int status;

	CHECK(waitpid(pids[0], &status, 0) == pids[0]);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
	      "status %#x", status);
	CHECK(waitpid(pids[1], &status, 0) == pids[1] && !status,
	      "status %#x", status);
}

/* Its leases end with it, and nothing of what it read is gone. */
static void test_killed(struct scene *scene)
{
	static const struct end kills[] = {
		{ "cuLaunchKernel", 1, KILL },
		{ "cuMemcpy2DAsync", 1, KILL },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(kills); i++) {
		pid_t pids[RANKS];

		scene_ranks_start(scene, "attacked", RANKS, load_ending,
				  &kills[i], pids);
		end_both(pids);
		scene_ranks(scene, "attacked", RANKS, load_well, NULL);
	}
}

/* ---- no room ---- */

/* Chunks pass through less, or, where that is less than one, go by the host.
 * That is allocated first, and the sums' memory when some are to be taken. */
static void load_tight(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;
	uint64_t want;

	gpu_begin(&g, rank, 0);
	describe(&g, 1);
	g.cuda.fail("cuMemAlloc", 1, SK_CU_OUT_OF_MEMORY);
	CHECK(!restore(&g, &report), "%s", sk_error());
	CHECK(!gpu_wrong(&g, report.step, -1));
	/* What needs none stays on the device all the same. */
	want = rows == ROWS ? g.tensors[1].bytes : on_device(&g);
	CHECK(report.bytes_device_slot == want, "%" PRIu64,
	      report.bytes_device_slot);
	CHECK(report.damaged == 0);
}

/* ---- the agent ---- */

/* Stopped where it has a lease, and goes on with no agent: what it has mapped
 * is there, and what it cannot ask any more is an error. */
static void load_outliving(struct rank *rank)
{
	const struct end *e = end_of(rank);
	struct sk_report report;
	struct gpu_rank g;
	int r = restore_to_an_end(rank, &g, &report);

	CHECK(r < 0 || !gpu_wrong(&g, report.step, -1));
	meet(&shared->turn[0]);
	same_on_all(e->call, e->nth);
}

static void test_agent_killed(struct scene *scene, const char *call)
{
	const struct end e = { call, 1, STOP };
	pid_t pids[RANKS];
	int status;

	shared->turn[0] = 0;
	scene_ranks_start(scene, "attacked", RANKS, load_outliving, &e, pids);
	CHECK(waitpid(pids[0], &status, WUNTRACED) == pids[0]);
	CHECK(WIFSTOPPED(status), "%s: status %#x", call, status);
	scene_stop_agent(scene, SIGKILL);
	CHECK(!kill(pids[0], SIGCONT));
	scene_ranks_end("attacked", RANKS, pids);
	scene_start_agent(scene);
}

static void save_all(struct scene *scene, const char *job)
{
	memset(shared, 0, sizeof(*shared));
	scene_ranks_killed(scene, job, RANKS, save, NULL);
}

static void test_tight(struct scene *scene)
{
	scene_ranks(scene, "attacked", RANKS, load_tight, NULL);
	rows = MORE_ROWS;
	save_all(scene, "more");
	scene_ranks(scene, "more", RANKS, load_tight, NULL);
	rows = ROWS;
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 || !t.calls)
		return 77;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	save_all(&scene, "attacked");
	scene_ranks(&scene, "attacked", RANKS, load_well, NULL);
	test_tight(&scene);
	test_calls(&scene);
	test_broken(&scene);
	test_killed(&scene);
	test_agent_killed(&scene, "cuMemMap");
	save_all(&scene, "attacked");
	test_agent_killed(&scene, "cuMemcpy2DAsync");
	scene_close(&scene);
	return 0;
}
