/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided copies to, from and within a device, as few calls: what is
 * contiguous is one, and rows of a regular distance are one. No call crosses
 * the end of a piece of page-locked memory, which the driver would not take
 * for locked.
 */
#include <assert.h>

#include "cuda/private.h"

/* What the driver's pitches may be; as SK_CU_DEVICE_MAX_PITCH says it. */
#define PITCH_MAX 0x7fffffff

struct walk {
	struct sk_cuda_lane *lane;
	const struct sk_copy *copy;
	const struct sk_cuda_lock *lock;
	enum sk_cuda_way way;
	bool batches;
	struct sk_err *err;
};

/* Where a row begins, on both sides. */
struct place {
	char *dst;
	const char *src;
};

static struct place seek(const struct sk_copy *copy, uint64_t row)
{
	struct place p = { copy->dst, copy->src };

	for (int d = copy->ndim - 1; d >= 0; d--) {
		int64_t i = (int64_t)(row % (uint64_t)copy->size[d]);

		row /= (uint64_t)copy->size[d];
		p.dst += i * copy->dst_stride[d];
		p.src += i * copy->src_stride[d];
	}
	return p;
}

/* Bytes from there to the end of its piece. */
static uint64_t room(const struct walk *w, struct place p)
{
	const char *host = w->way == SK_CUDA_OUT ? p.dst : p.src;
	uint64_t at;

	if (!w->lock || host < w->lock->map ||
	    host >= w->lock->map + w->lock->bytes)
		return UINT64_MAX;
	at = (uint64_t)(host - w->lock->map);
	return w->lock->piece - at % w->lock->piece;
}

static int failed(const struct walk *w, sk_cu_result result)
{
	if (result == SK_CU_SUCCESS)
		return 0;
	return sk_cuda_driver_failed(w->lane->device->driver, result,
				     sk_cuda_way_name(w->way), w->err);
}

const char *sk_cuda_way_name(enum sk_cuda_way way)
{
	return way == SK_CUDA_OUT ? "a copy to the host" :
	       way == SK_CUDA_IN ? "a copy to the device" :
				   "a copy on the device";
}

static int copy_now(const struct walk *w, struct place p, uint64_t n)
{
	const struct sk_cuda_driver *driver = w->lane->device->driver;
	struct sk_cuda_scope scope;
	sk_cu_result result;
	int r = sk_cuda_enter(w->lane->device, &scope, w->err);

	if (r < 0)
		return r;
	if (w->way == SK_CUDA_ACROSS)
		result = driver->cuMemcpyDtoDAsync((uintptr_t)p.dst,
						   (uintptr_t)p.src, n,
						   w->lane->stream);
	else if (w->way == SK_CUDA_OUT)
		result = driver->cuMemcpyDtoHAsync(p.dst, (uintptr_t)p.src, n,
						   w->lane->stream);
	else
		result = driver->cuMemcpyHtoDAsync((uintptr_t)p.dst, p.src, n,
						   w->lane->stream);
	sk_cuda_leave(&scope);
	return failed(w, result);
}

static int copy_bytes(const struct walk *w, struct place p, uint64_t n)
{
	int r = 0;

	while (n && r >= 0) {
		uint64_t most = room(w, p), part = n < most ? n : most;

		if (w->batches)
			r = sk_cuda_batch_add(w->lane, w->way,
					      (uintptr_t)p.dst,
					      (uintptr_t)p.src, part, w->err);
		else
			r = copy_now(w, p, part);
		p.dst += part;
		p.src += part;
		n -= part;
	}
	return r;
}

static int copy_matrix(const struct walk *w, struct place p,
		       int64_t dst_pitch, int64_t src_pitch, uint64_t rows)
{
	struct sk_cuda_scope scope;
	sk_cu_result result;
	int r;
	bool from = w->way != SK_CUDA_IN, onto = w->way != SK_CUDA_OUT;
	sk_cu_memcpy2d c = {
		.src_type = from ? SK_CU_MEMORY_DEVICE : SK_CU_MEMORY_HOST,
		.dst_type = onto ? SK_CU_MEMORY_DEVICE : SK_CU_MEMORY_HOST,
		.src_pitch = (size_t)src_pitch,
		.dst_pitch = (size_t)dst_pitch,
		.width = w->copy->run,
		.height = rows,
	};

	if (from)
		c.src_device = (uintptr_t)p.src;
	else
		c.src_host = p.src;
	if (onto)
		c.dst_device = (uintptr_t)p.dst;
	else
		c.dst_host = p.dst;
	r = sk_cuda_enter(w->lane->device, &scope, w->err);
	if (r < 0)
		return r;
	result = w->lane->device->driver->cuMemcpy2DAsync(&c,
							  w->lane->stream);
	sk_cuda_leave(&scope);
	return failed(w, result);
}

static bool is_pitch(const struct sk_copy *copy, int64_t stride)
{
	return stride >= (int64_t)copy->run && stride <= PITCH_MAX;
}

/* Whole rows from @p on, in the innermost dimension, that one call can take;
 * 0: not even one. */
static uint64_t rows_at_once(const struct walk *w, struct place p,
			     uint64_t rows)
{
	const struct sk_copy *copy = w->copy;
	int in = copy->ndim - 1;
	uint64_t most = room(w, p), pitch;

	if (!is_pitch(copy, copy->dst_stride[in]) ||
	    !is_pitch(copy, copy->src_stride[in]))
		return 0;
	if (most < copy->run)
		return 0;
	pitch = (uint64_t)(w->way == SK_CUDA_OUT ? copy->dst_stride[in] :
						   copy->src_stride[in]);
	most = (most - copy->run) / pitch + 1;
	return rows < most ? rows : most;
}

/* @rows whole rows along the innermost dimension. */
static int copy_rows(const struct walk *w, struct place p, uint64_t rows)
{
	const struct sk_copy *copy = w->copy;
	int in = copy->ndim - 1, r = 0;

	while (rows && r >= 0) {
		uint64_t n = rows_at_once(w, p, rows);

		if (n > 1)
			r = copy_matrix(w, p, copy->dst_stride[in],
					copy->src_stride[in], n);
		else
			r = copy_bytes(w, p, copy->run);
		n = n > 1 ? n : 1;
		p.dst += (int64_t)n * copy->dst_stride[in];
		p.src += (int64_t)n * copy->src_stride[in];
		rows -= n;
	}
	return r;
}

/* From @from on, as far as one row, or rows along one dimension, go. */
static int copy_next(const struct walk *w, uint64_t *from, uint64_t to)
{
	const struct sk_copy *copy = w->copy;
	uint64_t row = *from / copy->run, skip = *from % copy->run, n;
	struct place p = seek(copy, row);
	int in = copy->ndim - 1;

	assert(*from < to && to <= copy->bytes);
	if (in < 0 || skip || to - *from < copy->run) {
		n = copy->run - skip;
		n = n < to - *from ? n : to - *from;
		p.dst += skip;
		p.src += skip;
		*from += n;
		return copy_bytes(w, p, n);
	}
	n = (uint64_t)copy->size[in] - row % (uint64_t)copy->size[in];
	if (n > (to - *from) / copy->run)
		n = (to - *from) / copy->run;
	*from += n * copy->run;
	return copy_rows(w, p, n);
}

static int run(const struct walk *w, uint64_t from, uint64_t to)
{
	int r = 0;

	to = to < w->copy->bytes ? to : w->copy->bytes;
	while (from < to && r >= 0)
		r = copy_next(w, &from, to);
	return r;
}

/* Without page-locked memory each copy waits for itself: no batch of those. */
int sk_cuda_lane_out(struct sk_cuda_lane *lane, const struct sk_copy *copy,
		     uint64_t from, uint64_t to,
		     const struct sk_cuda_lock *lock, struct sk_err *err)
{
	const struct walk w = {
		.lane = lane, .copy = copy, .lock = lock,
		.way = SK_CUDA_OUT,
		.batches = lock && sk_cuda_has_batches(lane), .err = err };

	return run(&w, from, to);
}

int sk_cuda_lane_in(struct sk_cuda_lane *lane, const struct sk_copy *copy,
		    uint64_t from, uint64_t to,
		    const struct sk_cuda_lock *lock, struct sk_err *err)
{
	const struct walk w = {
		.lane = lane, .copy = copy, .lock = lock,
		.way = SK_CUDA_IN,
		.batches = lock && sk_cuda_has_batches(lane), .err = err };

	return run(&w, from, to);
}

int sk_cuda_lane_across(struct sk_cuda_lane *lane, const struct sk_copy *copy,
			uint64_t from, uint64_t to, struct sk_err *err)
{
	const struct walk w = {
		.lane = lane, .copy = copy, .way = SK_CUDA_ACROSS,
		.batches = sk_cuda_has_batches(lane), .err = err };

	return run(&w, from, to);
}
