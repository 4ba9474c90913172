/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer calls of the driver and the product does not: the simulation
 * has it too, and tests play trainers with it. As the table of cuda/abi.h.
 */
#ifndef SK_TESTS_SIM_MORE_H
#define SK_TESTS_SIM_MORE_H

#include "cuda/abi.h"

/** Results that only trainers see. */
enum {
	VCU_ALREADY_MAPPED = 208,
	VCU_CONTEXT_IS_DESTROYED = 709,
	VCU_NOT_PERMITTED = 800,
	VCU_CAPTURE_INVALIDATED = 901
};

/** Whether what is mapped to be read can be page-locked, of a device. */
enum { VCU_DEVICE_READ_ONLY_REGISTER = 113 };

/** Memory for other nodes of a fabric, since 12.3: an attribute of a device,
 * and a kind of handle. */
enum { VCU_DEVICE_FABRIC_SUPPORTED = 128, VCU_HANDLE_FABRIC = 8 };

typedef struct CUgraph_st *vcu_graph;
typedef void (*vcu_host_function)(void *data);

#define VCUDA_MORE(X)							\
	X(cuGetErrorString, cuGetErrorString, 6000, REQUIRED,		\
	  (sk_cu_result result, const char **text))			\
	X(cuDeviceGetName, cuDeviceGetName, 2000, REQUIRED,		\
	  (char *name, int size, sk_cu_device device))			\
	X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000,	\
	  REQUIRED, (sk_cu_device device, unsigned *flags, int *active)) \
	X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, REQUIRED,		\
	  (sk_cu_context *context))					\
	X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, REQUIRED,		\
	  (sk_cu_context context))					\
	X(cuCtxGetDevice, cuCtxGetDevice, 2000, REQUIRED,		\
	  (sk_cu_device *device))					\
	X(cuMemsetD8Async, cuMemsetD8Async, 3020, REQUIRED,		\
	  (sk_cu_ptr ptr, unsigned char byte, size_t bytes,		\
	  sk_cu_stream stream))						\
	X(cuStreamCreate, cuStreamCreate, 2000, REQUIRED,		\
	  (sk_cu_stream *stream, unsigned flags))			\
	X(cuStreamQuery, cuStreamQuery, 2000, REQUIRED,			\
	  (sk_cu_stream stream))					\
	X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010,		\
	  REQUIRED, (sk_cu_stream stream, sk_cu_enum mode))		\
	X(cuStreamEndCapture, cuStreamEndCapture, 10000, REQUIRED,	\
	  (sk_cu_stream stream, vcu_graph *graph))			\
	X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, REQUIRED,		\
	  (sk_cu_stream stream, vcu_host_function function, void *data))

#endif
