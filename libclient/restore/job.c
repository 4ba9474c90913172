/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/job.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "bytes/pass.h"
#include "restore/gpu.h"
#include "restore/shape.h"

/*
 * What a job verifies is what it delivers, whoever writes to an image
 * meanwhile: its bytes are read once, and what is stored is what was hashed.
 * Long runs go line by line (bytes/pass.h); shorter ones out of a buffer that
 * stays in the first level cache, which is filled by four streams at once: one
 * alone waits for memory wherever pages lie scattered. Runs shorter than
 * RUN_LEAST gain more from a chunk at a time.
 */
#define STEP_BYTES ((uint64_t)16 << 10)
#define STREAMS 4u
#define LINE 64u	/* bytes of a cache line */
#define RUN_LEAST 64u

/* What is copied of a chunk, and how. */
struct passing {
	struct sk_copy copy;
	struct sk_restore_shape shape;
	const char *base;	/* byte 0 of the entry */
	uint64_t from, to;	/* the chunk, in bytes of the entry */
	uint64_t first, last;	/* of it, in bytes of the piece */
	bool shared;		/* others may write to it */
};

/* What is fetched in four streams is copied out of the cache. */
static void gather(char *to, const char *from, uint64_t n)
{
	uint64_t part = n / STREAMS;

	for (uint64_t at = 0; at < part; at += LINE)
		for (unsigned i = 0; i < STREAMS; i++)
			__builtin_prefetch(from + i * part + at);
	memcpy(to, from, n);
}

/* Bytes [at, at + n) of the entry where nobody writes to them: in @buf, or,
 * of memory that is ours alone, where they lie. */
static const char *hold_still(const struct passing *p, uint64_t at,
			      uint64_t n, char *buf)
{
	assert(at >= p->from && at + n <= p->to);
	if (!p->shared)
		return p->base + at;
	gather(buf, p->base + at, n);
	return buf;
}

/* The part of the copy that lies in bytes [at, ...) of the entry, out of
 * @bytes, which are those. */
static struct sk_copy out_of(const struct passing *p, uint64_t at,
			     const char *bytes)
{
	struct sk_copy copy = p->copy;

	copy.src = (const char *)((uintptr_t)copy.src + (uintptr_t)bytes -
				  (uintptr_t)(p->base + at));
	return copy;
}

/* In long runs: the bytes of the chunk as they lie, and of them the copy. */
static uint64_t pass_long(const struct passing *p)
{
	struct sk_pass pass;
	const char *at = p->base + p->from;

	sk_pass_begin(&pass, p->to - p->from);
	at = sk_pass_run(&pass, &p->copy, p->first, p->last, at);
	sk_pass_take(&pass, NULL, at, (uint64_t)(p->base + p->to - at));
	sk_stream_fence();
	return sk_pass_end(&pass);
}

static uint64_t pass_strided(const struct passing *p)
{
	char buf[STEP_BYTES] __attribute__((aligned(LINE)));
	uint64_t n, next, done = p->first;
	struct sk_xxh3_stream sum;

	sk_xxh3_begin(&sum);
	for (uint64_t at = p->from; at < p->to; at += n) {
		const char *bytes;
		struct sk_copy copy;

		n = STEP_BYTES < p->to - at ? STEP_BYTES : p->to - at;
		bytes = hold_still(p, at, n, buf);
		sk_xxh3_add(&sum, bytes, n);
		next = sk_restore_before(&p->shape, at + n);
		copy = out_of(p, at, bytes);
		sk_copy_run_unfenced(&copy, done, next);
		done = next;
	}
	sk_stream_fence();
	return sk_xxh3_end(&sum);
}

/* All of it at once; @buf has room for the chunk. */
static uint64_t pass_whole(const struct passing *p, char *buf)
{
	uint64_t n = p->to - p->from;
	const char *bytes = hold_still(p, p->from, n, buf);
	struct sk_copy copy = out_of(p, p->from, bytes);
	uint64_t sum = sk_xxh3(bytes, n);

	sk_copy_run_range(&copy, p->first, p->last);
	return sum;
}

static uint64_t pass_small(const struct passing *p)
{
	char buf[STEP_BYTES] __attribute__((aligned(LINE)));

	return pass_whole(p, buf);
}

static int pass(const struct passing *p, uint64_t *ret_sum,
		struct sk_err *err)
{
	uint64_t bytes = p->to - p->from;
	_cleanup_free_ char *buf = NULL;

	assert(p->from <= p->to && p->first <= p->last);
	if (bytes <= STEP_BYTES) {
		*ret_sum = pass_small(p);
	} else if (p->copy.run >= SK_PASS_RUN) {
		*ret_sum = pass_long(p);
	} else if (p->copy.run >= RUN_LEAST) {
		*ret_sum = pass_strided(p);
	} else {
		buf = p->shared ? malloc(bytes) : NULL;
		if (p->shared && !buf)
			return sk_err_set(err, -ENOMEM, "no memory to verify "
					  "%llu bytes in",
					  (unsigned long long)bytes);
		*ret_sum = pass_whole(p, buf);
	}
	return 0;
}

/* Through a buffer that the device reads: all of the chunk where it is to be
 * hashed, else from the first byte needed to the last. */
static int pass_to_gpu(struct sk_restoring *rs, int gpu,
		       const struct passing *p, uint64_t *ret_sum,
		       struct sk_err *err)
{
	uint64_t from = p->from, to = p->to;
	struct sk_restore_stage *stage;
	struct sk_copy copy;
	int r;

	assert(p->first < p->last);	/* the job touches the chunk */
	if (!ret_sum) {
		from = sk_restore_position(&p->shape, p->first);
		to = sk_restore_position(&p->shape, p->last - 1) + 1;
	}
	assert(from >= p->from && to <= p->to && to - from <= SK_SUM_CHUNK);
	r = sk_restore_take_stage(rs, gpu, &stage, err);
	if (r < 0)
		return r;
	gather(stage->buf, p->base + from, to - from);
	if (ret_sum)
		*ret_sum = sk_xxh3(stage->buf, to - from);
	copy = out_of(p, from, stage->buf);
	return sk_restore_put_stage(rs, gpu, stage, &copy, p->first, p->last,
				    err);
}

static void touch(struct sk_restoring *rs, const struct sk_restore_piece *p)
{
	assert(p->local < rs->state->n_locals);
	__atomic_store_n(&rs->touched[p->local], 1, __ATOMIC_RELAXED);
}

/* The first that was found stands for all that is. */
static void note_bad(struct sk_restoring *rs, const struct sk_restore_piece *p)
{
	struct sk_restore_image *image = &rs->images[p->image];
	uint32_t none = 0, entry;

	assert(p->entry >= image->layout->entries);
	entry = (uint32_t)(p->entry - image->layout->entries) + 1;
	(void)__atomic_compare_exchange_n(&image->places[p->place].bad_entry,
					  &none, entry, false,
					  __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	sk_bit_set(rs->bad, (uint64_t)p->place * rs->n_images + p->image);
}

static void note_sum(struct sk_restoring *rs, struct sk_restore_job *job,
		     uint64_t sum, uint64_t bytes)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];
	const struct sk_restore_image *image = &rs->images[p->image];

	assert(p->image < rs->n_images && p->place < 2);
	assert(job->chunk < p->entry->n_sums);
	__atomic_fetch_add(&rs->report.bytes_verified, bytes,
			   __ATOMIC_RELAXED);
	if (sum == image->sums[p->entry->first_sum + job->chunk])
		job->good = true;
	else
		note_bad(rs, p);
}

static int prepare(const struct sk_restoring *rs,
		   const struct sk_restore_job *job, uintptr_t base,
		   struct passing *ret, struct sk_err *err)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];
	uint64_t skip;
	int r;

	assert(job->piece < rs->n_pieces);
	r = sk_restore_copy(rs, p, &ret->copy, &skip, err);
	if (r < 0)
		return r;
	ret->base = (const char *)base;
	ret->shared = !p->place;
	ret->copy.src = (const char *)(base + skip);
	sk_restore_shape(&rs->state->locals[p->local].item, p->entry, &p->box,
			 &ret->shape);
	sk_restore_chunk(p->entry, job->chunk, &ret->from, &ret->to);
	ret->first = sk_restore_before(&ret->shape, ret->from);
	ret->last = sk_restore_before(&ret->shape, ret->to);
	return 0;
}

/* Copies, and hashes where there is a *ret_sum. */
static int deliver(struct sk_restoring *rs, const struct sk_local *local,
		   const struct passing *p, uint64_t *ret_sum,
		   struct sk_err *err)
{
	if (local->gpu >= 0)
		return pass_to_gpu(rs, local->gpu, p, ret_sum, err);
	if (ret_sum)
		return pass(p, ret_sum, err);
	sk_copy_run_range(&p->copy, p->first, p->last);
	return 0;
}

int sk_restore_run_job(struct sk_restoring *rs, struct sk_restore_job *job,
		       uintptr_t base, struct sk_err *err)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];
	struct passing passing;
	uint64_t *bytes, sum = 0;
	int r;

	r = prepare(rs, job, base, &passing, err);
	if (r < 0)
		return r;
	touch(rs, p);
	r = deliver(rs, &rs->state->locals[p->local], &passing,
		    job->verify ? &sum : NULL, err);
	if (r < 0)
		return r;
	if (job->verify)
		note_sum(rs, job, sum, passing.to - passing.from);
	bytes = p->place ? &rs->report.bytes_disk : &rs->report.bytes_memory;
	__atomic_fetch_add(bytes, passing.last - passing.first,
			   __ATOMIC_RELAXED);
	return 0;
}
