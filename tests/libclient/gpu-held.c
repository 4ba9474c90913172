/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots where the driver gives no descriptors for memory: a process
 * holds it for its rank, which opens it by a handle. What becomes of snapshots
 * and of restores when that process is killed.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/gpu-rank.h"
#include "state/state.h"

#define STOP (UINT32_MAX - 2)	/* as a result: the call stops the process */
#define LAST_STEP INT64_C(1000000000)

/* ---- who holds ---- */

static void kill_holders(const struct scene *scene)
{
	CHECK(gpu_workers(scene, SIGKILL), "nobody holds it");
	while (gpu_workers(scene, 0))
		;
}

/* ---- ranks ---- */

static void take_by_device(struct gpu_rank *g, int64_t step)
{
	uint64_t across = gpu_count(g, "across");

	gpu_fill(g, step);
	across = gpu_count(g, "across");
	gpu_complete(g, step);
	CHECK(!g->cuda.count || gpu_count(g, "across") == across + GPU_BIG,
	      "not by the device slot");
}

static void save(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	take_by_device(&g, gpu_until_served(&g) + 1);
	rank_ready(rank);
}

/* What a restore is to come to. */
struct want {
	uint64_t by_device;
	int64_t step;		/* 0: any before LAST_STEP */
};

static void load(struct rank *rank)
{
	const struct want *w = rank->arg;
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
	CHECK(w->step ? report.step == w->step : report.step < LAST_STEP,
	      "step %" PRId64, report.step);
	CHECK(report.bytes_device_slot == w->by_device, "%" PRIu64,
	      report.bytes_device_slot);
	CHECK(!report.damaged);
}

static void test_survives(struct scene *scene)
{
	const struct want by_device = { .by_device = GPU_BIG };
	const struct want by_host = { .by_device = 0 };

	scene_ranks_killed(scene, "killed", 1, save, NULL);
	CHECK(gpu_workers(scene, 0) == 1);
	scene_ranks(scene, "killed", 1, load, &by_device);
	/* With who held the copy the copy is gone, and no more than that. */
	kill_holders(scene);
	scene_ranks(scene, "killed", 1, load, &by_host);
}

/* When nobody has any of it, nobody holds anything. */
static void test_ends(struct scene *scene)
{
	scene_ranks_killed(scene, "ends", 1, save, NULL);
	CHECK(gpu_workers(scene, 0));
	scene_stop_agent(scene, SIGTERM);
	scene_start_agent(scene);
	scene_ranks_killed(scene, "ends", 1, save, NULL);
	CHECK(!gpu_figure(scene, "shardkeep_device_slots_failed_total"));
	scene_stop_agent(scene, SIGTERM);
	scene_start_agent(scene);
	CHECK(!gpu_workers(scene, 0));
}

/* ---- killed ---- */

/* Between two snapshots: nothing is lost, and another one is made in time. */
static void goes_on_without(struct rank *rank)
{
	struct gpu_rank g;
	struct sk_report report;
	int64_t step;

	gpu_begin_big(&g, rank);
	step = gpu_until_served(&g);
	take_by_device(&g, ++step);
	kill_holders(rank->scene);
	for (int i = 0; i < 3; i++) {
		gpu_fill(&g, ++step);
		gpu_complete(&g, step);
		CHECK(!gpu_device_bytes(&g));
	}
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == step && !gpu_wrong(&g, step, rank->rank));
	/* It is asked for in a minute. */
	rank->state->device_slot.again.at_ns = 0;
	step = gpu_until_served(&g);
	take_by_device(&g, ++step);
}

/* While bytes are on the way out of it: which of them were right nobody knows.
 * Whoever stops it kills that process, and lets it go on. */
static void stop_on_the_way_out(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;
	int64_t step;
	int r;

	gpu_begin_big(&g, rank);
	step = gpu_until_served(&g);
	gpu_fill(&g, LAST_STEP);
	g.cuda.fail("cuMemcpyDtoHAsync", 1, STOP);
	g.cuda.fail("cuMemcpyBatchAsync", 2, STOP);
	CHECK(!gpu_snapshot(&g, LAST_STEP, 0), "%s", sk_error());
	/* It may have been stopped before this was asked. */
	r = sk_fence(rank->state);
	CHECK(r == 0 || (r == -EIO && strstr(sk_error(), "has ended")),
	      "%d: %s", r, sk_error());
	CHECK(sk_wait(rank->state, LAST_STEP, SK_SEALED, 60000) < 0);
	CHECK(strstr(sk_error(), "has ended"), "%s", sk_error());
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == step && !gpu_wrong(&g, step, rank->rank));
	gpu_fill(&g, LAST_STEP + 1);
	gpu_complete(&g, LAST_STEP + 1);
}

static pid_t start_and_stop(struct scene *scene, const char *job, rank_fn fn)
{
	int status;
	pid_t pid;

	scene_ranks_start(scene, job, 1, fn, NULL, &pid);
	CHECK(waitpid(pid, &status, WUNTRACED) == pid);
	CHECK(WIFSTOPPED(status), "status %#x", status);
	kill_holders(scene);
	return pid;
}

static void test_on_the_way_out(struct scene *scene)
{
	const struct want last = { .step = LAST_STEP + 1 };
	pid_t pid = start_and_stop(scene, "way-out", stop_on_the_way_out);

	CHECK(!kill(pid, SIGCONT));
	scene_ranks_end("way-out", 1, &pid);
	scene_ranks(scene, "way-out", 1, load, &last);
}

/* The same, and its rank is dead as well. */
static void test_both(struct scene *scene)
{
	uint64_t lost = gpu_figure(scene, "shardkeep_device_lost_total");
	const struct want before = { .step = 0 };
	pid_t pid = start_and_stop(scene, "both", stop_on_the_way_out);
	int status;

	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	scene_ranks(scene, "both", 1, load, &before);
	CHECK(gpu_figure(scene, "shardkeep_device_lost_total") == lost + 1);
}

/* While a restore reads it, of which no checksum tells: it is read in host
 * memory instead. */
static void stop_on_the_way_back(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	g.cuda.fail("cuMemcpyDtoDAsync", 1, STOP);
	g.cuda.fail("cuMemcpyBatchAsync", 1, STOP);
	CHECK(!rank_restore(rank, SK_LATEST, SK_RESTORE_NO_VERIFY, &report),
	      "%s", sk_error());
	CHECK(!gpu_wrong(&g, report.step, rank->rank));
	CHECK(!report.bytes_device_slot && !report.damaged);
}

static void test_on_the_way_back(struct scene *scene)
{
	pid_t pid;

	scene_ranks_killed(scene, "way-back", 1, save, NULL);
	pid = start_and_stop(scene, "way-back", stop_on_the_way_back);
	CHECK(!kill(pid, SIGCONT));
	scene_ranks_end("way-back", 1, &pid);
}

/* ---- drivers that have less ---- */

/* A handle is opened once in a process: a copy is not opened beside the slot
 * that it stands in. */
static void restore_itself(struct rank *rank)
{
	const char *how = rank->arg;
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	take_by_device(&g, gpu_until_served(&g) + 1);
	if (how)
		CHECK(!setenv("VCUDA_IPC", how, 1));
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.bytes_device_slot == (how ? 0 : GPU_BIG));
	CHECK(!gpu_wrong(&g, report.step, rank->rank));
}

/* It gives neither: all goes on by the host. */
static void save_without(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	for (int64_t step = 1; step < 6; step++) {
		gpu_fill(&g, step);
		gpu_complete(&g, step);
		CHECK(!gpu_device_bytes(&g));
	}
}

static void test_neither(struct scene *scene)
{
	scene_stop_agent(scene, SIGTERM);
	CHECK(!setenv("VCUDA_MISSING", "cuIpcGetMemHandle", 1));
	scene_start_agent(scene);
	scene_ranks(scene, "neither", 1, save_without, NULL);
	CHECK(gpu_figure(scene, "shardkeep_device_slots_failed_total"));
	CHECK(!gpu_workers(scene, 0));
	CHECK(!unsetenv("VCUDA_MISSING"));
}

/* ---- all of them ---- */

int main(int argc, char **argv)
{
	const char *const ways[] = { "VCUDA_MODE", "no-share",
				     "SHARDKEEP_CUDA_DESCRIPTORS", "0" };
	struct trainer_cuda t;
	struct scene scene;
	int way;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	way = t.calls ? 0 : 2;
	CHECK(!setenv(ways[way], ways[way + 1], 1));
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	/* Who is killed when he should not be is no test's mistake. */
	CHECK(!setenv("VCUDA_IPC", "undefined", 1));
	scene_open(&scene, argc, argv);
	test_survives(&scene);
	scene_ranks(&scene, "itself", 1, restore_itself, NULL);
	test_ends(&scene);
	scene_ranks(&scene, "between", 1, goes_on_without, NULL);
	if (t.calls) {
		test_on_the_way_out(&scene);
		test_both(&scene);
		test_on_the_way_back(&scene);
		scene_ranks(&scene, "once", 1, restore_itself, "once");
		test_neither(&scene);
	}
	scene_close(&scene);
	return 0;
}
