/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer calls of the driver and the product does not: the simulation
 * has it too, and tests play trainers with it. As the table of cuda/abi.h.
 */
#ifndef SK_TESTS_SIM_MORE_H
#define SK_TESTS_SIM_MORE_H

#include "cuda/abi.h"

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
	  (sk_cu_device *device))

#endif
