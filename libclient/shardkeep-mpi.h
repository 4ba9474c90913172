/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libshardkeep-mpi: a comm for jobs whose ranks have MPI. A library of its own,
 * so that libshardkeep needs none; it is built where an MPI is found, and to be
 * used with that one.
 */
#ifndef SHARDKEEP_MPI_H
#define SHARDKEEP_MPI_H

#include "shardkeep.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ranks that have MPI ---------------------------------------------- */

/**
 * The comm of the communicator that @mpi_comm, a pointer to an MPI_Comm, points
 * to. Its ranks are the job's, by number. Collective; the communicator is
 * duplicated, and neither it nor its error handler is touched afterwards.
 * *ret_comm is the caller's, for sk_comm_mpi_free(). MPI may be initialised
 * with any level of threads, but with MPI_THREAD_SINGLE or _FUNNELED the main
 * thread alone may restore.
 *
 * No call of it waits for longer than it is told: a rank that does not come
 * is -ETIMEDOUT. Whether one that died is noticed sooner, and whether the job
 * lives on, is MPI's. What it fails for has no sentence in sk_error().
 *
 * Errors: -EINVAL MPI is not initialised, or has been finalised, or an argument
 * is NULL; -ETIMEDOUT a rank did not come here within five minutes, and the
 * communicator cannot do anything collective any more; -EIO MPI failed;
 * -ENOMEM.
 */
int sk_comm_mpi(const void *mpi_comm, struct sk_comm *ret_comm);

/** Collective, before MPI_Finalize(). Where a call of the comm has failed it
 * is neither: what MPI may still write to stays. NULL, and one that was freed,
 * are fine; a comm of another kind is left alone. */
void sk_comm_mpi_free(struct sk_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
