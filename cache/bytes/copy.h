/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy: N-d strided copies with streaming stores.
 *
 * Large runs go past the cache (non-temporal stores, AVX-512, AVX2 or SSE2,
 * whichever this CPU has) so that a copy does not evict the trainer's working
 * set. Short runs that fill the destination without gaps are gathered in the
 * first level cache before they go the same way, transposed matrices tile by
 * tile; what is left, and other CPUs, use memcpy. Thread-safety: pure
 * functions; a prepared op is immutable and may be run by several threads at
 * once.
 */
#ifndef SK_CACHE_BYTES_COPY_H
#define SK_CACHE_BYTES_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/os.h"
#include "shardkeep-types.h"

/** A prepared copy. Dimensions are joined where both sides are dense. */
struct sk_copy {
	char *dst;
	const char *src;
	uint64_t run;			/* contiguous bytes on both sides */
	int ndim;			/* dimensions outside of the run */
	int64_t size[SK_MAX_DIMS];
	int64_t dst_stride[SK_MAX_DIMS];	/* bytes */
	int64_t src_stride[SK_MAX_DIMS];	/* bytes */
	uint64_t bytes;			/* run * prod(size) */
};

/**
 * Prepares the copy of @size elements of @bits bits each. Strides are in
 * elements and may be negative, or 0 on the source side. Sub-byte dtypes:
 * the innermost dimension must be dense on both sides and whole bytes.
 * Errors: -EINVAL with a sentence.
 */
int sk_copy_init(struct sk_copy *ret_copy, unsigned bits, int ndim,
		 const int64_t *size, void *dst, const int64_t *dst_stride,
		 const void *src, const int64_t *src_stride,
		 struct sk_err *err);

/** The same of @bytes that are contiguous on both sides, of which there are
 * some; never fails. */
void sk_copy_flat(struct sk_copy *ret_copy, void *dst, const void *src,
		  uint64_t bytes);

/** Row-major dense strides of @size, in elements. */
void sk_dense_strides(int ndim, const int64_t *size, int64_t *ret_stride);

/** Runs all of it. Ends with a store fence. */
void sk_copy_run(const struct sk_copy *copy);

/**
 * Runs the bytes [from, to) of it in row-major order, so that one large copy
 * may be shared among threads. Ends with a store fence.
 */
void sk_copy_run_range(const struct sk_copy *copy, uint64_t from,
		       uint64_t to);

/** The same without the fence, for many small copies in a row: nobody may look
 * before sk_stream_fence(). */
void sk_copy_run_unfenced(const struct sk_copy *copy, uint64_t from,
			  uint64_t to);

/** As sk_copy_run_unfenced(), of a copy whose destination is dense; returns
 * the XXH3 of what it wrote. Contiguous bytes are read once: what is hashed is
 * what was written, whoever writes to the source meanwhile. */
uint64_t sk_copy_run_hashed(const struct sk_copy *copy, uint64_t from,
			    uint64_t to);

/** memcpy with streaming stores for large @size; no fence: see below. */
void sk_stream_copy(void *dst, const void *src, size_t size);
/** The same, and @twin gets the very same bytes through the cache: each byte
 * of @src is read once, so both agree whoever writes to it meanwhile. */
void sk_stream_copy_twice(void *dst, void *twin, const void *src,
			  size_t size);
/** Orders streaming stores before what follows. */
void sk_stream_fence(void);
/** "avx512", "avx2" or "sse2", with what sk_copy_measure() found, or
 * "memcpy". */
const char *sk_copy_backend(void);

/**
 * Measures which ways over memory are the fastest of this CPU, once in a
 * process, a third of a millisecond; copies and checksums go by them from then
 * on, and until then by those that are right for most. The bytes are the same.
 * On the clock of @os. Thread-safe.
 */
void sk_copy_measure(const struct sk_os *os);
/** Whether it found that a contiguous copy which hashes takes no longer than
 * one that does not. */
bool sk_copy_hash_is_free(void);

#endif
