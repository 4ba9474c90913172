/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of any number of ranks, as trainers shard them: which tensors there
 * are, and how each lies on its mesh. Every rank has as many bytes in a world
 * of any size.
 */
#ifndef SK_BENCH_MODEL_H
#define SK_BENCH_MODEL_H

#include "shardkeep.h"

enum model_kind { MODEL_LLAMA, MODEL_EXPERTS, MODEL_KINDS };
enum model_mesh { MESH_FSDP, MESH_HSDP, MESH_TP, MESH_KINDS };

/** Ranks that share a row of the meshes of two dimensions. */
#define MODEL_ROW 8

struct model {
	enum model_kind kind;
	enum model_mesh mesh;
	int32_t world;		/* ranks that the shapes are of: a multiple of
				 * MODEL_ROW */
	int tensors;		/* parameters, and two moments of each */
	uint64_t bytes;		/* of a rank */
};

/** "llama", "experts"; "fsdp", "hsdp", "tp". NULL: there is none. */
const char *model_name(int kind);
const char *model_mesh_name(int mesh);

struct model_tensors {
	struct sk_tensor *v;	/* without data; names are owned */
	int n;
	struct sk_mesh *meshes[2];	/* dense, of experts */
};

/** The model on @ranks, which divide its world. 0 or -1; sk_error() or no
 * memory. */
int model_make(const struct model *model, int32_t ranks,
	       struct model_tensors *ret);
void model_free(struct model_tensors *tensors);

#endif
