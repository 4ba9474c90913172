/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles whose agent has gone, in order or not: whatever is asked of them
 * says so, and never what an agent says of snapshots that are not there, which
 * a trainer takes for leave to begin anew. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"

#define BYTES 10000

/* It is the parent's child, who looks after what is left of it. */
static void end_agent(const struct rank *rank, int sig)
{
	const struct sk_os *os = sk_os_linux();
	struct pollfd p = { .events = POLLIN };

	p.fd = os->pidfd_open(os, rank->scene->agent);
	CHECK(p.fd >= 0);
	CHECK(!kill(rank->scene->agent, sig));
	CHECK(poll(&p, 1, 60000) == 1);
	close(p.fd);
}

#define IS_GONE(call) do {						\
	int r_ = call;							\
	CHECK(r_ == -ECONNRESET, "%s: %d: %s", #call, r_, sk_error());	\
} while (0)

static void ask_all(struct rank *rank)
{
	char *text = NULL;

	IS_GONE(rank_restore(rank, SK_LATEST, 0, NULL));
	IS_GONE(rank_restore(rank, 1, SK_RESTORE_DISK_ONLY, NULL));
	IS_GONE(sk_snapshots(rank->sk, NULL, &text));
	IS_GONE(sk_snapshots(rank->sk, rank->job, &text));
	IS_GONE(sk_inspect(rank->sk, rank->job, 1, 0, 0, &text));
	IS_GONE(sk_flush(rank->state, 1));
	IS_GONE(sk_wait(rank->state, 1, SK_DURABLE, 60000));
	IS_GONE(sk_prepare(rank->state, 60000));
	IS_GONE(sk_snapshot(rank->state, 2, NULL));
}

static void lose_agent(struct rank *rank)
{
	char *data = rank_memory(BYTES, 7);

	CHECK(!sk_state_blob(rank->state, "a", data, BYTES));
	rank_snapshot(rank, 1, SK_DURABLE);
	end_agent(rank, *(const int *)rank->arg);
	ask_all(rank);
	/* Described anew, it has nothing of the agent's at all. */
	CHECK(!sk_state_clear(rank->state));
	CHECK(!sk_state_blob(rank->state, "a", data, BYTES));
	ask_all(rank);
}

/* One that has asked nothing yet, of an agent that was there. */
static void lose_agent_first(struct rank *rank)
{
	CHECK(!sk_state_blob(rank->state, "a", rank_memory(BYTES, 7), BYTES));
	end_agent(rank, *(const int *)rank->arg);
	ask_all(rank);
}

int main(int argc, char **argv)
{
	static const int signals[] = { SIGTERM, SIGKILL };
	static const rank_fn losers[] = { lose_agent, lose_agent_first };
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (int i = 0; i < 4; i++) {
		scene_ranks(&scene, "gone", 1, losers[i / 2],
			    &signals[i % 2]);
		CHECK(waitpid(scene.agent, NULL, 0) == scene.agent);
		scene.agent = -1;
		scene_start_agent(&scene);
	}
	scene_close(&scene);
	return 0;
}
