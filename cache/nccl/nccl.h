/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's functions, found at run time: the copy that the trainer's framework
 * has open already, else the system's. Versions before 2.18 are not used.
 *
 * The library needs a driver only when a communicator is made: it opens, says
 * its version and makes ids without one.
 */
#ifndef SK_CACHE_NCCL_NCCL_H
#define SK_CACHE_NCCL_NCCL_H

#include "base/error.h"
#include "base/os.h"
#include "nccl/abi.h"

/** The oldest library that is used. */
#define SK_NCCL_VERSION_LEAST SK_NCCL_VERSION(2, 18, 0)

#define SK_NCCL_MEMBER(function, since, need, result, params)		\
	result(*function) params;

/** Plain data; optional functions may be NULL. */
struct sk_nccl {
	SK_NCCL_TABLE(SK_NCCL_MEMBER)
	int version;		/* as SK_NCCL_VERSION() */
};

/**
 * Opens @file (NULL: $SHARDKEEP_LIBNCCL, else libnccl.so.2, where it is open
 * already) and finds all that the table names. The library stays open as long
 * as the process lives.
 * Errors: -ENODEV with a sentence: this build has no GPUs, there is no such
 * library, or it is too old.
 */
int sk_nccl_open(const struct sk_os *os, const char *file,
		 struct sk_nccl *ret_nccl, struct sk_err *err);

/**
 * What @result of the call @what means: a negative errno, and a sentence with
 * the library's own words. @comm: whose last error it was, or NULL.
 * Errors: -EINVAL; -ECONNRESET another rank's, or the way there; -EINPROGRESS;
 * else -EIO.
 */
int sk_nccl_failed(const struct sk_nccl *nccl, sk_nccl_result result,
		   sk_nccl_comm comm, const char *what, struct sk_err *err);

#endif
