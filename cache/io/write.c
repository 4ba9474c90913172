/* SPDX-License-Identifier: Apache-2.0 */
/* Io, the writer: one file, straight from memory, made durable. */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "io/backend.h"

#define SECOND_NS UINT64_C(1000000000)
/* A limited write may catch up this much after a stall, and no more. */
#define CREDIT_NS (SECOND_NS / 20)
/* Longest sleep: how late a cancelled write may notice. */
#define NAP_NS (SECOND_NS / 20)
/* A limited write moves in blocks of 1/16 s, that others may pass between. */
#define BLOCKS_A_SECOND 16
#define SLOW_BLOCK_MIN ((uint64_t)64 << 10)

struct writer {
	struct sk_io *io;
	const struct sk_write *w;
	const char *head;	/* page-aligned */
	uint64_t total;		/* bytes in whole pages */
	uint64_t block;
	uint64_t next;		/* where the next request begins */
	uint64_t done;
	uint64_t due_ns;	/* when it may begin */
	int fd;
};

static int check_write(const struct sk_write *w, struct sk_err *err)
{
	uint64_t head = w->head ? w->head_bytes : 0;

	if (!w->name || !*w->name)
		return sk_err_set(err, -EINVAL, "a file to write has no name");
	if (w->bytes > INT64_MAX - SK_PAGE)
		return sk_err_set(err, -EINVAL, "\"%s\" of %" PRIu64
				  " bytes is larger than any file", w->name,
				  w->bytes);
	if (head % SK_PAGE || head > w->bytes)
		return sk_err_set(err, -EINVAL, "the header of \"%s\", %"
				  PRIu64 " bytes of %" PRIu64 ", does not end "
				  "at a page within the file", w->name, head,
				  w->bytes);
	if (head < w->bytes && (!w->data || (uintptr_t)w->data % SK_PAGE))
		return sk_err_set(err, -EINVAL, "the data of \"%s\" does not "
				  "begin at a page of memory", w->name);
	return 0;
}

/* O_DIRECT wants the header at a page, too; *ret_copy is the caller's. */
static int align_head(const struct sk_write *w, const char **ret_head,
		      char **ret_copy, struct sk_err *err)
{
	char *copy;

	*ret_head = w->head;
	if (!w->head || !w->head_bytes || (uintptr_t)w->head % SK_PAGE == 0)
		return 0;
	copy = aligned_alloc(SK_PAGE, w->head_bytes);
	if (!copy)
		return sk_err_errno(err, -ENOMEM, "cannot copy the header of "
				    "\"%s\", %zu bytes", w->name,
				    w->head_bytes);
	memcpy(copy, w->head, w->head_bytes);
	*ret_head = *ret_copy = copy;
	return 0;
}

static uint64_t choose_block(const struct sk_io *io, const struct sk_write *w)
{
	uint64_t block = w->max_rate / BLOCKS_A_SECOND;

	if (!w->max_rate || block >= io->block)
		return io->block;
	block -= block % SK_PAGE;
	if (block < SLOW_BLOCK_MIN)
		block = SLOW_BLOCK_MIN;
	return block < io->block ? block : io->block;
}

/* Cut at the end of the header and at whole blocks of the file, which are
 * also whole blocks of registered memory. */
static void fill(const struct writer *wr, struct sk_io_request *q)
{
	uint64_t end = (wr->next / wr->block + 1) * wr->block;
	uint64_t head = wr->w->head ? wr->w->head_bytes : 0;
	bool in_head = wr->next < head;
	const char *from = in_head ? wr->head : wr->w->data;

	if (end > wr->total)
		end = wr->total;
	if (in_head && end > head)
		end = head;
	q->op = SK_URING_WRITE;
	q->fd = wr->fd;
	q->buf = (char *)from + wr->next;
	q->bytes = (size_t)(end - wr->next);
	q->offset = wr->next;
}

/* Holds the bytes still, and shows them. */
static int show(struct writer *wr, struct sk_io_request *q,
		struct sk_err *err)
{
	uint64_t left = wr->w->bytes - q->offset;
	char *copy = sk_io_buffer(wr->io, q);

	if (!wr->w->see || (wr->w->head && q->offset < wr->w->head_bytes))
		return 0;
	assert(q->bytes <= wr->io->buffer_bytes);
	memcpy(copy, q->buf, q->bytes);
	q->buf = copy;
	/* What fills the last page up is not the file's. */
	return wr->w->see(wr->w->ctx, copy, left < q->bytes ? (size_t)left :
							      q->bytes, err);
}

/* Charges @bytes to the limit, if there is one. */
static void charge(struct writer *wr, uint64_t now, uint64_t bytes)
{
	if (!wr->w->max_rate)
		return;
	if (now > wr->due_ns && now - wr->due_ns > CREDIT_NS)
		wr->due_ns = now - CREDIT_NS;
	wr->due_ns += (uint64_t)((double)bytes * (double)SECOND_NS /
				 (double)wr->w->max_rate);
}

/* Starts what may be started now. */
static int start(struct writer *wr, struct sk_err *err)
{
	struct sk_io *io = wr->io;
	struct sk_io_request *q;
	uint64_t now = 0;
	int r;

	while (wr->next < wr->total) {
		if (wr->w->max_rate)
			now = io->os->now_ns(io->os);
		if (now < wr->due_ns && wr->w->max_rate)
			return 0;
		q = sk_io_get_request(io);
		if (!q)
			return 0;
		fill(wr, q);
		r = show(wr, q, err);
		if (r < 0) {
			sk_io_put_request(io, q);
			return r;
		}
		charge(wr, now, q->bytes);
		wr->next += q->bytes;
		sk_io_submit(io, q);
	}
	return 0;
}

static int finish_one(struct writer *wr, struct sk_err *err)
{
	struct sk_io_request *q;
	int r;

	r = sk_io_wait(wr->io, &q);
	if (r < 0)
		return sk_err_errno(err, r, "cannot wait for writes of \"%s\"",
				    wr->w->name);
	r = sk_io_judge(wr->io, q);
	if (r < 0)
		return sk_err_errno(err, r, "cannot write %zu bytes at %"
				    PRIu64 " of \"%s\", %" PRIu64 " bytes",
				    q->bytes, q->offset, wr->w->name,
				    wr->w->bytes);
	wr->done += (unsigned)r;
	q->buf += r;
	q->offset += (unsigned)r;
	q->bytes -= (unsigned)r;
	if (q->bytes)
		sk_io_submit(wr->io, q);
	else
		sk_io_put_request(wr->io, q);
	return 0;
}

static int report(const struct writer *wr, struct sk_err *err)
{
	uint64_t done = wr->done < wr->w->bytes ? wr->done : wr->w->bytes;

	if (!wr->w->progress || wr->w->progress(wr->w->ctx, done) == 0)
		return 0;
	return sk_err_set(err, -ECANCELED, "writing \"%s\" was cancelled after "
			  "%" PRIu64 " of %" PRIu64 " bytes", wr->w->name,
			  done, wr->w->bytes);
}

static void nap(const struct writer *wr)
{
	const struct sk_os *os = wr->io->os;
	uint64_t latest = os->now_ns(os) + NAP_NS;

	(void)os->poll(os, NULL, 0, wr->due_ns < latest ? wr->due_ns : latest);
}

static int write_all(struct writer *wr, struct sk_err *err)
{
	int r = 0;

	while (r == 0 && wr->done < wr->total) {
		r = report(wr, err);
		if (r < 0)
			break;
		r = start(wr, err);
		if (r < 0)
			break;
		if (wr->io->in_flight)
			r = finish_one(wr, err);
		else
			nap(wr);
	}
	sk_io_drain(wr->io);
	return r < 0 ? r : report(wr, err);
}

/* Says early that the disk is full, and lays the file out in one go. Not
 * every filesystem can; the writes say the same later. */
static int reserve(const struct writer *wr, struct sk_err *err)
{
	int r;

	if (!wr->total)
		return 0;
	r = wr->io->os->fallocate(wr->io->os, wr->fd, 0, 0, wr->total);
	if (r == 0 || r == -EOPNOTSUPP || r == -ENOSYS)
		return 0;
	return sk_err_errno(err, r, "cannot reserve %" PRIu64 " bytes for "
			    "\"%s\"", wr->total, wr->w->name);
}

/* Last before the fsync, which makes it durable as well. A file that stays
 * ours is as whole as any. */
static void give(const struct writer *wr)
{
	const struct sk_write *w = wr->w;
	int r = 0;

	if (w->owner)
		r = wr->io->os->fchown(wr->io->os, wr->fd, *w->owner);
	if (w->ret_owned)
		*w->ret_owned = r;
}

static int write_fd(struct writer *wr, struct sk_err *err)
{
	const struct sk_os *os = wr->io->os;
	int r;

	r = sk_io_set_direct(wr->io, wr->fd, true);
	if (!wr->io->no_direct)
		__atomic_store_n(&wr->io->direct, r == 1, __ATOMIC_RELAXED);
	r = reserve(wr, err);
	if (r == 0)
		r = write_all(wr, err);
	if (r < 0)
		return r;
	if (wr->total != wr->w->bytes) {
		r = os->ftruncate(os, wr->fd, wr->w->bytes);
		if (r < 0)
			return sk_err_errno(err, r, "cannot cut \"%s\" to %"
					    PRIu64 " bytes", wr->w->name,
					    wr->w->bytes);
	}
	give(wr);
	/* A failed fsync may have dropped the data and forgotten it: only a
	 * new file, written from memory, can be trusted after it. */
	r = os->fsync(os, wr->fd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make \"%s\", %" PRIu64
				    " bytes, durable; it must be written anew",
				    wr->w->name, wr->w->bytes);
	return 0;
}

int sk_io_write_file(struct sk_io *io, const struct sk_write *w,
		     struct sk_err *err)
{
	_cleanup_free_ char *copy = NULL;
	struct writer wr = { .io = io, .w = w };
	int r, r_close;

	assert(!io->in_flight);
	r = check_write(w, err);
	if (r == 0)
		r = align_head(w, &wr.head, &copy, err);
	if (r < 0)
		return r;
	wr.total = sk_round_up(w->bytes, SK_PAGE);
	wr.block = choose_block(io, w);
	r = w->see ? sk_io_have_buffers(io, wr.block, err) : 0;
	if (r < 0)
		return r;
	wr.due_ns = w->max_rate ? io->os->now_ns(io->os) : 0;
	wr.fd = io->os->openat(io->os, w->dirfd, w->name, O_WRONLY | O_CREAT |
			       O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (wr.fd < 0)
		return sk_err_errno(err, wr.fd, "cannot create \"%s\"",
				    w->name);
	r = write_fd(&wr, err);
	r_close = io->os->close(io->os, wr.fd);
	if (r == 0 && r_close < 0)
		r = sk_err_errno(err, r_close, "cannot close \"%s\"", w->name);
	if (r < 0)
		(void)io->os->unlinkat(io->os, w->dirfd, w->name, 0);
	return r;
}
