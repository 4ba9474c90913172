/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/hash.h"

#include <assert.h>
#include <string.h>

#include "base/pages.h"
#include "cuda/kernels.h"

#define LANES 8u		/* threads of a span: kernels.cl's SK_LANES */
#define BLOCK 1024u		/* bytes: its SK_BLOCK */
#define SHORT 240u		/* its SK_SHORT */
/* Small blocks, so that a few spans lie on many processors. */
#define THREADS 32u
#define PARTS_THREADS 256u

/* Spans on both sides, then sums; behind them, on the device alone, what one
 * kernel leaves to the next. */
#define SPANS_BYTES (SK_CUDA_SPANS_MAX * sizeof(struct sk_cuda_span))
#define SUMS_BYTES (SK_CUDA_SPANS_MAX * sizeof(uint64_t))
#define HOST_BYTES (SPANS_BYTES + SUMS_BYTES)
/* What the blocks of 256 MiB add: what is beyond that comes after it. */
#define PARTS_BYTES ((uint64_t)16 << 20)
#define PART_BYTES (LANES * sizeof(uint64_t))

struct sk_cuda_hash {
	struct sk_cuda_device *device;
	struct sk_cuda_mark *done;
	struct sk_cuda_lane *lane;	/* that was asked */
	char *host;
	struct sk_cuda_lock *lock;	/* NULL: the copies are slower */
	uint64_t there;
	uint64_t parts;		/* 0: no room, and one block after another */
};

int sk_cuda_hash_can(const struct sk_cuda_device *device, struct sk_err *err)
{
	return sk_cuda_kernels_load(device, err);
}

static int make_parts(struct sk_cuda_hash *hash, struct sk_err *err)
{
	int r = sk_cuda_alloc(hash->device, PARTS_BYTES, &hash->parts, err);

	if (r < 0)
		hash->parts = 0;
	return r == -ENOMEM ? 0 : r;
}

int sk_cuda_hash_new(struct sk_cuda_device *device,
		     struct sk_cuda_hash **ret_hash, struct sk_err *err)
{
	const uint64_t bytes = HOST_BYTES;
	struct sk_cuda_hash *hash;
	int r = sk_cuda_kernels_load_now(device, err);

	if (r < 0)
		return r;
	hash = calloc(1, sizeof(*hash));
	if (!hash)
		return sk_err_set(err, -ENOMEM, "out of memory");
	hash->device = device;
	hash->host = sk_pages_new(device->os, bytes);
	r = hash->host ? sk_cuda_alloc(device, bytes + LANES * SUMS_BYTES,
				       &hash->there, err) :
			 sk_err_set(err, -ENOMEM, "out of memory");
	if (r >= 0)
		r = make_parts(hash, err);
	if (r >= 0)
		r = sk_cuda_mark_new(device, &hash->done, err);
	if (r < 0) {
		sk_cuda_hash_free(hash);
		return r;
	}
	(void)sk_cuda_lock(device, hash->host, bytes, bytes, &hash->lock,
			   NULL);
	*ret_hash = hash;
	return 0;
}

struct sk_cuda_hash *sk_cuda_hash_free(struct sk_cuda_hash *hash)
{
	if (!hash)
		return NULL;
	(void)sk_cuda_mark_free(hash->done);
	sk_cuda_release(hash->device, hash->parts);
	sk_cuda_release(hash->device, hash->there);
	(void)sk_cuda_unlock(hash->lock);
	(void)sk_pages_free(hash->device->os, hash->host, HOST_BYTES);
	free(hash);
	return NULL;
}

static unsigned blocks(uint64_t threads, unsigned each)
{
	return (unsigned)((threads + each - 1) / each);
}

static uint64_t blocks_of(const struct sk_cuda_span *span)
{
	return span->bytes > SHORT ? (span->bytes - 1) / BLOCK : 0;
}

/* How many spans from @from on have their parts side by side, and the blocks
 * of the largest: 0 where one alone has more than there is room for. */
static size_t together(const struct sk_cuda_hash *hash,
		       const struct sk_cuda_span *spans, size_t from,
		       size_t n, uint64_t *ret_most)
{
	uint64_t room = hash->parts ? PARTS_BYTES / PART_BYTES : 0;
	size_t to = from;

	*ret_most = 0;
	for (; to < n; to++) {
		uint64_t own = blocks_of(&spans[to]);
		uint64_t most = own > *ret_most ? own : *ret_most;

		if (most * (to - from + 1) > room)
			break;
		*ret_most = most;
	}
	return to > from ? to - from : 1;
}

/* The eight sums of spans [from, from + n), whose parts have room for @most
 * blocks of each. */
static int launch_sums(const struct sk_cuda_hash *hash,
		       const struct sk_cuda_lane *lane, size_t from,
		       uint64_t n, uint64_t most, struct sk_err *err)
{
	uint64_t spans = hash->there + from * sizeof(struct sk_cuda_span);
	uint64_t sums = hash->there + HOST_BYTES + from * PART_BYTES;
	uint64_t parts = hash->parts;
	void *of_parts[] = { &spans, &n, &parts, &most };
	void *of_sums[] = { &spans, &n, &sums, &parts, &most };
	int r = 0;

	if (most)
		r = sk_cuda_kernels_launch(lane, SK_CUDA_KERNEL_PARTS,
					   blocks(n * most * LANES / 2,
						  PARTS_THREADS),
					   PARTS_THREADS, of_parts, err);
	if (r < 0)
		return r;
	return sk_cuda_kernels_launch(lane, SK_CUDA_KERNEL_LANES,
				      blocks(n * LANES, THREADS), THREADS,
				      of_sums, err);
}

static int launch(const struct sk_cuda_hash *hash,
		  const struct sk_cuda_lane *lane,
		  const struct sk_cuda_span *v, uint64_t n,
		  struct sk_err *err)
{
	uint64_t spans = hash->there, ret = spans + SPANS_BYTES;
	uint64_t sums = ret + SUMS_BYTES, most;
	void *params[] = { &spans, &n, &sums, &ret };
	int r = 0;

	for (size_t from = 0, k; from < n && r >= 0; from += k) {
		k = together(hash, v, from, n, &most);
		r = launch_sums(hash, lane, from, k, most, err);
	}
	if (r < 0)
		return r;
	return sk_cuda_kernels_launch(lane, SK_CUDA_KERNEL_MERGE,
				      blocks(n, THREADS), THREADS, params,
				      err);
}

static int copy_in(const struct sk_cuda_hash *hash, struct sk_cuda_lane *lane,
		   uint64_t bytes, struct sk_err *err)
{
	const struct sk_copy copy = {
		.dst = (char *)(uintptr_t)hash->there, .src = hash->host,
		.run = bytes, .bytes = bytes };

	return sk_cuda_lane_in(lane, &copy, 0, bytes, hash->lock, err);
}

static int copy_out(const struct sk_cuda_hash *hash, struct sk_cuda_lane *lane,
		    uint64_t bytes, struct sk_err *err)
{
	const struct sk_copy copy = {
		.dst = hash->host + SPANS_BYTES,
		.src = (const char *)(uintptr_t)(hash->there + SPANS_BYTES),
		.run = bytes, .bytes = bytes };

	return sk_cuda_lane_out(lane, &copy, 0, bytes, hash->lock, err);
}

int sk_cuda_hash_ask(struct sk_cuda_hash *hash, struct sk_cuda_lane *lane,
		     const struct sk_cuda_span *spans, size_t n,
		     struct sk_err *err)
{
	int r;

	assert(n <= SK_CUDA_SPANS_MAX && lane->device == hash->device);
	if (!n)
		return 0;
	hash->lane = lane;
	memcpy(hash->host, spans, n * sizeof(*spans));
	r = copy_in(hash, lane, n * sizeof(*spans), err);
	if (r >= 0)
		r = sk_cuda_batch_flush(lane, err);
	if (r >= 0)
		r = launch(hash, lane, spans, n, err);
	if (r >= 0)
		r = copy_out(hash, lane, n * sizeof(uint64_t), err);
	if (r >= 0)
		r = sk_cuda_mark_set(hash->done, lane, err);
	/* What was asked for reads the spans. */
	if (r < 0)
		(void)sk_cuda_lane_finish(lane, NULL);
	return r;
}

int sk_cuda_hash_take(struct sk_cuda_hash *hash, uint64_t *ret_sums, size_t n,
		      struct sk_err *err)
{
	int r = n ? sk_cuda_mark_wait(hash->done, err) : 0;

	if (r < 0) {
		(void)sk_cuda_lane_finish(hash->lane, NULL);
		return r;
	}
	memcpy(ret_sums, hash->host + SPANS_BYTES, n * sizeof(*ret_sums));
	return 0;
}

int sk_cuda_hash_run(struct sk_cuda_hash *hash, struct sk_cuda_lane *lane,
		     const struct sk_cuda_span *spans, size_t n,
		     uint64_t *ret_sums, struct sk_err *err)
{
	int r = sk_cuda_hash_ask(hash, lane, spans, n, err);

	return r < 0 ? r : sk_cuda_hash_take(hash, ret_sums, n, err);
}
