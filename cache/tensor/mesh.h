/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mesh: an N-d array of global ranks, with an optional name per dimension.
 *
 * Any distinct ranks in any order, so a mesh may be a subset of the world. A
 * mesh is immutable; references are counted, and counting is atomic, so one
 * mesh may be used from several threads.
 *
 * The semantics are those of PyTorch's DeviceMesh: row-major order, slices
 * keep the order of the dimensions, a rank outside has no coordinates.
 */
#ifndef SK_CACHE_TENSOR_MESH_H
#define SK_CACHE_TENSOR_MESH_H

#include <stdbool.h>

#include "base/error.h"
#include "base/util.h"
#include "shardkeep-types.h"
#include "tensor/steps.h"

/** Most ranks in a mesh. */
#define SK_MESH_MAX_RANKS (1 << 24)

/**
 * A mesh of @ndim (1 to SK_MAX_DIMS) dimensions with @shape[i] > 0 each.
 * @ranks has prod(shape) distinct ranks >= 0, row-major; NULL for 0, 1, 2, ...
 * @names has @ndim unique non-empty names, or is NULL for an unnamed mesh.
 * Everything is copied. Errors: -EINVAL with a sentence, -ENOMEM.
 */
int sk_mesh_new(int ndim, const int64_t *shape, const int32_t *ranks,
		const char *const *names, struct sk_mesh **ret_mesh,
		struct sk_err *err);

/** The same, of ranks that count up evenly; @steps need not be in their one
 * form. -EINVAL also if they are not as many as the shape, each once. */
int sk_mesh_new_steps(int ndim, const int64_t *shape,
		      const struct sk_steps *steps, const char *const *names,
		      struct sk_mesh **ret_mesh, struct sk_err *err);

struct sk_mesh *sk_mesh_ref(const struct sk_mesh *mesh);
struct sk_mesh *sk_mesh_unref(struct sk_mesh *mesh);	/* NULL is fine */
SK_DEFINE_CLEANUP(struct sk_mesh *, sk_mesh_unref)
#define _cleanup_mesh_ __attribute__((cleanup(sk_mesh_unrefp)))

int sk_mesh_ndim(const struct sk_mesh *mesh);
int64_t sk_mesh_dim(const struct sk_mesh *mesh, int d);
int64_t sk_mesh_count(const struct sk_mesh *mesh);
/** The highest rank in it: a job of as many ranks, or fewer, lacks it. O(1). */
int32_t sk_mesh_last_rank(const struct sk_mesh *mesh);
/** The name of dimension @d, NULL in an unnamed mesh. Owned by the mesh. */
const char *sk_mesh_name(const struct sk_mesh *mesh, int d);
/** The index of the dimension of that name, or -ENOENT. */
int sk_mesh_find_dim(const struct sk_mesh *mesh, const char *name);
/** The rank at flat row-major @index in [0, count), in a few steps. */
int32_t sk_mesh_rank_at(const struct sk_mesh *mesh, int64_t index);
/** True if the ranks are 0, 1, 2, ... in order. */
bool sk_mesh_is_dense(const struct sk_mesh *mesh);
/** How the ranks count up, or NULL where they do not. Owned by the mesh. */
const struct sk_steps *sk_mesh_steps(const struct sk_mesh *mesh);

/**
 * Coordinates of a global rank: @ret_coords has sk_mesh_ndim() entries.
 * A few steps, or a binary search where the ranks do not count up evenly.
 * -ENOENT: the rank is not in this mesh, which is no error of anybody's.
 */
int sk_mesh_coords(const struct sk_mesh *mesh, int32_t rank,
		   int64_t *ret_coords);

/**
 * The child over the named dimensions, at the coordinates of @rank in the
 * others: on ranks 0..7 as (dp 2, tp 4), the slice "dp" of rank r is r%4,
 * r%4 + 4. Names must be in the mesh's order, as in PyTorch.
 * Errors: -EINVAL unnamed mesh, unknown name, order; -ENOENT rank not in mesh.
 */
int sk_mesh_slice(const struct sk_mesh *mesh, int32_t rank,
		  const char *const *names, int n_names,
		  struct sk_mesh **ret_mesh, struct sk_err *err);

/** Same shape, ranks in the same order, same names (or both unnamed). */
bool sk_mesh_equal(const struct sk_mesh *a, const struct sk_mesh *b);
/** For tables of meshes, within this process. O(1). */
uint64_t sk_mesh_hash(const struct sk_mesh *mesh);

#endif
