/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer's own way to the driver, beside the product's: the same library,
 * by the product's loader, and what only trainers call.
 */
#ifndef SK_TESTS_SIM_TRAINER_H
#define SK_TESTS_SIM_TRAINER_H

#include <stdint.h>

#include "cuda/driver.h"
#include "more.h"

struct trainer_cuda {
	struct sk_cuda_driver driver;
	VCUDA_MORE(SK_CUDA_MEMBER)
	uint64_t (*calls)(const char *name);	/* NULL: real hardware */
};

/** As sk_cuda_driver_open(); -ENODEV too where a function lacks. */
int trainer_cuda_open(struct trainer_cuda *ret_cuda, struct sk_err *err);

#endif
