/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/buffers.h"

#include <assert.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "base/util.h"
#include "restore/threads.h"
#include "tensor/dtype.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* For each thread: while one is filled, the device may read the others. */
#define PER_THREAD 3u

struct sk_restore_lot {
	struct sk_restore_lot *before;	/* that was made before */
	struct sk_restore_lot *next;	/* that was asked for after */
	int gpu;
	char *memory;
	uint64_t bytes;
	struct sk_cuda_lock *lock;	/* NULL: it is not */
	struct sk_cuda_mark *mark;	/* behind what reads it */
	bool unread;			/* it is known to be; atomic */
	unsigned n, taken, given;	/* buffers */
};

/* Those of one GPU. */
struct gpu_lots {
	uint64_t bytes;			/* of each */
	unsigned most;
	unsigned n;			/* made, or about to be */
	bool refused;			/* once: no more are asked for */
	struct sk_restore_lot *made;	/* the last */
	struct sk_restore_lot *open;	/* that has some to take; NULL: none */
	/* That the device may read, in the order in which it does. */
	struct sk_restore_lot *first, **last;
	pthread_cond_t some;		/* to be taken, or there will be none */
};

struct sk_restore_gpus {
	pthread_mutex_t lock;		/* of all that follows */
	struct gpu_lots of[SK_GPUS_MAX];
};

/* ---- making and letting go ---- */

static struct sk_restore_lot *free_lot(const struct sk_restoring *rs,
				       struct sk_restore_lot *lot)
{
	(void)sk_cuda_mark_free(lot->mark);
	(void)sk_cuda_unlock(lot->lock);
	(void)sk_pages_free(rs->sk->os, lot->memory, lot->bytes);
	free(lot);
	return NULL;
}

/* Faulted in beside other threads, and not by the driver, which has one page at
 * a time, and everybody who calls it wait. */
static char *make_memory(const struct sk_os *os, uint64_t bytes)
{
	char *memory = sk_pages_new(os, bytes);

	if (!memory)
		return NULL;
	(void)os->madvise(os, memory, bytes, MADV_HUGEPAGE);
	(void)os->madvise(os, memory, bytes, MADV_POPULATE_WRITE);
	return memory;
}

static int make_lot(const struct sk_restoring *rs, int gpu,
		    struct sk_restore_lot **ret, struct sk_err *err)
{
	struct sk_cuda_device *device = rs->state->gpus.v[gpu].device;
	uint64_t bytes = rs->gpus->of[gpu].bytes;
	struct sk_restore_lot *lot = calloc(1, sizeof(*lot));
	int r;

	if (lot)
		lot->memory = make_memory(rs->sk->os, bytes);
	if (!lot || !lot->memory) {
		free(lot);
		return sk_err_set(err, -ENOMEM, "no memory for %llu bytes to "
				  "restore through", (unsigned long long)bytes);
	}
	lot->gpu = gpu;
	lot->bytes = bytes;
	lot->n = (unsigned)(bytes / SK_SUM_CHUNK);
	lot->unread = true;
	/* Without, each copy waits for itself. */
	(void)sk_cuda_lock(device, lot->memory, bytes, bytes, &lot->lock,
			   NULL);
	r = sk_cuda_mark_new(device, &lot->mark, err);
	*ret = r < 0 ? free_lot(rs, lot) : lot;
	return r;
}

uint64_t sk_restore_lot_bytes(unsigned threads, uint64_t bytes)
{
	uint64_t n = (bytes + SK_SUM_CHUNK - 1) / SK_SUM_CHUNK;

	n = n < threads ? n : threads;
	n = n < SK_RESTORE_LOT_MOST ? n : SK_RESTORE_LOT_MOST;
	return (n ? n : 1) * SK_SUM_CHUNK;
}

/* Of the pieces that go to that GPU, as far as it matters. */
static uint64_t bytes_for(const struct sk_restoring *rs, int gpu)
{
	const uint64_t enough = SK_RESTORE_LOT_MOST * SK_SUM_CHUNK;
	uint64_t bytes = 0;

	for (size_t i = 0; i < rs->n_pieces && bytes < enough; i++) {
		const struct sk_restore_piece *p = &rs->pieces[i];
		const struct sk_local *local = &rs->state->locals[p->local];
		const struct sk_spec *spec = &local->item.spec;

		if (local->gpu == gpu)
			bytes += ((uint64_t)sk_box_volume(spec->ndim,
							  &p->box) *
				  sk_dtype_bits(spec->dtype) + 7) / 8;
	}
	return bytes;
}

static void begin_gpu(const struct sk_restoring *rs, int gpu)
{
	struct gpu_lots *g = &rs->gpus->of[gpu];
	unsigned threads = sk_restore_threads(rs);

	g->last = &g->first;
	g->bytes = sk_restore_lot_bytes(threads, bytes_for(rs, gpu));
	g->most = (unsigned)(PER_THREAD * threads * SK_SUM_CHUNK / g->bytes);
	g->most += !g->most;
	(void)pthread_cond_init(&g->some, NULL);
	/* The trainer waits for this, and not for the link; who reads beside
	 * one may keep it from that. */
	sk_cuda_lane_keep(rs->state->gpus.v[gpu].lane,
			  !(rs->state->job.flags & SK_JOB_READER));
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
	for (int i = 0; i < rs->state->gpus.n; i++)
		begin_gpu(rs, i);
	return 0;
}

static int end_gpu(struct sk_restoring *rs, int gpu, int r)
{
	struct gpu_lots *g = &rs->gpus->of[gpu];
	struct sk_restore_lot *lot = g->made, *before;
	int finished;

	(void)pthread_cond_destroy(&g->some);
	sk_cuda_lane_keep(rs->state->gpus.v[gpu].lane, false);
	if (!lot)
		return r;
	/* And of a lot that was not filled to its end, asks for what it has. */
	finished = sk_cuda_lane_finish(rs->state->gpus.v[gpu].lane,
				       r < 0 ? NULL : &rs->err);
	for (; lot; lot = before) {
		before = lot->before;
		free_lot(rs, lot);
	}
	return r < 0 ? r : finished;
}

int sk_restore_end_gpus(struct sk_restoring *rs, int r)
{
	if (!rs->gpus)
		return r;
	for (int i = 0; i < rs->state->gpus.n; i++)
		r = end_gpu(rs, i, r);
	(void)pthread_mutex_destroy(&rs->gpus->lock);
	free(rs->gpus);
	rs->gpus = NULL;
	return r;
}

/* ---- taking one: with the lock held ---- */

static bool may_make(const struct gpu_lots *g)
{
	return !g->refused && g->n < g->most;
}

/* One that has some to take. NULL: there is none, or the device still reads it,
 * and there may be more. */
static struct sk_restore_lot *open_lot(struct gpu_lots *g)
{
	struct sk_restore_lot *lot = g->first;
	bool reached = true;

	if (g->open || !lot)
		return g->open;
	if (may_make(g) &&
	    sk_cuda_mark_reached(lot->mark, &reached, NULL) >= 0 && !reached)
		return NULL;
	g->first = lot->next;
	if (!g->first)
		g->last = &g->first;
	lot->taken = lot->given = 0;
	g->open = lot;
	(void)pthread_cond_broadcast(&g->some);
	return lot;
}

static struct sk_restore_buffer take_of(struct gpu_lots *g,
					struct sk_restore_lot *lot)
{
	char *data = lot->memory + lot->taken++ * SK_SUM_CHUNK;

	assert(lot == g->open && lot->taken <= lot->n);
	if (lot->taken == lot->n)
		g->open = NULL;
	return (struct sk_restore_buffer){ data, lot };
}

/* A new one, before those that the device may read. */
static void put_first(struct gpu_lots *g, struct sk_restore_lot *lot)
{
	lot->next = g->first;
	if (!g->first)
		g->last = &lot->next;
	g->first = lot;
	(void)pthread_cond_broadcast(&g->some);
}

static void put_last(struct gpu_lots *g, struct sk_restore_lot *lot)
{
	lot->next = NULL;
	*g->last = lot;
	g->last = &lot->next;
	(void)pthread_cond_broadcast(&g->some);
}

/* One more, for which the lock is given up; where that fails, those do that
 * others have. */
static int add_lot(struct sk_restoring *rs, int gpu, struct sk_err *err)
{
	struct gpu_lots *g = &rs->gpus->of[gpu];
	struct sk_restore_lot *lot = NULL;
	int r;

	g->n++;
	(void)pthread_mutex_unlock(&rs->gpus->lock);
	r = make_lot(rs, gpu, &lot, err);
	(void)pthread_mutex_lock(&rs->gpus->lock);
	if (r < 0) {
		g->n--;
		g->refused = true;
		(void)pthread_cond_broadcast(&g->some);
		return r;
	}
	lot->before = g->made;
	g->made = lot;
	put_first(g, lot);
	return 0;
}

static int take(struct sk_restoring *rs, int gpu,
		struct sk_restore_buffer *ret, struct sk_err *err)
{
	struct gpu_lots *g = &rs->gpus->of[gpu];
	struct sk_restore_lot *lot;
	int r = 0;

	while (!(lot = open_lot(g)) && (r >= 0 || g->n)) {
		if (r >= 0 && (may_make(g) || !g->n))
			r = add_lot(rs, gpu, err);
		else
			(void)pthread_cond_wait(&g->some, &rs->gpus->lock);
	}
	if (!lot)
		return r;
	*ret = take_of(g, lot);
	return 0;
}

/* ---- one buffer ---- */

static int await(struct sk_restore_lot *lot, struct sk_err *err)
{
	int r = 0;

	if (!__atomic_load_n(&lot->unread, __ATOMIC_ACQUIRE))
		r = sk_cuda_mark_wait(lot->mark, err);
	if (r >= 0)
		__atomic_store_n(&lot->unread, true, __ATOMIC_RELEASE);
	return r;
}

int sk_restore_take_buffer(struct sk_restoring *rs, int gpu,
			   struct sk_restore_buffer *ret_buffer,
			   struct sk_err *err)
{
	struct sk_restore_buffer buffer;
	int r;

	assert(rs->gpus && gpu >= 0 && gpu < rs->state->gpus.n);
	(void)pthread_mutex_lock(&rs->gpus->lock);
	r = take(rs, gpu, &buffer, err);
	(void)pthread_mutex_unlock(&rs->gpus->lock);
	if (r < 0)
		return r;
	r = await(buffer.lot, err);
	if (r < 0)
		(void)sk_restore_give_buffer(rs, &buffer, NULL);
	else
		*ret_buffer = buffer;
	return r;
}

int sk_restore_give_buffer(struct sk_restoring *rs,
			   const struct sk_restore_buffer *buffer,
			   struct sk_err *err)
{
	struct sk_restore_lot *lot = buffer->lot;
	bool last;
	int r;

	(void)pthread_mutex_lock(&rs->gpus->lock);
	assert(lot->given < lot->taken);
	last = ++lot->given == lot->n;
	(void)pthread_mutex_unlock(&rs->gpus->lock);
	if (!last)
		return 0;
	/* Even where something failed half way. */
	__atomic_store_n(&lot->unread, false, __ATOMIC_RELAXED);
	r = sk_cuda_mark_set(lot->mark, rs->state->gpus.v[lot->gpu].lane, err);
	(void)pthread_mutex_lock(&rs->gpus->lock);
	put_last(&rs->gpus->of[lot->gpu], lot);
	(void)pthread_mutex_unlock(&rs->gpus->lock);
	return r;
}

const struct sk_cuda_lock *
sk_restore_buffer_lock(const struct sk_restore_buffer *buffer)
{
	return buffer->lot->lock;
}
