/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random states on two sides, before and after a restart: worlds, meshes,
 * placements, shapes; after, some ranks have a tensor on other meshes than
 * others have it. A case is a function of its seed.
 */
#ifndef SK_TESTS_RESTORE_RANDOM_H
#define SK_TESTS_RESTORE_RANDOM_H

#include "libclient/restore/common.h"

#define RANDOM_TENSORS 6
#define RANDOM_RANKS 8

struct random_tensor {
	char name[16];
	int32_t dtype, ndim;
	int64_t shape[3];
	int ranks[2];		/* of the mesh, 0: none */
	int rows[2];		/* of a mesh of two dimensions */
	int first[2];		/* its first rank; the others follow, mod n */
	int lanes;		/* after: so many meshes, of every so many-th of
				 * these ranks each */
	struct sk_placement placements[2][2];
};

struct random_test {
	uint64_t seed;
	int world[2];
	bool disk;
	struct random_tensor tensors[RANDOM_TENSORS];
};

/** On 1 to 4 ranks before and after. */
void random_test(struct random_test *test, uint64_t seed);
/** On 1 to @ranks, at most RANDOM_RANKS. */
void random_test_of(struct random_test *test, uint64_t seed, int ranks);

/** The mesh that @rank describes tensor @i on; NULL: none. The caller's. */
struct sk_mesh *random_mesh(const struct random_test *test, int side, int i,
			    int rank);
/** Has @add describe tensor @i, all but its memory. */
typedef void (*random_add)(struct rank *rank, const struct sk_tensor *t,
			   int i, void *ctx);
/** All of a side's tensors by @add, and two blobs. */
void random_describe(struct rank *rank, const struct random_test *test,
		     int side, random_add add, void *ctx);

#endif
