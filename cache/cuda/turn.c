/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy engine goes on with the stream that it serves for as long as that has
 * copies for it: a word that the trainer fetched waited for all of ours, 18 ms
 * for a GiB on an H200, however short each was and however few were asked for
 * at once. A stream that has to wait for another one gives way. So long copies
 * are asked for on two streams in turn, each after the one before it: then a
 * word waits for one of them.
 */
#include "cuda/private.h"

/* A driver takes some hundred calls that wait for each other, and whoever asks
 * for more waits for it, as a fence of a stream would. So calls grow with what
 * was asked for before: 3 GiB are 60, the last of a tenth of one. */
#define GROWS 32

/* Of what one call moves: what is shorter is no burden, and not worth two more
 * calls. */
#define TURN_LEAST 8

static int cross(const struct sk_cuda_lane *lane, sk_cu_stream from,
		 sk_cu_stream to, sk_cu_event event, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = lane->device->driver;
	sk_cu_result result = driver->cuEventRecord(event, from);

	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(driver, result, "cuEventRecord",
					     err);
	result = driver->cuStreamWaitEvent(to, event, 0);
	return result == SK_CU_SUCCESS ? 0 :
	       sk_cuda_driver_failed(driver, result, "cuStreamWaitEvent",
				     err);
}

uint64_t sk_cuda_chunk(const struct sk_cuda_lane *lane)
{
	return lane->chunk + __atomic_load_n(&lane->asked, __ATOMIC_RELAXED) /
				     GROWS;
}

void sk_cuda_chunk_anew(struct sk_cuda_lane *lane)
{
	__atomic_store_n(&lane->asked, 0, __ATOMIC_RELAXED);
}

void sk_cuda_lane_keep(struct sk_cuda_lane *lane, bool keep)
{
	__atomic_store_n(&lane->keeps, keep, __ATOMIC_RELAXED);
}

void sk_cuda_lane_overlap(struct sk_cuda_lane *lane, bool overlap)
{
	__atomic_store_n(&lane->overlaps, overlap, __ATOMIC_RELAXED);
}

int sk_cuda_turn_begin(struct sk_cuda_lane *lane, uint64_t bytes,
		       sk_cu_stream *ret_stream, struct sk_err *err)
{
	*ret_stream = lane->stream;
	(void)__atomic_add_fetch(&lane->asked, bytes, __ATOMIC_RELAXED);
	if (bytes < lane->chunk / TURN_LEAST ||
	    __atomic_load_n(&lane->keeps, __ATOMIC_RELAXED))
		return 0;
	lane->is_side = !lane->is_side;
	if (!lane->is_side)
		return 0;
	*ret_stream = lane->side;
	return cross(lane, lane->stream, lane->side, lane->there, err);
}

int sk_cuda_turn_end(struct sk_cuda_lane *lane, sk_cu_stream stream,
		     struct sk_err *err)
{
	int r = stream == lane->stream ? 0 :
		cross(lane, lane->side, lane->stream, lane->back, err);

	/* Else whoever waits for the lane would not wait for this. */
	if (r < 0)
		(void)lane->device->driver->cuStreamSynchronize(lane->side);
	return r;
}
