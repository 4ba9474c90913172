/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Io, the reader: ranges of files, gathered into few large reads.
 *
 * A block is one read: whole pages of one file that hold parts of one range
 * or of several in a row. It knows the first and the last of them; which
 * bytes of which range it holds is worked out again when it has arrived.
 */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "io/backend.h"

/* Unwanted bytes up to this between two ranges are read rather than cut out:
 * a request costs about as much as these bytes do. */
#define GAP_MAX ((uint64_t)128 << 10)

struct reader {
	struct sk_io *io;
	const int *fds;
	const struct sk_range *ranges;
	size_t n;
	uint64_t align;
	uint64_t block;
	sk_read_fn fn;
	void *ctx;
	size_t range;		/* the next byte to ask for: of this range, */
	uint64_t at;		/* this one */
	bool *busy;		/* which buffers are in flight */
};

static int check_ranges(const struct reader *rd, struct sk_err *err)
{
	uint64_t end;

	for (size_t i = 0; i < rd->n; i++) {
		const struct sk_range *g = &rd->ranges[i];

		if (!sk_add_u64(g->offset, g->bytes, &end) ||
		    end > INT64_MAX - SK_PAGE)
			return sk_err_set(err, -EINVAL, "range %zu, %" PRIu64
					  " bytes at %" PRIu64 ", lies beyond "
					  "the end of any file", i, g->bytes,
					  g->offset);
	}
	return 0;
}

/* Moves on to the next range that has bytes. False: there is none. */
static bool next_wanted(struct reader *rd)
{
	while (rd->range < rd->n && rd->at == rd->ranges[rd->range].bytes) {
		rd->range++;
		rd->at = 0;
	}
	return rd->range < rd->n;
}

/*
 * How far range @g, from @at on, may be read in a block that ends at @limit:
 * an offset within the range, which is @at if nothing fits.
 */
static uint64_t cut(const struct reader *rd, const struct sk_range *g,
		    uint64_t at, uint64_t limit)
{
	uint64_t end;

	assert(at <= g->bytes);
	if (g->offset + g->bytes <= limit)
		return g->bytes;
	if (g->offset + at >= limit)
		return at;
	end = limit - g->offset;
	if (rd->align)
		end -= end % rd->align;
	return end > at ? end : at;
}

/* Whether a range, from @from on, may ride in the block [start, end). */
static bool rides(uint64_t from, uint64_t start, uint64_t end)
{
	return from >= start && (from <= end || from - end <= GAP_MAX);
}

/* Takes the next block's worth of ranges; there is one. */
static void gather(struct reader *rd, struct sk_io_request *q)
{
	const struct sk_range *g = &rd->ranges[rd->range];
	uint64_t from = g->offset + rd->at;
	uint64_t start = from - from % SK_PAGE;
	uint64_t limit = start + rd->block + (start != from ? SK_PAGE : 0);
	uint32_t file = g->file;
	uint64_t to, end = from;

	assert(rd->range < rd->n && rd->at < rd->ranges[rd->range].bytes);
	q->first.range = rd->range;
	q->first.at = rd->at;
	do {
		g = &rd->ranges[rd->range];
		if (g->file != file ||
		    !rides(g->offset + rd->at, start, end))
			break;
		to = cut(rd, g, rd->at, limit);
		if (to == rd->at)
			break;
		rd->at = to;
		q->last.range = rd->range;
		q->last.at = to;
		if (g->offset + to > end)
			end = g->offset + to;
	} while (next_wanted(rd));
	assert(end > from);
	q->op = SK_URING_READ;
	q->fd = rd->fds[file];
	q->start = q->offset = start;
	q->bytes = (size_t)(sk_round_up(end, SK_PAGE) - start);
	q->need = (size_t)(end - start);
}

static char *take_buffer(struct reader *rd)
{
	for (unsigned i = 0; ; i++) {
		assert(i < rd->io->depth);
		if (rd->busy[i])
			continue;
		rd->busy[i] = true;
		return rd->io->buffers + i * rd->io->buffer_bytes;
	}
}

static void start(struct reader *rd)
{
	struct sk_io_request *q;

	while (next_wanted(rd)) {
		q = sk_io_get_request(rd->io);
		if (!q)
			return;
		gather(rd, q);
		q->base = q->buf = take_buffer(rd);
		sk_io_submit(rd->io, q);
	}
}

/* Hands out what an arrived block holds. */
static int deliver(const struct reader *rd, const struct sk_io_request *q)
{
	uint64_t at = q->first.at;
	uint64_t to;
	int r;

	assert(q->first.range <= q->last.range && q->last.range < rd->n);
	for (size_t i = q->first.range; i <= q->last.range; i++, at = 0) {
		const struct sk_range *g = &rd->ranges[i];

		to = i == q->last.range ? q->last.at : g->bytes;
		assert(to >= at && to <= g->bytes);
		if (to == at)
			continue;
		r = rd->fn(rd->ctx, i, at,
			   q->base + (g->offset + at - q->start),
			   (size_t)(to - at));
		if (r)
			return r;
	}
	return 0;
}

/* Fewer bytes came than wanted: is it the end of the file? */
static int check_end(const struct reader *rd, const struct sk_io_request *q,
		     struct sk_err *err)
{
	uint64_t end = q->offset + q->need;
	uint32_t file = rd->ranges[q->first.range].file;
	struct stat st;
	int r;

	r = rd->io->os->fstat(rd->io->os, q->fd, &st);
	if (r < 0)
		return sk_err_errno(err, r, "cannot ask for the length of file "
				    "%" PRIu32, file);
	if ((uint64_t)st.st_size >= end)
		return 0;
	return sk_err_set(err, -ENODATA, "file %" PRIu32 " ends at %" PRIu64
			  ", before byte %" PRIu64 ", which is wanted", file,
			  (uint64_t)st.st_size, end);
}

/* 1: the block is whole. 0: it goes on. */
static int advance(struct reader *rd, struct sk_io_request *q,
		   struct sk_err *err)
{
	int r;

	if (q->result >= 0 && (size_t)q->result >= q->need)
		return 1;
	if (q->result >= 0) {
		r = check_end(rd, q, err);
		if (r < 0)
			return r;
	}
	r = sk_io_judge(rd->io, q);
	if (r < 0)
		return sk_err_errno(err, r, "cannot read %zu bytes at %" PRIu64
				    " of file %" PRIu32, q->bytes, q->offset,
				    rd->ranges[q->first.range].file);
	assert((size_t)r <= q->need && q->need <= q->bytes);
	q->buf += r;
	q->offset += (unsigned)r;
	q->bytes -= (unsigned)r;
	q->need -= (unsigned)r;
	sk_io_submit(rd->io, q);
	return 0;
}

static int finish_one(struct reader *rd, struct sk_err *err)
{
	struct sk_io_request *q;
	int r;

	r = sk_io_wait(rd->io, &q);
	if (r < 0)
		return sk_err_errno(err, r, "cannot wait for reads");
	r = advance(rd, q, err);
	if (r <= 0)
		return r;
	r = deliver(rd, q);
	rd->busy[(size_t)(q->base - rd->io->buffers) /
		 rd->io->buffer_bytes] = false;
	sk_io_put_request(rd->io, q);
	return r;
}

int sk_io_read(struct sk_io *io, const int *fds, const struct sk_range *ranges,
	       size_t n, uint64_t align, sk_read_fn fn, void *ctx,
	       struct sk_err *err)
{
	_cleanup_free_ bool *busy = calloc(io->depth, sizeof(*busy));
	struct reader rd = {
		.io = io, .fds = fds, .ranges = ranges, .n = n,
		.align = align, .fn = fn, .ctx = ctx, .busy = busy,
	};
	int r;

	assert(!io->in_flight);
	if (!busy)
		return sk_err_errno(err, -ENOMEM, "cannot start reading");
	if (align > SK_IO_BLOCK_MAX)
		return sk_err_set(err, -EINVAL, "pieces of %" PRIu64 " bytes "
				  "are larger than a read may be, %zu", align,
				  SK_IO_BLOCK_MAX);
	r = check_ranges(&rd, err);
	if (r < 0 || !next_wanted(&rd))
		return r;
	rd.block = sk_round_up(align > io->block ? align : io->block, SK_PAGE);
	/* A page more, for ranges that do not begin at one. */
	r = sk_io_have_buffers(io, (size_t)rd.block + SK_PAGE, err);
	while (r == 0) {
		start(&rd);
		if (!io->in_flight)
			break;
		r = finish_one(&rd, err);
	}
	sk_io_drain(io);
	return r;
}
