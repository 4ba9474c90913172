/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our declarations of the driver's interface against the toolkit's. Compiled
 * where the toolkit's headers are; makes no code.
 */
#include "cuda/abi.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
#define SAME_TYPE(a, b)							\
	_Static_assert(__builtin_types_compatible_p(a, b),		\
		       #a " is not " #b)
/* ---- types ---- */

SAME_TYPE(sk_cu_device, CUdevice);
SAME_TYPE(sk_cu_ptr, CUdeviceptr);
SAME_TYPE(sk_cu_context, CUcontext);
SAME_TYPE(sk_cu_stream, CUstream);
SAME_TYPE(sk_cu_event, CUevent);
SAME(sizeof(sk_cu_result), sizeof(CUresult));

/* ---- constants ---- */

SAME(SK_CU_INVALID_VALUE, (int)CUDA_ERROR_INVALID_VALUE);
SAME(SK_CU_OUT_OF_MEMORY, (int)CUDA_ERROR_OUT_OF_MEMORY);
SAME(SK_CU_NOT_INITIALIZED, (int)CUDA_ERROR_NOT_INITIALIZED);
SAME(SK_CU_STUB_LIBRARY, (int)CUDA_ERROR_STUB_LIBRARY);
SAME(SK_CU_NO_DEVICE, (int)CUDA_ERROR_NO_DEVICE);
SAME(SK_CU_INVALID_DEVICE, (int)CUDA_ERROR_INVALID_DEVICE);
SAME(SK_CU_INVALID_CONTEXT, (int)CUDA_ERROR_INVALID_CONTEXT);
SAME(SK_CU_INVALID_HANDLE, (int)CUDA_ERROR_INVALID_HANDLE);
SAME(SK_CU_NOT_FOUND, (int)CUDA_ERROR_NOT_FOUND);
SAME(SK_CU_NOT_READY, (int)CUDA_ERROR_NOT_READY);
SAME(SK_CU_ILLEGAL_ADDRESS, (int)CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(SK_CU_ALREADY_REGISTERED,
     (int)CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(SK_CU_NOT_REGISTERED, (int)CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(SK_CU_LAUNCH_FAILED, (int)CUDA_ERROR_LAUNCH_FAILED);
SAME(SK_CU_NOT_SUPPORTED, (int)CUDA_ERROR_NOT_SUPPORTED);
SAME(SK_CU_CAPTURE_UNSUPPORTED, (int)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(SK_CU_CAPTURE_IMPLICIT, (int)CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(SK_CU_CAPTURE_WRONG_THREAD, (int)CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);

SAME(SK_CU_CAPTURE_MODE_RELAXED, (int)CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(SK_CU_PROC_ADDRESS_FOUND, (int)CU_GET_PROC_ADDRESS_SUCCESS);

/* ---- functions ---- */

#define SAME_FUNCTION(function, exported, version, need, params)	\
	SAME_TYPE(PFN_##function##_v##version, sk_cu_result(*) params);
SK_CUDA_TABLE(SAME_FUNCTION)

SAME_TYPE(PFN_cuGetProcAddress_v12000, sk_cu_get_proc);
