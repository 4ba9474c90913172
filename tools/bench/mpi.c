/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores over the memory of several agents, one for each rank, by MPI, beside
 * the same bytes passed by MPI alone. Run by mpirun, an even number of ranks on
 * one machine.
 */
#include <errno.h>
#include <getopt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"
#include "shardkeep-mpi.h"
#include "state.h"

#define WAIT_MS 120000
/* Counts of MPI are ints. */
#define PART_BYTES ((uint64_t)1 << 30)
#define PARTS_MAX 64

static const char help[] =
"usage: mpirun -n N bench-mpi [OPTION...]\n"
"\n"
"Restores of N ranks, an even number, with an agent each, by MPI, and as many\n"
"bytes by MPI alone: medians of the rounds.\n"
"\n"
"  -b, --bytes SIZE   state of each, K/M/G (512M)\n"
"  -t, --tensors N    that it is cut into (64)\n"
"  -n, --rounds N     (3)\n"
"  -d, --dir DIR      for what the agents write (.)\n"
"  -a, --agent PATH   shardkeepd (on the PATH)\n"
"  -h, --help         this";

static const struct option long_options[] = {
	{ "bytes", 1, NULL, 'b' }, { "tensors", 1, NULL, 't' },
	{ "rounds", 1, NULL, 'n' }, { "dir", 1, NULL, 'd' },
	{ "agent", 1, NULL, 'a' }, { "help", 0, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

static const struct kind {
	enum cut cut;
	int moved;		/* nodes that a rank comes back further on */
	const char *what;
} kinds[] = {
	{ CUT_COLUMNS, 0, "columns for rows" },
	{ CUT_ROWS, 1, "each rank on the other" },
};
#define N_KINDS (sizeof(kinds) / sizeof(*kinds))

static int parse(int argc, char **argv, struct options *o)
{
	int c, r = 0;

	while (!r && (c = getopt_long(argc, argv, "b:t:n:d:a:h", long_options,
				      NULL)) != -1) {
		switch (c) {
		case 'b': r = sk_size_parse(optarg, 0, &o->bytes, NULL); break;
		case 't': o->tensors = atoi(optarg); break;
		case 'n': o->rounds = atoi(optarg); break;
		case 'd': o->dir = optarg; break;
		case 'a': o->agent = optarg; break;
		case 'h': puts(help); exit(0);
		default: return -1;
		}
	}
	return r || optind != argc || o->tensors < 1 || o->rounds < 1 ||
	       o->rounds > BENCH_ROUNDS_MAX ? -1 : 0;
}

/* First start to last end, at every rank. */
static double took(uint64_t start, uint64_t end)
{
	uint64_t first, last;

	MPI_Allreduce(&start, &first, 1, MPI_UINT64_T, MPI_MIN,
		      MPI_COMM_WORLD);
	MPI_Allreduce(&end, &last, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
	return (double)(last - first);
}

static void at_node(struct bench *b, int node)
{
	(void)snprintf(b->socket, sizeof(b->socket), "%s/%d.sock", b->dir,
		       node);
	(void)snprintf(b->store, sizeof(b->store), "%s/store-%d", b->dir,
		       node);
}

static int begin(struct bench *b, int rank, const struct kind *kind,
		 struct rank_state *s)
{
	at_node(b, (rank + kind->moved) % b->o.ranks);
	return state_begin(b, rank, b->o.ranks, "mpi",
			   b->o.bytes * (uint64_t)b->o.ranks, b->o.tensors,
			   kind->cut, s);
}

static int save(struct bench *b, int rank, const struct sk_comm *comm)
{
	static const struct kind kind = { .cut = CUT_ROWS };
	struct rank_state s;

	if (begin(b, rank, &kind, &s))
		return -1;
	/* There is nothing yet, and the ranks are one run from here on. */
	if (sk_restore(s.state, SK_LATEST, comm, NULL, NULL) != -ENOENT)
		return fail(b, rank, "a first restore: %s", sk_error());
	state_fill(&s, rank, 1);
	if (sk_snapshot(s.state, 1, NULL) ||
	    sk_wait(s.state, 1, SK_SEALED, WAIT_MS))
		return fail(b, rank, "snapshot: %s", sk_error());
	MPI_Barrier(MPI_COMM_WORLD);
	state_close(&s);
	return 0;
}

/* With one other rank, both ways at once. */
static void exchange(int rank, char *from, char *to, uint64_t bytes)
{
	MPI_Request requests[2 * PARTS_MAX];
	int n = 0;

	for (uint64_t at = 0; at < bytes; at += PART_BYTES) {
		int part = (int)(bytes - at < PART_BYTES ? bytes - at :
							   PART_BYTES);

		MPI_Irecv(to + at, part, MPI_BYTE, rank ^ 1, 0,
			  MPI_COMM_WORLD, &requests[n++]);
		MPI_Isend(from + at, part, MPI_BYTE, rank ^ 1, 0,
			  MPI_COMM_WORLD, &requests[n++]);
	}
	MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
}

static double alone(int rank, const struct rank_state *s, uint64_t bytes)
{
	char *from = warm_memory(bytes);
	uint64_t start, end;

	exchange(rank, from, s->data, bytes < 4096 ? bytes : 4096);
	MPI_Barrier(MPI_COMM_WORLD);
	start = now_ns();
	exchange(rank, from, s->data, bytes);
	end = now_ns();
	munmap(from, bytes);
	return took(start, end);
}

static int restore(struct bench *b, int rank, const struct kind *kind,
		   const struct sk_comm *comm, struct series *ours,
		   struct series *mpi)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = WAIT_MS };
	struct sk_report report = { 0 };
	struct rank_state s;
	uint64_t start;

	if (begin(b, rank, kind, &s))
		return -1;
	MPI_Barrier(MPI_COMM_WORLD);
	start = now_ns();
	if (sk_restore(s.state, SK_LATEST, comm, &o, &report))
		return fail(b, rank, "restore: %s", sk_error());
	series_add(ours, took(start, now_ns()));
	if (!report.bytes_remote ||
	    report.bytes_remote > PARTS_MAX * PART_BYTES)
		return fail(b, rank, "%llu bytes came from other nodes",
			    (unsigned long long)report.bytes_remote);
	series_add(mpi, alone(rank, &s, report.bytes_remote));
	state_close(&s);
	return 0;
}

static int measure(struct bench *b, int rank, const struct sk_comm *comm)
{
	struct series ours[N_KINDS] = { 0 }, mpi[N_KINDS] = { 0 };

	for (int i = 0; i < b->o.rounds; i++)
		for (size_t k = 0; k < N_KINDS; k++)
			if (restore(b, rank, &kinds[k], comm, &ours[k],
				    &mpi[k]))
				return -1;
	if (rank)
		return 0;
	printf("%-28s%12s%12s%8s\n", "", "RESTORE ms", "MPI ms", "RATIO");
	for (size_t k = 0; k < N_KINDS; k++)
		printf("%-28s%12.1f%12.1f%8.2f\n", kinds[k].what,
		       series_median(&ours[k]) / 1e6,
		       series_median(&mpi[k]) / 1e6,
		       series_ratio(&ours[k], &mpi[k]));
	return 0;
}

static int run(struct bench *b, int rank)
{
	MPI_Comm world = MPI_COMM_WORLD;
	struct sk_comm comm;
	int r;

	at_node(b, rank);
	if (agent_start(b))
		return fail(b, rank, "no agent");
	if (sk_comm_mpi(&world, &comm))
		return fail(b, rank, "no comm of MPI");
	r = save(b, rank, &comm);
	if (!r)
		r = measure(b, rank, &comm);
	sk_comm_mpi_free(&comm);
	MPI_Barrier(MPI_COMM_WORLD);
	return agent_stop(b) ? -1 : r;
}

static int make_dir(struct bench *b, int rank)
{
	if (!rank) {
		(void)snprintf(b->dir, sizeof(b->dir),
			       "%.200s/shardkeep-bench-XXXXXX", b->o.dir);
		if (!mkdtemp(b->dir))
			*b->dir = 0;
	}
	MPI_Bcast(b->dir, sizeof(b->dir), MPI_BYTE, 0, MPI_COMM_WORLD);
	if (*b->dir)
		return 0;
	if (!rank)
		note("no directory can be made in %s", b->o.dir);
	return -1;
}

int main(int argc, char **argv)
{
	struct bench b = { .o = { .bytes = 512u << 20, .tensors = 64,
				  .rounds = 3, .threads = 1, .dir = ".",
				  .agent = "shardkeepd" } };
	int rank, r = 1;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &b.o.ranks);
	b.shared = share(sizeof(*b.shared));
	if (parse(argc, argv, &b.o) || !b.shared ||
	    b.o.ranks > BENCH_RANKS_MAX || b.o.ranks % 2) {
		if (!rank)
			puts(help);
	} else if (!make_dir(&b, rank)) {
		r = run(&b, rank) ? 1 : 0;
		if (!rank)
			remove_tree(b.dir);
	}
	MPI_Finalize();
	return r;
}
