/* SPDX-License-Identifier: Apache-2.0 */
/* One job: a chunk, copied and verified. */
#ifndef SK_LIBCLIENT_RESTORE_JOB_H
#define SK_LIBCLIENT_RESTORE_JOB_H

#include "restore/gpu.h"
#include "restore/passing.h"
#include "restore/restoring.h"

/** Runs a job with the entry's byte 0 at @base (which need not be memory of
 * ours, only the chunk's bytes are touched). What goes to a GPU is on its way
 * when @filling is ended. */
int sk_restore_run_job(struct sk_restoring *rs, struct sk_restore_job *job,
		       uintptr_t base, struct sk_restore_filling *filling,
		       struct sk_err *err);
/** Whether its chunk lies in memory, and this rank has read and verified it
 * when it was sent to another node: it is good where it lies, for this rank
 * and for those who rely on it. Any thread. */
bool sk_restore_job_is_verified(const struct sk_restoring *rs,
				const struct sk_restore_job *job);
/** How its chunk passes; the same @base. -EINVAL. */
int sk_restore_prepare_job(const struct sk_restoring *rs,
			   const struct sk_restore_job *job, uintptr_t base,
			   struct sk_passing *ret, struct sk_err *err);

#endif
