/* SPDX-License-Identifier: Apache-2.0 */
/* Io by io_uring. */
#include "io/backend.h"

#include <liburing.h>
#include <string.h>
#include <sys/uio.h>

/* The kernel takes at most 1 GiB in one registered buffer. */
#define PIECE_BYTES ((size_t)1 << 30)
#define PIECES_MAX 1024u
#define PINNED_MAX 64u

struct pinned {
	char *base;		/* NULL: free */
	size_t size;
	unsigned first, count;	/* pieces in the table */
};

struct uring {
	struct sk_io_engine engine;	/* first: cast back */
	const struct sk_os *os;
	struct io_uring ring;
	bool ring_up;
	bool single_issuer;
	pid_t issuer;		/* the thread that the ring belongs to */
	unsigned depth;
	bool table_up;		/* the sparse table of buffers */
	bool used[PIECES_MAX];
	struct pinned pinned[PINNED_MAX];
	unsigned pinned_count;	/* atomic: any thread asks for it */
	struct sk_io_request *done;	/* without the ring */
};

static struct uring *of(struct sk_io_engine *engine)
{
	return (struct uring *)engine;
}

static void ring_down(struct uring *u)
{
	if (u->ring_up)
		io_uring_queue_exit(&u->ring);
	u->ring_up = false;
	u->table_up = false;
}

/*
 * With one issuer that asks for its completions, the kernel interrupts
 * nobody: the cores are the trainers'. Older kernels know neither flag.
 */
static int ring_up(struct uring *u)
{
	static const unsigned flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_SINGLE_ISSUER,
		0,
	};
	int r = -EINVAL;

	for (size_t i = 0; i < SK_ARRAY_SIZE(flags) && r == -EINVAL; i++) {
		r = io_uring_queue_init(u->depth, &u->ring, flags[i]);
		u->single_issuer = flags[i] & IORING_SETUP_SINGLE_ISSUER;
	}
	if (r < 0)
		return r;
	u->ring_up = true;
	u->issuer = gettid();
	return 0;
}

static bool table_up(struct uring *u)
{
	if (!u->table_up)
		u->table_up = io_uring_register_buffers_sparse(&u->ring,
						PIECES_MAX) == 0;
	return u->table_up;
}

static int set_piece(struct uring *u, unsigned index, void *base, size_t size)
{
	struct iovec iov = { .iov_base = base, .iov_len = size };
	__u64 tag = 0;
	int r;

	r = io_uring_register_buffers_update_tag(&u->ring, index, &iov, &tag,
						 1);
	return r < 0 ? r : 0;
}

/* Puts @p into the kernel's table; all of it or nothing. */
static bool pin_pieces(struct uring *u, const struct pinned *p)
{
	size_t at, size;
	unsigned i;

	if (!table_up(u))
		return false;
	for (i = 0; i < p->count; i++) {
		at = i * PIECE_BYTES;
		size = p->size - at < PIECE_BYTES ? p->size - at : PIECE_BYTES;
		if (set_piece(u, p->first + i, p->base + at, size) < 0)
			break;
	}
	if (i == p->count)
		return true;
	while (i--)
		(void)set_piece(u, p->first + i, NULL, 0);
	return false;
}

/* First of @count free pieces in a row; PIECES_MAX: there are none. */
static unsigned find_pieces(const struct uring *u, size_t count)
{
	unsigned run = 0;

	for (unsigned i = 0; i < PIECES_MAX; i++) {
		run = u->used[i] ? 0 : run + 1;
		if (run == count)
			return i + 1 - run;
	}
	return PIECES_MAX;
}

static void mark_pieces(struct uring *u, const struct pinned *p, bool used)
{
	memset(u->used + p->first, used, p->count * sizeof(u->used[0]));
}

static struct pinned *find_pinned(struct uring *u, const void *base)
{
	for (unsigned i = 0; i < PINNED_MAX; i++)
		if (u->pinned[i].base == base)
			return &u->pinned[i];
	return NULL;
}

static void forget(struct uring *u, struct pinned *p)
{
	mark_pieces(u, p, false);
	*p = (struct pinned){ 0 };
	(void)__atomic_sub_fetch(&u->pinned_count, 1, __ATOMIC_RELAXED);
}

/*
 * The ring for this thread. A ring with a single issuer belongs to the thread
 * that made it; when an sk_io moves to another one, it gets a new ring and
 * its memory is pinned anew.
 */
static int ring_here(struct uring *u)
{
	int r;

	if (u->ring_up && (!u->single_issuer || u->issuer == gettid()))
		return 0;
	ring_down(u);
	r = ring_up(u);
	for (unsigned i = 0; r == 0 && i < PINNED_MAX; i++)
		if (u->pinned[i].base && !pin_pieces(u, &u->pinned[i]))
			forget(u, &u->pinned[i]);
	return r;
}

static void uring_unpin(struct sk_io_engine *engine, void *base)
{
	struct uring *u = of(engine);
	struct pinned *p = find_pinned(u, base);

	if (!p || ring_here(u) < 0)
		return;
	p = find_pinned(u, base);	/* the new ring may have lost it */
	if (!p)
		return;
	for (unsigned i = 0; i < p->count; i++)
		(void)set_piece(u, p->first + i, NULL, 0);
	forget(u, p);
}

static int uring_pin(struct sk_io_engine *engine, void *base, size_t size)
{
	struct uring *u = of(engine);
	size_t count = (size - 1) / PIECE_BYTES + 1;
	struct pinned *p;

	uring_unpin(engine, base);
	p = find_pinned(u, NULL);
	if (!p || count > PIECES_MAX || ring_here(u) < 0)
		return 0;
	*p = (struct pinned){ .size = size, .count = (unsigned)count,
			      .first = find_pieces(u, count) };
	if (p->first == PIECES_MAX)
		return 0;
	p->base = base;
	if (!pin_pieces(u, p)) {
		p->base = NULL;
		return 0;
	}
	mark_pieces(u, p, true);
	(void)__atomic_add_fetch(&u->pinned_count, 1, __ATOMIC_RELAXED);
	return 1;
}

/* The index of the registered buffer that holds all of it, or -1. */
static int piece_of(const struct uring *u, const char *buf, size_t bytes)
{
	unsigned seen = 0;

	for (unsigned i = 0; i < PINNED_MAX && seen < u->pinned_count; i++) {
		const struct pinned *p = &u->pinned[i];
		size_t at;

		if (!p->base)
			continue;
		seen++;
		if (buf < p->base || buf - p->base >= (ptrdiff_t)p->size)
			continue;
		at = (size_t)(buf - p->base);
		if (bytes > p->size - at ||
		    at / PIECE_BYTES != (at + bytes - 1) / PIECE_BYTES)
			return -1;
		return (int)(p->first + at / PIECE_BYTES);
	}
	return -1;
}

static void fill(struct io_uring_sqe *sqe, const struct sk_io_request *q,
		 int piece)
{
	unsigned bytes = (unsigned)q->bytes;

	if (q->op == SK_URING_READ && piece >= 0)
		io_uring_prep_read_fixed(sqe, q->fd, q->buf, bytes, q->offset,
					 piece);
	else if (q->op == SK_URING_READ)
		io_uring_prep_read(sqe, q->fd, q->buf, bytes, q->offset);
	else if (piece >= 0)
		io_uring_prep_write_fixed(sqe, q->fd, q->buf, bytes,
					  q->offset, piece);
	else
		io_uring_prep_write(sqe, q->fd, q->buf, bytes, q->offset);
}

static void uring_submit(struct sk_io_engine *engine,
			 struct sk_io_request *request)
{
	struct uring *u = of(engine);
	struct io_uring_sqe *sqe = NULL;

	if (ring_here(u) == 0)
		sqe = io_uring_get_sqe(&u->ring);
	/* A thread that cannot have a ring now (memlock) writes all the same,
	 * only slower. */
	if (!sqe) {
		request->result = sk_io_perform(u->os, request);
		request->next = u->done;
		u->done = request;
		return;
	}
	fill(sqe, request, piece_of(u, request->buf, request->bytes));
	io_uring_sqe_set_data(sqe, request);
	/* The device should not wait until we do. What is not taken now is
	 * taken by the wait. */
	(void)io_uring_submit(&u->ring);
}

static int wait_cqe(struct uring *u, struct io_uring_cqe **ret_cqe)
{
	int r;

	for (;;) {
		if (io_uring_peek_cqe(&u->ring, ret_cqe) == 0)
			return 0;
		r = io_uring_submit_and_wait(&u->ring, 1);
		if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY)
			return r;
	}
}

static int uring_wait(struct sk_io_engine *engine,
		      struct sk_io_request **ret_request)
{
	struct uring *u = of(engine);
	struct sk_io_request *request = u->done;
	struct io_uring_cqe *cqe;
	int r;

	if (request) {
		u->done = request->next;
		*ret_request = request;
		return 0;
	}
	r = wait_cqe(u, &cqe);
	if (r < 0) {
		ring_down(u);
		return r;
	}
	request = io_uring_cqe_get_data(cqe);
	request->result = u->os->uring_result(u->os, request->op, cqe->res);
	io_uring_cqe_seen(&u->ring, cqe);
	*ret_request = request;
	return 0;
}

static void uring_free(struct sk_io_engine *engine)
{
	struct uring *u = of(engine);

	ring_down(u);
	free(u);
}

static const char *uring_describe(const struct sk_io_engine *engine)
{
	const struct uring *u = (const struct uring *)engine;

	return __atomic_load_n(&u->pinned_count, __ATOMIC_RELAXED) ?
	       "io_uring, registered buffers" : "io_uring";
}

static const struct sk_io_engine_ops uring_ops = {
	.free = uring_free,
	.submit = uring_submit,
	.wait = uring_wait,
	.pin = uring_pin,
	.unpin = uring_unpin,
	.describe = uring_describe,
};

int sk_io_uring_new(const struct sk_os *os, unsigned depth,
		    struct sk_io_engine **ret_engine, struct sk_err *err)
{
	struct uring *u = calloc(1, sizeof(*u));
	int r;

	if (!u)
		return sk_err_errno(err, -ENOMEM, "cannot set up io_uring");
	u->engine.ops = &uring_ops;
	u->os = os;
	u->depth = depth;
	r = ring_up(u);
	if (r < 0) {
		free(u);
		return sk_err_errno(err, r, "cannot set up io_uring (threads "
				    "serve as well)");
	}
	*ret_engine = &u->engine;
	return 0;
}
