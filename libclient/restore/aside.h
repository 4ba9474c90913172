/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What came to the comm's device and this rank has elsewhere, in host memory or
 * on another device: a round of it is copied to host memory, and delivered from
 * there by the pool while the next one comes.
 */
#ifndef SK_LIBCLIENT_RESTORE_ASIDE_H
#define SK_LIBCLIENT_RESTORE_ASIDE_H

#include "restore/beside.h"
#include "restore/deliver.h"

struct sk_aside {
	struct sk_restoring *rs;
	struct sk_cuda_lane *lane;
	struct sk_cuda_lock *lock;	/* of the memory; or NULL */
	char *memory;			/* a round's; NULL: there is none */
	uint64_t bytes;			/* of it */
	struct sk_delivery *list;	/* of a round */
	size_t n, most;
	struct sk_beside beside;
};

/** For rounds of @bytes, and @most parts of them. @lane is the device's, and
 * has no use for the memory any more when it is freed. -ENOMEM; @ret is to be
 * freed in any case. */
int sk_aside_new(struct sk_restoring *rs, struct sk_cuda_device *gpu,
		 struct sk_cuda_lane *lane, uint64_t bytes, size_t most,
		 struct sk_aside *ret);
void sk_aside_free(struct sk_aside *aside);

/** Of a round: bytes [from, to) of that piece, which lie on the device at
 * @there, have the place @at of the memory. -EIO. */
int sk_aside_add(struct sk_aside *aside, uint32_t piece, uint64_t from,
		 uint64_t to, uint64_t there, uint64_t at);
/** Delivers those, which the lane has copied by now, in the background. */
void sk_aside_begin(struct sk_aside *aside);
/** Until it has: then the next round may be added. */
void sk_aside_wait(struct sk_aside *aside);

#endif
