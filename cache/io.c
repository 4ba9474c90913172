/* SPDX-License-Identifier: Apache-2.0 */
#include "io.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "io-backend.h"

/* Chosen by measurement: less leaves the device idle between requests, more
 * only washes the caches. */
#define DEFAULT_DEPTH 8u
#define DEFAULT_BLOCK ((size_t)1 << 20)

#define RETRY_NS 1000000	/* between starts that moved nothing */
#define RETRY_EAGER 8u		/* of which the first come at once */

static int check_opts(const struct sk_io_opts *opts, struct sk_err *err)
{
	if (opts->depth > SK_IO_DEPTH_MAX)
		return sk_err_set(err, -EINVAL, "an I/O depth of %u is more "
				  "than %u", opts->depth, SK_IO_DEPTH_MAX);
	if (opts->block % SK_PAGE || opts->block > SK_IO_BLOCK_MAX)
		return sk_err_set(err, -EINVAL, "an I/O block of %zu bytes is "
				  "not a multiple of %u up to %zu",
				  opts->block, SK_PAGE, SK_IO_BLOCK_MAX);
	if (opts->backend < SK_IO_AUTO || opts->backend > SK_IO_THREADS)
		return sk_err_set(err, -EINVAL, "there is no I/O backend %d",
				  (int)opts->backend);
	return 0;
}

/* Containers refuse io_uring in several words; all mean "use threads". */
static int new_engine(struct sk_io *io, enum sk_io_backend which,
		       struct sk_err *err)
{
	int r = -ENOSYS;

	if (which != SK_IO_THREADS)
		r = sk_io_uring_new(io->os, io->depth, &io->engine, err);
	if (r < 0 && which != SK_IO_URING)
		r = sk_io_threads_new(io->os, io->depth, &io->engine, err);
	return r;
}

int sk_io_new(const struct sk_os *os, const struct sk_io_opts *opts,
	      struct sk_io **ret_io, struct sk_err *err)
{
	static const struct sk_io_opts defaults;
	struct sk_io *io __attribute__((cleanup(sk_io_freep))) = NULL;
	int r;

	opts = opts ? opts : &defaults;
	r = check_opts(opts, err);
	if (r < 0)
		return r;
	io = calloc(1, sizeof(*io));
	if (!io)
		return sk_err_errno(err, -ENOMEM, "cannot make a reader");
	io->os = os;
	io->depth = opts->depth ? opts->depth : DEFAULT_DEPTH;
	io->block = opts->block ? opts->block : DEFAULT_BLOCK;
	io->no_direct = opts->no_direct;
	io->requests = calloc(io->depth, sizeof(*io->requests));
	if (!io->requests)
		return sk_err_errno(err, -ENOMEM, "cannot make a reader");
	for (unsigned i = 0; i < io->depth; i++)
		sk_io_put_request(io, &io->requests[i]);
	r = new_engine(io, opts->backend, err);
	if (r < 0)
		return r;
	*ret_io = sk_take_ptr(io);
	return 0;
}

struct sk_io *sk_io_free(struct sk_io *io)
{
	if (!io)
		return NULL;
	assert(!io->in_flight);
	if (io->engine)
		io->engine->ops->free(io->engine);
	if (io->buffers)
		io->os->munmap(io->os, io->buffers,
			       io->depth * io->buffer_bytes);
	free(io->requests);
	free(io);
	return NULL;
}

const char *sk_io_describe(const struct sk_io *io)
{
	return io->engine->ops->describe(io->engine);
}

int sk_io_register(struct sk_io *io, void *base, size_t size)
{
	if (!base || !size || !io->engine->ops->pin)
		return 0;
	return io->engine->ops->pin(io->engine, base, size);
}

void sk_io_unregister(struct sk_io *io, void *base)
{
	if (base && io->engine->ops->unpin)
		io->engine->ops->unpin(io->engine, base);
}

struct sk_io_request *sk_io_get_request(struct sk_io *io)
{
	struct sk_io_request *request = io->idle;

	if (!request)
		return NULL;
	io->idle = request->next;
	*request = (struct sk_io_request){ .fd = -1 };
	return request;
}

void sk_io_put_request(struct sk_io *io, struct sk_io_request *request)
{
	request->next = io->idle;
	io->idle = request;
}

void sk_io_submit(struct sk_io *io, struct sk_io_request *request)
{
	assert(io->in_flight < io->depth);
	request->tries++;
	io->in_flight++;
	io->engine->ops->submit(io->engine, request);
}

int sk_io_perform(const struct sk_os *os, const struct sk_io_request *q)
{
	if (q->op == SK_URING_READ)
		return (int)os->pread(os, q->fd, q->buf, q->bytes, q->offset);
	return (int)os->pwrite(os, q->fd, q->buf, q->bytes, q->offset);
}

/* After a failed wait nothing is in flight: all requests are idle again. */
static void forget_all(struct sk_io *io)
{
	io->in_flight = 0;
	io->idle = NULL;
	for (unsigned i = 0; i < io->depth; i++)
		sk_io_put_request(io, &io->requests[i]);
}

int sk_io_wait(struct sk_io *io, struct sk_io_request **ret_request)
{
	int r;

	assert(io->in_flight);
	r = io->engine->ops->wait(io->engine, ret_request);
	if (r < 0)
		forget_all(io);
	else
		io->in_flight--;
	return r;
}

void sk_io_drain(struct sk_io *io)
{
	struct sk_io_request *request;

	while (io->in_flight)
		if (sk_io_wait(io, &request) == 0)
			sk_io_put_request(io, request);
	/* Those that were taken, but not in flight, too. */
	forget_all(io);
}

/* A filesystem may take the flag and refuse the requests. */
static bool gave_up_direct(const struct sk_io *io, int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || !(flags & O_DIRECT))
		return false;
	return sk_io_set_direct(io, fd, false) == 0;
}

static int try_again(const struct sk_io_request *request, int because)
{
	const struct timespec pause = { .tv_nsec = RETRY_NS };

	if (request->tries >= SK_IO_TRIES)
		return because;
	if (request->tries > RETRY_EAGER)
		(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
	return 0;
}

int sk_io_judge(struct sk_io *io, struct sk_io_request *request)
{
	int r = request->result;
	int flags;

	if (r == -EAGAIN || r == -EINTR)
		return try_again(request, r);
	/* Once more in any case: a neighbour may have let go of O_DIRECT. */
	if (r == -EINVAL &&
	    (gave_up_direct(io, request->fd) || request->tries < 2))
		return try_again(request, r);
	if (r < 0 || (size_t)r >= request->bytes)
		return r;
	flags = fcntl(request->fd, F_GETFL);
	if (flags >= 0 && (flags & O_DIRECT))
		r -= r % (int)SK_PAGE;
	if (!r)
		return try_again(request, -EIO);
	request->tries = 0;
	return r;
}

/* Whether pages are good enough for the filesystem's direct I/O. Kernels
 * before 6.1 do not tell: then trying tells. */
static bool takes_direct(int fd)
{
	struct statx stx = { 0 };

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) < 0)
		return true;
	if (!(stx.stx_mask & STATX_DIOALIGN))
		return true;
	return stx.stx_dio_offset_align && stx.stx_dio_mem_align &&
	       SK_PAGE % stx.stx_dio_offset_align == 0 &&
	       SK_PAGE % stx.stx_dio_mem_align == 0;
}

int sk_io_set_direct(const struct sk_io *io, int fd, bool direct)
{
	int flags = fcntl(fd, F_GETFL);
	int want;

	if (flags < 0)
		return -errno;
	/* Left over from opening names that may turn out to be pipes. */
	want = flags & ~(O_DIRECT | O_NONBLOCK);
	if (direct && !io->no_direct && takes_direct(fd) &&
	    fcntl(fd, F_SETFL, want | O_DIRECT) == 0)
		return 1;
	if (want != flags && fcntl(fd, F_SETFL, want) < 0)
		return -errno;
	return 0;
}

int sk_io_prepare_fd(struct sk_io *io, int fd, bool direct)
{
	int r = sk_io_set_direct(io, fd, direct);

	if (r == 0)	/* advice: nothing is lost where it is refused */
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return r < 0 ? r : 0;
}

int sk_io_open(struct sk_io *io, int dirfd, const char *name, bool direct,
	       struct sk_err *err)
{
	struct stat st;
	int fd, r;

	fd = io->os->openat(io->os, dirfd, name, O_RDONLY | O_NOFOLLOW |
			    O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open \"%s\" to read it",
				    name);
	r = io->os->fstat(io->os, fd, &st);
	if (r == 0 && !S_ISREG(st.st_mode))
		r = -EINVAL;
	if (r == 0)
		r = sk_io_prepare_fd(io, fd, direct);
	if (r == 0)
		return fd;
	io->os->close(io->os, fd);
	if (r == -EINVAL)
		return sk_err_set(err, r, "\"%s\" is not a regular file",
				  name);
	return sk_err_errno(err, r, "cannot prepare \"%s\" for reading", name);
}
