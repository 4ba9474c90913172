/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placements to boxes: what each rank of a mesh holds of a tensor.
 *
 * The arithmetic is PyTorch DTensor's. Placements apply mesh dimension by
 * mesh dimension, left to right; Shard(d) cuts dimension d as torch.chunk
 * does, so with c = ceil(n / k) rank i holds [i*c, min(n, i*c + c)) and the
 * last ranks are short or empty; the offset of an empty shard is the full
 * size of the dimension.
 *
 * StridedShard(d, s) followed by shards of d over s ranks in all is the
 * layout of FSDP2 over tensor parallelism: the later mesh dimensions cut
 * first, and the strided one cuts what they left (facts: "TP first"). For
 * every even size, and all sizes where DTensor's metadata agrees with its
 * own data, that equals the left-to-right rule. Any other StridedShard is
 * cut literally: d into s chunks, each chunk over the mesh dimension, and the
 * rank holds its piece of every chunk, which may be several boxes.
 *
 * Thread-safety: pure functions over immutable arguments.
 */
#ifndef SK_CACHE_TENSOR_PLACEMENT_H
#define SK_CACHE_TENSOR_PLACEMENT_H

#include "tensor/box.h"
#include "base/error.h"
#include "tensor/mesh.h"
#include "shardkeep-types.h"

/** torch.chunk of @n elements into @k pieces: size and offset of piece @i. */
void sk_chunk(int64_t n, int64_t k, int64_t i, int64_t *ret_size,
	      int64_t *ret_offset);

/**
 * What a tensor is, everywhere. Plain data; name and mesh are borrowed.
 * mesh NULL: every rank of the job holds the whole tensor.
 */
struct sk_spec {
	const char *name;	/* the FQN */
	enum sk_dtype dtype;
	int ndim;
	int64_t shape[SK_MAX_DIMS];
	const struct sk_mesh *mesh;
	struct sk_placement placements[SK_MAX_DIMS];
};

/**
 * Checks a spec whole: name (1 to 1023 bytes of UTF-8 without control
 * characters), dtype, shape, one placement per mesh dimension, dimensions in
 * range, split factors > 0, no Partial. Negative dimensions are normalised in
 * place. Errors: -EINVAL, -EOVERFLOW with a sentence that names the tensor.
 */
int sk_spec_normalize(struct sk_spec *spec, struct sk_err *err);

/** Whether all ranks of its mesh are in a job of @world ranks: what a missing
 * rank holds nobody could ever save. -EINVAL, with a sentence. */
int sk_spec_check_world(const struct sk_spec *spec, int32_t world,
			struct sk_err *err);

/**
 * The boxes that @rank holds, in the order of the global index, adjacent ones
 * joined. *ret_n = 0: the rank is not in the mesh. An empty shard is one box
 * with a size of 0. *ret_boxes is malloc'ed, the caller frees it.
 * The boxes of one rank differ in at most the strided dimensions.
 * Errors: -E2BIG more than 65,536 boxes, -ENOMEM.
 */
int sk_spec_boxes(const struct sk_spec *spec, int32_t rank,
		  struct sk_box **ret_boxes, int *ret_n, struct sk_err *err);

/**
 * Where such a box begins in the local tensor, which holds them one behind
 * another: the first at 0, and if @box begins @at, the @next one where @at
 * is left. They are a product of intervals per dimension.
 */
void sk_spec_next_box(int ndim, const struct sk_box *box,
		      const struct sk_box *next, int64_t *at);

/** Same dtype, shape, placements and equal mesh; the name does not count. */
bool sk_spec_same_layout(const struct sk_spec *a, const struct sk_spec *b);

/** "S(0)", "SS(0,4)", "R": the form in files and tables. Returns @buf. */
char *sk_placement_format(const struct sk_placement *p, char *buf,
			  size_t size);
int sk_placement_parse(const char *text, struct sk_placement *ret_p,
		       struct sk_err *err);

/**
 * Of the ranks that hold the same boxes as @rank (those that differ from it
 * in replicated mesh dimensions only, itself included, ascending by mesh
 * index; mesh NULL: 0 .. world-1) which one it is, and how many they are.
 * The rank is in the mesh.
 */
void sk_spec_holder(const struct sk_spec *spec, int32_t rank, int32_t world,
		    int64_t *ret_index, int64_t *ret_count);
/** Which of those @other is, or -1: it holds something else, or nothing. */
int64_t sk_spec_holder_find(const struct sk_spec *spec, int32_t rank,
			    int32_t other, int32_t world);

#endif
