/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/gpu.h"

#include <assert.h>

#include "base/pages.h"
#include "base/util.h"
#include "layout/layout.h"
#include "restore/threads.h"

/* While one is filled, the device may read the others. */
#define STAGES_PER_THREAD 3u
#define ALIGN 64u		/* of chunks that share one */

/* Those of one GPU. */
struct stages {
	char *memory;
	size_t bytes;			/* of it */
	struct sk_cuda_lock *lock;
	struct sk_restore_stage *v;	/* NULL: it takes nothing */
	size_t n, next;
};

struct sk_restore_gpus {
	pthread_mutex_t lock;		/* of who has taken what */
	struct stages of[SK_GPUS_MAX];
};

int sk_restore_settle_gpus(struct sk_restoring *rs)
{
	const struct sk_gpus *g = &rs->state->gpus;
	int r = 0;

	for (int i = 0; i < g->n && r >= 0; i++)
		r = sk_cuda_settle(g->v[i].device, &rs->err);
	return r;
}

/* ---- making and letting go ---- */

static void free_stages(const struct sk_restoring *rs, struct stages *s)
{
	for (size_t i = 0; s->v && i < s->n; i++)
		(void)sk_cuda_mark_free(s->v[i].mark);
	free(s->v);
	(void)sk_cuda_unlock(s->lock);
	(void)sk_pages_free(rs->sk->os, s->memory, s->bytes);
}

static int make_stages(const struct sk_restoring *rs,
		       struct sk_cuda_device *device, struct stages *s,
		       struct sk_err *err)
{
	size_t bytes;
	int r = 0;

	s->n = STAGES_PER_THREAD * sk_restore_threads(rs);
	bytes = s->n * SK_SUM_CHUNK;
	s->v = calloc(s->n, sizeof(*s->v));
	s->memory = sk_pages_new(rs->sk->os, bytes);
	s->bytes = bytes;
	if (!s->v || !s->memory)
		return sk_err_set(err, -ENOMEM, "no memory for %zu bytes to "
				  "restore through", bytes);
	for (size_t i = 0; i < s->n && r >= 0; i++) {
		s->v[i].buf = s->memory + i * SK_SUM_CHUNK;
		r = sk_cuda_mark_new(device, &s->v[i].mark, err);
	}
	/* Without, each copy waits for itself. */
	if (r >= 0)
		(void)sk_cuda_lock(device, s->memory, bytes, bytes, &s->lock,
				   NULL);
	return r;
}

int sk_restore_begin_gpus(struct sk_restoring *rs)
{
	bool any = false;

	assert(!rs->gpus);
	for (size_t i = 0; i < rs->n_pieces && !any; i++)
		any = rs->state->locals[rs->pieces[i].local].gpu >= 0;
	if (!any)
		return 0;
	rs->gpus = calloc(1, sizeof(*rs->gpus));
	if (!rs->gpus)
		return sk_err_set(&rs->err, -ENOMEM, "out of memory");
	(void)pthread_mutex_init(&rs->gpus->lock, NULL);
	return 0;
}

int sk_restore_end_gpus(struct sk_restoring *rs, int r)
{
	if (!rs->gpus)
		return r;
	for (int i = 0; i < rs->state->gpus.n; i++) {
		struct stages *s = &rs->gpus->of[i];
		int one = s->v ? sk_cuda_lane_finish(
					 rs->state->gpus.v[i].lane,
					 r < 0 ? NULL : &rs->err) : 0;

		r = r < 0 ? r : one;
		free_stages(rs, s);
	}
	(void)pthread_mutex_destroy(&rs->gpus->lock);
	free(rs->gpus);
	rs->gpus = NULL;
	return r;
}

/* ---- one buffer ---- */

static int take(struct sk_restoring *rs, int gpu,
		struct sk_restore_stage **ret_stage, struct sk_err *err)
{
	struct sk_restore_gpus *gpus = rs->gpus;
	struct stages *s = &gpus->of[gpu];
	int r = 0;

	(void)pthread_mutex_lock(&gpus->lock);
	if (!s->v)
		r = make_stages(rs, rs->state->gpus.v[gpu].device, s, err);
	if (r >= 0) {
		/* There are more than threads: one is not taken. */
		do {
			*ret_stage = &s->v[s->next++ % s->n];
		} while ((*ret_stage)->taken);
		(*ret_stage)->taken = true;
	} else {
		free_stages(rs, s);
		*s = (struct stages){ 0 };
	}
	(void)pthread_mutex_unlock(&gpus->lock);
	return r;
}

static void give_back(struct sk_restore_gpus *gpus,
		      struct sk_restore_stage *stage)
{
	(void)pthread_mutex_lock(&gpus->lock);
	assert(stage->taken);
	stage->taken = false;
	(void)pthread_mutex_unlock(&gpus->lock);
}

/* ---- filling it ---- */

int sk_restore_filling_end(struct sk_restoring *rs,
			   struct sk_restore_filling *f, int r,
			   struct sk_err *err)
{
	int marked;

	if (!f->stage)
		return r;
	/* Even where something failed half way. */
	marked = sk_cuda_mark_set(f->stage->mark,
				  rs->state->gpus.v[f->gpu].lane,
				  r < 0 ? NULL : err);
	give_back(rs->gpus, f->stage);
	*f = (struct sk_restore_filling){ 0 };
	return r < 0 ? r : marked;
}

static int begin(struct sk_restoring *rs, struct sk_restore_filling *f,
		 int gpu, struct sk_err *err)
{
	struct sk_restore_stage *stage;
	int r = take(rs, gpu, &stage, err);

	if (r < 0)
		return r;
	r = sk_cuda_mark_wait(stage->mark, err);
	if (r < 0)
		give_back(rs->gpus, stage);
	else
		*f = (struct sk_restore_filling){ .stage = stage,
						  .gpu = gpu };
	return r;
}

int sk_restore_fill(struct sk_restoring *rs, struct sk_restore_filling *f,
		    int gpu, uint64_t bytes, char **ret_buf,
		    struct sk_err *err)
{
	int r = 0;

	assert(rs->gpus && bytes <= SK_SUM_CHUNK);
	if (f->stage && (f->gpu != gpu || f->used + bytes > SK_SUM_CHUNK))
		r = sk_restore_filling_end(rs, f, 0, err);
	if (r >= 0 && !f->stage)
		r = begin(rs, f, gpu, err);
	if (r < 0)
		return r;
	*ret_buf = f->stage->buf + f->used;
	f->used = sk_round_up(f->used + bytes, ALIGN);
	return 0;
}

int sk_restore_filled(struct sk_restoring *rs, struct sk_restore_filling *f,
		      const struct sk_copy *copy, uint64_t from, uint64_t to,
		      struct sk_err *err)
{
	return sk_cuda_lane_in(rs->state->gpus.v[f->gpu].lane, copy, from, to,
			       rs->gpus->of[f->gpu].lock, err);
}
