/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs out of memory: straight from the mapped image into the trainer's
 * tensors, hashing each chunk while it passes.
 *
 * A fresh mapping of an image costs a fault per 64 KiB; asking for the pages
 * of a whole unit at once costs half of that, and reading the image through
 * its descriptor instead costs more than either (measured).
 */
#include <string.h>
#include <sys/mman.h>

#include "checksum.h"
#include "copy-stream.h"
#include "restore.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Bytes that one unit of work spans, and most jobs in it. */
#define UNIT_BYTES ((uint64_t)4 << 20)
#define UNIT_JOBS 256

/*
 * Bytes that are copied and hashed while they are in the first level cache.
 * Long runs are copied first: the copy reads four streams at once, and one
 * alone waits for memory wherever pages lie scattered (104 ms a GiB against
 * 70, where this was measured). Shorter ones, in runs of at least RUN_LEAST,
 * are fetched in the same way; still shorter ones are copied a chunk at a
 * time.
 */
#define STEP_BYTES ((uint64_t)16 << 10)
#define STREAMS 4u
#define RUN_LEAST 64u

/* ---- one job ---- */

/* What is copied of a chunk, and how. */
struct passing {
	struct sk_copy copy;
	struct sk_restore_shape shape;
	const char *base;	/* byte 0 of the entry */
	uint64_t from, to;	/* the chunk, in bytes of the entry */
	uint64_t first, last;	/* of it, in bytes of the piece */
};

/* Whether the copy is the whole entry in one run. */
static bool is_straight(const struct passing *p)
{
	return p->copy.ndim == 0 && p->shape.ndim == 1 &&
	       p->shape.size[0] == p->shape.entry[0];
}

/* Steps end on whole lines of the destination. */
static uint64_t pass_straight(const struct passing *p)
{
	struct sk_xxh3_stream sum;
	uint64_t n;

	sk_xxh3_begin(&sum);
	for (uint64_t at = p->from; at < p->to; at += n) {
		n = STEP_BYTES - (uintptr_t)(p->copy.dst + at) % 64;
		n = n < p->to - at ? n : p->to - at;
		sk_stream_copy(p->copy.dst + at, p->base + at, n);
		sk_xxh3_add(&sum, p->base + at, n);
	}
	sk_stream_fence();
	return sk_xxh3_end(&sum);
}

static void fetch(const char *from, uint64_t n)
{
	uint64_t part = n / STREAMS;

	for (uint64_t at = 0; at < part; at += SK_LINE)
		for (unsigned i = 0; i < STREAMS; i++)
			__builtin_prefetch(from + i * part + at);
}

static uint64_t pass_strided(const struct passing *p)
{
	uint64_t n, next, done = p->first;
	struct sk_xxh3_stream sum;

	sk_xxh3_begin(&sum);
	for (uint64_t at = p->from; at < p->to; at += n) {
		n = STEP_BYTES < p->to - at ? STEP_BYTES : p->to - at;
		fetch(p->base + at, n);
		sk_xxh3_add(&sum, p->base + at, n);
		next = sk_restore_before(&p->shape, at + n);
		sk_copy_run_unfenced(&p->copy, done, next);
		done = next;
	}
	sk_stream_fence();
	return sk_xxh3_end(&sum);
}

static uint64_t pass(const struct passing *p)
{
	uint64_t sum;

	if (p->to - p->from > STEP_BYTES && is_straight(p))
		return pass_straight(p);
	if (p->to - p->from > STEP_BYTES && p->copy.run >= RUN_LEAST)
		return pass_strided(p);
	sum = sk_xxh3(p->base + p->from, p->to - p->from);
	sk_copy_run_range(&p->copy, p->first, p->last);
	return sum;
}

static void touch(struct sk_restoring *rs, const struct sk_restore_piece *p)
{
	__atomic_store_n(&rs->touched[p->local], 1, __ATOMIC_RELAXED);
}

static void note_sum(struct sk_restoring *rs, const struct sk_restore_piece *p,
		     uint32_t chunk, uint64_t sum, uint64_t bytes)
{
	const struct sk_restore_image *image = &rs->images[p->image];

	__atomic_fetch_add(&rs->report.bytes_verified, bytes,
			   __ATOMIC_RELAXED);
	if (sum == image->sums[p->entry->first_sum + chunk])
		sk_bit_set(rs->verified, sk_restore_sum_index(rs, p, chunk));
	else
		sk_bit_set(rs->bad, (uint64_t)p->place * rs->n_images +
					    p->image);
}

static int prepare(const struct sk_restoring *rs,
		   const struct sk_restore_job *job, uintptr_t base,
		   struct passing *ret, struct sk_err *err)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];
	uint64_t skip;
	int r;

	r = sk_restore_copy(rs, p, &ret->copy, &skip, err);
	if (r < 0)
		return r;
	ret->base = (const char *)base;
	ret->copy.src = (const char *)(base + skip);
	sk_restore_shape(&rs->state->locals[p->local].item, p->entry, &p->box,
			 &ret->shape);
	sk_restore_chunk(p->entry, job->chunk, &ret->from, &ret->to);
	ret->first = sk_restore_before(&ret->shape, ret->from);
	ret->last = sk_restore_before(&ret->shape, ret->to);
	return 0;
}

int sk_restore_run_job(struct sk_restoring *rs,
		       const struct sk_restore_job *job, uintptr_t base,
		       struct sk_err *err)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];
	struct passing passing;
	uint64_t *bytes;
	int r;

	r = prepare(rs, job, base, &passing, err);
	if (r < 0)
		return r;
	touch(rs, p);
	if (job->verify)
		note_sum(rs, p, job->chunk, pass(&passing),
			 passing.to - passing.from);
	else
		sk_copy_run_range(&passing.copy, passing.first, passing.last);
	bytes = p->place ? &rs->report.bytes_disk : &rs->report.bytes_memory;
	__atomic_fetch_add(bytes, passing.last - passing.first,
			   __ATOMIC_RELAXED);
	return 0;
}

/* ---- units ---- */

struct moving {
	struct sk_task task;
	struct sk_restoring *rs;
	size_t *starts;		/* of each unit, and the end of the last */
	size_t n;
	int failed;		/* the first error, and its sentence */
	struct sk_err err;
};

static uint64_t job_offset(const struct sk_restoring *rs,
			   const struct sk_restore_job *job)
{
	return rs->pieces[job->piece].entry->offset +
	       job->chunk * SK_SUM_CHUNK;
}

static uint64_t job_end(const struct sk_restoring *rs,
			const struct sk_restore_job *job)
{
	const struct sk_entry *entry = rs->pieces[job->piece].entry;
	uint64_t from, to;

	sk_restore_chunk(entry, job->chunk, &from, &to);
	return entry->offset + to;
}

/* Faults in what the jobs [from, to) read, which lies in one image. Where the
 * system cannot, touching the pages does the same. */
static void populate(const struct sk_restoring *rs, size_t from, size_t to)
{
	const struct sk_restore_piece *p = &rs->pieces[rs->jobs[from].piece];
	const struct sk_restore_image *image = &rs->images[p->image];
	uint64_t start = job_offset(rs, &rs->jobs[from]) / SK_PAGE * SK_PAGE;
	uint64_t end = sk_round_up(job_end(rs, &rs->jobs[to - 1]), SK_PAGE);

	(void)rs->sk->os->madvise(rs->sk->os,
				  (char *)image->places[0].map + start,
				  end - start, MADV_POPULATE_READ);
}

static void run_unit(struct sk_task *task, size_t unit)
{
	struct moving *m = (struct moving *)task;
	struct sk_restoring *rs = m->rs;
	size_t from = m->starts[unit], to = m->starts[unit + 1];
	const struct sk_restore_piece *p = &rs->pieces[rs->jobs[from].piece];
	uintptr_t map = (uintptr_t)rs->images[p->image].places[0].map;

	populate(rs, from, to);
	for (size_t i = from; i < to; i++) {
		struct sk_err err = { 0 };
		int r;

		/* The rest of a bad image is not worth the time. */
		if (sk_bit(rs->bad, p->image))
			return;
		r = sk_restore_run_job(rs, &rs->jobs[i],
				       map + rs->pieces[rs->jobs[i].piece]
						     .entry->offset, &err);
		if (r < 0 && !__atomic_exchange_n(&m->failed, r,
						  __ATOMIC_RELAXED))
			m->err = err;
	}
}

/* Jobs that lie close to each other in one image go together. */
static bool fits(const struct sk_restoring *rs, size_t start, size_t i)
{
	const struct sk_restore_piece *a = &rs->pieces[rs->jobs[start].piece];
	const struct sk_restore_piece *b = &rs->pieces[rs->jobs[i].piece];

	return i - start < UNIT_JOBS && a->image == b->image &&
	       job_end(rs, &rs->jobs[i]) - job_offset(rs, &rs->jobs[start]) <=
		       UNIT_BYTES;
}

static size_t cut_units(const struct sk_restoring *rs, size_t n,
			size_t *starts)
{
	size_t units = 0;

	for (size_t i = 0; i < n; i++)
		if (!units || !fits(rs, starts[units - 1], i))
			starts[units++] = i;
	starts[units] = n;
	return units;
}

static int move_memory(struct sk_restoring *rs, size_t n)
{
	struct moving m = { .task.run = run_unit, .rs = rs };
	_cleanup_free_ size_t *starts = calloc(n + 1, sizeof(*starts));

	if (!starts)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu jobs "
				  "of a restore", n);
	m.starts = starts;
	m.task.units = cut_units(rs, n, starts);
	sk_pool_run(rs->sk->pool, &m.task);
	if (m.failed < 0)
		rs->err = m.err;
	return m.failed;
}

int sk_restore_move(struct sk_restoring *rs)
{
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < rs->n_jobs && r >= 0; i++) {
		const struct sk_restore_piece *p =
			&rs->pieces[rs->jobs[i].piece];

		n += !p->place;
		r = sk_restore_reach(rs, p->image, p->place);
	}
	if (r < 0)
		return r;
	if (n)
		r = move_memory(rs, n);
	if (r >= 0 && n < rs->n_jobs)
		r = sk_restore_read(rs, n, rs->n_jobs);
	return r;
}
