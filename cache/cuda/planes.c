/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a regular distance, and planes of such rows, by one call each. The
 * driver counts a plane's distance in rows, so that it has to be a multiple of
 * theirs.
 */
#include <assert.h>

#include "cuda/walk.h"

/* What the driver's pitches may be; as SK_CU_DEVICE_MAX_PITCH says it. */
#define PITCH_MAX 0x7fffffff

static int walk_failed(const struct sk_cuda_walk *w, sk_cu_result result)
{
	if (result == SK_CU_SUCCESS)
		return 0;
	return sk_cuda_driver_failed(w->lane->device->driver, result,
				     sk_cuda_way_name(w->way), w->err);
}

int sk_cuda_call_begin(const struct sk_cuda_walk *w, uint64_t bytes,
		       struct sk_cuda_call *ret_call)
{
	struct sk_cuda_lane *lane = w->lane;
	int r = sk_cuda_enter(lane->device, &ret_call->scope, w->err);

	if (r < 0)
		return r;
	ret_call->stream = lane->stream;
	/* What is not page-locked waits for itself, and nobody else for it. */
	ret_call->takes_turns = w->lock;
	if (!ret_call->takes_turns)
		return 0;
	(void)pthread_mutex_lock(&lane->lock);
	r = sk_cuda_turn_begin(lane, bytes, &ret_call->stream, w->err);
	if (r < 0) {
		(void)pthread_mutex_unlock(&lane->lock);
		sk_cuda_leave(&ret_call->scope);
	}
	return r;
}

int sk_cuda_call_end(const struct sk_cuda_walk *w, struct sk_cuda_call *call,
		     sk_cu_result result)
{
	int r = walk_failed(w, result), ended = 0;

	if (call->takes_turns) {
		ended = sk_cuda_turn_end(w->lane, call->stream,
					 r < 0 ? NULL : w->err);
		(void)pthread_mutex_unlock(&w->lane->lock);
	}
	sk_cuda_leave(&call->scope);
	return r < 0 ? r : ended;
}

uint64_t sk_cuda_walk_room(const struct sk_cuda_walk *w,
			   struct sk_cuda_place p)
{
	const char *host = w->way == SK_CUDA_OUT ? p.dst : p.src;
	uint64_t at, piece, all;

	if (!w->lock || host < w->lock->map ||
	    host >= w->lock->map + w->lock->bytes)
		return UINT64_MAX;
	at = (uint64_t)(host - w->lock->map);
	piece = w->lock->piece - at % w->lock->piece;
	all = w->lock->bytes - at;	/* the last one may be shorter */
	return piece < all ? piece : all;
}

uint64_t sk_cuda_walk_most(const struct sk_cuda_walk *w)
{
	return w->way == SK_CUDA_ACROSS ? UINT64_MAX :
					 sk_cuda_chunk(w->lane);
}

/* ---- what one call takes ---- */

static bool is_pitch(const struct sk_copy *copy, int64_t stride)
{
	return stride >= (int64_t)copy->run && stride <= PITCH_MAX;
}

static bool have_pitches(const struct sk_copy *copy)
{
	int in = copy->ndim - 1;

	return is_pitch(copy, copy->dst_stride[in]) &&
	       is_pitch(copy, copy->src_stride[in]);
}

/* Of the side that may be page-locked. */
static const int64_t *host_strides(const struct sk_cuda_walk *w)
{
	return w->way == SK_CUDA_OUT ? w->copy->dst_stride :
				       w->copy->src_stride;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t sk_cuda_rows_at_once(const struct sk_cuda_walk *w,
			      struct sk_cuda_place p, uint64_t rows)
{
	const struct sk_copy *copy = w->copy;
	uint64_t room = sk_cuda_walk_room(w, p), pitch;

	if (!have_pitches(copy) || room < copy->run)
		return 0;
	pitch = (uint64_t)host_strides(w)[copy->ndim - 1];
	rows = least(rows, (room - copy->run) / pitch + 1);
	return least(rows, sk_cuda_walk_most(w) / copy->run);
}

/* The distance of planes is one of rows, and no row is in two of them. */
static bool are_planes(const struct sk_copy *copy, const int64_t *strides)
{
	int in = copy->ndim - 1;
	int64_t rows = strides[in - 1] / strides[in];

	return strides[in - 1] % strides[in] == 0 && rows >= copy->size[in];
}

uint64_t sk_cuda_planes_at_once(const struct sk_cuda_walk *w,
				struct sk_cuda_place p, uint64_t planes)
{
	const struct sk_copy *copy = w->copy;
	uint64_t room = sk_cuda_walk_room(w, p), bytes, reach;
	const int64_t *host = host_strides(w);
	int in = copy->ndim - 1;

	if (in < 1 || !have_pitches(copy) ||
	    !are_planes(copy, copy->dst_stride) ||
	    !are_planes(copy, copy->src_stride))
		return 0;
	/* Of one plane: what it holds, and from its first byte to its last. */
	bytes = copy->run * (uint64_t)copy->size[in];
	reach = (uint64_t)(host[in] * (copy->size[in] - 1)) + copy->run;
	if (room < reach)
		return 0;
	planes = least(planes, (room - reach) / (uint64_t)host[in - 1] + 1);
	return least(planes, sk_cuda_walk_most(w) / bytes);
}

/* ---- the calls ---- */

static sk_cu_enum source_type(const struct sk_cuda_walk *w)
{
	return w->way == SK_CUDA_IN ? SK_CU_MEMORY_HOST :
				      SK_CU_MEMORY_DEVICE;
}

static sk_cu_enum target_type(const struct sk_cuda_walk *w)
{
	return w->way == SK_CUDA_OUT ? SK_CU_MEMORY_HOST :
				       SK_CU_MEMORY_DEVICE;
}

int sk_cuda_copy_rows(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		      uint64_t rows)
{
	const struct sk_copy *copy = w->copy;
	struct sk_cuda_call call;
	sk_cu_memcpy2d c = {
		.src_type = source_type(w),
		.src_host = p.src,
		.src_device = (uintptr_t)p.src,
		.src_pitch = (size_t)copy->src_stride[copy->ndim - 1],
		.dst_type = target_type(w),
		.dst_host = p.dst,
		.dst_device = (uintptr_t)p.dst,
		.dst_pitch = (size_t)copy->dst_stride[copy->ndim - 1],
		.width = copy->run,
		.height = rows,
	};
	int r = sk_cuda_call_begin(w, rows * copy->run, &call);

	return r < 0 ? r : sk_cuda_call_end(
		w, &call, w->lane->device->driver->cuMemcpy2DAsync(
			&c, call.stream));
}

int sk_cuda_copy_planes(const struct sk_cuda_walk *w, struct sk_cuda_place p,
			uint64_t planes)
{
	const struct sk_copy *copy = w->copy;
	int in = copy->ndim - 1, r;
	struct sk_cuda_call call;
	sk_cu_memcpy3d c = {
		.src_type = source_type(w),
		.src_host = p.src,
		.src_device = (uintptr_t)p.src,
		.src_pitch = (size_t)copy->src_stride[in],
		.src_height = (size_t)(copy->src_stride[in - 1] /
				       copy->src_stride[in]),
		.dst_type = target_type(w),
		.dst_host = p.dst,
		.dst_device = (uintptr_t)p.dst,
		.dst_pitch = (size_t)copy->dst_stride[in],
		.dst_height = (size_t)(copy->dst_stride[in - 1] /
				       copy->dst_stride[in]),
		.width = copy->run,
		.height = (size_t)copy->size[in],
		.depth = planes,
	};

	assert(in >= 1);
	r = sk_cuda_call_begin(w, planes * copy->run *
				  (uint64_t)copy->size[in], &call);
	return r < 0 ? r : sk_cuda_call_end(
		w, &call, w->lane->device->driver->cuMemcpy3DAsync(
			&c, call.stream));
}
