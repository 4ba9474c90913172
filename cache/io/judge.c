/* SPDX-License-Identifier: Apache-2.0 */
/* What a result means: done, to be started anew, or final; O_DIRECT. */
#include <assert.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "io/backend.h"

#define RETRY_NS 1000000	/* between starts that moved nothing */
#define RETRY_EAGER 8u		/* of which the first come at once */

/* A filesystem may take the flag and refuse the requests. */
static bool gave_up_direct(struct sk_io *io, int fd)
{
	int flags = io->os->fcntl(io->os, fd, F_GETFL, 0);

	if (flags < 0 || !(flags & O_DIRECT))
		return false;
	__atomic_store_n(&io->direct, 0, __ATOMIC_RELAXED);
	return sk_io_set_direct(io, fd, false) == 0;
}

static int try_again(const struct sk_os *os,
		     const struct sk_io_request *request, int because)
{
	if (request->tries >= SK_IO_TRIES)
		return because;
	if (request->tries > RETRY_EAGER)
		(void)os->poll(os, NULL, 0, os->now_ns(os) + RETRY_NS);
	return 0;
}

int sk_io_judge(struct sk_io *io, struct sk_io_request *request)
{
	int r = request->result;
	int flags;

	assert(request->tries);
	if (r == -EAGAIN || r == -EINTR)
		return try_again(io->os, request, r);
	/* Once more in any case: a neighbour may have let go of O_DIRECT. */
	if (r == -EINVAL &&
	    (gave_up_direct(io, request->fd) || request->tries < 2))
		return try_again(io->os, request, r);
	if (r < 0 || (size_t)r >= request->bytes)
		return r;
	flags = io->os->fcntl(io->os, request->fd, F_GETFL, 0);
	if (flags >= 0 && (flags & O_DIRECT))
		r -= r % (int)SK_PAGE;
	if (!r)
		return try_again(io->os, request, -EIO);
	request->tries = 0;
	return r;
}

/* Whether pages are good enough for the filesystem's direct I/O. Kernels
 * before 6.1 do not tell: then trying tells. */
static bool takes_direct(const struct sk_os *os, int fd)
{
	struct statx stx = { 0 };

	if (os->statx(os, fd, STATX_DIOALIGN, &stx) < 0)
		return true;
	if (!(stx.stx_mask & STATX_DIOALIGN))
		return true;
	return stx.stx_dio_offset_align && stx.stx_dio_mem_align &&
	       SK_PAGE % stx.stx_dio_offset_align == 0 &&
	       SK_PAGE % stx.stx_dio_mem_align == 0;
}

int sk_io_set_direct(const struct sk_io *io, int fd, bool direct)
{
	const struct sk_os *os = io->os;
	int flags = os->fcntl(os, fd, F_GETFL, 0);
	int want;

	if (flags < 0)
		return flags;
	/* Left over from opening names that may turn out to be pipes. */
	want = flags & ~(O_DIRECT | O_NONBLOCK);
	if (direct && !io->no_direct && takes_direct(os, fd) &&
	    os->fcntl(os, fd, F_SETFL, want | O_DIRECT) == 0)
		return 1;
	return want == flags ? 0 : os->fcntl(os, fd, F_SETFL, want);
}
