/* SPDX-License-Identifier: Apache-2.0 */
/* The state that the benchmark's ranks snapshot and restore. */
#ifndef SK_BENCH_STATE_H
#define SK_BENCH_STATE_H

#include "bench.h"
#include "shardkeep.h"

/* What a rank has: some rows, some columns, or all of it; where ranks are
 * spread over b->o.nodes nodes, rows over the ranks of a node, the same on each
 * node, or columns over the nodes, the same on each rank of one. */
enum cut { CUT_ROWS, CUT_COLUMNS, CUT_NONE, CUT_WITHIN, CUT_ACROSS };

struct rank_state {
	struct sk *sk;
	struct sk_mesh *mesh;
	struct sk_state *state;
	char *data;
	uint64_t bytes;			/* room: ranks may have a row less */
	int64_t rows, columns;		/* of each matrix */
};

/**
 * @tensors matrices of F32, together @total_bytes over all ranks, cut over a
 * mesh of @ranks; what this rank has lies in one warm block. On failure fail()
 * was called.
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
