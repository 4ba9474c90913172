/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts: how the mesh dimensions that shard one tensor dimension divide it, in
 * the order in which they cut. Private to this room.
 */
#ifndef SK_CACHE_TENSOR_CUTS_H
#define SK_CACHE_TENSOR_CUTS_H

#include "tensor/placement.h"

/** Most intervals of one dimension, and most boxes of one rank. */
#define SK_INTERVALS_MAX 65536

struct sk_cut {
	int mesh_dim;
	int64_t pieces;		/* size of that mesh dimension */
	int64_t split;		/* 0: as torch.chunk; else literally strided */
};

struct sk_interval {
	int64_t from, size;
};

/** Intervals of one dimension, ascending, not adjacent; owned array. */
struct sk_intervals {
	struct sk_interval *v;
	int n, room;
	int64_t total;
};

/** Appends one that lies behind all, joining what is adjacent. Errors:
 * -ENOMEM, -E2BIG. */
int sk_intervals_add(struct sk_intervals *intervals, struct sk_interval piece);

/** The cuts of tensor dimension @d in cutting order; returns how many. */
int sk_spec_cuts(const struct sk_spec *spec, int d,
		 struct sk_cut ret_cuts[SK_MAX_DIMS]);

/** What piece @i of @cut leaves of @in, in as many steps as it and @in have
 * intervals. Errors: -ENOMEM, -E2BIG. */
int sk_cut_apply(const struct sk_cut *cut, int64_t i,
		 const struct sk_intervals *in, struct sk_intervals *ret_out);

#endif
