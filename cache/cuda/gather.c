/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small copies by one launch of a kernel of ours. The driver makes those
 * within a device one after the other, 4 us each on an H200, whether it is
 * asked for each or for all in a batch: 17 GB/s of copies of 64 KiB, where one
 * as long as all of them has 2,000. Over the link they are 1 us each, which a
 * copy of 8 KiB is a sixth of.
 *
 * The kernel reads a table, which crosses the link before it. A table is
 * written again when the kernel that read it is done.
 */
#include <assert.h>
#include <string.h>

#include "base/pages.h"
#include "cuda/gather.h"
#include "cuda/kernels.h"

#define TABLES 8u	/* so many batches are asked for before one is done */
#define THREADS 256u
#define SLICE ((uint64_t)64 << 10)	/* of a block: kernels.cl's SK_SLICE */
/* Each block is done in a moment, and the trainer's come in between; beyond so
 * many, which fill any device, one takes several slices. */
#define BLOCKS 16384u
/* Over the link a few keep it busy, and would wait for it in all the others'
 * place. */
#define HOST_BLOCKS 32u

/* A copy, as kernels.cl has it. */
struct copy {
	uint64_t dst, src, bytes;
};

#define TABLE_BYTES (SK_CUDA_BATCH_MAX * sizeof(struct copy))
#define HOST_BYTES (TABLES * TABLE_BYTES)

struct sk_cuda_gather {
	const struct sk_cuda_device *device;
	char *host;			/* the tables */
	struct sk_cuda_lock *lock;	/* NULL: they cross it slowly */
	uint64_t there;
	sk_cu_event done[TABLES];
	unsigned next;
};

static int failed(const struct sk_cuda_device *device, sk_cu_result result,
		  const char *what, struct sk_err *err)
{
	return result == SK_CU_SUCCESS ? 0 :
	       sk_cuda_driver_failed(device->driver, result, what, err);
}

/* ---- making and letting go ---- */

static int make_events(struct sk_cuda_gather *g, struct sk_err *err)
{
	struct sk_cuda_scope scope;
	int r = sk_cuda_enter(g->device, &scope, err);

	if (r < 0)
		return r;
	for (unsigned i = 0; i < TABLES && r >= 0; i++)
		r = failed(g->device,
			   g->device->driver->cuEventCreate(
				   &g->done[i], SK_CU_EVENT_BLOCKING_SYNC |
				   SK_CU_EVENT_DISABLE_TIMING),
			   "cuEventCreate", err);
	sk_cuda_leave(&scope);
	return r;
}

static int make(const struct sk_cuda_device *device,
		struct sk_cuda_gather **ret, struct sk_err *err)
{
	const uint64_t bytes = HOST_BYTES;
	struct sk_cuda_gather *g = calloc(1, sizeof(*g));
	int r;

	if (!g)
		return sk_err_set(err, -ENOMEM, "out of memory");
	g->device = device;
	g->host = sk_pages_new(device->os, bytes);
	r = g->host ? make_events(g, err) :
		      sk_err_set(err, -ENOMEM, "out of memory");
	if (r >= 0)
		r = sk_cuda_alloc(device, bytes, &g->there, err);
	if (r < 0) {
		(void)sk_cuda_gather_free(g);
		return r;
	}
	(void)sk_cuda_lock(device, g->host, bytes, bytes, &g->lock, NULL);
	*ret = g;
	return 0;
}

struct sk_cuda_gather *sk_cuda_gather_free(struct sk_cuda_gather *g)
{
	struct sk_cuda_scope scope;

	if (!g)
		return NULL;
	sk_cuda_release(g->device, g->there);
	(void)sk_cuda_unlock(g->lock);
	if (sk_cuda_enter(g->device, &scope, NULL) >= 0) {
		for (unsigned i = 0; i < TABLES; i++)
			if (g->done[i])
				(void)g->device->driver->cuEventDestroy(
					g->done[i]);
		sk_cuda_leave(&scope);
	}
	(void)sk_pages_free(g->device->os, g->host, HOST_BYTES);
	free(g);
	return NULL;
}

static void try(struct sk_cuda_lane *lane)
{
	const struct sk_os *os = lane->device->os;
	struct sk_cuda_gather *gather = NULL;

	if (!sk_again_is_due(&lane->gather_again, os->now_ns(os)))
		return;
	if (sk_cuda_kernels_load(lane->device, NULL) < 0 ||
	    make(lane->device, &gather, NULL) < 0)
		sk_again_refused(&lane->gather_again, os->now_ns(os));
	__atomic_store_n(&lane->gather, gather, __ATOMIC_RELEASE);
}

bool sk_cuda_can_gather_host(struct sk_cuda_lane *lane)
{
	return lane->device->host_pointers &&
	       sk_cuda_kernels_are_loaded(lane->device) &&
	       sk_cuda_can_gather(lane);
}

bool sk_cuda_can_gather(struct sk_cuda_lane *lane)
{
	bool can;

	if (sk_cuda_overlaps(lane))
		return false;
	/* Once there is one, it stays; who copies asks for each tensor. */
	if (__atomic_load_n(&lane->gather, __ATOMIC_ACQUIRE))
		return true;
	(void)pthread_mutex_lock(&lane->lock);
	if (!lane->gather)
		try(lane);
	can = lane->gather;
	(void)pthread_mutex_unlock(&lane->lock);
	return can;
}

/* ---- one batch ---- */

static bool are_many(const struct sk_cuda_lane *lane)
{
	const struct sk_cuda_batch *b = &lane->batch;
	unsigned small = 0;

	for (size_t i = 0; i < b->n && small < SK_CUDA_GATHER_LEAST; i++)
		small += sk_cuda_gathers(lane, b->way, b->sizes[i]);
	return small >= SK_CUDA_GATHER_LEAST;
}

/* What is small goes to the table, and the rest stays. Slices of the largest;
 * *ret_n copies. */
static uint64_t fill(struct sk_cuda_lane *lane, struct copy *table,
		     uint64_t *ret_n)
{
	struct sk_cuda_batch *b = &lane->batch;
	size_t left = sk_cuda_batch_sort(lane);
	uint64_t most = 0;

	*ret_n = b->n - left;
	for (size_t i = left; i < b->n; i++) {
		*table++ = (struct copy){ b->dsts[i], b->srcs[i],
					  b->sizes[i] };
		most = b->sizes[i] > most ? b->sizes[i] : most;
	}
	b->n = left;
	return (most + SLICE - 1) / SLICE;
}

/* Within the device's context. */
static int launch(struct sk_cuda_lane *lane, unsigned i, uint64_t n,
		  uint64_t slices, struct sk_err *err)
{
	struct sk_cuda_gather *g = lane->gather;
	uint64_t table = g->there + i * TABLE_BYTES, blocks = n * slices;
	uint64_t most = lane->batch.way == SK_CUDA_ACROSS ? BLOCKS :
							    HOST_BLOCKS;
	void *params[] = { &table, &n, &slices };
	int r;

	r = failed(lane->device,
		   lane->device->driver->cuMemcpyHtoDAsync(
			   table, g->host + i * TABLE_BYTES,
			   n * sizeof(struct copy), lane->stream),
		   "a copy to the device", err);
	if (r < 0)
		return r;
	return sk_cuda_kernels_launch_within(
		lane, SK_CUDA_KERNEL_COPIES,
		(unsigned)(blocks < most ? blocks : most), THREADS, params,
		err);
}

int sk_cuda_gather_run(struct sk_cuda_lane *lane, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	struct sk_cuda_gather *g = lane->gather;
	unsigned i = g->next % TABLES;
	uint64_t n, slices;
	int r, marked;

	if (!are_many(lane))
		return 0;
	r = failed(lane->device, driver->cuEventSynchronize(g->done[i]),
		   "cuEventSynchronize", err);
	if (r < 0)
		return r;
	slices = fill(lane, (struct copy *)(void *)
			    (g->host + i * TABLE_BYTES), &n);
	assert(n && slices);
	g->next++;
	r = launch(lane, i, n, slices, err);
	/* Even where that failed half way. */
	marked = failed(lane->device,
			driver->cuEventRecord(g->done[i], lane->stream),
			"cuEventRecord", r < 0 ? NULL : err);
	return r < 0 ? r : marked;
}
