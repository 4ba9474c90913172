/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/job.h"

#include <assert.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "restore/passing.h"
#include "restore/sums.h"

/* Through a buffer that the device reads: all of the chunk where it is to be
 * hashed, else from the first byte needed to the last. */
static int pass_to_gpu(struct sk_restoring *rs,
		       const struct sk_restore_piece *piece,
		       struct sk_restore_filling *filling,
		       const struct sk_passing *p, uint64_t *ret_sum,
		       struct sk_err *err)
{
	uint64_t from = p->from, to = p->to;
	struct sk_copy copy;
	char *buf;
	int r;

	assert(p->first < p->last);	/* the job touches the chunk */
	if (!ret_sum) {
		from = sk_restore_position(&p->shape, p->first);
		to = sk_restore_position(&p->shape, p->last - 1) + 1;
	}
	assert(from >= p->from && to <= p->to && to - from <= SK_SUM_CHUNK);
	r = sk_restore_fill(rs, filling, piece, to - from, &buf, err);
	if (r < 0)
		return r;
	if (ret_sum)
		*ret_sum = sk_passing_gather_hashed(buf, p->base + from,
						   to - from);
	else
		sk_passing_gather(buf, p->base + from, to - from);
	copy = sk_passing_out_of(p, from, buf);
	return sk_restore_filled(rs, filling, &copy, p->first, p->last, err);
}

/* The first that was found stands for all that is. */
static void note_bad(struct sk_restoring *rs, const struct sk_restore_piece *p)
{
	struct sk_restore_image *image = &rs->images[p->image];
	uint32_t none = 0;

	(void)__atomic_compare_exchange_n(&image->places[p->place].bad_entry,
					  &none, p->entry->index + 1, false,
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
	if (sum == sk_restore_sum(image, p->entry, job->chunk))
		job->good = true;
	else
		note_bad(rs, p);
}

int sk_restore_prepare_job(const struct sk_restoring *rs,
			   const struct sk_restore_job *job, uintptr_t base,
			   struct sk_passing *ret, struct sk_err *err)
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
	sk_restore_shape_of(rs, p, &ret->shape);
	sk_restore_chunk(p->entry, job->chunk, &ret->from, &ret->to);
	ret->first = sk_restore_before(&ret->shape, ret->from);
	ret->last = sk_restore_before(&ret->shape, ret->to);
	return 0;
}

/* Copies, and hashes where there is a *ret_sum. */
static int deliver(struct sk_restoring *rs,
		   const struct sk_restore_piece *piece,
		   struct sk_restore_filling *filling,
		   const struct sk_passing *p, uint64_t *ret_sum,
		   struct sk_err *err)
{
	if (rs->state->locals[piece->local].gpu >= 0)
		return pass_to_gpu(rs, piece, filling, p, ret_sum, err);
	if (ret_sum)
		return sk_passing_run(p, ret_sum, err);
	sk_copy_run_range(&p->copy, p->first, p->last);
	return 0;
}

bool sk_restore_job_is_verified(const struct sk_restoring *rs,
				const struct sk_restore_job *job)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];

	return !p->place && !sk_bit(rs->bad, p->image) &&
	       sk_restore_is_verified(&rs->images[p->image], 0, p->entry,
				      job->chunk);
}

/* For others, who read it where it is. */
static void hash_chunk(struct sk_restoring *rs, struct sk_restore_job *job,
		       uintptr_t base)
{
	uint64_t from, to;

	assert(job->verify && job->on_device);
	sk_restore_chunk(rs->pieces[job->piece].entry, job->chunk, &from, &to);
	note_sum(rs, job, sk_xxh3((const char *)base + from, to - from),
		 to - from);
}

int sk_restore_run_job(struct sk_restoring *rs, struct sk_restore_job *job,
		       uintptr_t base, struct sk_restore_filling *filling,
		       struct sk_err *err)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];
	struct sk_passing passing;
	uint64_t *bytes, sum = 0;
	bool verify;
	int r;

	job->good |= job->verify && sk_restore_job_is_verified(rs, job);
	verify = (job->verify && !job->good) || job->doubted;
	if (job->hash_only) {
		if (verify)
			hash_chunk(rs, job, base);
		return 0;
	}
	r = sk_restore_prepare_job(rs, job, base, &passing, err);
	if (r < 0)
		return r;
	sk_restore_touch(rs, job->piece);
	r = deliver(rs, p, filling, &passing, verify ? &sum : NULL, err);
	if (r < 0)
		return r;
	if (verify)
		note_sum(rs, job, sum, passing.to - passing.from);
	else
		sk_restore_trust(rs, p->place);
	bytes = p->place ? &rs->report.bytes_disk : &rs->report.bytes_memory;
	__atomic_fetch_add(bytes, passing.last - passing.first,
			   __ATOMIC_RELAXED);
	return 0;
}
