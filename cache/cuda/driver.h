/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions, found at run time.
 *
 * The library is opened by its name of every version, libcuda.so.1, where the
 * trainer's framework has it open already; each function is asked for by the
 * version of its typedef. Nothing is initialized: cuInit() in a process that
 * forks later would break its children, so that waits for the first device.
 */
#ifndef SK_CACHE_CUDA_DRIVER_H
#define SK_CACHE_CUDA_DRIVER_H

#include "base/error.h"
#include "base/os.h"
#include "cuda/abi.h"

/** The oldest driver that is used, as cuDriverGetVersion() says it: 12.0. */
#define SK_CUDA_VERSION_LEAST 12000

#define SK_CUDA_MEMBER(function, exported, version, need, params)	\
	sk_cu_result (*function) params;

/** Plain data; optional functions may be NULL. */
struct sk_cuda_driver {
	SK_CUDA_TABLE(SK_CUDA_MEMBER)
	sk_cu_batch_12080 cuMemcpyBatchAsync_12080;	/* where the other
							 * one lacks */
	sk_cu_get_proc get_proc;
	int version;		/* as cuDriverGetVersion() says it */
};

/**
 * Opens @file (NULL: $SHARDKEEP_LIBCUDA, else libcuda.so.1) and finds all that
 * the table names. The library stays open as long as the process lives.
 * Errors: -ENODEV with a sentence: this build has no CUDA support, there is no
 * driver, it is the toolkit's stub, or it is too old.
 */
int sk_cuda_driver_open(const struct sk_os *os, const char *file,
			struct sk_cuda_driver *ret_driver,
			struct sk_err *err);

/** Finds one more function; NULL: the driver has none of that version. */
void *sk_cuda_driver_find(const struct sk_cuda_driver *driver,
			  const char *name, int version);

/** What @result of the call @what means: a negative errno, and a sentence with
 * the driver's own name for it. Errors: -ENOMEM; -EBUSY a stream captures;
 * -ENODEV there is no such device, or none for this process, or no driver;
 * -EINVAL; else -EIO. */
int sk_cuda_driver_failed(const struct sk_cuda_driver *driver,
			  sk_cu_result result, const char *what,
			  struct sk_err *err);

#endif
