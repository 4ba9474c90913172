/* SPDX-License-Identifier: Apache-2.0 */
/* The ring, one request at a time: what the kernel may say meanwhile, and
 * which memory it was told of. */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "io/backend.h"

#define SIGNALS 50
#define GIB ((size_t)1 << 30)
#define STRIPE ((size_t)4 << 20)	/* mapped again and again */

static struct sk_io_engine *make_engine(unsigned depth)
{
	struct sk_io_engine *engine = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_io_uring_new(sk_os_linux(), depth, &engine, &err), 0,
		     "%s", err.text);
	return engine;
}

static int run(struct sk_io_engine *engine, struct sk_io_request *q)
{
	struct sk_io_request *back = NULL;

	engine->ops->submit(engine, q);
	cr_assert_eq(engine->ops->wait(engine, &back), 0);
	cr_assert_eq(back, q);
	return q->result;
}

/* ---- signals ---- */

struct sender {
	pthread_t to;
	int pipe;
};

static atomic_int caught;

static void on_signal(int sig)
{
	(void)sig;
	atomic_fetch_add(&caught, 1);
}

/* Each signal is caught before the next is sent; then comes what is read. */
static void *disturb(void *arg)
{
	struct sender *s = arg;

	for (int i = 0; i < SIGNALS; i++) {
		pthread_kill(s->to, SIGUSR1);
		while (atomic_load(&caught) <= i)
			sched_yield();
	}
	return write(s->pipe, "x", 1) == 1 ? s : NULL;
}

Test(uring, waits_through_signals, .init = need_uring, .timeout = 300)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct sk_io_engine *engine = make_engine(4);
	struct sk_io_request q = { .op = SK_URING_READ, .bytes = 1 };
	struct sender sender = { .to = pthread_self() };
	struct sk_io_request *back = NULL;
	pthread_t thread;
	void *sent;
	char byte = 0;
	int ends[2];

	cr_assert_eq(pipe(ends), 0);
	cr_assert_eq(sigaction(SIGUSR1, &action, NULL), 0);
	q.fd = ends[0];
	q.buf = &byte;
	sender.pipe = ends[1];
	engine->ops->submit(engine, &q);
	cr_assert_eq(pthread_create(&thread, NULL, disturb, &sender), 0);
	cr_assert_eq(engine->ops->wait(engine, &back), 0);
	cr_assert_eq(back, &q);
	pthread_join(thread, &sent);
	cr_assert(sent && q.result == 1 && byte == 'x');
	engine->ops->free(engine);
	close(ends[0]);
	close(ends[1]);
}

/* ---- more than the ring holds ---- */

Test(uring, loses_nothing_when_it_is_full, .init = need_uring, .timeout = 300)
{
	struct sk_io_engine *engine = make_engine(1);
	struct sk_io_request q[200] = { 0 }, *back = NULL;
	struct place p;
	char bytes[200];
	int fd;

	place_make(&p);
	fd = openat(p.fd, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	for (int i = 0; i < 200; i++)
		cr_assert_eq(pwrite(fd, &(char){ (char)i }, 1, i), 1);
	for (int i = 0; i < 200; i++) {
		q[i] = (struct sk_io_request){ .op = SK_URING_READ, .fd = fd,
			.buf = &bytes[i], .bytes = 1, .offset = (uint64_t)i };
		engine->ops->submit(engine, &q[i]);
	}
	for (int i = 0; i < 200; i++) {
		cr_assert_eq(engine->ops->wait(engine, &back), 0);
		cr_assert_eq(back->result, 1);
		back->result = 0;	/* each comes once */
	}
	for (int i = 0; i < 200; i++)
		cr_assert(bytes[i] == (char)i && !q[i].result);
	engine->ops->free(engine);
	close(fd);
	place_remove(&p);
}

/* ---- pinned memory ---- */

/* Reads @bytes at @at of the buffer, which must come whole. */
static void read_at(struct sk_io_engine *engine, int fd, char *at,
		    size_t bytes)
{
	struct sk_io_request q = { .op = SK_URING_READ, .fd = fd, .buf = at,
				   .bytes = bytes };
	char want[2 * SK_PAGE];

	cr_assert_eq(pread(fd, want, bytes, 0), (ssize_t)bytes);
	memset(at, 0, bytes);
	cr_assert_eq(run(engine, &q), (int)bytes, "%s", strerror(-q.result));
	cr_assert_eq(memcmp(at, want, bytes), 0);
}

static int make_random_file(struct place *p)
{
	uint64_t seed = 7;
	char *m = random_memory(2 * SK_PAGE, &seed);
	int fd;

	place_make(p);
	fd = openat(p->fd, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, m, 2 * SK_PAGE), 2 * SK_PAGE);
	free_memory(m, 2 * SK_PAGE);
	return fd;
}

/* Inside, up to the end, across both ends, and outside of what is pinned. */
Test(uring, reads_across_the_ends_of_pinned_memory, .init = need_uring)
{
	struct sk_io_engine *engine = make_engine(4);
	size_t size = 8 * SK_PAGE;
	struct place p;
	uint64_t seed = 1;
	char *m = random_memory(3 * size, &seed), *pinned = m + size;
	int fd = make_random_file(&p);

	if (!engine->ops->pin(engine, pinned, size))
		cr_skip("no memory may be locked here");
	read_at(engine, fd, pinned, SK_PAGE);
	read_at(engine, fd, pinned + size - SK_PAGE, SK_PAGE);
	read_at(engine, fd, pinned + size - SK_PAGE, SK_PAGE + 1);
	read_at(engine, fd, pinned + size, SK_PAGE);
	read_at(engine, fd, pinned + size + SK_PAGE, SK_PAGE);
	read_at(engine, fd, pinned - 1, SK_PAGE);
	read_at(engine, fd, pinned - SK_PAGE, SK_PAGE);
	engine->ops->unpin(engine, pinned);
	read_at(engine, fd, pinned, SK_PAGE);
	engine->ops->free(engine);
	close(fd);
	free_memory(m, 3 * size);
	place_remove(&p);
}

/* The kernel takes a GiB at a time: what crosses the border is in neither. */
Test(uring, reads_across_the_border_of_two_pieces, .init = need_uring)
{
	struct sk_io_engine *engine = make_engine(4);
	size_t size = GIB + STRIPE;
	int fd, memory = memfd_create("stripe", MFD_CLOEXEC);
	struct place p;
	char *m;

	cr_assert(memory >= 0 && ftruncate(memory, STRIPE) == 0);
	m = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_NORESERVE, -1, 0);
	cr_assert_neq(m, MAP_FAILED);
	for (size_t at = 0; at < size; at += STRIPE)
		cr_assert_neq(mmap(m + at, STRIPE, PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_FIXED, memory, 0),
			      MAP_FAILED);
	if (!engine->ops->pin(engine, m, size))
		cr_skip("no memory may be locked here");
	fd = make_random_file(&p);
	read_at(engine, fd, m + GIB - SK_PAGE, SK_PAGE);
	read_at(engine, fd, m + GIB - SK_PAGE, SK_PAGE + 1);
	read_at(engine, fd, m + GIB - 1, SK_PAGE);
	read_at(engine, fd, m + GIB, SK_PAGE);
	read_at(engine, fd, m + size - SK_PAGE, SK_PAGE);
	/* A whole number of them is as many. */
	engine->ops->unpin(engine, m);
	cr_assert_eq(engine->ops->pin(engine, m, GIB), 1);
	read_at(engine, fd, m + GIB - SK_PAGE, SK_PAGE);
	engine->ops->free(engine);
	munmap(m, size);
	close(memory);
	close(fd);
	place_remove(&p);
}

/* ---- no ring ---- */

/* In place of each ring that this process has: a file that is none. */
static void lose_rings(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	cr_assert_geq(null, 0);
	for (int fd = 0; fd < 256; fd++) {
		char path[64], name[64] = "";

		(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, name, sizeof(name) - 1) > 0 &&
		    strstr(name, "io_uring"))
			cr_assert_eq(dup3(null, fd, O_CLOEXEC), fd);
	}
	close(null);
}

/* What is under way is lost with it, and that is told; a new one serves. */
Test(uring, a_ring_that_is_lost_is_told, .init = need_uring)
{
	const struct sk_io_opts opts = { .backend = SK_IO_URING, .depth = 4,
					 .block = SK_PAGE };
	struct sk_io_request *q, *back = NULL;
	struct sk_io *io = NULL;
	char byte;
	int ends[2];

	cr_assert_eq(pipe(ends), 0);
	cr_assert_eq(sk_io_new(sk_os_linux(), &opts, &io, NULL), 0);
	for (int i = 0; i < 2; i++) {
		q = sk_io_get_request(io);
		cr_assert_not_null(q);
		q->op = SK_URING_READ;
		q->fd = ends[0];
		q->buf = &byte;
		q->bytes = 1;
		if (i == 0)
			lose_rings();
		else
			cr_assert_eq(write(ends[1], "x", 1), 1);
		sk_io_submit(io, q);
		if (i == 0)
			cr_assert_lt(sk_io_wait(io, &back), 0);
	}
	cr_assert_eq(sk_io_wait(io, &back), 0);
	cr_assert(back == q && q->result == 1 && byte == 'x', "%d", q->result);
	sk_io_free(io);
	close(ends[0]);
	close(ends[1]);
}

/* A thread that cannot have one reads all the same: each request comes back
 * once. */
Test(uring, without_a_ring_nothing_is_lost, .init = need_uring)
{
	struct sk_io_engine *engine = make_engine(4);
	struct sk_io_request q[3] = { 0 }, *back = NULL;
	struct rlimit none, was;
	unsigned seen = 0;
	struct place p;
	char bytes[3];
	int fd = make_random_file(&p);

	lose_rings();
	q[0] = (struct sk_io_request){ .op = SK_URING_READ, .fd = fd,
				       .buf = bytes, .bytes = 1 };
	engine->ops->submit(engine, &q[0]);
	cr_assert_lt(engine->ops->wait(engine, &back), 0);
	/* For the next one there is no descriptor. */
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	none = (struct rlimit){ .rlim_cur = 0, .rlim_max = was.rlim_max };
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	for (int i = 0; i < 3; i++) {
		q[i] = (struct sk_io_request){ .op = SK_URING_READ,
					       .fd = fd, .bytes = 1,
					       .buf = &bytes[i] };
		engine->ops->submit(engine, &q[i]);
	}
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	for (int i = 0; i < 3; i++) {
		cr_assert_eq(engine->ops->wait(engine, &back), 0);
		cr_assert(back >= q && back < q + 3 && back->result == 1);
		seen |= 1u << (back - q);
	}
	cr_assert_eq(seen, 7);
	engine->ops->free(engine);
	close(fd);
	place_remove(&p);
}
