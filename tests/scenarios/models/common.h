/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the scenarios of parallel models share: parameters with what the
 * optimizer keeps for them, and a look at what of a step lies on disk.
 */
#ifndef SK_TESTS_MODEL_COMMON_H
#define SK_TESTS_MODEL_COMMON_H

#include "libclient/restore/common.h"

/** A parameter: rows of @columns F32; 0 columns: one dimension. */
struct param {
	const char *name;
	int64_t rows, columns;
	struct sk_placement placements[2];
};

/** The tensor of a parameter, without data. */
struct sk_tensor tensor_of(const struct param *param,
			   const struct sk_mesh *mesh);
/**
 * Describes a parameter and, as an optimizer names them,
 * "optim.state.<name>.exp_avg" like it and the scalar
 * "optim.state.<name>.step", replicated over the mesh. @mesh may be NULL.
 */
void rank_param(struct rank *rank, const struct param *param,
		const struct sk_mesh *mesh, int fill);
/** The size of piece @i when torch.chunk cuts @n into @k. */
int64_t chunk_of(int64_t n, int64_t k, int64_t i);

/** The images of a step on disk, by rank. */
struct stored {
	int world;
	struct sk_layout **layouts;
};

/** Reads the files of a step; each is CHECKed to be there and whole. */
void stored_open(const struct scene *scene, const char *job, int64_t step,
		 int world, struct stored *ret);
void stored_close(struct stored *stored);
/** CHECKs that the files together hold each element of all tensors that any
 * of them knows once. */
void stored_check_once(const struct stored *stored);
/** What rank @rank described under that name, NULL if nothing. */
const struct sk_item *stored_item(const struct stored *stored, int rank,
				  const char *name);
/** Bytes of all tensors in the file of a rank. */
uint64_t stored_bytes(const struct stored *stored, int rank);

/** What `cachectl --socket ... @command @a` prints; it must end well. */
void cachectl(const struct scene *scene, const char *command, const char *a,
	      char *buf, size_t size);

#endif
