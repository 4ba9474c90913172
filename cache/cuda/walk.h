/* SPDX-License-Identifier: Apache-2.0 */
/* A strided copy on its way to the driver: where it is, and what one call may
 * take from there. */
#ifndef SK_CACHE_CUDA_WALK_H
#define SK_CACHE_CUDA_WALK_H

#include "cuda/private.h"

struct sk_cuda_walk {
	struct sk_cuda_lane *lane;
	const struct sk_copy *copy;
	const struct sk_cuda_lock *lock;	/* of the host's side, or NULL */
	enum sk_cuda_way way;
	uint64_t together;	/* shorter copies than this go in a batch */
	struct sk_err *err;
};

/* Where a row begins, on both sides. */
struct sk_cuda_place {
	char *dst;
	const char *src;
};

/** A call of the driver that moves bytes. */
struct sk_cuda_call {
	struct sk_cuda_scope scope;
	sk_cu_stream stream;	/* to ask on */
	bool takes_turns;	/* and holds the lane's lock */
};

/** Of so many bytes: then sk_cuda_call_end() is told what came of it, and says
 * what came of all. -EIO: nothing was begun. */
int sk_cuda_call_begin(const struct sk_cuda_walk *w, uint64_t bytes,
		       struct sk_cuda_call *ret_call);
int sk_cuda_call_end(const struct sk_cuda_walk *w, struct sk_cuda_call *call,
		     sk_cu_result result);
/** Bytes from there to the end of its piece of page-locked memory. */
uint64_t sk_cuda_walk_room(const struct sk_cuda_walk *w,
			   struct sk_cuda_place p);
/** Bytes that one call may move: it holds the link for so long. */
uint64_t sk_cuda_walk_most(const struct sk_cuda_walk *w);

/**
 * Whole rows from @p on, of @rows in the innermost dimension, that one call
 * can take; 0: not even one.
 */
uint64_t sk_cuda_rows_at_once(const struct sk_cuda_walk *w,
			      struct sk_cuda_place p, uint64_t rows);
/** The same of planes, which are all rows of the innermost dimension: of
 * @planes, in the one before it. */
uint64_t sk_cuda_planes_at_once(const struct sk_cuda_walk *w,
				struct sk_cuda_place p, uint64_t planes);

/** Asks for @n bytes that are contiguous on both sides: those shorter than
 * @w->together in a batch, others at once. */
int sk_cuda_copy_bytes(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		       uint64_t n);

/** Asks for so many rows, or planes, by one call. */
int sk_cuda_copy_rows(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		      uint64_t rows);
int sk_cuda_copy_planes(const struct sk_cuda_walk *w, struct sk_cuda_place p,
			uint64_t planes);

#endif
