/* SPDX-License-Identifier: Apache-2.0 */
/* What is saved by some ranks and restored by others. */
#ifndef SK_TESTS_CASE_H
#define SK_TESTS_CASE_H

#include <stdbool.h>
#include <stdint.h>

#include "image.h"
#include "tensor/box.h"
#include "tensor/placement.h"

struct tensor {
	char name[32];
	struct sk_spec source, target;
	bool everywhere[2];	/* ranks out of the mesh describe it too */
	struct sk_box *boxes;	/* not NULL: explicit, by owner */
	int *owners;
	int n_boxes;
	bool explicit_source, explicit_target;
};

struct test {
	int world[2];
	struct tensor tensors[5];
	int n;
	bool strided;
	struct sk_nodes *nodes;	/* source ranks', where each node keeps
				 * replicas once; else NULL */
	int own_more;		/* bytes that each rank's "rng" has more than
				 * that of the rank before */
};

/** The random numbers of what follows. */
void draw_from(uint64_t seed);
int64_t below(int64_t n);
bool one_in(int n);

/** Any tensors, any meshes. */
void random_test(struct test *test, uint64_t seed);
/** One tensor of 1024 x 1024 F32 in rows over the source ranks. */
void plain_test(struct test *test, int from, int to);
/** The images go with it. */
void free_test(struct test *test);

/** The images of all source ranks: 0 in memory, 1 on disk too, 2 on disk
 * alone, 3 here and there. */
void save(const struct test *test, uint64_t run, int64_t step, int where);
/** Explicit boxes of a rank. */
int own_boxes(const struct tensor *t, int rank, struct sk_box *boxes);
/** Whether the rank describes the tensor as @s says. */
bool describes(const struct tensor *t, const struct sk_spec *s,
	       bool everywhere, int rank);

#endif
