/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots: snapshots that stand on the GPU first, and what a rank leaves
 * there that is killed before they are in memory.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/gpu-rank.h"

#define KILL UINT32_MAX		/* as a result: the call kills the process */

static void add_all(struct gpu_rank *g)
{
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 700, 1000 }, .device = g->device }, 2800000, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "rows", .dtype = SK_F32, .ndim = 2,
		.shape = { 50, 10 }, .device = g->device,
		.strides = { 40, 2 } }, 50 * 160, 1);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "offloaded", .dtype = SK_F64, .ndim = 1,
		.shape = { 3000 } }, 24000, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "small", .dtype = SK_BF16, .ndim = 1,
		.shape = { 33 }, .device = g->device }, 66, 1);
	CHECK(!sk_state_blob_local(g->rank->state, "rng",
				   rank_memory(100, 1), 100));
}

static uint64_t device_bytes(struct gpu_rank *g)
{
	struct sk_status status;

	CHECK(!sk_status(g->rank->state, &status));
	return status.device_bytes;
}

/* The agent makes it beside everything else: until it is there, snapshots go
 * straight to the slot. Returns the last step. */
static int64_t take_until_served(struct gpu_rank *g)
{
	int64_t step = 0;

	do {
		gpu_fill(g, ++step);
		gpu_complete(g, step);
	} while (!device_bytes(g));
	return step;
}

static uint64_t count(struct scene *scene, const char *name)
{
	char command[256], line[256];
	uint64_t value = 0;
	FILE *f;

	(void)snprintf(command, sizeof(command), "%s --socket %s stats "
		       "--prometheus", scene->cachectl, scene->socket);
	f = popen(command, "r");
	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			(void)sscanf(line + strlen(name), " %" SCNu64,
				     &value);
	CHECK(!pclose(f), "%s", command);
	return value;
}

/* ---- whole ---- */

static void save(struct rank *rank)
{
	struct gpu_rank g;
	uint64_t out, across;
	int64_t step;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	step = take_until_served(&g);
	gpu_fill(&g, step + 1);
	out = gpu_count(&g, "out");
	across = gpu_count(&g, "across");
	gpu_complete(&g, step + 1);
	/* Each byte crosses the link once. */
	CHECK(gpu_count(&g, "across") - across == 2800000 + 2000 + 66);
	CHECK(gpu_count(&g, "out") - out == 2800000 + 2000 + 66);
	rank_ready(rank);
}

static void load(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
}

/* ---- killed when it stands on the device ---- */

#define LAST_STEP INT64_C(1000000000)

static void die_on_the_way_out(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	(void)take_until_served(&g);
	gpu_fill(&g, LAST_STEP);
	g.cuda.fail("cuMemcpyDtoHAsync", 1, KILL);
	g.cuda.fail("cuMemcpyBatchAsync", 2, KILL);
	(void)gpu_snapshot(&g, LAST_STEP, 0);
	for (;;)
		(void)pause();
}

static void load_last(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == LAST_STEP, "step %" PRId64, report.step);
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
}

static void load_the_one_before(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step < LAST_STEP);
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
}

static void run_and_die(struct scene *scene, const char *job)
{
	pid_t pid;
	int status;

	scene_ranks_start(scene, job, 1, die_on_the_way_out, NULL, &pid);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status), "status %#x", status);
}

/* ---- without ---- */

/* Another user of the device has all of it. */
static void none_left(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	for (int64_t step = 1; step < 4; step++) {
		gpu_fill(&g, step);
		gpu_complete(&g, step);
		CHECK(!device_bytes(&g));
	}
}

static void restart(struct scene *scene, const char *memory)
{
	scene_stop_agent(scene, SIGTERM);
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", memory, 1));
	scene_start_agent(scene);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	scene_ranks_killed(&scene, "saved", 1, save, NULL);
	CHECK(count(&scene, "shardkeep_device_seals_total") == 1);
	scene_ranks(&scene, "saved", 1, load, NULL);
	if (t.calls) {
		run_and_die(&scene, "died");
		scene_ranks(&scene, "died", 1, load_last, NULL);
		CHECK(count(&scene, "shardkeep_device_drains_total") == 1);
		/* Where the worker fails, too, that step is lost. */
		CHECK(!setenv("VCUDA_FAILS", "cuMemcpyDtoHAsync", 1));
		restart(&scene, "64M");
		CHECK(!unsetenv("VCUDA_FAILS"));
		run_and_die(&scene, "lost");
		scene_ranks(&scene, "lost", 1, load_the_one_before, NULL);
		CHECK(count(&scene, "shardkeep_device_lost_total") == 1);
	}
	restart(&scene, "1M");
	scene_ranks(&scene, "none", 1, none_left, NULL);
	scene_close(&scene);
	return 0;
}
