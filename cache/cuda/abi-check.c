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
#define SAME_FIELD(ours, theirs)					\
	SAME(offsetof(sk_cu_memcpy2d, ours),				\
	     offsetof(CUDA_MEMCPY2D, theirs))

/* ---- types ---- */

SAME_TYPE(sk_cu_device, CUdevice);
SAME_TYPE(sk_cu_ptr, CUdeviceptr);
SAME_TYPE(sk_cu_context, CUcontext);
SAME_TYPE(sk_cu_stream, CUstream);
SAME_TYPE(sk_cu_event, CUevent);
SAME(sizeof(sk_cu_result), sizeof(CUresult));

SAME(sizeof(sk_cu_memcpy2d), sizeof(CUDA_MEMCPY2D));
SAME_FIELD(src_x, srcXInBytes);
SAME_FIELD(src_y, srcY);
SAME_FIELD(src_type, srcMemoryType);
SAME_FIELD(src_host, srcHost);
SAME_FIELD(src_device, srcDevice);
SAME_FIELD(src_array, srcArray);
SAME_FIELD(src_pitch, srcPitch);
SAME_FIELD(dst_x, dstXInBytes);
SAME_FIELD(dst_y, dstY);
SAME_FIELD(dst_type, dstMemoryType);
SAME_FIELD(dst_host, dstHost);
SAME_FIELD(dst_device, dstDevice);
SAME_FIELD(dst_array, dstArray);
SAME_FIELD(dst_pitch, dstPitch);
SAME_FIELD(width, WidthInBytes);
SAME_FIELD(height, Height);

#define SAME_FIELD_3D(ours, theirs)					\
	SAME(offsetof(sk_cu_memcpy3d, ours),				\
	     offsetof(CUDA_MEMCPY3D, theirs))
SAME(sizeof(sk_cu_memcpy3d), sizeof(CUDA_MEMCPY3D));
SAME_FIELD_3D(src_x, srcXInBytes);
SAME_FIELD_3D(src_y, srcY);
SAME_FIELD_3D(src_z, srcZ);
SAME_FIELD_3D(src_lod, srcLOD);
SAME_FIELD_3D(src_type, srcMemoryType);
SAME_FIELD_3D(src_host, srcHost);
SAME_FIELD_3D(src_device, srcDevice);
SAME_FIELD_3D(src_array, srcArray);
SAME_FIELD_3D(src_reserved, reserved0);
SAME_FIELD_3D(src_pitch, srcPitch);
SAME_FIELD_3D(src_height, srcHeight);
SAME_FIELD_3D(dst_x, dstXInBytes);
SAME_FIELD_3D(dst_y, dstY);
SAME_FIELD_3D(dst_z, dstZ);
SAME_FIELD_3D(dst_lod, dstLOD);
SAME_FIELD_3D(dst_type, dstMemoryType);
SAME_FIELD_3D(dst_host, dstHost);
SAME_FIELD_3D(dst_device, dstDevice);
SAME_FIELD_3D(dst_array, dstArray);
SAME_FIELD_3D(dst_reserved, reserved1);
SAME_FIELD_3D(dst_pitch, dstPitch);
SAME_FIELD_3D(dst_height, dstHeight);
SAME_FIELD_3D(width, WidthInBytes);
SAME_FIELD_3D(height, Height);
SAME_FIELD_3D(depth, Depth);

#define SAME_ATTRIBUTE(ours, theirs)					\
	SAME(offsetof(sk_cu_copy_attributes, ours),			\
	     offsetof(CUmemcpyAttributes, theirs))
SAME(sizeof(sk_cu_copy_attributes), sizeof(CUmemcpyAttributes));
SAME_ATTRIBUTE(source_order, srcAccessOrder);
SAME_ATTRIBUTE(src.type, srcLocHint.type);
SAME_ATTRIBUTE(src.id, srcLocHint.id);
SAME_ATTRIBUTE(dst.type, dstLocHint.type);
SAME_ATTRIBUTE(dst.id, dstLocHint.id);
SAME_ATTRIBUTE(flags, flags);

SAME_TYPE(sk_cu_handle, CUmemGenericAllocationHandle);
SAME(sizeof(sk_cu_uuid), sizeof(CUuuid));
#define SAME_ALLOCATION(ours, theirs)					\
	SAME(offsetof(sk_cu_allocation, ours),				\
	     offsetof(CUmemAllocationProp, theirs))
SAME(sizeof(sk_cu_allocation), sizeof(CUmemAllocationProp));
SAME_ALLOCATION(type, type);
SAME_ALLOCATION(handles, requestedHandleTypes);
SAME_ALLOCATION(location.type, location.type);
SAME_ALLOCATION(location.id, location.id);
SAME_ALLOCATION(of_windows, win32HandleMetaData);
SAME_ALLOCATION(flags, allocFlags);
SAME(sizeof(sk_cu_access), sizeof(CUmemAccessDesc));
SAME(offsetof(sk_cu_access, location.id),
     offsetof(CUmemAccessDesc, location.id));
SAME(offsetof(sk_cu_access, flags), offsetof(CUmemAccessDesc, flags));

/* ---- constants ---- */

SAME(SK_CU_INVALID_VALUE, (int)CUDA_ERROR_INVALID_VALUE);
SAME(SK_CU_OUT_OF_MEMORY, (int)CUDA_ERROR_OUT_OF_MEMORY);
SAME(SK_CU_NOT_INITIALIZED, (int)CUDA_ERROR_NOT_INITIALIZED);
SAME(SK_CU_STUB_LIBRARY, (int)CUDA_ERROR_STUB_LIBRARY);
SAME(SK_CU_DEVICE_UNAVAILABLE, (int)CUDA_ERROR_DEVICE_UNAVAILABLE);
SAME(SK_CU_DEVICE_COMPUTE_MODE, (int)CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(SK_CU_COMPUTE_DEFAULT, (int)CU_COMPUTEMODE_DEFAULT);
SAME(SK_CU_COMPUTE_EXCLUSIVE, (int)CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
SAME(SK_CU_NO_DEVICE, (int)CUDA_ERROR_NO_DEVICE);
SAME(SK_CU_INVALID_DEVICE, (int)CUDA_ERROR_INVALID_DEVICE);
SAME(SK_CU_INVALID_CONTEXT, (int)CUDA_ERROR_INVALID_CONTEXT);
SAME(SK_CU_INVALID_HANDLE, (int)CUDA_ERROR_INVALID_HANDLE);
SAME(SK_CU_NOT_FOUND, (int)CUDA_ERROR_NOT_FOUND);
SAME(SK_CU_INVALID_PTX, (int)CUDA_ERROR_INVALID_PTX);
SAME(SK_CU_NO_COMPILER, (int)CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
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

SAME(SK_CU_EVENT_BLOCKING_SYNC, (int)CU_EVENT_BLOCKING_SYNC);
SAME(SK_CU_EVENT_DISABLE_TIMING, (int)CU_EVENT_DISABLE_TIMING);
SAME(SK_CU_STREAM_NON_BLOCKING, (int)CU_STREAM_NON_BLOCKING);
SAME(SK_CU_HOST_REGISTER_PORTABLE, (int)CU_MEMHOSTREGISTER_PORTABLE);
SAME(SK_CU_HOST_REGISTER_READ_ONLY, (int)CU_MEMHOSTREGISTER_READ_ONLY);
SAME(SK_CU_MEMORY_HOST, (int)CU_MEMORYTYPE_HOST);
SAME(SK_CU_MEMORY_DEVICE, (int)CU_MEMORYTYPE_DEVICE);
SAME(SK_CU_POINTER_MEMORY_TYPE, (int)CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(SK_CU_POINTER_BUFFER_ID, (int)CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(SK_CU_POINTER_DEVICE_ORDINAL, (int)CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(SK_CU_POINTER_OF_ALLOC,
     (int)CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(SK_CU_POINTER_RANGE_START, (int)CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(SK_CU_POINTER_RANGE_SIZE, (int)CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(SK_CU_DEVICE_MAX_PITCH, (int)CU_DEVICE_ATTRIBUTE_MAX_PITCH);
SAME(SK_CU_DEVICE_PCI_BUS, (int)CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(SK_CU_DEVICE_PCI_DEVICE, (int)CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME(SK_CU_DEVICE_PCI_DOMAIN, (int)CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME(SK_CU_DEVICE_HOST_NUMA_ID, (int)CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
SAME(SK_CU_DEVICE_HOST_POINTERS,
     (int)CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(SK_CU_DEVICE_HOST_REGISTER_SUPPORTED,
     (int)CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
SAME(SK_CU_DEVICE_POSIX_FD_SUPPORTED, (int)
     CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(SK_CU_ALLOCATION_PINNED, (int)CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(SK_CU_HANDLE_POSIX_FD, (int)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(SK_CU_ACCESS_READ, (int)CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(SK_CU_ACCESS_READ_WRITE, (int)CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(SK_CU_GRANULARITY_MINIMUM, (int)CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(SK_CU_CAPTURE_NONE, (int)CU_STREAM_CAPTURE_STATUS_NONE);
SAME(SK_CU_CAPTURE_MODE_RELAXED, (int)CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(SK_CU_LOCATION_DEVICE, (int)CU_MEM_LOCATION_TYPE_DEVICE);
SAME(SK_CU_LOCATION_HOST, (int)CU_MEM_LOCATION_TYPE_HOST);
SAME(SK_CU_LOCATION_HOST_NUMA, (int)CU_MEM_LOCATION_TYPE_HOST_NUMA);
SAME(SK_CU_SOURCE_IN_STREAM_ORDER, (int)CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME(SK_CU_COPY_OVERLAP, (int)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
SAME(SK_CU_IPC_PEER_ACCESS, (int)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(SK_CU_PROC_ADDRESS_FOUND, (int)CU_GET_PROC_ADDRESS_SUCCESS);

/* ---- functions ---- */

/* The layouts agree: from here on one may stand for the other. */
#define sk_cu_memcpy2d CUDA_MEMCPY2D
#define sk_cu_memcpy3d CUDA_MEMCPY3D
#define sk_cu_copy_attributes CUmemcpyAttributes
#define sk_cu_uuid CUuuid
#define sk_cu_allocation CUmemAllocationProp
#define sk_cu_access CUmemAccessDesc
#define sk_cu_ipc CUipcMemHandle

#define SAME_FUNCTION(function, exported, version, need, params)	\
	SAME_TYPE(PFN_##function##_v##version, sk_cu_result(*) params);
SK_CUDA_TABLE(SAME_FUNCTION)

SAME_TYPE(PFN_cuMemcpyBatchAsync_v12080, sk_cu_result(*) SK_CU_BATCH_12080);
SAME_TYPE(PFN_cuDeviceGetUuid_v9020, sk_cu_result(*) SK_CU_GET_UUID_9020);
SAME_TYPE(PFN_cuGetProcAddress_v12000, sk_cu_get_proc);
