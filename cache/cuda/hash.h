/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of device memory, taken on the device: what checksum.h takes of the
 * same bytes in host memory. 24 bytes a sum cross the link, and nothing else.
 */
#ifndef SK_CACHE_CUDA_HASH_H
#define SK_CACHE_CUDA_HASH_H

#include "cuda/cuda.h"

/** Bytes of device memory, at an address of its. */
struct sk_cuda_span {
	uint64_t at, bytes;
};

/** Sums that one call takes, at most. */
#define SK_CUDA_SPANS_MAX ((size_t)4096)

struct sk_cuda_hash;

/**
 * Whether that device takes sums at all, which its driver is asked once.
 * -ENODEV: no, with the reason; everything is done without. -ENOMEM: the device
 * had no room for what takes them.
 */
int sk_cuda_hash_can(const struct sk_cuda_device *device, struct sk_err *err);

/** -ENODEV as above; -ENOMEM; -EIO. */
int sk_cuda_hash_new(struct sk_cuda_device *device,
		     struct sk_cuda_hash **ret_hash, struct sk_err *err);
/** NULL is fine. Returns NULL. */
struct sk_cuda_hash *sk_cuda_hash_free(struct sk_cuda_hash *hash);

/**
 * Asks for the XXH3-64 of each of @n spans, after all that @lane, of the same
 * device, was asked for; @spans are the caller's. What was asked for before has
 * been taken. One thread at a time.
 * Spans that begin at a multiple of 8 are read as fast as the device can, all
 * side by side: many short ones are better than one long one.
 * Errors: -EIO, and nothing of it is under way.
 */
int sk_cuda_hash_ask(struct sk_cuda_hash *hash, struct sk_cuda_lane *lane,
		     const struct sk_cuda_span *spans, size_t n,
		     struct sk_err *err);
/** Waits for those @n sums, and for nothing that the lane was asked for after
 * them. -EIO: they, or anything before them on the lane, failed. */
int sk_cuda_hash_take(struct sk_cuda_hash *hash, uint64_t *ret_sums, size_t n,
		      struct sk_err *err);
/** Both. */
int sk_cuda_hash_run(struct sk_cuda_hash *hash, struct sk_cuda_lane *lane,
		     const struct sk_cuda_span *spans, size_t n,
		     uint64_t *ret_sums, struct sk_err *err);

SK_DEFINE_CLEANUP(struct sk_cuda_hash *, sk_cuda_hash_free)

#endif
