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
typedef struct CUmod_st *sk_cu_module;
typedef struct CUfunc_st *sk_cu_function;
typedef unsigned long long sk_cu_handle;	/* of memory without address */

/** Results that we tell from others. */
enum {
	SK_CU_SUCCESS = 0,
	SK_CU_INVALID_VALUE = 1,
	SK_CU_OUT_OF_MEMORY = 2,
	SK_CU_NOT_INITIALIZED = 3,
	SK_CU_STUB_LIBRARY = 34,
	SK_CU_DEVICE_UNAVAILABLE = 46,
	SK_CU_NO_DEVICE = 100,
	SK_CU_INVALID_DEVICE = 101,
	SK_CU_INVALID_CONTEXT = 201,
	SK_CU_INVALID_PTX = 218,
	SK_CU_NO_COMPILER = 221,
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

/** Flags, attributes and kinds, by the name of what they are for. */
enum {
	SK_CU_EVENT_BLOCKING_SYNC = 1,
	SK_CU_EVENT_DISABLE_TIMING = 2,
	SK_CU_STREAM_NON_BLOCKING = 1,
	SK_CU_STREAM_LEGACY = 1,	/* as a handle */
	SK_CU_STREAM_PER_THREAD = 2,	/* as a handle */
	SK_CU_HOST_REGISTER_PORTABLE = 1,
	SK_CU_HOST_REGISTER_READ_ONLY = 8,
	SK_CU_MEMORY_HOST = 1,
	SK_CU_MEMORY_DEVICE = 2,
	SK_CU_POINTER_MEMORY_TYPE = 2,
	SK_CU_POINTER_BUFFER_ID = 7,
	SK_CU_POINTER_DEVICE_ORDINAL = 9,
	SK_CU_POINTER_OF_ALLOC = 10,	/* cuIpc would take it */
	SK_CU_POINTER_RANGE_START = 11,
	SK_CU_POINTER_RANGE_SIZE = 12,
	SK_CU_DEVICE_MAX_PITCH = 11,
	SK_CU_DEVICE_COMPUTE_MODE = 20,
	SK_CU_DEVICE_PCI_BUS = 33,
	SK_CU_DEVICE_PCI_DEVICE = 34,
	SK_CU_DEVICE_PCI_DOMAIN = 50,
	SK_CU_DEVICE_HOST_POINTERS = 91,	/* serve for locked memory */
	SK_CU_DEVICE_HOST_REGISTER_SUPPORTED = 99,
	SK_CU_DEVICE_POSIX_FD_SUPPORTED = 103,
	SK_CU_DEVICE_HOST_NUMA_ID = 134,	/* since 12.2 */
	SK_CU_COMPUTE_DEFAULT = 0,
	SK_CU_COMPUTE_EXCLUSIVE = 3,	/* contexts of one process */
	SK_CU_ALLOCATION_PINNED = 1,
	SK_CU_HANDLE_POSIX_FD = 1,
	SK_CU_ACCESS_READ = 1,
	SK_CU_ACCESS_READ_WRITE = 3,
	SK_CU_GRANULARITY_MINIMUM = 0,
	SK_CU_CAPTURE_NONE = 0,
	SK_CU_CAPTURE_MODE_RELAXED = 2,
	SK_CU_LOCATION_DEVICE = 1,
	SK_CU_LOCATION_HOST = 2,
	SK_CU_LOCATION_HOST_NUMA = 3,
	SK_CU_SOURCE_IN_STREAM_ORDER = 1,
	SK_CU_COPY_OVERLAP = 1,		/* with kernels, if it may be */
	SK_CU_IPC_PEER_ACCESS = 1,	/* the only flag, and asked for */
	SK_CU_PROC_ADDRESS_FOUND = 0
};

/** A device, of all processes. */
typedef struct sk_cu_uuid_st {
	char bytes[16];
} sk_cu_uuid;

/** Memory with an address, for another process: CUipcMemHandle. */
typedef struct sk_cu_ipc_st {
	char bytes[64];
} sk_cu_ipc;

typedef struct sk_cu_location_st {
	sk_cu_enum type;		/* SK_CU_LOCATION_... */
	int id;				/* of the device */
} sk_cu_location;

/** What memory without an address is to be: CUmemAllocationProp. */
typedef struct sk_cu_allocation_st {
	sk_cu_enum type;		/* SK_CU_ALLOCATION_PINNED */
	sk_cu_enum handles;		/* that it may be exported as */
	sk_cu_location location;
	void *of_windows;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
} sk_cu_allocation;

/** Who may do what with mapped memory: CUmemAccessDesc. */
typedef struct sk_cu_access_st {
	sk_cu_location location;
	sk_cu_enum flags;		/* SK_CU_ACCESS_... */
} sk_cu_access;

/** Of copies in a batch: when sources are read, and where both sides lie. */
typedef struct sk_cu_copy_attributes_st {
	sk_cu_enum source_order;	/* SK_CU_SOURCE_... */
	struct {
		sk_cu_enum type;	/* SK_CU_LOCATION_... */
		int id;			/* of the device */
	} src, dst;
	unsigned flags;
} sk_cu_copy_attributes;

/** A copy of @height rows of @width bytes. */
typedef struct sk_cu_memcpy2d_st {
	size_t src_x, src_y;		/* bytes, rows */
	sk_cu_enum src_type;		/* SK_CU_MEMORY_... */
	const void *src_host;
	sk_cu_ptr src_device;
	void *src_array;
	size_t src_pitch;
	size_t dst_x, dst_y;
	sk_cu_enum dst_type;
	void *dst_host;
	sk_cu_ptr dst_device;
	void *dst_array;
	size_t dst_pitch;
	size_t width, height;
} sk_cu_memcpy2d;

/** A copy of @depth times @height rows of @width bytes: CUDA_MEMCPY3D. */
typedef struct sk_cu_memcpy3d_st {
	size_t src_x, src_y, src_z;	/* bytes, rows, planes */
	size_t src_lod;
	sk_cu_enum src_type;		/* SK_CU_MEMORY_... */
	const void *src_host;
	sk_cu_ptr src_device;
	void *src_array;
	void *src_reserved;
	size_t src_pitch, src_height;	/* bytes; rows from plane to plane */
	size_t dst_x, dst_y, dst_z;
	size_t dst_lod;
	sk_cu_enum dst_type;
	void *dst_host;
	sk_cu_ptr dst_device;
	void *dst_array;
	void *dst_reserved;
	size_t dst_pitch, dst_height;
	size_t width, height, depth;
} sk_cu_memcpy3d;

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
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, REQUIRED,	\
	  (int *value, sk_cu_enum attribute, sk_cu_device device))	\
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,	\
	  REQUIRED, (sk_cu_context *context, sk_cu_device device))	\
	X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2,	\
	  11000, REQUIRED, (sk_cu_device device))			\
	X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, REQUIRED,	\
	  (sk_cu_context context))					\
	X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, REQUIRED,		\
	  (sk_cu_context *context))					\
	X(cuCtxSynchronize, cuCtxSynchronize, 2000, REQUIRED, (void))	\
	X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange,	\
	  5050, REQUIRED, (int *least, int *greatest))			\
	X(cuPointerGetAttributes, cuPointerGetAttributes, 7000,		\
	  REQUIRED, (unsigned n, sk_cu_enum *attributes, void **values,	\
	  sk_cu_ptr ptr))						\
	X(cuMemAlloc, cuMemAlloc_v2, 3020, REQUIRED,			\
	  (sk_cu_ptr *ptr, size_t bytes))				\
	X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020,		\
	  REQUIRED, (sk_cu_ptr *start, size_t *bytes, sk_cu_ptr ptr))	\
	X(cuMemFree, cuMemFree_v2, 3020, REQUIRED, (sk_cu_ptr ptr))	\
	X(cuMemHostRegister, cuMemHostRegister_v2, 6050, REQUIRED,	\
	  (void *ptr, size_t bytes, unsigned flags))			\
	X(cuMemHostUnregister, cuMemHostUnregister, 4000, REQUIRED,	\
	  (void *ptr))							\
	X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050,	\
	  REQUIRED, (sk_cu_stream *stream, unsigned flags,		\
	  int priority))						\
	X(cuStreamDestroy, cuStreamDestroy_v2, 4000, REQUIRED,		\
	  (sk_cu_stream stream))					\
	X(cuStreamSynchronize, cuStreamSynchronize, 2000, REQUIRED,	\
	  (sk_cu_stream stream))					\
	X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, REQUIRED,		\
	  (sk_cu_stream stream, sk_cu_event event, unsigned flags))	\
	X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, REQUIRED,	\
	  (sk_cu_stream stream, sk_cu_enum *status))			\
	X(cuStreamGetCtx, cuStreamGetCtx, 9020, REQUIRED,		\
	  (sk_cu_stream stream, sk_cu_context *context))		\
	X(cuEventCreate, cuEventCreate, 2000, REQUIRED,			\
	  (sk_cu_event *event, unsigned flags))				\
	X(cuEventRecord, cuEventRecord, 2000, REQUIRED,			\
	  (sk_cu_event event, sk_cu_stream stream))			\
	X(cuEventQuery, cuEventQuery, 2000, REQUIRED,			\
	  (sk_cu_event event))						\
	X(cuEventSynchronize, cuEventSynchronize, 2000, REQUIRED,	\
	  (sk_cu_event event))						\
	X(cuEventDestroy, cuEventDestroy_v2, 4000, REQUIRED,		\
	  (sk_cu_event event))						\
	X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, REQUIRED,	\
	  (void *dst, sk_cu_ptr src, size_t bytes, sk_cu_stream stream)) \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, REQUIRED,	\
	  (sk_cu_ptr dst, const void *src, size_t bytes,		\
	  sk_cu_stream stream))						\
	X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, REQUIRED,	\
	  (sk_cu_ptr dst, sk_cu_ptr src, size_t bytes,			\
	  sk_cu_stream stream))						\
	X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, 3020, REQUIRED,		\
	  (const sk_cu_memcpy2d *copy, sk_cu_stream stream))		\
	X(cuMemcpy3DAsync, cuMemcpy3DAsync_v2, 3020, REQUIRED,		\
	  (const sk_cu_memcpy3d *copy, sk_cu_stream stream))		\
	X(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, 13000, OPTIONAL,	\
	  (sk_cu_ptr *dsts, sk_cu_ptr *srcs, size_t *sizes, size_t n,	\
	  sk_cu_copy_attributes *attributes, size_t *first_of,		\
	  size_t n_attributes, sk_cu_stream stream))			\
	X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, OPTIONAL,		\
	  (sk_cu_uuid *uuid, sk_cu_device device))			\
	X(cuMemGetInfo, cuMemGetInfo_v2, 3020, OPTIONAL,		\
	  (size_t *left, size_t *all))					\
	X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity,	\
	  10020, OPTIONAL, (size_t *bytes,				\
	  const sk_cu_allocation *what, sk_cu_enum which))		\
	X(cuMemCreate, cuMemCreate, 10020, OPTIONAL,			\
	  (sk_cu_handle *handle, size_t bytes,				\
	  const sk_cu_allocation *what, unsigned long long flags))	\
	X(cuMemRelease, cuMemRelease, 10020, OPTIONAL,			\
	  (sk_cu_handle handle))					\
	X(cuMemExportToShareableHandle, cuMemExportToShareableHandle,	\
	  10020, OPTIONAL, (void *ret, sk_cu_handle handle,		\
	  sk_cu_enum type, unsigned long long flags))			\
	X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, \
	  10020, OPTIONAL, (sk_cu_handle *handle, void *from,		\
	  sk_cu_enum type))						\
	X(cuMemAddressReserve, cuMemAddressReserve, 10020, OPTIONAL,	\
	  (sk_cu_ptr *ptr, size_t bytes, size_t alignment,		\
	  sk_cu_ptr at, unsigned long long flags))			\
	X(cuMemAddressFree, cuMemAddressFree, 10020, OPTIONAL,		\
	  (sk_cu_ptr ptr, size_t bytes))				\
	X(cuMemMap, cuMemMap, 10020, OPTIONAL,				\
	  (sk_cu_ptr ptr, size_t bytes, size_t offset,			\
	  sk_cu_handle handle, unsigned long long flags))		\
	X(cuMemUnmap, cuMemUnmap, 10020, OPTIONAL,			\
	  (sk_cu_ptr ptr, size_t bytes))				\
	X(cuMemSetAccess, cuMemSetAccess, 10020, OPTIONAL,		\
	  (sk_cu_ptr ptr, size_t bytes, const sk_cu_access *access,	\
	  size_t n))							\
	X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, OPTIONAL,		\
	  (sk_cu_ipc *handle, sk_cu_ptr ptr))				\
	X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, OPTIONAL,	\
	  (sk_cu_ptr *ptr, sk_cu_ipc handle, unsigned flags))		\
	X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, OPTIONAL,	\
	  (sk_cu_ptr ptr))						\
	X(cuThreadExchangeStreamCaptureMode,				\
	  cuThreadExchangeStreamCaptureMode, 10010, OPTIONAL,		\
	  (sk_cu_enum *mode))						\
	X(cuModuleLoadData, cuModuleLoadData, 2000, OPTIONAL,		\
	  (sk_cu_module *module, const void *image))			\
	X(cuModuleUnload, cuModuleUnload, 2000, OPTIONAL,		\
	  (sk_cu_module module))					\
	X(cuModuleGetFunction, cuModuleGetFunction, 2000, OPTIONAL,	\
	  (sk_cu_function *function, sk_cu_module module,		\
	  const char *name))						\
	X(cuFuncLoad, cuFuncLoad, 12040, OPTIONAL,			\
	  (sk_cu_function function))					\
	X(cuLaunchKernel, cuLaunchKernel, 4000, OPTIONAL,		\
	  (sk_cu_function function, unsigned grid_x, unsigned grid_y,	\
	  unsigned grid_z, unsigned block_x, unsigned block_y,		\
	  unsigned block_z, unsigned shared_bytes, sk_cu_stream stream,	\
	  void **params, void **extra))

/** Batches before CUDA 13: one parameter more, under the same name. */
#define SK_CU_BATCH_12080						\
	(sk_cu_ptr *dsts, sk_cu_ptr *srcs, size_t *sizes, size_t n,	\
	 sk_cu_copy_attributes *attributes, size_t *first_of,		\
	 size_t n_attributes, size_t *failed, sk_cu_stream stream)
typedef sk_cu_result(*sk_cu_batch_12080) SK_CU_BATCH_12080;

/** The GPU's name, whatever it is split into: as it was before 11.4. */
#define SK_CU_GET_UUID_9020						\
	(sk_cu_uuid *ret_uuid, sk_cu_device device)
typedef sk_cu_result(*sk_cu_get_uuid_9020) SK_CU_GET_UUID_9020;

/** How all others are found; by dlsym, since 12.0. */
typedef sk_cu_result (*sk_cu_get_proc)(const char *name, void **ret,
				       int version, uint64_t flags,
				       sk_cu_enum *ret_found);

#endif
