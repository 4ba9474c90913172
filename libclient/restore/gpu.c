/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/gpu.h"

#include <assert.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "base/util.h"
#include "layout/layout.h"
#include "restore/threads.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* For each thread: while one is filled, the device may read the others. */
#define STAGES_PER_THREAD 3u
/* Made at once: a huge page of them. */
#define STAGES_AT_ONCE 2u
#define ALIGN 64u		/* of chunks that share one */

/* Some buffers, which one thread makes while others fill theirs. */
struct stages {
	struct stages *next;
	char *memory;
	struct sk_cuda_lock *lock;
	struct sk_restore_stage v[STAGES_AT_ONCE];
};

/* Those of one GPU. */
struct gpu_stages {
	struct stages *all;
	unsigned n;		/* made, or about to be */
	bool refused;		/* once: no more are asked for */
	/* That nobody has, in the order in which they were given back. */
	struct sk_restore_stage *first, **last;
	pthread_cond_t some;	/* there is one, or there will be none */
};

struct sk_restore_gpus {
	pthread_mutex_t lock;		/* of all that follows */
	struct gpu_stages of[SK_GPUS_MAX];
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

static const size_t stages_bytes = STAGES_AT_ONCE * SK_SUM_CHUNK;

static struct stages *free_stages(const struct sk_restoring *rs,
				  struct stages *s)
{
	for (size_t i = 0; s && i < STAGES_AT_ONCE; i++)
		(void)sk_cuda_mark_free(s->v[i].mark);
	if (!s)
		return NULL;
	(void)sk_cuda_unlock(s->lock);
	(void)sk_pages_free(rs->sk->os, s->memory, stages_bytes);
	free(s);
	return NULL;
}

/* Faulted in beside other threads, and not by the driver, which has one page at
 * a time, and everybody who calls it wait. */
static char *make_memory(const struct sk_restoring *rs)
{
	const struct sk_os *os = rs->sk->os;
	char *memory = sk_pages_new(os, stages_bytes);

	if (!memory)
		return NULL;
	(void)os->madvise(os, memory, stages_bytes, MADV_HUGEPAGE);
	(void)os->madvise(os, memory, stages_bytes, MADV_POPULATE_WRITE);
	return memory;
}

static int make_stages(const struct sk_restoring *rs,
		       struct sk_cuda_device *device, struct stages **ret,
		       struct sk_err *err)
{
	struct stages *s = calloc(1, sizeof(*s));
	int r = 0;

	if (s)
		s->memory = make_memory(rs);
	if (!s || !s->memory) {
		free(s);
		return sk_err_set(err, -ENOMEM, "no memory for %zu bytes to "
				  "restore through", stages_bytes);
	}
	/* Without, each copy waits for itself. */
	(void)sk_cuda_lock(device, s->memory, stages_bytes, stages_bytes,
			   &s->lock, NULL);
	for (size_t i = 0; i < STAGES_AT_ONCE && r >= 0; i++) {
		s->v[i].buf = s->memory + i * SK_SUM_CHUNK;
		s->v[i].lock = s->lock;
		r = sk_cuda_mark_new(device, &s->v[i].mark, err);
	}
	*ret = r < 0 ? free_stages(rs, s) : s;
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
	for (int i = 0; i < SK_GPUS_MAX; i++) {
		rs->gpus->of[i].last = &rs->gpus->of[i].first;
		(void)pthread_cond_init(&rs->gpus->of[i].some, NULL);
	}
	return 0;
}

static int end_gpu(struct sk_restoring *rs, int gpu, int r)
{
	struct stages *s = rs->gpus->of[gpu].all, *next;
	int finished;

	if (!s)
		return r;
	finished = sk_cuda_lane_finish(rs->state->gpus.v[gpu].lane,
				       r < 0 ? NULL : &rs->err);
	for (; s; s = next) {
		next = s->next;
		free_stages(rs, s);
	}
	return r < 0 ? r : finished;
}

int sk_restore_end_gpus(struct sk_restoring *rs, int r)
{
	if (!rs->gpus)
		return r;
	for (int i = 0; i < rs->state->gpus.n; i++)
		r = end_gpu(rs, i, r);
	for (int i = 0; i < SK_GPUS_MAX; i++)
		(void)pthread_cond_destroy(&rs->gpus->of[i].some);
	(void)pthread_mutex_destroy(&rs->gpus->lock);
	free(rs->gpus);
	rs->gpus = NULL;
	return r;
}

/* ---- one buffer ---- */

/* With the lock held. */
static void put_last(struct gpu_stages *g, struct sk_restore_stage *stage)
{
	stage->next = NULL;
	*g->last = stage;
	g->last = &stage->next;
	(void)pthread_cond_signal(&g->some);
}

/* The same; NULL: there is none, or the device still reads it, and there may be
 * more. */
static struct sk_restore_stage *take_first(const struct sk_restoring *rs,
					   struct gpu_stages *g)
{
	unsigned most = STAGES_PER_THREAD * sk_restore_threads(rs);
	struct sk_restore_stage *stage = g->first;
	bool reached = true;

	if (!stage)
		return NULL;
	if (!g->refused && g->n < most &&
	    sk_cuda_mark_reached(stage->mark, &reached, NULL) >= 0 && !reached)
		return NULL;
	g->first = stage->next;
	if (!g->first)
		g->last = &g->first;
	return stage;
}

/* The same, where no more are to be had one that somebody gives back: who has
 * one asks for no other before. NULL: more are to be made. */
static struct sk_restore_stage *take_one(struct sk_restoring *rs,
					 struct gpu_stages *g)
{
	struct sk_restore_stage *stage;

	while (!(stage = take_first(rs, g)) && g->refused && g->n)
		(void)pthread_cond_wait(&g->some, &rs->gpus->lock);
	return stage;
}

/* One of those that were made; the others are for whoever comes. */
static struct sk_restore_stage *add_made(struct gpu_stages *g,
					 struct stages *s)
{
	s->next = g->all;
	g->all = s;
	for (size_t i = 1; i < STAGES_AT_ONCE; i++)
		put_last(g, &s->v[i]);
	return &s->v[0];
}

/* Makes some; where that fails, those do that others have. */
static int take_new(struct sk_restoring *rs, int gpu,
		    struct sk_restore_stage **ret_stage, struct sk_err *err)
{
	struct gpu_stages *g = &rs->gpus->of[gpu];
	struct stages *s = NULL;
	int r = make_stages(rs, rs->state->gpus.v[gpu].device, &s, err);

	(void)pthread_mutex_lock(&rs->gpus->lock);
	if (r >= 0) {
		*ret_stage = add_made(g, s);
	} else {
		g->n -= STAGES_AT_ONCE;
		g->refused = true;
		(void)pthread_cond_broadcast(&g->some);
		*ret_stage = take_one(rs, g);
	}
	(void)pthread_mutex_unlock(&rs->gpus->lock);
	return *ret_stage ? 0 : r;
}

static int take(struct sk_restoring *rs, int gpu,
		struct sk_restore_stage **ret_stage, struct sk_err *err)
{
	struct gpu_stages *g = &rs->gpus->of[gpu];

	(void)pthread_mutex_lock(&rs->gpus->lock);
	*ret_stage = take_one(rs, g);
	if (!*ret_stage)
		g->n += STAGES_AT_ONCE;
	(void)pthread_mutex_unlock(&rs->gpus->lock);
	return *ret_stage ? 0 : take_new(rs, gpu, ret_stage, err);
}

static void give_back(struct sk_restore_gpus *gpus, int gpu,
		      struct sk_restore_stage *stage)
{
	(void)pthread_mutex_lock(&gpus->lock);
	put_last(&gpus->of[gpu], stage);
	(void)pthread_mutex_unlock(&gpus->lock);
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
			       f->stage->lock, err);
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
	int asked, marked;

	if (!f->stage)
		return r;
	asked = ask_run(rs, f, r < 0 ? NULL : err);
	r = r < 0 ? r : asked;
	/* Even where something failed half way. */
	marked = sk_cuda_mark_set(f->stage->mark,
				  rs->state->gpus.v[f->gpu].lane,
				  r < 0 ? NULL : err);
	give_back(rs->gpus, f->gpu, f->stage);
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
		give_back(rs->gpus, gpu, stage);
	else
		*f = (struct sk_restore_filling){ .stage = stage,
						  .gpu = gpu };
	return r;
}

int sk_restore_fill(struct sk_restoring *rs, struct sk_restore_filling *f,
		    const struct sk_restore_piece *piece, uint64_t bytes,
		    char **ret_buf, struct sk_err *err)
{
	int gpu = rs->state->locals[piece->local].gpu, r = 0;

	assert(rs->gpus && gpu >= 0 && bytes <= SK_SUM_CHUNK);
	if (f->stage && (f->gpu != gpu || f->used + bytes > SK_SUM_CHUNK))
		r = sk_restore_filling_end(rs, f, 0, err);
	if (r >= 0 && !f->stage)
		r = begin(rs, f, gpu, err);
	if (r < 0)
		return r;
	*ret_buf = f->stage->buf + f->used;
	f->used = sk_round_up(f->used + bytes, ALIGN);
	f->memory = sk_restore_memory_of(rs, piece);
	return 0;
}
