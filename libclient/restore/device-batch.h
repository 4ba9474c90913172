/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that a GPU fetches and hashes together. What the device was asked to
 * copy is hashed behind it; what turns out to be right and passed through
 * memory of ours goes on to the tensors from there; and of what is right the
 * jobs are done.
 */
#ifndef SK_LIBCLIENT_RESTORE_DEVICE_BATCH_H
#define SK_LIBCLIENT_RESTORE_DEVICE_BATCH_H

#include "cuda/hash.h"

struct sk_device_pass;		/* device-pass.h */

/* A chunk on its way: jobs [from, to) read it. */
struct sk_device_chunk {
	size_t from, to;
	bool gathered;			/* in our memory, and not the tensor */
	bool right;
};

/* What is copied and hashed together. */
struct sk_device_batch {
	size_t n;			/* chunks, up to SK_CUDA_SPANS_MAX */
	uint64_t bytes;
	struct sk_cuda_hash *hash;	/* made late */
	struct sk_device_chunk chunks[SK_CUDA_SPANS_MAX];
	struct sk_cuda_span spans[SK_CUDA_SPANS_MAX];	/* where they are to */
	uint64_t sums[SK_CUDA_SPANS_MAX];
};

/** Whether its sums can be taken, as far as is known; makes what takes them. */
bool sk_device_batch_can_hash(const struct sk_device_pass *d,
			      struct sk_device_batch *b);
/** Asks for the sums of all of it, after what the pass's lane was asked for so
 * far, and beside what comes there meanwhile where the pass has another lane.
 * -ENOMEM, -ENODEV, -EIO. */
int sk_device_batch_ask(struct sk_device_pass *d, struct sk_device_batch *b);
/** Takes them, delivers what is right, and says so of its jobs; it is empty
 * then. d->failed is set where anything is wrong; where it was set before,
 * nothing of it counts. */
void sk_device_batch_settle(struct sk_device_pass *d,
			    struct sk_device_batch *b);

#endif
