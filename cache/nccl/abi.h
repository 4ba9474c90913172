/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's binary interface, as far as we use it: its types, its constants, and
 * one table of its functions.
 *
 * We declare it ourselves, so that a binary is the same wherever it was built;
 * where NCCL's header is, abi-check.c compares every line of it with that.
 */
#ifndef SK_CACHE_NCCL_ABI_H
#define SK_CACHE_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/abi.h"

/** Enumerations of the library have no negative values. */
typedef unsigned sk_nccl_result;
typedef unsigned sk_nccl_enum;
typedef struct ncclComm *sk_nccl_comm;

/** Passed by value. */
typedef struct sk_nccl_id_st {
	char internal[128];
} sk_nccl_id;

/** A version as the library says it, from 2.9 on. */
#define SK_NCCL_VERSION(major, minor, patch)				\
	((major) * 10000 + (minor) * 100 + (patch))

/** Results that we tell from others. */
enum {
	SK_NCCL_SUCCESS = 0,
	SK_NCCL_CUDA_ERROR = 1,
	SK_NCCL_SYSTEM_ERROR = 2,
	SK_NCCL_INTERNAL_ERROR = 3,
	SK_NCCL_INVALID_ARGUMENT = 4,
	SK_NCCL_INVALID_USAGE = 5,
	SK_NCCL_REMOTE_ERROR = 6,
	SK_NCCL_IN_PROGRESS = 7
};

enum { SK_NCCL_UINT8 = 1 };

/** What nobody says, of a config. */
#define SK_NCCL_UNDEF INT_MIN
#define SK_NCCL_MAGIC 0xcafebeefu

/**
 * The beginning of ncclConfig_t: the library takes what its size covers, and
 * by its version knows what of it was meant. The last one is padding before
 * 2.26, so it has a value that says nothing.
 */
typedef struct sk_nccl_config_st {
	size_t size;
	unsigned magic;
	unsigned version;
	int blocking;
	int cga_cluster_size;
	int min_ctas, max_ctas;
	const char *net_name;
	int split_share;
	int traffic_class;
} sk_nccl_config;

#define SK_NCCL_CONFIG_VERSION SK_NCCL_VERSION(2, 18, 0)

/**
 * X(function, the version that brought it, need, result, parameters).
 */
#define SK_NCCL_TABLE(X)						\
	X(ncclGetVersion, SK_NCCL_VERSION(2, 3, 4), REQUIRED,		\
	  sk_nccl_result, (int *version))				\
	X(ncclGetErrorString, SK_NCCL_VERSION(2, 0, 0), REQUIRED,	\
	  const char *, (sk_nccl_result result))			\
	X(ncclGetLastError, SK_NCCL_VERSION(2, 13, 4), OPTIONAL,	\
	  const char *, (sk_nccl_comm comm))				\
	X(ncclGetUniqueId, SK_NCCL_VERSION(2, 0, 0), REQUIRED,		\
	  sk_nccl_result, (sk_nccl_id *id))				\
	X(ncclCommInitRankConfig, SK_NCCL_VERSION(2, 14, 3), REQUIRED,	\
	  sk_nccl_result, (sk_nccl_comm *comm, int n, sk_nccl_id id,	\
	  int rank, sk_nccl_config *config))				\
	X(ncclCommGetAsyncError, SK_NCCL_VERSION(2, 4, 2), REQUIRED,	\
	  sk_nccl_result, (sk_nccl_comm comm, sk_nccl_result *result))	\
	X(ncclCommAbort, SK_NCCL_VERSION(2, 4, 2), REQUIRED,		\
	  sk_nccl_result, (sk_nccl_comm comm))				\
	X(ncclCommFinalize, SK_NCCL_VERSION(2, 14, 3), REQUIRED,	\
	  sk_nccl_result, (sk_nccl_comm comm))				\
	X(ncclCommDestroy, SK_NCCL_VERSION(2, 0, 0), REQUIRED,		\
	  sk_nccl_result, (sk_nccl_comm comm))				\
	X(ncclGroupStart, SK_NCCL_VERSION(2, 0, 0), REQUIRED,		\
	  sk_nccl_result, (void))					\
	X(ncclGroupEnd, SK_NCCL_VERSION(2, 0, 0), REQUIRED,		\
	  sk_nccl_result, (void))					\
	X(ncclSend, SK_NCCL_VERSION(2, 7, 3), REQUIRED,			\
	  sk_nccl_result, (const void *from, size_t n,			\
	  sk_nccl_enum type, int peer, sk_nccl_comm comm,		\
	  sk_cu_stream stream))						\
	X(ncclRecv, SK_NCCL_VERSION(2, 7, 3), REQUIRED,			\
	  sk_nccl_result, (void *to, size_t n, sk_nccl_enum type,	\
	  int peer, sk_nccl_comm comm, sk_cu_stream stream))

#endif
