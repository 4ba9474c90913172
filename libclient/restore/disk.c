/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs out of files: just the chunks that are needed, in the order in which
 * they lie, past the page cache where each is read by one rank, through it
 * where several read it, so that each byte leaves the device once per node.
 */
#include "restore/disk.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "io/io.h"
#include "restore/job.h"
#include "restore/shape.h"

/* Readers per byte, in percent, from which the page cache is worth it. */
#define SHARED_PERCENT 125
/* Bytes that are worth a reader of their own. */
#define READER_BYTES ((uint64_t)64 << 20)
/* Requests in flight, over all readers of a rank. */
#define DEPTH 8u

/* A run of jobs on one chunk: what is read at once. */
struct chunk_jobs {
	size_t from, to;
	uint64_t first;		/* byte read, within the entry */
};

struct reading {
	struct sk_task task;
	struct sk_restoring *rs;
	bool direct;
	int *fds;		/* per image */
	struct sk_range *ranges;
	struct chunk_jobs *chunks;
	size_t n;
	size_t *starts;		/* of each reader's ranges */
	int failed;
	struct sk_err err;
};

/* ---- what to read ---- */

static const struct sk_restore_piece *piece_of(const struct sk_restoring *rs,
					       size_t job)
{
	assert(job < rs->n_jobs && rs->jobs[job].piece < rs->n_pieces);
	return &rs->pieces[rs->jobs[job].piece];
}

static bool same_chunk(const struct sk_restoring *rs, size_t a, size_t b)
{
	return piece_of(rs, a)->entry == piece_of(rs, b)->entry &&
	       rs->jobs[a].chunk == rs->jobs[b].chunk;
}

/* Without a checksum to take, from the first byte needed to the last. */
static void widen(const struct sk_restoring *rs, size_t job,
		  uint64_t *ret_from, uint64_t *ret_to)
{
	const struct sk_restore_piece *p = piece_of(rs, job);
	struct sk_restore_shape shape;
	uint64_t from, to, first, last;

	sk_restore_chunk(p->entry, rs->jobs[job].chunk, &from, &to);
	if (!rs->jobs[job].verify) {
		sk_restore_shape(&rs->state->locals[p->local].item, p->entry,
				 &p->box, &shape);
		first = sk_restore_before(&shape, from);
		last = sk_restore_before(&shape, to);
		assert(first < last);	/* the job touches the chunk */
		from = sk_restore_position(&shape, first);
		to = sk_restore_position(&shape, last - 1) + 1;
	}
	if (from < *ret_from)
		*ret_from = from;
	if (to > *ret_to)
		*ret_to = to;
}

static void add_range(struct reading *rd, size_t from, size_t to)
{
	const struct sk_restore_piece *p = piece_of(rd->rs, from);
	uint64_t start = UINT64_MAX, end = 0;

	assert(from < to && p->place == 1);
	for (size_t i = from; i < to; i++)
		widen(rd->rs, i, &start, &end);
	rd->ranges[rd->n] = (struct sk_range){
		.file = p->image,
		.offset = p->entry->offset + start,
		.bytes = end - start,
	};
	rd->chunks[rd->n++] = (struct chunk_jobs){ from, to, start };
}

static void collect(struct reading *rd, size_t from, size_t to)
{
	for (size_t i = from; i < to;) {
		size_t next = i + 1;

		while (next < to && same_chunk(rd->rs, i, next))
			next++;
		add_range(rd, i, next);
		i = next;
	}
}

/* Ranks that read the same through the page cache begin at different places:
 * each finds there what another has read, and none waits for another. */
static size_t begin_at(const struct sk_restoring *rs, size_t from, size_t to)
{
	size_t near, before = 0, at;

	assert(rs->n_near && from <= to);
	near = (size_t)rs->n_near;
	while (rs->near_ranks[before] < rs->state->job.rank)
		before++;
	at = from + (to - from) / near * before;
	while (at > from && at < to && same_chunk(rs, at - 1, at))
		at++;
	return at;
}

/* True if this node reads each byte about once. */
static bool wants_direct(const struct sk_restoring *rs, size_t from,
			 size_t to)
{
	uint64_t bytes = 0, shared = 0;

	assert(from <= to && to <= rs->n_jobs);
	for (size_t i = from; i < to; i++) {
		uint64_t start, end;

		sk_restore_chunk(piece_of(rs, i)->entry, rs->jobs[i].chunk,
				 &start, &end);
		bytes += end - start;
		shared += (end - start) * rs->jobs[i].sharers;
	}
	return shared / 100 * 100 <= bytes / 100 * SHARED_PERCENT;
}

/* ---- reading ---- */

struct reader {
	struct reading *rd;
	size_t first;		/* of its ranges */
};

static int on_data(void *ctx, size_t index, uint64_t at, const void *data,
		   size_t bytes)
{
	const struct reader *reader = ctx;
	struct reading *rd = reader->rd;
	const struct chunk_jobs *c = &rd->chunks[reader->first + index];
	const struct sk_restore_piece *p = piece_of(rd->rs, c->from);
	struct sk_restore_filling filling = { 0 };
	struct sk_err err = { 0 };
	int r = 0;

	assert(reader->first + index < rd->n);
	(void)at;
	(void)bytes;
	if (sk_bit(rd->rs->bad, (uint64_t)rd->rs->n_images + p->image))
		return 0;
	for (size_t i = c->from; i < c->to && r >= 0; i++)
		r = sk_restore_run_job(rd->rs, &rd->rs->jobs[i],
				       (uintptr_t)data - c->first, &filling,
				       &err);
	r = sk_restore_filling_end(rd->rs, &filling, r, &err);
	if (r < 0 && !__atomic_exchange_n(&rd->failed, r, __ATOMIC_RELAXED))
		rd->err = err;
	return r;
}

static int read_part(struct reading *rd, size_t from, size_t to,
		     struct sk_err *err)
{
	size_t readers = rd->task.units;
	struct sk_io_opts opts = {
		.depth = readers < DEPTH ? (unsigned)(DEPTH / readers) : 1,
		.no_direct = !rd->direct,
	};
	struct reader reader = { .rd = rd, .first = from };
	__attribute__((cleanup(sk_io_freep))) struct sk_io *io = NULL;
	int r;

	assert(from <= to && to <= rd->n);
	r = sk_io_new(rd->rs->sk->os, &opts, &io, err);
	if (r < 0)
		return r;
	return sk_io_read(io, rd->fds, rd->ranges + from, to - from,
			  SK_SUM_CHUNK, on_data, &reader, err);
}

static void run_reader(struct sk_task *task, size_t unit)
{
	struct reading *rd = (struct reading *)task;
	struct sk_err err = { 0 };
	int r;

	assert(unit < rd->task.units);
	r = read_part(rd, rd->starts[unit], rd->starts[unit + 1], &err);
	if (r < 0 && !__atomic_exchange_n(&rd->failed, r, __ATOMIC_RELAXED))
		rd->err = err;
}

/* Parts of equal bytes, one per thread that has enough to do. */
static size_t divide(struct reading *rd)
{
	uint64_t total = 0, done = 0;
	size_t most = sk_pool_threads(rd->rs->sk->pool), readers, k = 1;

	assert(rd->n && most);
	for (size_t i = 0; i < rd->n; i++)
		total += rd->ranges[i].bytes;
	readers = (size_t)(total / READER_BYTES);
	readers = readers < 1 ? 1 : readers > most ? most : readers;
	rd->starts[0] = 0;
	for (size_t i = 0; i < rd->n && k < readers; i++) {
		done += rd->ranges[i].bytes;
		if (done >= total / readers * k)
			rd->starts[k++] = i + 1;
	}
	rd->starts[k] = rd->n;
	return k;
}

static int prepare_fds(struct reading *rd)
{
	struct sk_io_opts opts = { .no_direct = !rd->direct, .depth = 1 };
	__attribute__((cleanup(sk_io_freep))) struct sk_io *io = NULL;
	struct sk_restoring *rs = rd->rs;
	int r;

	r = sk_io_new(rs->sk->os, &opts, &io, &rs->err);
	for (uint32_t i = 0; i < rs->n_images && r >= 0; i++) {
		rd->fds[i] = rs->images[i].places[1].fd;
		if (rd->fds[i] >= 0)
			r = sk_io_prepare_fd(io, rd->fds[i], rd->direct);
		if (r < 0)
			sk_err_errno(&rs->err, r, "cannot prepare the file of "
				     "rank %d for reading",
				     rs->images[i].rank);
	}
	return r;
}

int sk_restore_from_disk(struct sk_restoring *rs, size_t from, size_t to)
{
	struct reading rd = {
		.task.run = run_reader,
		.rs = rs,
		.direct = wants_direct(rs, from, to),
	};
	_cleanup_free_ struct sk_range *ranges = NULL;
	_cleanup_free_ struct chunk_jobs *chunks = NULL;
	_cleanup_free_ size_t *starts = NULL;
	_cleanup_free_ int *fds = NULL;
	size_t at;
	int r;

	assert(from < to && to <= rs->n_jobs);
	rd.ranges = ranges = calloc(to - from, sizeof(*ranges));
	rd.chunks = chunks = calloc(to - from, sizeof(*chunks));
	rd.fds = fds = calloc(rs->n_images, sizeof(*fds));
	rd.starts = starts = calloc(sk_pool_threads(rs->sk->pool) + 1u,
				    sizeof(*starts));
	if (!ranges || !chunks || !fds || !starts)
		return sk_err_set(&rs->err, -ENOMEM, "no memory to read %zu "
				  "chunks", to - from);
	r = prepare_fds(&rd);
	if (r < 0)
		return r;
	at = rd.direct ? from : begin_at(rs, from, to);
	collect(&rd, at, to);
	collect(&rd, from, at);
	rd.task.units = divide(&rd);
	sk_pool_run(rs->sk->pool, &rd.task);
	if (rd.failed < 0)
		rs->err = rd.err;
	return rd.failed;
}
