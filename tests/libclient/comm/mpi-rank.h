/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of the tests of MPI: one tensor "w", in rows or columns. */
#ifndef SK_TESTS_LIBCLIENT_COMM_MPI_RANK_H
#define SK_TESTS_LIBCLIENT_COMM_MPI_RANK_H

#include "libclient/restore/common.h"

/** Opens what @rank's number and world say, by the agent at @socket; "w" is of
 * @rows x 1000 floats, sharded along @dim. */
static inline void mpi_rank_open(struct rank *rank, const char *socket,
				 int64_t rows, int dim)
{
	struct sk_options opts = { .socket = socket, .threads = 1,
				   .timeout_ms = 60000 };
	struct sk_job job = { .name = "mpi", .rank = rank->rank,
			      .world = rank->world,
			      .flush_every = SK_FLUSH_NEVER };
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);

	CHECK(!sk_open(&opts, &rank->sk), "%s", sk_error());
	CHECK(!sk_state_create(rank->sk, &job, &rank->state), "%s",
	      sk_error());
	rank_tensor(rank, &(struct sk_tensor){
		.name = "w", .dtype = SK_F32, .ndim = 2,
		.shape = { rows, 1000 }, .mesh = mesh,
		.placements = { SK_SHARD(dim) } }, 0xee);
	sk_mesh_release(mesh);
}

static inline void mpi_rank_close(struct rank *rank)
{
	sk_state_free(rank->state);
	sk_close(rank->sk);
}

#endif
