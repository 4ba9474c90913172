/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Io, inside: requests in flight, and the two ways to have them done.
 *
 * Private to io*.c. An engine starts requests and hands back finished ones;
 * it neither retries nor judges. Writer and reader own the requests, keep at
 * most `depth` of them in flight, and take all of them back before they
 * return.
 */
#ifndef SK_CACHE_IO_BACKEND_H
#define SK_CACHE_IO_BACKEND_H

#include "base/pool.h"
#include "io/io.h"

#define SK_IO_DEPTH_MAX 256u
#define SK_IO_BLOCK_MAX ((size_t)1 << 30)
/** How often one request may be started without moving a byte. */
#define SK_IO_TRIES 256u

struct sk_io_engine;

struct sk_io_request {
	enum sk_uring_op op;	/* SK_URING_READ or SK_URING_WRITE */
	int fd;
	char *buf;
	size_t bytes;
	uint64_t offset;
	int result;		/* bytes moved, or a negative errno */
	struct sk_io_request *next;	/* the holder's, one list at a time */
	struct sk_task task;	/* the thread engine's */
	struct sk_io_engine *engine;	/* likewise */

	/* For writer and reader: */
	unsigned tries;		/* starts since a byte was moved */
	size_t need;		/* reader: bytes from offset that count */
	struct {
		size_t range;
		uint64_t at;
	} first, last;		/* reader: see struct block */
	uint64_t start;		/* reader: where the block begins */
	char *base;		/* reader: its buffer */
};

struct sk_io_engine_ops {
	void (*free)(struct sk_io_engine *engine);
	/** Takes the request; may start it later, at the next wait. */
	void (*submit)(struct sk_io_engine *engine,
		       struct sk_io_request *request);
	/** Waits for any one of the submitted, its result filled in. An error
	 * means that nothing is in flight any more and results are lost. */
	int (*wait)(struct sk_io_engine *engine,
		    struct sk_io_request **ret_request);
	/** 1 pinned, 0 not. NULL: never. */
	int (*pin)(struct sk_io_engine *engine, void *base, size_t size);
	void (*unpin)(struct sk_io_engine *engine, void *base);
	const char *(*describe)(const struct sk_io_engine *engine);
};

struct sk_io_engine {
	const struct sk_io_engine_ops *ops;
};

int sk_io_uring_new(const struct sk_os *os, unsigned depth,
		    struct sk_io_engine **ret_engine, struct sk_err *err);
int sk_io_threads_new(const struct sk_os *os, unsigned depth,
		      struct sk_io_engine **ret_engine, struct sk_err *err);

struct sk_io {
	const struct sk_os *os;
	struct sk_io_engine *engine;
	unsigned depth;
	size_t block;
	bool no_direct;
	int direct;		/* atomic: sk_io_direct() */
	struct sk_io_request *requests;	/* depth of them */
	struct sk_io_request *idle;	/* those not in flight */
	unsigned in_flight;
	void *map;		/* where the buffers lie, or NULL */
	size_t map_bytes;
	char *buffers;		/* depth * buffer_bytes, or NULL */
	size_t buffer_bytes;
};

/** A buffer of @bytes or more for each request: io->buffers. They stay with
 * the sk_io, so that their pages are faulted in only once. */
int sk_io_have_buffers(struct sk_io *io, size_t bytes, struct sk_err *err);
/** That of a request. */
static inline char *sk_io_buffer(const struct sk_io *io,
				 const struct sk_io_request *q)
{
	return io->buffers + (size_t)(q - io->requests) * io->buffer_bytes;
}

/** An idle request, cleared, or NULL. It goes back by sk_io_put_request. */
struct sk_io_request *sk_io_get_request(struct sk_io *io);
void sk_io_put_request(struct sk_io *io, struct sk_io_request *request);
void sk_io_submit(struct sk_io *io, struct sk_io_request *request);
/** Waits for one; it is not in flight any more. */
int sk_io_wait(struct sk_io *io, struct sk_io_request **ret_request);
/** Takes back all that is in flight, whatever came of it. */
void sk_io_drain(struct sk_io *io);

/**
 * Judges a result. Returns the bytes that count (0: start it anew), which
 * with direct I/O end at a page, or the negative errno that is final. Lets go
 * of O_DIRECT where the filesystem turns out not to take it.
 */
int sk_io_judge(struct sk_io *io, struct sk_io_request *request);

/** Does it by a system call, here and now; returns its result. */
int sk_io_perform(const struct sk_os *os, const struct sk_io_request *q);

/** Sets or clears O_DIRECT, clears O_NONBLOCK. 1 direct, 0 not, or errno. */
int sk_io_set_direct(const struct sk_io *io, int fd, bool direct);

#endif
