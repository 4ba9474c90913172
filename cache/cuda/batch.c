/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: contiguous copies that are asked for by one call, for thousands of
 * small tensors. They run in no order of their own, after what the stream has
 * and before what comes.
 */
#include <assert.h>

#include "cuda/gather.h"
#include "cuda/private.h"

static sk_cu_copy_attributes attributes_of(const struct sk_cuda_lane *lane,
					   enum sk_cuda_way way)
{
	bool from = way != SK_CUDA_IN, to = way != SK_CUDA_OUT;
	sk_cu_copy_attributes a = {
		.source_order = SK_CU_SOURCE_IN_STREAM_ORDER };

	a.src.type = from ? SK_CU_LOCATION_DEVICE : SK_CU_LOCATION_HOST;
	a.dst.type = to ? SK_CU_LOCATION_DEVICE : SK_CU_LOCATION_HOST;
	a.src.id = from ? lane->device->ordinal : 0;
	a.dst.id = to ? lane->device->ordinal : 0;
	a.flags = sk_cuda_overlaps(lane) ? SK_CU_COPY_OVERLAP : 0;
	return a;
}

static sk_cu_result ask_all(struct sk_cuda_lane *lane, sk_cu_stream stream)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	sk_cu_copy_attributes a = attributes_of(lane, lane->batch.way);
	struct sk_cuda_batch *b = &lane->batch;
	size_t first = 0, failed_at = 0;

	if (driver->cuMemcpyBatchAsync)
		return driver->cuMemcpyBatchAsync(b->dsts, b->srcs, b->sizes,
						  b->n, &a, &first, 1,
						  stream);
	return driver->cuMemcpyBatchAsync_12080(b->dsts, b->srcs, b->sizes,
						b->n, &a, &first, 1,
						&failed_at, stream);
}

static sk_cu_result ask_one(struct sk_cuda_lane *lane, size_t i,
			    sk_cu_stream stream)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	const struct sk_cuda_batch *b = &lane->batch;

	if (b->way == SK_CUDA_ACROSS)
		return driver->cuMemcpyDtoDAsync(b->dsts[i], b->srcs[i],
						 b->sizes[i], stream);
	if (b->way == SK_CUDA_OUT)
		return driver->cuMemcpyDtoHAsync(
			(void *)(uintptr_t)b->dsts[i], b->srcs[i],
			b->sizes[i], stream);
	return driver->cuMemcpyHtoDAsync(
		b->dsts[i], (const void *)(uintptr_t)b->srcs[i], b->sizes[i],
		stream);
}

/* One is no batch, but by none does a copy within the device keep off kernels.
 * Where there is the function, and this device, or whoever
 * stands between us and it, does not have it: slower, and as right. */
static sk_cu_result ask_each(struct sk_cuda_lane *lane, sk_cu_stream stream)
{
	sk_cu_result result = SK_CU_SUCCESS;

	for (size_t i = 0; i < lane->batch.n && result == SK_CU_SUCCESS; i++)
		result = ask_one(lane, i, stream);
	return result;
}

static bool is_batch(const struct sk_cuda_lane *lane)
{
	return lane->batch.n > 1 ||
	       (lane->batch.way == SK_CUDA_ACROSS && sk_cuda_overlaps(lane));
}

static int ask_driver(struct sk_cuda_lane *lane, struct sk_err *err)
{
	const struct sk_cuda_batch *b = &lane->batch;
	sk_cu_result result = SK_CU_NOT_SUPPORTED;
	sk_cu_stream stream = lane->stream;
	int r = 0, ended;

	if (b->way != SK_CUDA_ACROSS)
		r = sk_cuda_turn_begin(lane, b->bytes, &stream, err);
	if (r < 0)
		return r;
	if (is_batch(lane) && sk_cuda_has_batches(lane))
		result = ask_all(lane, stream);
	if (result == SK_CU_NOT_SUPPORTED)
		result = ask_each(lane, stream);
	if (result != SK_CU_SUCCESS)
		r = sk_cuda_driver_failed(lane->device->driver, result,
					  sk_cuda_way_name(b->way), err);
	ended = sk_cuda_turn_end(lane, stream, r < 0 ? NULL : err);
	return r < 0 ? r : ended;
}

/* Within the device's context. */
static int ask(struct sk_cuda_lane *lane, struct sk_err *err)
{
	int r = 0;

	if (lane->batch.n > 1 && lane->gather)
		r = sk_cuda_gather_run(lane, err);
	return r < 0 || !lane->batch.n ? r : ask_driver(lane, err);
}

/* With the lane's lock held. What fails is not asked for again. */
static int flush(struct sk_cuda_lane *lane, struct sk_err *err)
{
	struct sk_cuda_scope scope;
	int r;

	if (!lane->batch.n)
		return 0;
	r = sk_cuda_enter(lane->device, &scope, err);
	if (r >= 0) {
		r = ask(lane, err);
		sk_cuda_leave(&scope);
	}
	lane->batch.n = 0;
	lane->batch.bytes = 0;
	return r;
}

static void swap(struct sk_cuda_batch *b, size_t i, size_t k)
{
	const sk_cu_ptr dst = b->dsts[i], src = b->srcs[i];
	const size_t size = b->sizes[i];

	b->dsts[i] = b->dsts[k];
	b->srcs[i] = b->srcs[k];
	b->sizes[i] = b->sizes[k];
	b->dsts[k] = dst;
	b->srcs[k] = src;
	b->sizes[k] = size;
}

size_t sk_cuda_batch_sort(struct sk_cuda_lane *lane)
{
	struct sk_cuda_batch *b = &lane->batch;
	size_t n = 0;

	for (size_t i = 0; i < b->n; i++)
		if (!sk_cuda_gathers(lane, b->way, b->sizes[i]))
			swap(b, i, n++);
	return n;
}

/* The same of what the driver is to have. What a kernel is to copy stays, until
 * it is worth a launch: each takes a table, and whoever asks waits for one. */
static int flush_long(struct sk_cuda_lane *lane, struct sk_err *err)
{
	struct sk_cuda_batch *b = &lane->batch;
	size_t n = sk_cuda_batch_sort(lane), small = b->n - n;
	struct sk_cuda_scope scope;
	int r = sk_cuda_enter(lane->device, &scope, err);

	b->n = n;
	if (r >= 0) {
		r = ask_driver(lane, err);
		sk_cuda_leave(&scope);
	}
	for (size_t i = 0; i < small; i++)
		swap(b, i, n + i);
	b->n = small;
	b->bytes = 0;
	return r;
}

static bool is_full(const struct sk_cuda_batch *b, enum sk_cuda_way way)
{
	return b->n == SK_CUDA_BATCH_MAX || (b->n && b->way != way);
}

int sk_cuda_batch_add(struct sk_cuda_lane *lane, enum sk_cuda_way way,
		      uint64_t dst, uint64_t src, size_t bytes,
		      struct sk_err *err)
{
	struct sk_cuda_batch *b = &lane->batch;
	uint64_t more;
	int r = 0;

	assert(bytes);
	(void)pthread_mutex_lock(&lane->lock);
	more = sk_cuda_gathers(lane, way, bytes) ? 0 : bytes;
	if (is_full(b, way))
		r = flush(lane, err);
	else if (way != SK_CUDA_ACROSS && more && b->bytes &&
		 b->bytes + more > sk_cuda_chunk(lane))
		/* It holds the link for as long as it takes. */
		r = flush_long(lane, err);
	if (r >= 0) {
		b->way = way;
		b->dsts[b->n] = dst;
		b->srcs[b->n] = src;
		b->sizes[b->n++] = bytes;
		b->bytes += more;
	}
	(void)pthread_mutex_unlock(&lane->lock);
	return r;
}

int sk_cuda_batch_flush(struct sk_cuda_lane *lane, struct sk_err *err)
{
	int r;

	(void)pthread_mutex_lock(&lane->lock);
	r = flush(lane, err);
	(void)pthread_mutex_unlock(&lane->lock);
	return r;
}
