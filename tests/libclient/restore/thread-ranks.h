/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that restore, as threads of one process. */
#ifndef SK_TESTS_THREAD_RANKS_H
#define SK_TESTS_THREAD_RANKS_H

#include <pthread.h>

#include "case.h"
#include "conn/client.h"
#include "state/state.h"

struct meeting;

struct rank {
	pthread_t thread;
	const struct test *test;
	struct meeting *meeting;
	int rank;
	int64_t step;
	const struct sk_restore_options *opts;
	struct sk sk;
	struct sk_state *state;
	char *memory[8];
	int n_memory;
	int result;
	char text[4096];
	struct sk_report report;
	uint64_t gathers, gathered;	/* how often, bytes given */
	uint64_t aborts, devices;	/* calls of the comm's others */
	int32_t comm_world;		/* that it says; 0: none */
	int shift;			/* its state is of a rank so many on */
	void (*more)(struct rank *r);	/* describes more, or otherwise */
	void (*spoil)(struct sk_comm *comm);	/* NULL, or: of its comm */
	/* NULL, or: changes @bytes that this one says. */
	void (*lie)(void *said, size_t bytes);
};

/** Opens one and describes what it restores; @m: where it meets the others, or
 * NULL. */
void open_rank(struct rank *r, const struct test *test, int rank,
	       struct meeting *m);
/** All ranks call sk_restore(); results stay in @ranks, of which step, opts
 * and more are set. */
void restore(const struct test *test, struct rank *ranks);
/** The same, all with that step and those options; the result of all. */
int run_plain(struct test *test, struct rank *ranks, int64_t step,
	      const struct sk_restore_options *o);
/** They may be opened again. */
void close_ranks(const struct test *test, struct rank *ranks);
/** Memory that goes with the rank. */
char *take_memory(struct rank *r, size_t bytes);

/** The result, which all must have. */
int one_result(const struct test *test, const struct rank *ranks,
	       uint64_t seed);
/** Elements of one tensor, or of all of all ranks, that are not what was
 * saved. */
uint64_t wrong_in(const struct rank *r, const struct sk_local *local);
uint64_t wrong_elements(const struct test *test, struct rank *ranks);

#endif
