/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: which ranks of a source hold the parts of a target box.
 *
 * By arithmetic on mesh and placements: the cost is in proportion to the
 * pieces found, never to the number of ranks. Thread-safety: pure.
 */
#ifndef SK_CACHE_TENSOR_PLAN_H
#define SK_CACHE_TENSOR_PLAN_H

#include "tensor/placement.h"

/** The ranks that hold one source box. Valid during the callback. */
struct sk_holders;
/** How many, at least 1. */
int64_t sk_holders_count(const struct sk_holders *h);
/** The @i-th, in mesh order. */
int32_t sk_holders_rank(const struct sk_holders *h, int64_t i);

/** Which of them @rank is, or -1: none. In a few steps. */
int64_t sk_holders_find(const struct sk_holders *h, int32_t rank);

struct sk_piece {
	struct sk_box box;	/* the part of the target, global indices */
	struct sk_box source;	/* the source box that it lies in */
};

/** Called per piece; a value other than 0 ends the walk and is returned. */
typedef int (*sk_piece_fn)(const struct sk_piece *piece,
			   const struct sk_holders *holders, void *ctx);

/**
 * Finds all pieces of @target (a box of the same tensor) under the placements
 * of @source in a job of @world ranks (needed where source->mesh is NULL).
 * Together the pieces are the target, each element once, in no set order;
 * an empty target has none.
 * Errors: -ENOMEM, what @fn returned.
 */
int sk_plan_box(const struct sk_spec *source, int32_t world,
		const struct sk_box *target, sk_piece_fn fn, void *ctx);

#endif
