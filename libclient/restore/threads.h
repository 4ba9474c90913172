/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of a restore. A snapshot copies beside a trainer, by half of the CPUs
 * at most. Who restores waits for it, on all ranks of the node: what CPUs there
 * are for each of them copy then.
 */
#ifndef SK_LIBCLIENT_RESTORE_THREADS_H
#define SK_LIBCLIENT_RESTORE_THREADS_H

#include "base/pool.h"
#include "restore/restoring.h"

/** How many at most copy out of memory: of those that this process may run on,
 * a rank's part, 16 at most, and no fewer than the library has; where the user
 * said how many, those. When the ranks of the node are known. */
unsigned sk_restore_threads(const struct sk_restoring *rs);

/** Runs the task's units, by threads of its own where that is more than the
 * library has, and returns when all are done. */
void sk_restore_run(struct sk_restoring *rs, struct sk_task *task);

#endif
