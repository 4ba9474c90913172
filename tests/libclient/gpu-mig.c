/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs that are split into instances (MIG): each is a device of its own to
 * agent, workers and restores, with a budget of its own, though both ranks'
 * processes call theirs device 0, and the agent's would see the first alone.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/gpu-rank.h"
#include "sim/instances.h"

#define KILL UINT32_MAX		/* as a result: the call kills the process */
#define BYTES ((uint64_t)2800000)
#define LAST_STEP INT64_C(1000000000)

static char instances[INSTANCES_MAX][INSTANCE_NAME];

/* ---- what the agent says ---- */

/* The number at the end of the line that begins with both. */
static uint64_t count(struct scene *scene, const char *name,
		      const char *label)
{
	char line[512], begin[256];
	FILE *f = scene_ask(scene, "stats --prometheus");
	uint64_t value = 0;

	(void)snprintf(begin, sizeof(begin), "%s%s ", name, label);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, begin, strlen(begin)))
			(void)sscanf(line + strlen(begin), "%" SCNu64,
				     &value);
	CHECK(!pclose(f));
	return value;
}

static uint64_t used(struct scene *scene, int instance)
{
	char label[64];

	(void)snprintf(label, sizeof(label), "{gpu=\"%.40s\"}",
		       instances[instance]);
	return count(scene, "shardkeep_device_memory_used_bytes", label);
}

static bool says(struct scene *scene, const char *what, const char *word)
{
	FILE *f = scene_ask(scene, what);
	bool found = false;
	char line[512];

	while (fgets(line, sizeof(line), f))
		found |= strstr(line, word) != NULL;
	(void)pclose(f);
	return found;
}

/* ---- ranks ---- */

struct seat {
	int instance;
	uint64_t by_device;	/* of a restore */
	int64_t step;		/* the same; 0: any */
};

static void begin(struct gpu_rank *g, struct rank *rank)
{
	const struct seat *seat = rank->arg;

	CHECK(!setenv("CUDA_VISIBLE_DEVICES", instances[seat->instance], 1));
	gpu_begin(g, rank, 0);
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 700, 1000 }, .device = g->device }, BYTES, 1);
}

static void save(struct rank *rank)
{
	struct gpu_rank g;
	int64_t step;

	begin(&g, rank);
	step = gpu_until_served(&g) + 1;
	gpu_fill(&g, step);
	gpu_complete(&g, step);
	rank_ready(rank);
}

static void load(struct rank *rank)
{
	const struct seat *seat = rank->arg;
	struct sk_report report;
	struct gpu_rank g;

	begin(&g, rank);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(!seat->step || report.step == seat->step);
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
	CHECK(report.bytes_device_slot == seat->by_device,
	      "%" PRIu64 " bytes, of instance %d", report.bytes_device_slot,
	      seat->instance);
}

/* When its image stands on the instance alone. */
static void die(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	(void)gpu_until_served(&g);
	gpu_fill(&g, LAST_STEP);
	g.cuda.fail("cuMemcpyDtoHAsync", 1, KILL);
	g.cuda.fail("cuMemcpyBatchAsync", 2, KILL);
	(void)gpu_snapshot(&g, LAST_STEP, 0);
	for (;;)
		(void)pause();
}

/* ---- what is tested ---- */

/* A budget has room for one of them. */
static void test_each_has_its_own(struct scene *scene)
{
	static const struct seat saved[] = { { .instance = 0 },
					     { .instance = 1 } };
	static const struct seat own[] = { { 0, BYTES, 0 }, { 1, BYTES, 0 } };
	static const struct seat other = { 1, 0, 0 };

	for (int i = 0; i < 2; i++) {
		const char *job = i ? "second" : "first";

		scene_ranks_killed(scene, job, 1, save, &saved[i]);
		CHECK(used(scene, i) >= BYTES, "instance %d", i);
		CHECK(says(scene, "status", instances[i]));
		CHECK(says(scene, "top --count 1", instances[i]));
	}
	CHECK(used(scene, 0) >= BYTES, "it made room for the other");
	CHECK(!says(scene, "status", "GPU-"), "an instance is no GPU");
	scene_ranks(scene, "first", 1, load, &own[0]);
	scene_ranks(scene, "second", 1, load, &own[1]);
	/* What the first has is nothing to who has the second. */
	scene_ranks(scene, "first", 1, load, &other);
	CHECK(!count(scene, "shardkeep_device_slots_failed_total", ""));
	CHECK(!count(scene, "shardkeep_device_slots_refused_total", ""));
}

/* The worker is on the instance of who died. */
static void test_drained(struct scene *scene)
{
	static const struct seat dies = { .instance = 1 },
				 loads = { 1, BYTES, LAST_STEP };
	int status;
	pid_t pid;

	scene_ranks_start(scene, "died", 1, die, &dies, &pid);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	scene_ranks(scene, "died", 1, load, &loads);
	CHECK(count(scene, "shardkeep_device_drains_total", "") == 1);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (instances_find(instances) < 2 || trainer_cuda_open(&t, NULL) < 0)
		return 77;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "5M", 1));
	(void)unsetenv("CUDA_VISIBLE_DEVICES");
	scene_open(&scene, argc, argv);
	test_each_has_its_own(&scene);
	if (t.calls)
		test_drained(&scene);
	/* The agent sees the first one, whoever its clients are. */
	scene_stop_agent(&scene, SIGTERM);
	CHECK(!setenv("CUDA_VISIBLE_DEVICES", instances[0], 1));
	scene_start_agent(&scene);
	test_each_has_its_own(&scene);
	scene_close(&scene);
	return 0;
}
