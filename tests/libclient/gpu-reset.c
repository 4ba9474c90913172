/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that is reset, or falls off and comes back: contexts of all processes
 * are broken, and what it held is gone. What host memory has is not.
 */
#include <errno.h>
#include <fcntl.h>
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

static char session[] = "/tmp/vcuda-session-XXXXXX";

static void reset(void)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/reset-0", session);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && write(fd, "", 1) == 1 && !close(fd));
}

/* By the device slot, of which it is a copy then. */
static int64_t save_one(struct gpu_rank *g)
{
	int64_t step = gpu_until_served(g) + 1;

	gpu_fill(g, step);
	gpu_complete(g, step);
	return step;
}

static void save(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	(void)save_one(&g);
	rank_ready(rank);
}

/* Out of host memory; and then it is served as ever. */
static void load_and_go_on(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step < LAST_STEP, "step %" PRId64, report.step);
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
	CHECK(!report.bytes_device_slot && !report.damaged);
	(void)alarm(60);
	(void)save_one(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.bytes_device_slot == GPU_BIG);
	(void)alarm(0);
}

static void test_copies(struct scene *scene)
{
	scene_ranks_killed(scene, "copies", 1, save, NULL);
	reset();
	scene_ranks(scene, "copies", 1, load_and_go_on, NULL);
}

/* Whoever trains hears it, of its next snapshot at the latest. */
static void lose_it(struct rank *rank)
{
	struct gpu_rank g;
	int64_t step;
	int r;

	gpu_begin_big(&g, rank);
	step = save_one(&g);
	reset();
	r = gpu_snapshot(&g, step + 1, 0);
	if (!r)
		r = sk_fence(rank->state);
	if (!r)
		r = sk_wait(rank->state, step + 1, SK_SEALED, 60000);
	CHECK(r == -EIO, "%d: %s", r, sk_error());
	CHECK(strstr(sk_error(), "CUDA"), "%s", sk_error());
}

static void test_living(struct scene *scene)
{
	scene_ranks(scene, "living", 1, lose_it, NULL);
	scene_ranks(scene, "living", 1, load_and_go_on, NULL);
}

/* What stood there alone is lost, and no more. */
static void stop_on_the_way_out(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin_big(&g, rank);
	(void)save_one(&g);
	gpu_fill(&g, LAST_STEP);
	g.cuda.fail("cuMemcpyDtoHAsync", 1, STOP);
	g.cuda.fail("cuMemcpyBatchAsync", 2, STOP);
	(void)gpu_snapshot(&g, LAST_STEP, 0);
	for (;;)
		(void)pause();
}

static void test_on_the_way_out(struct scene *scene)
{
	int status;
	pid_t pid;

	scene_ranks_start(scene, "way-out", 1, stop_on_the_way_out, NULL,
			  &pid);
	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status),
	      "%#x", status);
	reset();
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	scene_ranks(scene, "way-out", 1, load_and_go_on, NULL);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;
	char command[64];

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	if (!t.calls)
		return 77;	/* nobody resets hardware for a test */
	CHECK(mkdtemp(session));
	CHECK(!setenv("VCUDA_SESSION", session, 1));
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	test_copies(&scene);
	test_living(&scene);
	test_on_the_way_out(&scene);
	scene_close(&scene);
	(void)snprintf(command, sizeof(command), "rm -rf %s", session);
	CHECK(!system(command));
	return 0;
}
