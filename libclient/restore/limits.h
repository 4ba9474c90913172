/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks ask for, beside the names of tensors: which snapshot, and where
 * it may lie. A restore is of one snapshot, so what one rank asks for all do;
 * what contradicts itself ends it, on all with one sentence.
 */
#ifndef SK_LIBCLIENT_RESTORE_LIMITS_H
#define SK_LIBCLIENT_RESTORE_LIMITS_H

#include "restore/restoring.h"

struct sk_restore_ballot;

/** As a rank says it with its ballot. */
struct sk_restore_limits {
	int64_t step;		/* SK_LATEST: any */
	uint64_t run, run_id;	/* 0: any */
	uint64_t job;		/* a hash of its name */
	int32_t rank, world;
	uint32_t flags;		/* SK_RESTORE_..., as it was called with */
	uint32_t reserved;
};

/** This rank's. */
struct sk_restore_limits sk_restore_limits(const struct sk_restoring *rs);
/** -EINVAL, with a sentence that has the two ranks, where they are not of one
 * job. */
int sk_restore_check_jobs(struct sk_restoring *rs,
			  const struct sk_restore_ballot *ballots);
/**
 * Makes those of all ranks this rank's, and *ret_again true where some rank
 * has offered by others: the same on all ranks. -EINVAL, with a sentence that
 * has the two ranks, where they do not go together.
 */
int sk_restore_share_limits(struct sk_restoring *rs,
			    const struct sk_restore_ballot *ballots,
			    bool *ret_again);

#endif
