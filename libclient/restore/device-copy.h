/* SPDX-License-Identifier: Apache-2.0 */
/* The copy of an image that a device slot holds, mapped and leased. */
#ifndef SK_LIBCLIENT_RESTORE_DEVICE_COPY_H
#define SK_LIBCLIENT_RESTORE_DEVICE_COPY_H

#include "cuda/share.h"
#include "memory/extent.h"
#include "restore/restoring.h"

struct sk_device_copy {
	uint64_t image;			/* the agent's number of it */
	struct sk_cuda_share *share;	/* NULL: it is not open */
	struct sk_extent *extents;	/* of both kinds, in its order */
	uint64_t *at;			/* where each begins in it */
	uint32_t n;
	uint32_t kind;			/* of the image */
};

/**
 * Opens the one of the image, in this node's memory, on that GPU of the
 * state's. Nobody writes to it until it is closed.
 * Errors: -ENOENT there is none; else there is one, and it cannot be had.
 */
int sk_device_copy_open(struct sk_restoring *rs,
			const struct sk_restore_image *image, int gpu,
			struct sk_device_copy *ret_copy);
/** Nothing may be under way in it. One that is not open is fine. */
void sk_device_copy_close(struct sk_restoring *rs,
			  struct sk_device_copy *copy);
/** The device's address of bytes [from, to) of the image; 0: it has not all of
 * them. */
uint64_t sk_device_copy_at(const struct sk_device_copy *copy, uint64_t from,
			   uint64_t to);

#endif
