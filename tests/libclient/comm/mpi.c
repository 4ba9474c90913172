/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of mpirun on two nodes: they save, and restore where the others were,
 * with the rows cut otherwise; then one of them does not come.
 */
#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "libclient/comm/mpi-rank.h"
#include "shardkeep-mpi.h"
#include "support/agent.h"
#include "support/files.h"

#define ROWS 1023	/* of 1000 F32: nearly 4 MiB, by no world divided */
#define NODES 2

static char dir[64] = "/tmp/shardkeep-mpi-XXXXXX";

static char *socket_of(int node, char buf[96])
{
	(void)snprintf(buf, 96, "%s/node-%d.sock", dir, node);
	return buf;
}

static pid_t start_agent(const char *program, int node)
{
	char path[96];
	const char *const args[] = { program, "--socket",
				     socket_of(node, path), "--memory", "256M",
				     "--log-level", "error", NULL };
	pid_t agent = agent_start(args);

	CHECK(agent > 0, "the agent did not start");
	return agent;
}

static void open_rank(struct rank *rank, int node, int dim)
{
	char path[96];

	mpi_rank_open(rank, socket_of(node, path), ROWS, dim);
}

static void save(struct rank *rank, const struct sk_comm *comm)
{
	int r;

	open_rank(rank, rank->rank * NODES / rank->world, 0);
	r = sk_restore(rank->state, SK_LATEST, comm, NULL, NULL);
	CHECK(r == -ENOENT, "%d %s", r, sk_error());
	rank_write(rank, 5);
	CHECK(!sk_snapshot(rank->state, 5, NULL), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 5, SK_SEALED, 60000), "%s", sk_error());
	mpi_rank_close(rank);
}

static void load(struct rank *rank, const struct sk_comm *comm)
{
	unsigned long long sums[2] = { 0 };
	struct sk_report report;

	open_rank(rank, rank->rank % NODES, 1);
	CHECK(!sk_restore(rank->state, SK_LATEST, comm, NULL, &report), "%s",
	      sk_error());
	CHECK(report.step == 5 && !rank_wrong(rank, 5, -1));
	sums[0] = report.bytes_remote;
	sums[1] = report.bytes_received;
	CHECK(!MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_UNSIGNED_LONG_LONG,
			     MPI_SUM, MPI_COMM_WORLD));
	/* Each needs the half of its part that the other node has. */
	CHECK(sums[0] == sums[1] && sums[0], "%llu, %llu", sums[0], sums[1]);
	mpi_rank_close(rank);
}

/* The last rank calls no restore: the others give up, and alike. */
static void miss(struct rank *rank, const struct sk_comm *comm)
{
	struct sk_restore_options o = { .timeout_ms = 200 };
	int r;

	open_rank(rank, rank->rank % NODES, 1);
	if (rank->rank < rank->world - 1) {
		r = sk_restore(rank->state, SK_LATEST, comm, &o, NULL);
		CHECK(r == -ETIMEDOUT, "%d %s", r, sk_error());
	}
	mpi_rank_close(rank);
}

/* Of a comm over more ranks than the job has, or in another order, nothing is
 * gathered: there would be no room for it. */
static void mistake(const struct rank *rank, const struct sk_comm *comm)
{
	for (int k = 0; k < 2; k++) {
		struct rank other = *rank;
		int r;

		if (k)
			other.rank = (rank->rank + 1) % rank->world;
		else if (rank->rank < rank->world - 1)
			other.world--;
		else
			continue;
		open_rank(&other, rank->rank % NODES, 1);
		r = sk_restore(other.state, SK_LATEST, comm, NULL, NULL);
		CHECK(r == -EINVAL && strstr(sk_error(), "the comm has it as"),
		      "%d %s", r, sk_error());
		mpi_rank_close(&other);
	}
}

/* As the library's other comms: what is none, or none of its own. */
static void nothing_to_free(void)
{
	struct sk_comm none = { 0 }, other = { .ctx = &none };

	sk_comm_mpi_free(NULL);
	sk_comm_mpi_free(&none);
	sk_comm_mpi_free(&other);
	CHECK(other.ctx == &none, "a comm of another kind");
}

int main(int argc, char **argv)
{
	struct rank rank = { .job = "mpi" };
	MPI_Comm world = MPI_COMM_WORLD;
	struct sk_comm comm;
	pid_t agent = -1;

	CHECK(sk_comm_mpi(&world, &comm) == -EINVAL, "before MPI_Init()");
	CHECK(!MPI_Init(&argc, &argv));
	CHECK(!MPI_Comm_rank(world, &rank.rank));
	CHECK(!MPI_Comm_size(world, &rank.world));
	CHECK(rank.world > NODES && argc > 1);
	CHECK(rank.rank || mkdtemp(dir));
	CHECK(!MPI_Bcast(dir, sizeof(dir), MPI_CHAR, 0, world));
	if (rank.rank < NODES)
		agent = start_agent(argv[1], rank.rank);
	CHECK(!MPI_Barrier(world));
	CHECK(sk_comm_mpi(NULL, &comm) == -EINVAL);
	CHECK(sk_comm_mpi(&world, NULL) == -EINVAL);
	CHECK(!sk_comm_mpi(&world, &comm));
	mistake(&rank, &comm);
	CHECK(!MPI_Barrier(world));
	save(&rank, &comm);
	CHECK(!MPI_Barrier(world));
	load(&rank, &comm);
	CHECK(!MPI_Barrier(world));
	miss(&rank, &comm);
	sk_comm_mpi_free(&comm);
	sk_comm_mpi_free(&comm);
	nothing_to_free();
	CHECK(!MPI_Barrier(world));
	if (agent > 0)
		CHECK(!kill(agent, SIGTERM) &&
		      waitpid(agent, NULL, 0) == agent);
	CHECK(!MPI_Barrier(world));
	CHECK(rank.rank || !remove_tree(dir));
	CHECK(!MPI_Finalize());
	return 0;
}
