/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/gpu.h"

#include <assert.h>

#include "base/util.h"
#include "layout/layout.h"

#define ALIGN 64u		/* of chunks that share a buffer */

int sk_restore_settle_gpus(struct sk_restoring *rs)
{
	const struct sk_gpus *g = &rs->state->gpus;
	int r = 0;

	for (int i = 0; i < g->n && r >= 0; i++) {
		r = sk_cuda_is_stuck(g->v[i].device, &rs->err);
		if (r >= 0)
			r = sk_cuda_settle(g->v[i].device, &rs->err);
	}
	return r;
}

/* ---- asking for it ---- */

uint64_t sk_restore_memory_of(const struct sk_restoring *rs,
			      const struct sk_restore_piece *piece)
{
	const struct sk_local *local = &rs->state->locals[piece->local];

	assert((int)piece->part < local->item.n_boxes);
	return local->ids ? local->ids[piece->part] : SK_GPU_NO_ID;
}

static int ask(struct sk_restoring *rs, const struct sk_restore_filling *f,
	       const struct sk_copy *copy, uint64_t from, uint64_t to,
	       struct sk_err *err)
{
	return sk_cuda_lane_in(rs->state->gpus.v[f->gpu].lane, copy, from, to,
			       sk_restore_buffer_lock(&f->buffer), err);
}

static int ask_run(struct sk_restoring *rs, struct sk_restore_filling *f,
		   struct sk_err *err)
{
	struct sk_copy run = f->run;

	f->run.bytes = 0;
	return run.bytes ? ask(rs, f, &run, 0, run.bytes, err) : 0;
}

/* Contiguous bytes: they wait for what comes behind them. */
static int add_to_run(struct sk_restoring *rs, struct sk_restore_filling *f,
		      char *dst, const char *src, uint64_t bytes,
		      struct sk_err *err)
{
	struct sk_copy *run = &f->run;
	int r = 0;

	if (run->dst + run->bytes != dst || run->src + run->bytes != src ||
	    f->run_memory != f->memory) {
		r = ask_run(rs, f, err);
		f->run_memory = f->memory;
		run->dst = dst;
		run->src = src;
	}
	run->bytes += bytes;
	run->run = run->bytes;
	return r;
}

int sk_restore_filled(struct sk_restoring *rs, struct sk_restore_filling *f,
		      const struct sk_copy *copy, uint64_t from, uint64_t to,
		      struct sk_err *err)
{
	return copy->ndim ? ask(rs, f, copy, from, to, err) :
	       add_to_run(rs, f, copy->dst + from, copy->src + from,
			  to - from, err);
}

/* ---- filling it ---- */

int sk_restore_filling_end(struct sk_restoring *rs,
			   struct sk_restore_filling *f, int r,
			   struct sk_err *err)
{
	int asked, given;

	if (!f->buffer.lot)
		return r;
	asked = ask_run(rs, f, r < 0 ? NULL : err);
	r = r < 0 ? r : asked;
	given = sk_restore_give_buffer(rs, &f->buffer, r < 0 ? NULL : err);
	*f = (struct sk_restore_filling){ 0 };
	return r < 0 ? r : given;
}

int sk_restore_fill(struct sk_restoring *rs, struct sk_restore_filling *f,
		    const struct sk_restore_piece *piece, uint64_t bytes,
		    char **ret_buf, struct sk_err *err)
{
	int gpu = rs->state->locals[piece->local].gpu, r = 0;

	assert(rs->gpus && gpu >= 0 && bytes <= SK_SUM_CHUNK);
	if (f->buffer.lot &&
	    (f->gpu != gpu || f->used + bytes > SK_SUM_CHUNK))
		r = sk_restore_filling_end(rs, f, 0, err);
	if (r >= 0 && !f->buffer.lot)
		r = sk_restore_take_buffer(rs, gpu, &f->buffer, err);
	if (r < 0)
		return r;
	f->gpu = gpu;
	*ret_buf = f->buffer.data + f->used;
	f->used = sk_round_up(f->used + bytes, ALIGN);
	f->memory = sk_restore_memory_of(rs, piece);
	return 0;
}
