/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided copies to, from and within a device, as few calls: what is
 * contiguous is one, rows of a regular distance are one, and planes of such
 * rows are one. No call crosses the end of a piece of page-locked memory,
 * which the driver would not take for locked, and none holds the link for
 * longer than SK_CUDA_CHUNK takes. What would be many calls all the same,
 * elements one by one, goes by a kernel (strided.h).
 */
#include <assert.h>
#include <errno.h>

#include "cuda/gather.h"
#include "cuda/strided.h"
#include "cuda/walk.h"

static struct sk_cuda_place seek(const struct sk_copy *copy, uint64_t row)
{
	struct sk_cuda_place p = { copy->dst, copy->src };

	for (int d = copy->ndim - 1; d >= 0; d--) {
		int64_t i = (int64_t)(row % (uint64_t)copy->size[d]);

		row /= (uint64_t)copy->size[d];
		p.dst += i * copy->dst_stride[d];
		p.src += i * copy->src_stride[d];
	}
	return p;
}

const char *sk_cuda_way_name(enum sk_cuda_way way)
{
	return way == SK_CUDA_OUT ? "a copy to the host" :
	       way == SK_CUDA_IN ? "a copy to the device" :
				   "a copy on the device";
}

static sk_cu_result ask(const struct sk_cuda_walk *w, struct sk_cuda_place p,
			uint64_t n, sk_cu_stream stream)
{
	const struct sk_cuda_driver *driver = w->lane->device->driver;

	if (w->way == SK_CUDA_ACROSS)
		return driver->cuMemcpyDtoDAsync((uintptr_t)p.dst,
						 (uintptr_t)p.src, n, stream);
	if (w->way == SK_CUDA_OUT)
		return driver->cuMemcpyDtoHAsync(p.dst, (uintptr_t)p.src, n,
						 stream);
	return driver->cuMemcpyHtoDAsync((uintptr_t)p.dst, p.src, n, stream);
}

static int copy_now(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		    uint64_t n)
{
	struct sk_cuda_call call;
	int r = sk_cuda_call_begin(w, n, &call);

	return r < 0 ? r : sk_cuda_call_end(w, &call,
					    ask(w, p, n, call.stream));
}

/* What is as long as one call may be goes by itself: in a batch with others it
 * would hold the link for as long as they all do. */
int sk_cuda_copy_bytes(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		       uint64_t n)
{
	int r = 0;

	while (n && r >= 0) {
		uint64_t room = sk_cuda_walk_room(w, p), part;
		uint64_t most = sk_cuda_walk_most(w);	/* it grows */
		/* A kernel may not reach what is not page-locked. */
		bool may = w->way == SK_CUDA_ACROSS || room != UINT64_MAX;

		most = room < most ? room : most;
		part = n < most ? n : most;
		if (part < w->together && may)
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

/* Within a device the driver may refuse distances that it has not chosen
 * itself, as its documentation says. */
static bool is_refused(const struct sk_cuda_walk *w, int r)
{
	return r == -EINVAL && w->way == SK_CUDA_ACROSS;
}

static int copy_row_by_row(const struct sk_cuda_walk *w,
			   struct sk_cuda_place p, uint64_t rows)
{
	const struct sk_copy *copy = w->copy;
	int in = copy->ndim - 1, r = 0;

	for (; rows && r >= 0; rows--) {
		r = sk_cuda_copy_bytes(w, p, copy->run);
		p.dst += copy->dst_stride[in];
		p.src += copy->src_stride[in];
	}
	return r;
}

/* @rows whole rows along the innermost dimension. */
static int copy_rows(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		     uint64_t rows)
{
	const struct sk_copy *copy = w->copy;
	int in = copy->ndim - 1, r = 0;

	while (rows && r >= 0) {
		uint64_t n = sk_cuda_rows_at_once(w, p, rows);

		r = n > 1 ? sk_cuda_copy_rows(w, p, n) : -EINVAL;
		n = n > 1 ? n : 1;
		if (n == 1 || is_refused(w, r))
			r = copy_row_by_row(w, p, n);
		p.dst += (int64_t)n * copy->dst_stride[in];
		p.src += (int64_t)n * copy->src_stride[in];
		rows -= n;
	}
	return r;
}

/* @planes whole ones along the dimension before that. */
static int copy_planes(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		       uint64_t planes)
{
	const struct sk_copy *copy = w->copy;
	int in = copy->ndim - 1, r = 0;

	while (planes && r >= 0) {
		uint64_t n = sk_cuda_planes_at_once(w, p, planes);

		r = n > 1 ? sk_cuda_copy_planes(w, p, n) : -EINVAL;
		n = n > 1 && !is_refused(w, r) ? n : 1;
		if (n == 1)
			r = copy_rows(w, p, (uint64_t)copy->size[in]);
		p.dst += (int64_t)n * copy->dst_stride[in - 1];
		p.src += (int64_t)n * copy->src_stride[in - 1];
		planes -= n;
	}
	return r;
}

/* Whole planes that begin with @row, of @rows that are wanted. */
static uint64_t planes_from(const struct sk_copy *copy, uint64_t row,
			    uint64_t rows)
{
	int in = copy->ndim - 1;
	uint64_t height = (uint64_t)copy->size[in], left;

	if (in < 1 || row % height)
		return 0;
	left = (uint64_t)copy->size[in - 1] -
	       row / height % (uint64_t)copy->size[in - 1];
	return left < rows / height ? left : rows / height;
}

/* Part of the row that @from is in. */
static int copy_part(const struct sk_cuda_walk *w, uint64_t *from, uint64_t to)
{
	const struct sk_copy *copy = w->copy;
	struct sk_cuda_place p = seek(copy, *from / copy->run);
	uint64_t skip = *from % copy->run, n = copy->run - skip;

	n = n < to - *from ? n : to - *from;
	p.dst += skip;
	p.src += skip;
	*from += n;
	return sk_cuda_copy_bytes(w, p, n);
}

/* From @from on, as far as one row, rows along one dimension, or planes along
 * another, go. */
static int copy_next(const struct sk_cuda_walk *w, uint64_t *from, uint64_t to)
{
	const struct sk_copy *copy = w->copy;
	uint64_t row = *from / copy->run, rows = (to - *from) / copy->run;
	struct sk_cuda_place p = seek(copy, row);
	int in = copy->ndim - 1;
	uint64_t n;

	assert(*from < to && to <= copy->bytes);
	if (in < 0 || *from % copy->run || !rows)
		return copy_part(w, from, to);
	n = planes_from(copy, row, rows);
	if (n > 1) {
		*from += n * (uint64_t)copy->size[in] * copy->run;
		return copy_planes(w, p, n);
	}
	n = (uint64_t)copy->size[in] - row % (uint64_t)copy->size[in];
	n = n < rows ? n : rows;
	*from += n * copy->run;
	return copy_rows(w, p, n);
}

static int run(const struct sk_cuda_walk *w, uint64_t from, uint64_t to)
{
	const uint64_t element = w->copy->run;
	int r = 0;

	to = to < w->copy->bytes ? to : w->copy->bytes;
	if (from < to && from % element)
		r = copy_part(w, &from, to);
	if (r >= 0 && from < to &&
	    sk_cuda_is_strided(w, from, to - to % element)) {
		r = sk_cuda_copy_strided(w, from, to - to % element);
		from = to - to % element;
	}
	while (from < to && r >= 0)
		r = copy_next(w, &from, to);
	return r;
}

static uint64_t together_over_link(struct sk_cuda_lane *lane)
{
	bool gathers = sk_cuda_can_gather_host(lane);

	return sk_cuda_has_host_batches(lane) ? lane->chunk :
	       gathers ? SK_CUDA_GATHER_MOST_HOST : 0;
}

/* Without page-locked memory each copy waits for itself: no batch of those. */
int sk_cuda_lane_out(struct sk_cuda_lane *lane, const struct sk_copy *copy,
		     uint64_t from, uint64_t to,
		     const struct sk_cuda_lock *lock, struct sk_err *err)
{
	const struct sk_cuda_walk w = {
		.lane = lane, .copy = copy, .lock = lock,
		.way = SK_CUDA_OUT,
		.together = lock ? together_over_link(lane) : 0,
		.err = err };

	return run(&w, from, to);
}

int sk_cuda_lane_in(struct sk_cuda_lane *lane, const struct sk_copy *copy,
		    uint64_t from, uint64_t to,
		    const struct sk_cuda_lock *lock, struct sk_err *err)
{
	const struct sk_cuda_walk w = {
		.lane = lane, .copy = copy, .lock = lock,
		.way = SK_CUDA_IN,
		.together = lock ? together_over_link(lane) : 0,
		.err = err };

	return run(&w, from, to);
}

int sk_cuda_lane_across(struct sk_cuda_lane *lane, const struct sk_copy *copy,
			uint64_t from, uint64_t to, struct sk_err *err)
{
	const struct sk_cuda_walk w = {
		.lane = lane, .copy = copy, .way = SK_CUDA_ACROSS,
		.together = sk_cuda_can_gather(lane) ? SK_CUDA_GATHER_MOST :
			    sk_cuda_has_batches(lane) ? UINT64_MAX : 0,
		.err = err };

	return run(&w, from, to);
}
