/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of an mpirun that lets the others live when one is killed: each of them
 * ends in its time, with an error and a sentence, and so does what comes after.
 * Arguments: the agent; what becomes of the last rank: "absent" it does not
 * come when the comm is made, "before" it is killed before its first word in a
 * restore, "within" when bytes are to move, "stopped" there, and goes on when
 * the others have given up.
 */
#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/comm/mpi-rank.h"
#include "shardkeep-mpi.h"
#include "support/agent.h"
#include "support/files.h"

#define TIMEOUT_MS 2000u
#define ROWS 1023
#define LATE_S 60		/* far beyond: a loaded machine is slow */

static char dir[64] = "/tmp/shardkeep-mpi-XXXXXX";
static const char *mode;
static struct sk_comm mpi;	/* as it was made */
static int others;		/* beside the last rank */

static int64_t now_s(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

/* Each rank has an agent of its own. */
static pid_t start_agent(const char *program, char *path, size_t n, int rank)
{
	const char *const args[] = { program, "--socket", path, "--memory",
				     "128M", "--log-level", "error", NULL };
	pid_t agent;

	(void)snprintf(path, n, "%s/%d.sock", dir, rank);
	agent = agent_start(args);
	CHECK(agent > 0, "the agent did not start");
	return agent;
}

static void save(struct rank *rank, const char *path)
{
	int r;

	mpi_rank_open(rank, path, ROWS, 0);
	r = sk_restore(rank->state, SK_LATEST, &mpi, NULL, NULL);
	CHECK(r == -ENOENT, "%d %s", r, sk_error());
	rank_write(rank, 5);
	CHECK(!sk_snapshot(rank->state, 5, NULL), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 5, SK_SEALED, 60000), "%s", sk_error());
	CHECK(!MPI_Barrier(MPI_COMM_WORLD));
	mpi_rank_close(rank);
}

/* ---- that a rank has given up, which the last one waits for ---- */

static const char *sign_of(int rank, char *ret, size_t size)
{
	(void)snprintf(ret, size, "%s/%d.over", dir, rank);
	return ret;
}

static void say_over(int rank)
{
	char path[96];
	FILE *f = fopen(sign_of(rank, path, sizeof(path)), "w");

	CHECK(f && !fclose(f), "%s: %s", path, strerror(errno));
}

/* Or has ended since, and the folder with all of them. */
static bool is_over(int rank)
{
	char path[96];

	return !access(sign_of(rank, path, sizeof(path)), F_OK) ||
	       access(dir, F_OK);
}

static void await_others(void)
{
	for (int i = 0; i < others; i++)
		while (!is_over(i))
			(void)usleep(10000);
}

/* ---- the last rank ---- */

static void end_here(void)
{
	if (strcmp(mode, "stopped"))
		(void)raise(SIGKILL);
	/* As a rank that hangs. */
	await_others();
}

static int its_allgather(void *ctx, const void *in, size_t bytes, void *out,
			 uint32_t timeout_ms)
{
	if (!strcmp(mode, "before"))
		end_here();
	return mpi.allgather(ctx, in, bytes, out, timeout_ms);
}

static int its_exchange(void *ctx, const struct sk_comm_part *sends,
			size_t n_sends, const struct sk_comm_part *receives,
			size_t n_receives, uint32_t timeout_ms)
{
	end_here();
	return mpi.exchange(ctx, sends, n_sends, receives, n_receives,
			    timeout_ms);
}

/* ---- the others ---- */

static int restore(struct rank *rank, const struct sk_comm *comm)
{
	struct sk_restore_options o = { .timeout_ms = TIMEOUT_MS };
	int64_t begun = now_s();
	int r = sk_restore(rank->state, SK_LATEST, comm, &o, NULL);

	CHECK(now_s() - begun < LATE_S, "%d %s", r, sk_error());
	return r;
}

static void load(struct rank *rank, const char *path)
{
	struct sk_comm comm = mpi;
	bool last = rank->rank == rank->world - 1;
	int r;

	if (last) {
		comm.allgather = its_allgather;
		comm.exchange = its_exchange;
	}
	mpi_rank_open(rank, path, ROWS, 1);
	r = restore(rank, &comm);
	if (!last)
		say_over(rank->rank);
	CHECK(r == -ETIMEDOUT && strstr(sk_error(), "other ranks of job"),
	      "%d %s", r, sk_error());
	/* What has failed is said at once, and again. */
	r = restore(rank, &comm);
	CHECK(r == -ETIMEDOUT && strstr(sk_error(), "other ranks of job"),
	      "%d %s", r, sk_error());
	/* What is late finds memory that may be written to. */
	if (!strcmp(mode, "stopped"))
		for (int i = 0; i < 30; i++) {
			int is = 0;

			(void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG,
					 MPI_COMM_WORLD, &is,
					 MPI_STATUS_IGNORE);
			(void)usleep(100000);
		}
	sk_comm_mpi_free(&mpi);
	mpi_rank_close(rank);
}

static int absent(const struct rank *rank)
{
	MPI_Comm world = MPI_COMM_WORLD;
	int64_t begun = now_s();
	int r;

	if (rank->rank == rank->world - 1)
		(void)raise(SIGKILL);
	r = sk_comm_mpi(&world, &mpi);
	CHECK(r == -ETIMEDOUT && now_s() - begun < LATE_S, "%d", r);
	return 0;
}

int main(int argc, char **argv)
{
	struct rank rank = { .job = "mpi" };
	MPI_Comm world = MPI_COMM_WORLD;
	char path[96];
	pid_t agent;

	CHECK(!MPI_Init(&argc, &argv) && argc > 2);
	CHECK(!MPI_Comm_rank(world, &rank.rank));
	CHECK(!MPI_Comm_size(world, &rank.world));
	others = rank.world - 1;
	mode = argv[2];
	CHECK(rank.rank || mkdtemp(dir));
	CHECK(!MPI_Bcast(dir, sizeof(dir), MPI_CHAR, 0, world));
	if (!strcmp(mode, "absent")) {
		absent(&rank);
	} else {
		agent = start_agent(argv[1], path, sizeof(path), rank.rank);
		CHECK(!sk_comm_mpi(&world, &mpi));
		save(&rank, path);
		load(&rank, path);
		if (!rank.rank)
			await_others();		/* the folder is theirs, too */
		CHECK(!kill(agent, SIGTERM) &&
		      waitpid(agent, NULL, 0) == agent);
	}
	printf("rank %d is through\n", rank.rank);
	if (!rank.rank)
		(void)remove_tree(dir);
	(void)fflush(stdout);
	/* MPI_Finalize() would wait for the dead. */
	_exit(0);
}
