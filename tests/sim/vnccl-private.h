/* SPDX-License-Identifier: Apache-2.0 */
/* Ways into the simulated NCCL's functions. */
#ifndef SK_TESTS_SIM_VNCCL_PRIVATE_H
#define SK_TESTS_SIM_VNCCL_PRIVATE_H

#include "vnccl.h"

/** Counts the call; what it returns if it is to fail. */
sk_nccl_result vn_enter(enum vn_function function);

#define VN_ENTER(function) do {						\
	sk_nccl_result r_ = vn_enter(VN_##function);			\
	if (r_ != SK_NCCL_SUCCESS)					\
		return r_;						\
} while (0)

/** It is one; misuse if it was one and has ended. */
#define VN_COMM(comm) do {						\
	if (!(comm))							\
		return SK_NCCL_INVALID_ARGUMENT;			\
	vn_check_life(comm);						\
} while (0)
/** Of a communicator one thread may be inside at a time. */
#define VN_INSIDE(comm) do {						\
	VN_COMM(comm);							\
	if (__atomic_fetch_add(&(comm)->inside, 1, __ATOMIC_RELAXED))	\
		vn_misuse("two threads are in one communicator");	\
} while (0)
#define VN_OUTSIDE(comm)						\
	(void)__atomic_fetch_sub(&(comm)->inside, 1, __ATOMIC_RELAXED)

/** Does not return before vncclComeBack(). */
void vn_hang(void);
/** What its files say is in the environment from the first id or communicator
 * of a process on. */
void vn_read_conf(void);

/** Communicators of this process. */
void vn_list(struct ncclComm *comm);
void vn_unlist(struct ncclComm *comm);
void vn_check_life(const struct ncclComm *comm);
/** It launches an operation. */
void vn_launch(struct ncclComm *comm);

#endif
