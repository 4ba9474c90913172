/* SPDX-License-Identifier: Apache-2.0 */
/* How much snapshots every step lengthen the steps of a compute loop. */
#include "state.h"

#define STEPS 5
#define SIDE 512		/* 1 MiB of floats: the cache holds it */
#define WAIT_MS 300000

static float matrix[SIDE * SIDE], vector[SIDE], result[SIDE];

static void multiply(void)
{
	for (int i = 0; i < SIDE; i++) {
		float sum = 0;

		for (int j = 0; j < SIDE; j++)
			sum += matrix[i * SIDE + j] * vector[j];
		result[i] = sum;
	}
	for (int i = 0; i < SIDE; i++)
		vector[i] = result[i] * 1e-3f + 1;
}

static uint64_t calibrate(unsigned ms)
{
	uint64_t n = 0, start = now_ns();

	for (; now_ns() - start < (uint64_t)ms * 1000000; n++)
		multiply();
	return n;
}

/* A step computes, waits for the fence, and overwrites its tensors. */
static int steps(struct bench *b, int rank, struct rank_state *s, uint64_t n,
		 int64_t *step, bool snapshots)
{
	struct sk_snapshot_options o = { .flags = SK_SNAPSHOT_NO_FLUSH,
					 .wait_ms = WAIT_MS };

	meet(b);
	mark_start(b, rank);
	for (int i = 0; i < STEPS; i++) {
		for (uint64_t k = 0; k < n; k++)
			multiply();
		if (snapshots && sk_fence(s->state))
			return fail(b, rank, "fence: %s", sk_error());
		state_fill(s, rank, (uint64_t)++(*step));
		if (snapshots && sk_snapshot(s->state, *step, &o))
			return fail(b, rank, "snapshot: %s", sk_error());
	}
	mark_end(b, rank);
	meet(b);
	meet(b);
	if (snapshots && sk_wait(s->state, *step, SK_COMPLETE, WAIT_MS))
		return fail(b, rank, "complete: %s", sk_error());
	return 0;
}

static int rank_step(struct bench *b, int rank)
{
	struct rank_state s;
	int64_t step = 0;
	uint64_t n;

	if (state_open(b, rank, b->o.ranks, "bench-step",
		       b->o.bytes * (uint64_t)b->o.ranks, b->o.tensors,
		       CUT_ROWS, &s))
		return -1;
	meet(b);
	n = calibrate(b->o.step_ms);
	for (int i = 0; i < b->o.rounds; i++)
		if (steps(b, rank, &s, n, &step, false) ||
		    steps(b, rank, &s, n, &step, true))
			return -1;
	state_close(&s);
	return 0;
}

static void lead_step(struct bench *b, int ranks)
{
	meet(b);
	for (int i = 0; i < 2 * b->o.rounds; i++) {
		if (i % 2 == 0)
			note("compute steps, round %d of %d", i / 2 + 1,
			     b->o.rounds);
		meet(b);
		meet(b);
		series_add(&b->series[i % 2 ? PHASE_STEP_SNAPSHOT :
					      PHASE_STEP],
			   marked(b, ranks) / STEPS);
		meet(b);
	}
}

int phase_step(struct bench *b)
{
	return run_ranks(b, b->o.ranks, rank_step, lead_step);
}
