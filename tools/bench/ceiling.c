/* SPDX-License-Identifier: Apache-2.0 */
/* The ceilings: streaming memcpy, hashing, direct io_uring. */
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "bytes/copy.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25	/* Linux 6.1 */
#endif

struct share {
	pthread_t thread;
	char *dst;
	const char *src;
	uint64_t bytes, sum;
};

static void *copy_share(void *arg)
{
	struct share *s = arg;

	sk_stream_copy(s->dst, s->src, s->bytes);
	sk_stream_fence();
	return NULL;
}

static void *hash_share(void *arg)
{
	struct share *s = arg;

	for (uint64_t at = 0; at < s->bytes; at += 1 << 20)
		s->sum += sk_xxh3(s->src + at, s->bytes - at < 1 << 20 ?
				  s->bytes - at : 1 << 20);
	return NULL;
}

static uint64_t in_parallel(void *(*run)(void *), void *dst, const void *src,
			    uint64_t bytes, unsigned threads)
{
	struct share s[64] = { 0 };
	uint64_t each = (bytes / threads) & ~(uint64_t)4095, sum = 0;

	for (unsigned i = 0; i < threads; i++) {
		s[i].dst = dst ? (char *)dst + i * each : NULL;
		s[i].src = (const char *)src + i * each;
		s[i].bytes = i + 1 < threads ? each : bytes - i * each;
		if (i && pthread_create(&s[i].thread, NULL, run, &s[i]))
			abort();
	}
	run(&s[0]);
	for (unsigned i = 0; i < threads; i++) {
		if (i)
			pthread_join(s[i].thread, NULL);
		sum += s[i].sum;
	}
	return sum;
}

void copy_parallel(void *dst, const void *src, uint64_t bytes,
		   unsigned threads)
{
	in_parallel(copy_share, dst, src, bytes, threads);
}

uint64_t hash_parallel(const void *src, uint64_t bytes, unsigned threads)
{
	return in_parallel(hash_share, NULL, src, bytes, threads);
}

/* The kernel registers no larger ones; blocks lie in one each. */
#define BUFFER_MOST ((uint64_t)1 << 30)

/* Whole huge pages: see warm_memory(). */
static int register_all(struct io_uring *ring, char *buf, uint64_t bytes)
{
	uint64_t size = sk_round_up(bytes, SK_HUGE_PAGE);
	unsigned n = (unsigned)((size + BUFFER_MOST - 1) / BUFFER_MOST);
	struct iovec *iov = calloc(n, sizeof(*iov));
	int r;

	if (!iov)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++) {
		uint64_t at = i * BUFFER_MOST, left = size - at;

		iov[i] = (struct iovec){ buf + at, left < BUFFER_MOST ?
						   left : BUFFER_MOST };
	}
	r = io_uring_register_buffers(ring, iov, n);
	free(iov);
	return r;
}

static struct io_uring_sqe *next_sqe(struct io_uring *ring, int fd,
				     char *buf, uint64_t at, unsigned n,
				     bool write)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (write)
		io_uring_prep_write_fixed(sqe, fd, buf + at, n, at,
					  (int)(at / BUFFER_MOST));
	else
		io_uring_prep_read(sqe, fd, buf + at, n, at);
	io_uring_sqe_set_data64(sqe, n);
	return sqe;
}

static int pass(struct io_uring *ring, int fd, char *buf, uint64_t bytes,
		bool write, unsigned block, unsigned depth)
{
	uint64_t at = 0;
	unsigned flying = 0;

	while (at < bytes || flying) {
		struct io_uring_cqe *cqe;

		while (at < bytes && flying < depth) {
			unsigned n = (unsigned)(bytes - at < block ?
						bytes - at : block);

			next_sqe(ring, fd, buf, at, n, write);
			at += n;
			flying++;
		}
		io_uring_submit_and_wait(ring, 1);
		while (!io_uring_peek_cqe(ring, &cqe)) {
			if (cqe->res != (int)io_uring_cqe_get_data64(cqe))
				return cqe->res < 0 ? cqe->res : -EIO;
			io_uring_cqe_seen(ring, cqe);
			flying--;
		}
	}
	return write && fsync(fd) < 0 ? -errno : 0;
}

int file_pass(const char *path, void *buf, uint64_t bytes, bool write,
	      unsigned block, unsigned depth)
{
	struct io_uring ring;
	int fd, r;

	fd = open(path, O_DIRECT | O_CLOEXEC |
		  (write ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY), 0600);
	if (fd < 0)
		return -errno;
	r = io_uring_queue_init(depth, &ring, 0);
	if (r < 0)
		goto close_file;
	if (write) {
		r = register_all(&ring, buf, bytes);
		if (r < 0)
			goto exit_ring;
		if (fallocate(fd, 0, 0, (off_t)bytes) < 0 &&
		    errno != EOPNOTSUPP) {
			r = -errno;
			goto exit_ring;
		}
	}
	r = pass(&ring, fd, buf, bytes, write, block, depth);
exit_ring:
	io_uring_queue_exit(&ring);
close_file:
	close(fd);
	return r;
}

/* Where huge pages can lie, as many as it takes. */
static void *map_huge(int fd, uint64_t bytes)
{
	uint64_t size = sk_round_up(bytes, SK_HUGE_PAGE);
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	char *room = mmap(NULL, size + SK_HUGE_PAGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *p;

	if (room == MAP_FAILED)
		abort();
	p = mmap((void *)sk_round_up((uintptr_t)room, SK_HUGE_PAGE), size,
		 PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
	if (p == MAP_FAILED)
		abort();
	(void)madvise(p, size, MADV_HUGEPAGE);
	memset(p, 1, size);
	return p;
}

void *warm_memory(uint64_t bytes)
{
	return map_huge(-1, bytes);
}

/* The kernel may have to be asked, as for slots. */
void *warm_memfd(uint64_t bytes)
{
	uint64_t size = sk_round_up(bytes, SK_HUGE_PAGE);
	int fd = memfd_create("bench", MFD_CLOEXEC);
	void *p;

	if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
		abort();
	p = map_huge(fd, bytes);
	(void)madvise(p, size, MADV_COLLAPSE);
	close(fd);
	return p;
}
