/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver, inside. See README.md.
 *
 * All of a process's state hangs on one struct, under one lock; what a thread
 * has (its stack of contexts) is the thread's own.
 */
#ifndef SK_TESTS_SIM_VCUDA_H
#define SK_TESTS_SIM_VCUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda/abi.h"
#include "more.h"

#define VCU_API __attribute__((visibility("default")))
#define VCU_DEVICES_MAX 16

#define VCU_DECLARE(function, exported, version, need, params)		\
	VCU_API sk_cu_result exported params;
SK_CUDA_TABLE(VCU_DECLARE)
VCUDA_MORE(VCU_DECLARE)

/** A number for each function, for counting. */
#define VCU_NUMBER(function, exported, version, need, params)		\
	VCU_##function,
enum vcu_function {
	SK_CUDA_TABLE(VCU_NUMBER)
	VCUDA_MORE(VCU_NUMBER)
	VCU_FUNCTIONS
};

/** A primary context, which is also its handle. */
struct CUctx_st {
	int device;
	unsigned refs;		/* 0: not active */
};

struct vcu {
	pthread_mutex_t lock;
	bool initialized;
	pid_t pid;		/* that initialized it */
	int n_devices;
	struct CUctx_st contexts[VCU_DEVICES_MAX];
	uint64_t calls[VCU_FUNCTIONS];	/* atomic */
};

struct vcu *vcu(void);
void vcu_lock(void);
void vcu_unlock(void);

/** What $VCUDA_MODE says, "" without. */
bool vcu_mode(const char *mode);
/** A number of the environment. */
long vcu_setting(const char *name, long otherwise);

/** Counts the call; what it returns if the driver is in no state for it. */
sk_cu_result vcu_enter(enum vcu_function function);
/** The same, and the thread has a context. */
sk_cu_result vcu_enter_context(enum vcu_function function);
struct CUctx_st *vcu_current(void);

#define VCU_ENTER(function) do {					\
	sk_cu_result r_ = vcu_enter(VCU_##function);			\
	if (r_ != SK_CU_SUCCESS)					\
		return r_;						\
} while (0)
#define VCU_ENTER_CONTEXT(function) do {				\
	sk_cu_result r_ = vcu_enter_context(VCU_##function);		\
	if (r_ != SK_CU_SUCCESS)					\
		return r_;						\
} while (0)

/** The test has done what a driver would not survive, or would let pass and
 * must not be relied on: says so and ends the process. */
void vcu_misuse(const char *fmt, ...)
	__attribute__((noreturn, format(printf, 1, 2)));

#endif
