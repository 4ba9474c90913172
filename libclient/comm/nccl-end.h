/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a communicator of NCCL ends. What takes the library's word for that
 * (abort, destroy) is done by a thread which is waited for so long and no
 * longer; where it does not come back, this process has no NCCL any more.
 */
#ifndef SK_LIBCLIENT_COMM_NCCL_END_H
#define SK_LIBCLIENT_COMM_NCCL_END_H

#include "comm/nccl.h"

/** Whether one never ended in this process: there is to be no other. Any
 * thread. */
bool sk_nccl_is_lost(void);
/** Ends the communicator, if there is one, by @call. Where that has not come
 * back by @until_ns, c->hung is set, c->why says so, and what it may still use
 * of devices stays when the handle is closed. */
void sk_nccl_end_by(struct sk_nccl_comm *c,
		    sk_nccl_result (*call)(sk_nccl_comm comm),
		    uint64_t until_ns);
/** Gives back what it was launched on; -EIO: it may still be, and stays. */
int sk_nccl_let_go(struct sk_nccl_comm *c);

#endif
