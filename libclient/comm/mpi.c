/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comm over MPI. MPI has no deadlines: each call is begun, and asked about
 * until it is over or the time is. What was begun cannot be taken back, so
 * nothing that MPI may still touch is freed or used again after that.
 */
#include "shardkeep-mpi.h"

#include <errno.h>
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TAG 7407
/* Counts are ints. */
#define PART_MAX ((uint64_t)1 << 30)
/* Looks at what is under way before it sleeps between them. */
#define EAGER_LOOKS 2000u
#define PAUSE_NS 50000
/* A test has no time for that. */
#ifndef BEGIN_MS
#define BEGIN_MS 300000
#endif

struct mpi {
	MPI_Comm comm;
	int world, rank;
	bool failed;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int fail(struct mpi *m, int r)
{
	m->failed = true;
	return r;
}

/* Ranks that share a CPU let each other run. */
static void pause_a_little(unsigned looks)
{
	const struct timespec t = { 0, PAUSE_NS };

	if (looks < EAGER_LOOKS)
		(void)sched_yield();
	else
		(void)nanosleep(&t, NULL);
}

static int wait_for(struct mpi *m, MPI_Request *requests, int n,
		    uint32_t timeout_ms)
{
	uint64_t until = now_ns() + timeout_ms * UINT64_C(1000000);

	for (unsigned looks = 0;; looks++) {
		int done = 0;

		if (MPI_Testall(n, requests, &done, MPI_STATUSES_IGNORE))
			return fail(m, -EIO);
		if (done)
			return 0;
		if (now_ns() >= until)
			return fail(m, -ETIMEDOUT);
		pause_a_little(looks);
	}
}

/* ---- small messages, through memory that MPI may keep ---- */

/* Begins with what this rank says, and has @more bytes after it. */
static int make_buf(struct mpi *m, const void *in, size_t bytes, size_t more,
		    char **ret)
{
	if (m->failed)
		return -EIO;
	if (bytes > PART_MAX)
		return fail(m, -EMSGSIZE);
	*ret = malloc(bytes + more + 1);
	if (!*ret)
		return fail(m, -ENOMEM);
	memcpy(*ret, in, bytes);
	return 0;
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct mpi *m = ctx;
	size_t all = bytes * (size_t)m->world;
	MPI_Request request;
	char *buf;
	int r = make_buf(m, in, bytes, all, &buf);

	if (r < 0)
		return r;
	r = MPI_Iallgather(buf, (int)bytes, MPI_BYTE, buf + bytes, (int)bytes,
			   MPI_BYTE, m->comm, &request) ?
		    fail(m, -EIO) : wait_for(m, &request, 1, timeout_ms);
	if (r < 0)
		return r;
	memcpy(out, buf + bytes, all);
	free(buf);
	return 0;
}

static int broadcast(void *ctx, int32_t root, void *data, size_t bytes,
		     uint32_t timeout_ms)
{
	struct mpi *m = ctx;
	MPI_Request request;
	char *buf;
	int r = make_buf(m, data, bytes, 0, &buf);

	if (r < 0)
		return r;
	r = MPI_Ibcast(buf, (int)bytes, MPI_BYTE, root, m->comm, &request) ?
		    fail(m, -EIO) : wait_for(m, &request, 1, timeout_ms);
	if (r < 0)
		return r;
	memcpy(data, buf, bytes);
	free(buf);
	return 0;
}

/* ---- parts ---- */

static size_t count(const struct sk_comm_part *parts, size_t n)
{
	size_t requests = 0;

	for (size_t i = 0; i < n; i++)
		requests += (size_t)((parts[i].bytes + PART_MAX - 1) /
				     PART_MAX);
	return requests;
}

static int begin(struct mpi *m, const struct sk_comm_part *p, bool send,
		 MPI_Request **requests)
{
	for (uint64_t at = 0; at < p->bytes; at += PART_MAX) {
		uint64_t n = p->bytes - at < PART_MAX ? p->bytes - at :
							PART_MAX;
		char *data = (char *)p->data + at;
		int e = send ? MPI_Isend(data, (int)n, MPI_BYTE, p->rank, TAG,
					 m->comm, (*requests)++) :
			       MPI_Irecv(data, (int)n, MPI_BYTE, p->rank, TAG,
					 m->comm, (*requests)++);

		if (e)
			return fail(m, -EIO);
	}
	return 0;
}

static int exchange(void *ctx, const struct sk_comm_part *sends,
		    size_t n_sends, const struct sk_comm_part *receives,
		    size_t n_receives, uint32_t timeout_ms)
{
	size_t n = count(sends, n_sends) + count(receives, n_receives);
	MPI_Request *requests, *next;
	struct mpi *m = ctx;
	int r = 0;

	if (m->failed)
		return -EIO;
	requests = next = calloc(n + 1, sizeof(*requests));
	if (!requests)
		return fail(m, -ENOMEM);
	/* What is to be received has its place before it comes. */
	for (size_t i = 0; i < n_receives && r >= 0; i++)
		r = begin(m, &receives[i], false, &next);
	for (size_t i = 0; i < n_sends && r >= 0; i++)
		r = begin(m, &sends[i], true, &next);
	if (r >= 0)
		r = wait_for(m, requests, (int)n, timeout_ms);
	free(requests);
	return r;
}

/* ---- life ---- */

/* Where that is not over in time, MPI will still write to @m. */
static int duplicate(const void *mpi_comm, struct mpi *m)
{
	MPI_Request request;
	MPI_Comm comm;
	int r;

	memcpy(&comm, mpi_comm, sizeof(comm));
	if (MPI_Comm_idup(comm, &m->comm, &request))
		return -EIO;
	r = wait_for(m, &request, 1, BEGIN_MS);
	if (r < 0)
		return r;
	if (MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN) ||
	    MPI_Comm_size(m->comm, &m->world) ||
	    MPI_Comm_rank(m->comm, &m->rank)) {
		(void)MPI_Comm_free(&m->comm);
		return -EIO;
	}
	return 0;
}

int sk_comm_mpi(const void *mpi_comm, struct sk_comm *ret_comm)
{
	int begun = 0, ended = 0, r;
	struct mpi *m;

	if (!mpi_comm || !ret_comm || MPI_Initialized(&begun) ||
	    MPI_Finalized(&ended) || !begun || ended)
		return -EINVAL;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	r = duplicate(mpi_comm, m);
	if (r < 0) {
		if (!m->failed)
			free(m);
		return r;
	}
	*ret_comm = (struct sk_comm){
		.ctx = m,
		.allgather = allgather,
		.exchange = exchange,
		.broadcast = broadcast,
		.world = m->world,
		.rank = m->rank,
	};
	return 0;
}

void sk_comm_mpi_free(struct sk_comm *comm)
{
	struct mpi *m;

	if (!comm || comm->allgather != allgather)
		return;
	m = comm->ctx;
	if (!m->failed)
		(void)MPI_Comm_free(&m->comm);
	free(m);
	*comm = (struct sk_comm){ 0 };
}
