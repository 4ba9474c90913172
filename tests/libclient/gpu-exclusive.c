/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs that take one process at a time: that is the trainer, which goes on
 * without a device slot, and nobody keeps it, or its next life, from its GPU.
 * What stands in a device slot when such a mode begins is drained by its rank,
 * and for a dead one by the agent's worker, where the GPU is free.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/gpu-rank.h"

#define KILL UINT32_MAX		/* as a result: the call kills the process */
#define STOP (UINT32_MAX - 2)	/* or stops it */
#define LAST_STEP INT64_C(1000000000)
#define FLOATS 100000

static void begin(struct gpu_rank *g, struct rank *rank)
{
	gpu_begin(g, rank, 0);
	gpu_add(g, &(struct sk_tensor){
		.name = "w", .dtype = SK_F32, .ndim = 1, .shape = { FLOATS },
		.device = g->device }, 4 * FLOATS, 1);
}

/* ---- the machine ---- */

/* Without opening it, which would let go of a context that is here. */
static void set_exclusive(bool on)
{
	CHECK(!truncate(getenv("VCUDA_EXCLUSIVE"), on));
}

static bool says(struct scene *scene, const char *what, const char *words)
{
	FILE *f = scene_ask(scene, what);
	bool found = false;
	char line[1024];

	while (fgets(line, sizeof(line), f))
		found |= strstr(line, words) != NULL;
	(void)pclose(f);	/* 7: something is not as it should be */
	return found;
}

/* ---- ranks ---- */

static void load(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	begin(&g, rank);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
	CHECK((report.step == LAST_STEP) == !rank->arg, "step %" PRId64,
	      report.step);
}

static const char earlier[] = "the one before";

/* Whatever the agent does about it, none of these calls fails. */
static void save_without(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	for (int64_t step = 1; step < 6; step++) {
		gpu_fill(&g, step);
		gpu_complete(&g, step);
		CHECK(!gpu_device_bytes(&g));
	}
	CHECK(!raise(SIGSTOP));
	gpu_fill(&g, LAST_STEP);
	gpu_complete(&g, LAST_STEP);
	CHECK(!gpu_device_bytes(&g));
}

/* Stops when it has a device slot; then it goes on as @rank->arg says. */
static void save_within(struct rank *rank)
{
	const unsigned *end = rank->arg;
	struct gpu_rank g;

	begin(&g, rank);
	(void)gpu_until_served(&g);
	CHECK(!raise(SIGSTOP));
	gpu_fill(&g, LAST_STEP);
	if (*end) {
		g.cuda.fail("cuMemcpyDtoHAsync", 1, *end);
		g.cuda.fail("cuMemcpyBatchAsync", 2, *end);
		(void)gpu_snapshot(&g, LAST_STEP, 0);
		for (;;)
			(void)pause();
	}
	gpu_complete(&g, LAST_STEP);
	CHECK(gpu_device_bytes(&g), "it has none any more");
}

static void await_stop(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status),
	      "status %#x", status);
}

/* It has its device slot, and the GPU is its alone from then on. */
static pid_t start(struct scene *scene, const char *job, const unsigned *end)
{
	pid_t pid;

	set_exclusive(false);
	scene_ranks_start(scene, job, 1, save_within, end, &pid);
	await_stop(pid);
	(void)gpu_workers(scene, SIGKILL);
	set_exclusive(true);
	CHECK(!kill(pid, SIGCONT));
	return pid;
}

static void await_death(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status),
	      "status %#x", status);
}

/* ---- all of it ---- */

/* One worker for a registration, and none for its snapshots. */
static void test_without(struct scene *scene)
{
	static const char failed[] = "shardkeep_device_slots_failed_total";
	pid_t pid;

	set_exclusive(true);
	CHECK(!says(scene, "status", "gpu-exclusive"));
	scene_ranks_start(scene, "without", 1, save_without, NULL, &pid);
	await_stop(pid);
	/* The worker says no when it has begun, beside the snapshots. */
	while (!gpu_figure(scene, failed))
		CHECK(waitpid(pid, NULL, WNOHANG) == 0);
	CHECK(!kill(pid, SIGCONT));
	scene_ranks_end("without", 1, &pid);
	CHECK(gpu_figure(scene, failed) == 1);
	CHECK(says(scene, "status", "gpu-exclusive"));
	CHECK(says(scene, "doctor", "compute-mode=DEFAULT"));
	CHECK(says(scene, "doctor", "gpu-exclusive"));
	scene_ranks(scene, "without", 1, load, NULL);
	CHECK(!gpu_figure(scene, "shardkeep_device_memory_used_bytes"));
}

/* The mode is another one when a slot is made again. */
static void test_living(struct scene *scene)
{
	static const unsigned goes_on;
	pid_t pid = start(scene, "living", &goes_on);

	scene_ranks_end("living", 1, &pid);
	CHECK(!says(scene, "status", "gpu-exclusive"));
	CHECK(gpu_figure(scene, "shardkeep_device_seals_total") > 0);
	scene_ranks(scene, "living", 1, load, NULL);
}

static void test_dead(struct scene *scene)
{
	static const unsigned dies = KILL;

	await_death(start(scene, "dead", &dies));
	/* Whoever comes first has the GPU; a launcher takes its time. */
	while (!gpu_figure(scene, "shardkeep_device_drains_total"))
		CHECK(!gpu_figure(scene, "shardkeep_device_lost_total"));
	/* The worker does not keep it until it would end by itself. */
	scene_ranks(scene, "dead", 1, load, NULL);
}

/* Another process has a context there, from before. */
static pid_t occupy(void)
{
	struct trainer_cuda t;
	int ends[2];
	pid_t pid;
	char byte;

	CHECK(!pipe2(ends, O_CLOEXEC));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		trainer_cuda_begin(&t, 0);
		CHECK(write(ends[1], "!", 1) == 1);
		for (;;)
			(void)pause();
	}
	CHECK(read(ends[0], &byte, 1) == 1);
	close(ends[0]);
	close(ends[1]);
	return pid;
}

static void test_taken(struct scene *scene)
{
	static const unsigned stops = STOP;
	pid_t pid = start(scene, "taken", &stops), other;
	int status;

	await_stop(pid);	/* again, on the way out */
	set_exclusive(false);
	other = occupy();
	set_exclusive(true);
	CHECK(!kill(pid, SIGKILL));
	await_death(pid);
	while (!gpu_figure(scene, "shardkeep_device_lost_total"))
		CHECK(!waitpid(other, &status, WNOHANG));
	CHECK(says(scene, "status", "gpu-exclusive"));
	CHECK(!kill(other, SIGKILL));
	await_death(other);
	scene_ranks(scene, "taken", 1, load, earlier);
}

static char file[] = "/tmp/shardkeep-exclusive-XXXXXX";
static pid_t maker;

static void remove_file(void)
{
	if (getpid() == maker)
		(void)unlink(file);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;
	int fd;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	if (!t.calls)
		return 77;	/* whose mode it is, is not ours to change */
	fd = mkstemp(file);
	CHECK(fd >= 0 && !close(fd));
	maker = getpid();
	CHECK(!atexit(remove_file));
	CHECK(!setenv("VCUDA_EXCLUSIVE", file, 1));
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	test_without(&scene);
	test_living(&scene);
	test_dead(&scene);
	test_taken(&scene);
	scene_close(&scene);
	return 0;
}
