/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who asks about a step is told of that step, whatever became of others; and
 * what became of one is no reason to refuse the next.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define MANY 200
#define TENSOR { .name = "w", .dtype = SK_U8, .ndim = 1, .shape = { 16 } }

static char *describe(struct rank *rank)
{
	return rank_tensor(rank, &(struct sk_tensor)TENSOR, 1);
}

static void start(struct rank *rank, int64_t step, uint32_t flags)
{
	struct sk_snapshot_options o = { .flags = flags, .wait_ms = 60000 };
	int r = sk_snapshot(rank->state, step, &o);

	CHECK(!r, "step %d: %s", (int)step, sk_error());
}

/* As a trainer that forgets the fence, but no race that tools would tell. */
static void change(char *data)
{
	char other = (char)(data[3] + 1);
	struct iovec from = { &other, 1 }, to = { data + 3, 1 };

	CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) == 1);
}

/* A snapshot whose tensor changes before its fence. */
static void refused(struct rank *rank, char *data, int64_t step)
{
	start(rank, step, SK_SNAPSHOT_VERIFY);
	change(data);
	CHECK(sk_fence(rank->state) == -ECANCELED, "%s", sk_error());
}

/* The newest one failed, and those before it did not. */
static void newest_failed(struct rank *rank)
{
	char *data = describe(rank);

	rank_snapshot(rank, 1, SK_DURABLE);
	refused(rank, data, 2);
	for (int until = SK_SEALED; until <= SK_DURABLE; until++)
		CHECK(!sk_wait(rank->state, 1, until, 60000), "%d: %s", until,
		      sk_error());
	CHECK(!sk_flush(rank->state, 1), "%s", sk_error());
	CHECK(sk_wait(rank->state, 2, SK_SEALED, 60000) == -ECANCELED, "%s",
	      sk_error());
	CHECK(strstr(sk_error(), "\"w\"") && strstr(sk_error(), "step 2"),
	      "%s", sk_error());
	CHECK(sk_wait(rank->state, 3, SK_SEALED, 60000) == -ENOENT, "%s",
	      sk_error());
	CHECK(strstr(sk_error(), "step 3"), "%s", sk_error());
	start(rank, 3, 0);
	CHECK(!sk_wait(rank->state, 3, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(sk_wait(rank->state, 2, SK_SEALED, 60000) == -ENOENT, "%s",
	      sk_error());
}

/* A fence is of the newest; to wait for another step is none. */
static void other_is_no_fence(struct rank *rank)
{
	char *data = describe(rank);

	rank_snapshot(rank, 1, SK_COMPLETE);
	start(rank, 2, SK_SNAPSHOT_VERIFY);
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	change(data);
	CHECK(sk_fence(rank->state) == -ECANCELED, "%s", sk_error());
	/* To wait for its own is one: else it would not be sealed. */
	start(rank, 3, SK_SNAPSHOT_VERIFY);
	CHECK(!sk_wait(rank->state, 3, SK_COMPLETE, 60000), "%s", sk_error());
}

/* What a fence or a wait has told is not told again in the next one's place;
 * what nobody has told is told once. */
static void told_once(struct rank *rank)
{
	char *data = describe(rank);

	refused(rank, data, 1);
	start(rank, 2, 0);
	start(rank, 3, SK_SNAPSHOT_VERIFY);
	change(data);
	CHECK(sk_wait(rank->state, 3, SK_SEALED, 60000) == -ECANCELED, "%s",
	      sk_error());
	start(rank, 4, SK_SNAPSHOT_VERIFY);
	change(data);
	CHECK(sk_snapshot(rank->state, 5, NULL) == -ECANCELED, "%s",
	      sk_error());
	start(rank, 5, 0);
	CHECK(!sk_wait(rank->state, 5, SK_COMPLETE, 60000), "%s", sk_error());
}

/* Whichever fence is asked, and however often, it is of the newest snapshot;
 * the count of failures tells that it is the same one. */
static void each_fence_says_so(struct rank *rank)
{
	char *data = describe(rank);
	struct sk_status status;

	refused(rank, data, 1);
	CHECK(sk_fence_tensor(rank->state, "w") == -ECANCELED);
	CHECK(sk_fence_stream(rank->state, 0) == -ECANCELED);
	CHECK(sk_fence(rank->state) == -ECANCELED && strstr(sk_error(),
	      "\"w\""), "%s", sk_error());
	CHECK(!sk_status(rank->state, &status) && status.failed == 1);
	start(rank, 2, 0);
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_fence_tensor(rank->state, "w"), "%s", sk_error());
	CHECK(!sk_status(rank->state, &status) && status.failed == 1);
}

/* ---- two ranks ---- */

/* Each is a pipe to the other; one that dies ends it. */
static void meet(const struct rank *rank)
{
	const int *pipes = rank->arg;
	char c = 0;

	CHECK(write(pipes[2 * rank->rank + 1], &c, 1) == 1);
	CHECK(read(pipes[2 * !rank->rank], &c, 1) == 1);
}

/* Rank 0 refused step 2, which rank 1 has sealed, and has gone on: its image
 * never comes, and nobody waits for it to the end. */
static void never_sealed(struct rank *rank)
{
	const int *pipes = rank->arg;
	char *data = describe(rank);

	CHECK(!close(pipes[2 * !rank->rank + 1]));
	rank_snapshot(rank, 1, SK_COMPLETE);
	if (rank->rank) {
		start(rank, 2, 0);
		CHECK(!sk_wait(rank->state, 2, SK_SEALED, 60000), "%s",
		      sk_error());
	} else {
		refused(rank, data, 2);
	}
	meet(rank);
	rank_snapshot(rank, 3, SK_COMPLETE);
	if (!rank->rank)
		CHECK(sk_wait(rank->state, 2, SK_SEALED, 60000) == -ENOENT,
		      "%s", sk_error());
	meet(rank);
}

static void two_ranks(struct scene *scene)
{
	pid_t pids[2];
	int pipes[4];

	CHECK(!pipe(pipes) && !pipe(pipes + 2));
	scene_ranks_start(scene, "never", 2, never_sealed, pipes, pids);
	for (int i = 0; i < 4; i++)
		CHECK(!close(pipes[i]));
	scene_ranks_end("never", 2, pids);
}

/* ---- beside each other ---- */

/* Of a state that has taken no snapshot of it. */
static void *ask_always(void *arg)
{
	struct rank *rank = arg;

	for (int i = 0; i < MANY; i++)
		CHECK(sk_wait(rank->state, 1000, SK_SEALED, 60000) == -ENOENT,
		      "%s", sk_error());
	return NULL;
}

/* The run that is asked about is the state's, whole, also while it is let
 * into one. */
static void beside_registering(struct rank *rank)
{
	pthread_t thread;
	char name[16];

	(void)describe(rank);
	CHECK(!pthread_create(&thread, NULL, ask_always, rank));
	for (int i = 1; i < MANY / 10; i++) {
		(void)snprintf(name, sizeof(name), "t%d", i);
		CHECK(!sk_state_blob(rank->state, name, rank_memory(16, 1),
				     16), "%s", sk_error());
		start(rank, i, 0);
		CHECK(!sk_fence(rank->state), "%s", sk_error());
	}
	CHECK(!pthread_join(thread, NULL));
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "failed", 1, newest_failed, NULL);
	scene_ranks(&scene, "other", 1, other_is_no_fence, NULL);
	scene_ranks(&scene, "once", 1, told_once, NULL);
	scene_ranks(&scene, "each", 1, each_fence_says_so, NULL);
	two_ranks(&scene);
	scene_ranks(&scene, "beside", 1, beside_registering, NULL);
	scene_close(&scene);
	return 0;
}
