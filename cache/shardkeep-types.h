/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few types that trainers, the agent and the cache model share.
 *
 * Installed beside shardkeep.h, which includes it. Uses standard headers only
 * and compiles alone in C11, C17 and C++.
 */
#ifndef SHARDKEEP_TYPES_H
#define SHARDKEEP_TYPES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most dimensions that a tensor, and that a mesh, may have. */
#define SK_MAX_DIMS 8

/**
 * Element types: those that safetensors names, in its spelling.
 * The value 0 is none of them, so a forgotten dtype is refused.
 */
enum sk_dtype {
	SK_DTYPE_NONE = 0,
	SK_BOOL,
	SK_F4,			/**< two to a byte */
	SK_F6_E2M3,		/**< four to three bytes */
	SK_F6_E3M2,		/**< four to three bytes */
	SK_U8,
	SK_I8,
	SK_F8_E5M2,
	SK_F8_E4M3,
	SK_F8_E8M0,
	SK_F8_E4M3FNUZ,
	SK_F8_E5M2FNUZ,
	SK_I16,
	SK_U16,
	SK_F16,
	SK_BF16,
	SK_I32,
	SK_U32,
	SK_F32,
	SK_C64,			/**< two F32 */
	SK_F64,
	SK_I64,
	SK_U64,
	SK_DTYPE_COUNT		/**< not a dtype: how many values there are */
};

/** What one mesh dimension does to a tensor; the words are DTensor's. */
enum sk_placement_kind {
	SK_PLACEMENT_NONE = 0,	/**< not said; refused */
	SK_PLACEMENT_REPLICATE,
	SK_PLACEMENT_SHARD,
	SK_PLACEMENT_STRIDED_SHARD,
	SK_PLACEMENT_PARTIAL	/**< a pending reduction; refused */
};

/** One placement; a tensor has one per mesh dimension, in mesh order. */
struct sk_placement {
	int32_t kind;		/**< enum sk_placement_kind */
	int32_t dim;		/**< tensor dimension; negative counts back */
	int64_t split_factor;	/**< of a strided shard, else 0 */
};

#ifdef __cplusplus
#define SK_PLACEMENT_LITERAL_ sk_placement
#else
#define SK_PLACEMENT_LITERAL_ (struct sk_placement)
#endif

/** Every rank along this mesh dimension holds the same data. */
#define SK_REPLICATE \
	SK_PLACEMENT_LITERAL_{ SK_PLACEMENT_REPLICATE, 0, 0 }
/** Tensor dimension @d is cut as torch.chunk cuts it. */
#define SK_SHARD(d) \
	SK_PLACEMENT_LITERAL_{ SK_PLACEMENT_SHARD, (d), 0 }
/** Tensor dimension @d was already cut into @s by later mesh dimensions. */
#define SK_STRIDED_SHARD(d, s) \
	SK_PLACEMENT_LITERAL_{ SK_PLACEMENT_STRIDED_SHARD, (d), (s) }
/** A pending reduction. Never stored: refused with a sentence. */
#define SK_PARTIAL \
	SK_PLACEMENT_LITERAL_{ SK_PLACEMENT_PARTIAL, 0, 0 }

/**
 * An N-d interval of a tensor's global index space, in elements.
 * The number of dimensions is the tensor's. An empty box has a size of 0.
 */
struct sk_box {
	int64_t offset[SK_MAX_DIMS];
	int64_t size[SK_MAX_DIMS];
};

/** A mesh: immutable, counted by references. */
struct sk_mesh;

#ifdef __cplusplus
}
#endif

#endif
