/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's binary interface, as far as we use it: its types, its
 * constants, and one table of its functions.
 *
 * We declare it ourselves, so that a binary is the same wherever it was built;
 * where the toolkit is installed, abi-check.c compares every line of it with
 * the toolkit's own headers, and what differs does not compile. Structs of the
 * driver that nobody looks into keep the driver's tags.
 */
#ifndef SK_CACHE_CUDA_ABI_H
#define SK_CACHE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/** Enumerations of the driver have no negative values. */
typedef unsigned sk_cu_result;
typedef unsigned sk_cu_enum;
typedef int sk_cu_device;
typedef unsigned long long sk_cu_ptr;
typedef struct CUctx_st *sk_cu_context;
typedef struct CUstream_st *sk_cu_stream;
typedef struct CUevent_st *sk_cu_event;

/** Results that we tell from others. */
enum {
	SK_CU_SUCCESS = 0,
	SK_CU_INVALID_VALUE = 1,
	SK_CU_OUT_OF_MEMORY = 2,
	SK_CU_NOT_INITIALIZED = 3,
	SK_CU_STUB_LIBRARY = 34,
	SK_CU_NO_DEVICE = 100,
	SK_CU_INVALID_DEVICE = 101,
	SK_CU_INVALID_CONTEXT = 201,
	SK_CU_INVALID_HANDLE = 400,
	SK_CU_NOT_FOUND = 500,
	SK_CU_NOT_READY = 600,
	SK_CU_ILLEGAL_ADDRESS = 700,
	SK_CU_ALREADY_REGISTERED = 712,
	SK_CU_NOT_REGISTERED = 713,
	SK_CU_LAUNCH_FAILED = 719,
	SK_CU_NOT_SUPPORTED = 801,
	SK_CU_CAPTURE_UNSUPPORTED = 900,
	SK_CU_CAPTURE_IMPLICIT = 906,
	SK_CU_CAPTURE_WRONG_THREAD = 908
};

/** Flags and modes, by the name of what they are for. */
enum {
	SK_CU_CAPTURE_MODE_RELAXED = 2,
	SK_CU_PROC_ADDRESS_FOUND = 0
};

/**
 * X(function, name that the library exports, version, need, parameters).
 *
 * The version is that of the function's typedef in cudaTypedefs.h, and no
 * other: a later one may be another function with other parameters
 * (cuCtxSynchronize of 13000 takes a context).
 */
#define SK_CUDA_TABLE(X)						\
	X(cuInit, cuInit, 2000, REQUIRED, (unsigned flags))		\
	X(cuDriverGetVersion, cuDriverGetVersion, 2020, REQUIRED,	\
	  (int *version))						\
	X(cuGetErrorName, cuGetErrorName, 6000, REQUIRED,		\
	  (sk_cu_result result, const char **text))			\
	X(cuDeviceGetCount, cuDeviceGetCount, 2000, REQUIRED, (int *n))	\
	X(cuDeviceGet, cuDeviceGet, 2000, REQUIRED,			\
	  (sk_cu_device *device, int ordinal))				\
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,	\
	  REQUIRED, (sk_cu_context *context, sk_cu_device device))	\
	X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,	\
	  11000, REQUIRED, (sk_cu_device device))			\
	X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, REQUIRED,	\
	  (sk_cu_context context))					\
	X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, REQUIRED,		\
	  (sk_cu_context *context))					\
	X(cuThreadExchangeStreamCaptureMode,				\
	  cuThreadExchangeStreamCaptureMode, 10010, OPTIONAL,		\
	  (sk_cu_enum *mode))

/** How all others are found; by dlsym, since 12.0. */
typedef sk_cu_result (*sk_cu_get_proc)(const char *name, void **ret,
				       int version, uint64_t flags,
				       sk_cu_enum *ret_found);

#endif
