/* SPDX-License-Identifier: Apache-2.0 */
/* What is restored over several nodes, and what of it has to pass. */
#ifndef SK_BENCH_NODES_H
#define SK_BENCH_NODES_H

#include "report.h"
#include "state.h"

struct nodes_kind {
	enum phase phase, ceiling;
	enum cut cut;		/* of rows that were saved */
	int moved;		/* nodes that a rank comes back further on */
	bool several;		/* makes sense where a node has several ranks */
	const char *what;
};

/* Of a rank, in one restore. */
struct nodes_count {
	uint64_t received, sent, passed;	/* bytes */
	uint64_t verified;		/* the same, hashed */
	int64_t rows, columns;		/* of each matrix */
};

/* The k-th that this run has; NULL behind the last. */
const struct nodes_kind *nodes_kind(const struct bench *b, int k);
/* Bytes that have to come to the nodes, each once to each. */
uint64_t nodes_needed(const struct bench *b, const struct nodes_kind *kind,
		      int64_t rows, int64_t columns);
/* What all ranks counted, in b->traffic: the round with most counts. */
void nodes_add(struct bench *b, const struct nodes_kind *kind,
	       const struct nodes_count *counts);
/* A table of that; none where nothing was restored over nodes. */
void nodes_report(struct report *r, const struct bench *b);

#endif
