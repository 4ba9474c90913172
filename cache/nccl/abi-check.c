/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our declarations of NCCL's interface against its header. Compiled where that
 * is; makes no code.
 */
#include "nccl/abi.h"

#include <nccl.h>

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
#define SAME_TYPE(a, b)							\
	_Static_assert(__builtin_types_compatible_p(a, b),		\
		       #a " is not " #b)
#define SAME_FIELD(ours, theirs)					\
	SAME(offsetof(sk_nccl_config, ours),				\
	     offsetof(ncclConfig_t, theirs))

SAME_TYPE(sk_nccl_comm, ncclComm_t);
SAME_TYPE(sk_cu_stream, cudaStream_t);
SAME(sizeof(sk_nccl_result), sizeof(ncclResult_t));
SAME(sizeof(sk_nccl_enum), sizeof(ncclDataType_t));
SAME(sizeof(sk_nccl_id), sizeof(ncclUniqueId));
SAME(_Alignof(sk_nccl_id), _Alignof(ncclUniqueId));

_Static_assert(sizeof(sk_nccl_config) <= sizeof(ncclConfig_t), "a prefix");
SAME_FIELD(size, size);
SAME_FIELD(magic, magic);
SAME_FIELD(version, version);
SAME_FIELD(blocking, blocking);
SAME_FIELD(cga_cluster_size, cgaClusterSize);
SAME_FIELD(min_ctas, minCTAs);
SAME_FIELD(max_ctas, maxCTAs);
SAME_FIELD(net_name, netName);
SAME_FIELD(split_share, splitShare);
#if NCCL_VERSION_CODE >= 22600
SAME_FIELD(traffic_class, trafficClass);
#endif

SAME(SK_NCCL_CUDA_ERROR, (int)ncclUnhandledCudaError);
SAME(SK_NCCL_SYSTEM_ERROR, (int)ncclSystemError);
SAME(SK_NCCL_INTERNAL_ERROR, (int)ncclInternalError);
SAME(SK_NCCL_INVALID_ARGUMENT, (int)ncclInvalidArgument);
SAME(SK_NCCL_INVALID_USAGE, (int)ncclInvalidUsage);
SAME(SK_NCCL_REMOTE_ERROR, (int)ncclRemoteError);
SAME(SK_NCCL_IN_PROGRESS, (int)ncclInProgress);
SAME(SK_NCCL_UINT8, (int)ncclUint8);
SAME(SK_NCCL_UNDEF, NCCL_CONFIG_UNDEF_INT);
SAME(SK_NCCL_VERSION(2, 18, 3), NCCL_VERSION(2, 18, 3));

/* The layouts agree: from here on one may stand for the other. */
#define sk_nccl_id ncclUniqueId
#define sk_nccl_config ncclConfig_t

/* Enumerations are not the compiler's unsigned in parameters of functions. */
#define sk_nccl_result ncclResult_t
#define sk_nccl_enum ncclDataType_t
#define SAME_FUNCTION(function, since, need, result, params)		\
	SAME_TYPE(__typeof__(function), __typeof__(result) params);
SK_NCCL_TABLE(SAME_FUNCTION)
