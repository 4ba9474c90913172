/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL between two processes: a test's own, and one that it forks. On one GPU
 * they are told that they are on different hosts. What fails ends the process.
 */
#ifndef SK_TESTS_SIM_NCCL_SIDE_H
#define SK_TESTS_SIM_NCCL_SIDE_H

#include <sys/types.h>

#include "trainer-nccl.h"
#include "trainer.h"

#define SIDE_BYTES ((size_t)3 << 20)	/* of a, b and host, where not said */

/** One of the two. */
struct side {
	struct trainer_cuda t;
	struct trainer_nccl n;
	int rank;
	pid_t child;		/* of rank 0 */
	sk_nccl_id id, second;
	sk_nccl_comm comm;
	sk_cu_stream stream;
	sk_cu_event done;
	size_t bytes;
	sk_cu_ptr a, b;
	char *host;
};

/** Forks the other one; both have a device, a stream and two ids. @bytes may be
 * set before. @names: of the devices that they see, or NULL. */
void side_begin(struct side *s, bool one_gpu, const char *const *names);
/** Begins its communicator, which side_settled() waits for. */
void side_init(struct side *s);
/** Both at once. */
void side_begin_both(struct side *s);
/** Waits until it is no longer in progress, and what it is then. */
sk_nccl_result side_settled(struct side *s);
/** What does not block may be in progress when it returns. */
void side_begun(sk_nccl_result r);
sk_nccl_result side_put(struct side *s, sk_cu_ptr at, size_t n);
sk_nccl_result side_get(struct side *s, sk_cu_ptr at, size_t n);
/** The end of a group, which is launched only when the communicator says so;
 * then an event is recorded. */
void side_launch(struct side *s);
void side_end_comm(struct side *s);
/** The other one ends here; rank 0 hears how. */
void side_end(struct side *s);
/**
 * Whether there is a library and a GPU, asked in a process of its own, for
 * others are to begin anew: 0, or an exit status.
 */
int side_look(bool *ret_simulated);

#endif
