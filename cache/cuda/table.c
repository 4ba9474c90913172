/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/table.h"

#include <assert.h>
#include <string.h>

#include "base/pages.h"
#include "base/util.h"
#include "cuda/gather.h"
#include "cuda/kernels.h"
#include "cuda/private.h"

#define THREADS 256u
#define SLICE ((uint64_t)64 << 10)	/* of a block: kernels.cl's SK_SLICE */
#define BLOCKS 16384u			/* see gather.c */

_Static_assert(SK_CUDA_TABLE_LEAST == SK_CUDA_GATHER_LEAST,
	       "whom no table takes, no batch of ours does");

struct sk_cuda_table {
	const struct sk_cuda_device *device;
	char *host;			/* what the device has */
	struct sk_cuda_lock *lock;	/* NULL: it crosses the link slowly */
	uint64_t there;
	size_t bytes;			/* of both */
	size_t n;			/* copies in it; 0: none known */
	uint64_t slices;		/* of the largest */
	uint64_t stamp;			/* of the lane's, that they are */
	sk_cu_event done;		/* the last that read it */
};

/* ---- making and letting go ---- */

struct sk_cuda_table *sk_cuda_table_free(struct sk_cuda_table *t)
{
	struct sk_cuda_scope scope;

	if (!t)
		return NULL;
	sk_cuda_release(t->device, t->there);
	(void)sk_cuda_unlock(t->lock);
	if (t->done && sk_cuda_enter(t->device, &scope, NULL) >= 0) {
		(void)t->device->driver->cuEventDestroy(t->done);
		sk_cuda_leave(&scope);
	}
	(void)sk_pages_free(t->device->os, t->host, t->bytes);
	free(t);
	return NULL;
}

static bool make_event(struct sk_cuda_table *t)
{
	struct sk_cuda_scope scope;
	sk_cu_result result;

	if (sk_cuda_enter(t->device, &scope, NULL) < 0)
		return false;
	result = t->device->driver->cuEventCreate(
		&t->done, SK_CU_EVENT_BLOCKING_SYNC |
		SK_CU_EVENT_DISABLE_TIMING);
	sk_cuda_leave(&scope);
	return result == SK_CU_SUCCESS;
}

static struct sk_cuda_table *make(const struct sk_cuda_device *device,
				  size_t bytes)
{
	struct sk_cuda_table *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->device = device;
	t->bytes = bytes;
	t->host = sk_pages_new(device->os, bytes);
	if (!t->host || !make_event(t) ||
	    sk_cuda_alloc(device, bytes, &t->there, NULL) < 0)
		return sk_cuda_table_free(t);
	(void)sk_cuda_lock(device, t->host, bytes, bytes, &t->lock, NULL);
	return t;
}

/* Within the device's context. What read the table before may still. */
static bool is_read(const struct sk_cuda_table *t)
{
	return t->device->driver->cuEventSynchronize(t->done) ==
	       SK_CU_SUCCESS;
}

/* Whoever needs more has it anew; a device that has no room is asked again
 * later. */
static bool have_room(struct sk_cuda_lane *lane, size_t bytes)
{
	const struct sk_os *os = lane->device->os;
	struct sk_cuda_table *t = lane->table;

	if (t && t->bytes >= bytes)
		return true;
	if (!sk_again_is_due(&lane->table_again, os->now_ns(os)) ||
	    (t && !is_read(t)))
		return false;
	(void)sk_cuda_table_free(t);
	lane->table = make(lane->device, sk_round_up(bytes, SK_PAGE));
	if (!lane->table)
		sk_again_refused(&lane->table_again, os->now_ns(os));
	return lane->table;
}

/* ---- copying ---- */

static bool has_it(const struct sk_cuda_table *t,
		   const struct sk_cuda_table_copy *v, size_t n)
{
	return t->n == n && !memcmp(t->host, v, n * sizeof(*v));
}

static uint64_t slices_of(const struct sk_cuda_table_copy *v, size_t n)
{
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++) {
		assert(v[i].bytes && v[i].bytes < SK_CUDA_TABLE_MOST);
		most = v[i].bytes > most ? v[i].bytes : most;
	}
	return (most + SLICE - 1) / SLICE;
}

static bool put(struct sk_cuda_lane *lane, const struct sk_cuda_table_copy *v,
		size_t n)
{
	struct sk_cuda_table *t = lane->table;

	if (has_it(t, v, n))
		return true;
	if (!is_read(t))
		return false;
	t->n = 0;
	memcpy(t->host, v, n * sizeof(*v));
	if (t->device->driver->cuMemcpyHtoDAsync(t->there, t->host,
						 n * sizeof(*v),
						 lane->stream) !=
	    SK_CU_SUCCESS)
		return false;
	t->n = n;
	t->slices = slices_of(v, n);
	t->stamp = ++lane->tables;
	return true;
}

static bool launch(const struct sk_cuda_lane *lane)
{
	struct sk_cuda_table *t = lane->table;
	uint64_t n = t->n, slices = t->slices;
	void *params[] = { &t->there, &n, &slices };
	uint64_t blocks = n * slices < BLOCKS ? n * slices : BLOCKS;
	int r = sk_cuda_kernels_launch_within(lane, SK_CUDA_KERNEL_COPIES,
					      (unsigned)blocks, THREADS,
					      params, NULL);

	/* Even where that failed: what was asked for before reads it. */
	if (t->device->driver->cuEventRecord(t->done, lane->stream) ==
	    SK_CU_SUCCESS)
		return r >= 0;
	(void)t->device->driver->cuStreamSynchronize(lane->stream);
	return false;
}

/* Within the device's context, with the lane's lock held. What waits to be
 * asked for with others comes first: who asks for each is behind it, and told
 * where it fails. */
static bool ask(struct sk_cuda_lane *lane, const struct sk_cuda_table_copy *v,
		size_t n)
{
	return !lane->batch.n && have_room(lane, n * sizeof(*v)) &&
	       put(lane, v, n) && launch(lane);
}

bool sk_cuda_lane_table(struct sk_cuda_lane *lane,
			const struct sk_cuda_table_copy *v, size_t n,
			uint64_t *ret_stamp)
{
	struct sk_cuda_scope scope;
	bool asked;

	*ret_stamp = 0;
	if (!n)
		return true;
	if (n < SK_CUDA_TABLE_LEAST || !sk_cuda_can_gather(lane) ||
	    sk_cuda_enter(lane->device, &scope, NULL) < 0)
		return false;
	(void)pthread_mutex_lock(&lane->lock);
	asked = ask(lane, v, n);
	if (asked)
		*ret_stamp = lane->table->stamp;
	(void)pthread_mutex_unlock(&lane->lock);
	sk_cuda_leave(&scope);
	return asked;
}

/* With the lane's lock held. */
static bool has(const struct sk_cuda_lane *lane, uint64_t stamp)
{
	const struct sk_cuda_table *t = lane->table;

	return stamp && t && t->n && t->stamp == stamp;
}

bool sk_cuda_lane_has_table(struct sk_cuda_lane *lane, uint64_t stamp)
{
	bool ret;

	(void)pthread_mutex_lock(&lane->lock);
	ret = !sk_cuda_overlaps(lane) && has(lane, stamp);
	(void)pthread_mutex_unlock(&lane->lock);
	return ret;
}

bool sk_cuda_lane_table_again(struct sk_cuda_lane *lane, uint64_t stamp)
{
	struct sk_cuda_scope scope;
	bool asked;

	if (sk_cuda_enter(lane->device, &scope, NULL) < 0)
		return false;
	(void)pthread_mutex_lock(&lane->lock);
	asked = !sk_cuda_overlaps(lane) && !lane->batch.n &&
		has(lane, stamp) && launch(lane);
	(void)pthread_mutex_unlock(&lane->lock);
	sk_cuda_leave(&scope);
	return asked;
}
