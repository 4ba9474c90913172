/* SPDX-License-Identifier: Apache-2.0 */
/* The state that the benchmark's ranks snapshot and restore. */
#ifndef SK_BENCH_STATE_H
#define SK_BENCH_STATE_H

#include "bench.h"
#include "shardkeep.h"

enum cut { CUT_ROWS, CUT_COLUMNS, CUT_NONE };

struct rank_state {
	struct sk *sk;
	struct sk_mesh *mesh;
	struct sk_state *state;
	char *data;
	uint64_t bytes;
};

/**
 * @tensors matrices of F32, together @total_bytes over all ranks, sharded by
 * rows or columns over a mesh of @ranks, or all of them on each; what this rank
 * has lies in one warm block. On failure fail() was called.
 */
int state_open(struct bench *b, int rank, int ranks, const char *job,
	       uint64_t total_bytes, int tensors, enum cut cut,
	       struct rank_state *ret);
/* The same, with no slots yet. */
int state_begin(struct bench *b, int rank, int ranks, const char *job,
		uint64_t total_bytes, int tensors, enum cut cut,
		struct rank_state *ret);
void state_close(struct rank_state *s);
/* New bytes everywhere, a function of rank and step. */
void state_fill(struct rank_state *s, int rank, uint64_t step);

#endif
