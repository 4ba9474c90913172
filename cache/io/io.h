/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Io: the reader and writer of images, at the speed of the device.
 *
 * One io_uring with bounded depth, O_DIRECT where the filesystem takes it,
 * registered buffers where memlock allows; a pool of pwrite/pread threads
 * with the same behaviour where io_uring is not to be had (containers).
 *
 * Thread-safety: one sk_io is used by one thread at a time.
 */
#ifndef SK_CACHE_IO_H
#define SK_CACHE_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/os.h"
#include "base/util.h"

enum sk_io_backend { SK_IO_AUTO = 0, SK_IO_URING, SK_IO_THREADS };

struct sk_io_opts {
	enum sk_io_backend backend;
	unsigned depth;		/* requests in flight; 0: 8 */
	size_t block;		/* bytes a request; 0: chosen by measurement;
				 * else a multiple of 4 KiB */
	bool no_direct;		/* never O_DIRECT */
};

struct sk_io;

/** AUTO falls back to threads when io_uring says no. */
int sk_io_new(const struct sk_os *os, const struct sk_io_opts *opts,
	      struct sk_io **ret_io, struct sk_err *err);
struct sk_io *sk_io_free(struct sk_io *io);
SK_DEFINE_CLEANUP(struct sk_io *, sk_io_free)
/** "io_uring", "io_uring, registered buffers" or "threads". */
const char *sk_io_describe(const struct sk_io *io);

/** Whether what was written last bypassed the page cache: 1, 0, or -1: nothing
 * was written that was to. Any thread. */
int sk_io_direct(const struct sk_io *io);

/** Pins memory that is read into, or written, often: small buffers. Optional:
 * a refusal (memlock) is no error, it is only slower. Not for gigabytes of
 * huge pages: the kernel compares each with all that are pinned, which takes
 * longer than it saves. Returns 1 pinned, 0 not. */
int sk_io_register(struct sk_io *io, void *base, size_t size);
void sk_io_unregister(struct sk_io *io, void *base);

struct sk_write {
	int dirfd;
	const char *name;	/* created anew, O_EXCL, mode 0600 */
	const void *head;	/* NULL, or written in place of the first ... */
	size_t head_bytes;	/* ... bytes of data; a multiple of 4 KiB */
	const void *data;	/* page-aligned, readable to the next page */
	uint64_t bytes;		/* exact length of the file, head included */
	uint64_t max_rate;	/* bytes per second, 0: no limit */
	const uid_t *owner;	/* gets the file once it is whole; or NULL */
	int *ret_owned;		/* 0, or why not: no error of the write's */
	/** Asked between blocks with the bytes written so far; non-zero ends
	 * the write with -ECANCELED. NULL: nothing. */
	int (*progress)(void *ctx, uint64_t done);
	/** Is shown what is written behind the head, in order, all of it: of
	 * memory that others may write to, it sees what the file gets, for a
	 * copy is shown and written. Less than 0 ends the write with that.
	 * NULL: data is written from where it lies. */
	int (*see)(void *ctx, const void *bytes, size_t n,
		   struct sk_err *err);
	void *ctx;
};

/**
 * Writes one file and makes its data durable: create, fallocate, write, set
 * the exact length, give it to its owner if one is named, fsync; every result
 * but the giving's is checked, short writes are continued. The name is the
 * caller's (temporary); on error the file is removed. The caller renames and
 * syncs the directory (store.h).
 * Errors: of each call, with a sentence; -EEXIST.
 */
int sk_io_write_file(struct sk_io *io, const struct sk_write *w,
		     struct sk_err *err);

/** A wanted byte range of a file. */
struct sk_range {
	uint32_t file;		/* index into fds */
	uint64_t offset;
	uint64_t bytes;
};

/**
 * Opens for reading by this reader: O_DIRECT if @direct and the filesystem
 * takes it, else buffered with read-ahead advice.
 */
int sk_io_open(struct sk_io *io, int dirfd, const char *name, bool direct,
	       struct sk_err *err);
/** The same for a descriptor that was received: sets or clears O_DIRECT. */
int sk_io_prepare_fd(struct sk_io *io, int fd, bool direct);

/**
 * Called with bytes of range @index, in any order across blocks, each wanted
 * byte once; @at is the offset within the range. @data is valid during the
 * call. Non-zero ends the read and is returned.
 */
typedef int (*sk_read_fn)(void *ctx, size_t index, uint64_t at,
			  const void *data, size_t bytes);

/**
 * Reads ranges, sorted by (file, offset) for speed, through aligned buffers
 * of its own, at the depth of the ring. Blocks never straddle two ranges in
 * one callback, and cut a range only at multiples of @align from its start
 * (0: anywhere), so that a consumer may hash whole chunks.
 * Errors: -EIO, -ENODATA the file ends early, what @fn returned.
 */
int sk_io_read(struct sk_io *io, const int *fds, const struct sk_range *ranges,
	       size_t n, uint64_t align, sk_read_fn fn, void *ctx,
	       struct sk_err *err);

#endif
