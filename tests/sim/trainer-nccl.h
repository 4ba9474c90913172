/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL as a test has it, beside the product: what the simulation adds. */
#ifndef SK_TESTS_SIM_TRAINER_NCCL_H
#define SK_TESTS_SIM_TRAINER_NCCL_H

#include "nccl/nccl.h"

struct trainer_nccl {
	struct sk_nccl lib;
	/* Of the simulation; NULL of the real one. */
	uint64_t (*calls)(const char *function);
	void (*fail)(const char *function, uint64_t nth, unsigned result);
	void (*wreck)(unsigned result);
	uint64_t (*count)(const char *what);
	void (*come_back)(void);	/* what hangs */
};

/** As sk_nccl_open(). */
int trainer_nccl_open(struct trainer_nccl *ret_nccl, struct sk_err *err);

/** One that does not block. */
sk_nccl_config trainer_nccl_config(void);

#endif
