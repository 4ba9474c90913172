/* SPDX-License-Identifier: Apache-2.0 */
/* The planner, and the empty round trip. */
#include <stdio.h>

#include "conn/conn.h"
#include "tensor/plan.h"
#include "state.h"

#define TENSORS 1024
#define TRIPS 1000

static int count_piece(const struct sk_piece *piece,
		       const struct sk_holders *holders, void *ctx)
{
	(void)piece;
	*(int64_t *)ctx += sk_holders_rank(holders, 0) >= 0;
	return 0;
}

/* One rank's plan for 1024 tensors: @rows x 8 ranks before, half as many
 * rows and twice the columns after. */
static int plan_once(int64_t rows, double *ret_ns)
{
	struct sk_mesh *from = NULL, *to = NULL;
	struct sk_spec a = { .name = "w", .dtype = SK_BF16, .ndim = 2,
			     .placements = { SK_SHARD(0), SK_SHARD(1) } };
	struct sk_box *boxes = NULL;
	int64_t pieces = 0;
	int n, r;

	/* As many rows per rank in a larger world: as many pieces. */
	a.shape[0] = rows * 32;
	a.shape[1] = 4096;
	r = sk_mesh_new(2, (int64_t[]){ rows, 8 }, NULL, NULL, &from, NULL);
	if (!r)
		r = sk_mesh_new(2, (int64_t[]){ rows / 2, 16 }, NULL, NULL,
				&to, NULL);
	if (!r) {
		uint64_t start = now_ns();

		for (int i = 0; i < TENSORS && !r; i++) {
			a.mesh = to;
			r = sk_spec_boxes(&a, 777, &boxes, &n, NULL);
			a.mesh = from;
			for (int k = 0; k < n && !r; k++)
				r = sk_plan_box(&a, (int32_t)rows * 8,
						&boxes[k], count_piece,
						&pieces);
			free(boxes);
		}
		*ret_ns = (double)(now_ns() - start);
	}
	sk_mesh_unref(from);
	sk_mesh_unref(to);
	return r || !pieces ? -1 : 0;
}

static int trips(struct bench *b, double *ret_ns)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_conn conn = SK_CONN_NULL;
	uint64_t start;

	if (sk_conn_open(os, b->socket, sk_until_ms(os, 10000), &conn,
			 NULL) < 0)
		return -1;
	start = now_ns();
	for (int i = 0; i < TRIPS; i++) {
		/* Closing an image that is not open: an answer, no work. */
		struct sk_msg msg = { .type = SK_MSG_CLOSE };

		if (sk_conn_call(&conn, &msg, NULL, 0, NULL, NULL,
				 sk_until_ms(os, 10000), NULL) == -ECONNRESET)
			return -1;
	}
	*ret_ns = (double)(now_ns() - start) / TRIPS;
	sk_conn_close(&conn);
	return 0;
}

int phase_small(struct bench *b)
{
	for (int i = 0; i < b->o.rounds; i++) {
		double ns;

		if (plan_once(128, &ns))
			return -1;
		series_add(&b->series[PHASE_PLAN_1K], ns);
		if (plan_once(2048, &ns))
			return -1;
		series_add(&b->series[PHASE_PLAN_16K], ns);
		if (trips(b, &ns))
			return -1;
		series_add(&b->series[PHASE_ROUND_TRIP], ns);
	}
	return 0;
}
