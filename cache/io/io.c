/* SPDX-License-Identifier: Apache-2.0 */
#include "io/io.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "io/backend.h"

/* Chosen by measurement: less leaves the device idle between requests, more
 * only washes the caches. */
#define DEFAULT_DEPTH 8u
#define DEFAULT_BLOCK ((size_t)1 << 20)

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
	io->direct = -1;
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
	if (io->map)
		io->os->munmap(io->os, io->map, io->map_bytes);
	free(io->requests);
	free(io);
	return NULL;
}

const char *sk_io_describe(const struct sk_io *io)
{
	return io->engine->ops->describe(io->engine);
}

int sk_io_direct(const struct sk_io *io)
{
	return __atomic_load_n(&io->direct, __ATOMIC_RELAXED);
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
	assert(request >= io->requests && request < io->requests + io->depth);
	request->next = io->idle;
	io->idle = request;
}

void sk_io_submit(struct sk_io *io, struct sk_io_request *request)
{
	assert(request >= io->requests && request < io->requests + io->depth);
	assert(io->in_flight < io->depth);
	request->tries++;
	io->in_flight++;
	io->engine->ops->submit(io->engine, request);
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

int sk_io_prepare_fd(struct sk_io *io, int fd, bool direct)
{
	int r = sk_io_set_direct(io, fd, direct);

	if (r == 0)	/* advice: nothing is lost where it is refused */
		(void)io->os->fadvise(io->os, fd, POSIX_FADV_SEQUENTIAL);
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

/* ---- buffers ---- */

/* What there was; its pages may be in the engine's table. */
static void drop_buffers(struct sk_io *io)
{
	if (!io->map)
		return;
	sk_io_unregister(io, io->buffers);
	io->os->munmap(io->os, io->map, io->map_bytes);
	io->map = NULL;
	io->buffers = NULL;
}

/*
 * A device takes so many pieces a request, and a page is one: of small ones a
 * MiB is too many, and each read becomes two. The kernel joins those of a
 * registered buffer only where all of it lies in pages of one size, so it
 * begins and ends at huge ones.
 */
int sk_io_have_buffers(struct sk_io *io, size_t bytes, struct sk_err *err)
{
	size_t page = io->depth * bytes < SK_HUGE_PAGE ? SK_PAGE : SK_HUGE_PAGE;
	size_t size = sk_round_up(io->depth * bytes, page);
	size_t map_bytes = size + (page - SK_PAGE);
	void *map;
	int r;

	if (io->buffers && io->buffer_bytes >= bytes)
		return 0;
	r = io->os->mmap(io->os, NULL, map_bytes, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &map);
	if (r < 0)
		return sk_err_errno(err, r, "cannot map %u buffers of %zu "
				    "bytes", io->depth, bytes);
	drop_buffers(io);
	io->map = map;
	io->map_bytes = map_bytes;
	io->buffers = (char *)sk_round_up((uintptr_t)map, page);
	io->buffer_bytes = bytes;
	(void)io->os->madvise(io->os, io->buffers, size, MADV_HUGEPAGE);
	(void)sk_io_register(io, io->buffers, size);
	return 0;
}
