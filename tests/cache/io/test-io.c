/* SPDX-License-Identifier: Apache-2.0 */
/* How a reader and writer is made, and lent. */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Test(io, refuses_bad_options)
{
	static const struct sk_io_opts bad[] = {
		{ .depth = 257 },
		{ .block = 4095 },
		{ .block = SK_PAGE + 512 },
		{ .block = (size_t)2 << 30 },
		{ .backend = 7 },
	};
	struct sk_io *io = NULL;

	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		struct sk_err err = { "" };

		cr_assert_eq(sk_io_new(sk_os_linux(), &bad[i], &io, &err),
			     -EINVAL, "case %zu", i);
		cr_assert_null(io);
		cr_assert(err.text[0], "case %zu", i);
		cr_assert_eq(sk_io_new(sk_os_linux(), &bad[i], &io, NULL),
			     -EINVAL);
	}
}

Test(io, is_made_by_default)
{
	struct sk_io *io = NULL;

	cr_assert_eq(sk_io_new(sk_os_linux(), NULL, &io, NULL), 0);
	cr_assert_not_null(strstr("io_uring threads", sk_io_describe(io)));
	cr_assert_null(sk_io_free(io));
	cr_assert_null(sk_io_free(NULL));
}

Test(io, threads_never_pin)
{
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
		.backend = SK_IO_THREADS });
	uint64_t seed = 1;
	char *m = random_memory(SK_PAGE, &seed);

	cr_assert_eq(sk_io_register(io, m, SK_PAGE), 0);
	cr_assert_str_eq(sk_io_describe(io), "threads");
	sk_io_unregister(io, m);
	sk_io_free(io);
	free_memory(m, SK_PAGE);
}

Test(io, pins_and_unpins, .init = need_uring)
{
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
		.backend = SK_IO_URING });
	size_t size = 64 * SK_PAGE;
	uint64_t seed = 1;
	char *m = random_memory(size, &seed);

	cr_assert_str_eq(sk_io_describe(io), "io_uring");
	cr_assert_eq(sk_io_register(io, NULL, size), 0);
	cr_assert_eq(sk_io_register(io, m, 0), 0);
	/* Nothing is mapped there. */
	cr_assert_eq(sk_io_register(io, (void *)(uintptr_t)SK_PAGE, size), 0);
	cr_assert_str_eq(sk_io_describe(io), "io_uring");
	for (int i = 0; i < 2000; i++) {	/* more than there are pieces */
		if (!sk_io_register(io, m, size))
			cr_skip("no memory may be locked here");
		cr_assert_str_eq(sk_io_describe(io),
				 "io_uring, registered buffers");
		if (i % 2)
			sk_io_unregister(io, m);
	}
	sk_io_unregister(io, m);
	sk_io_unregister(io, m);
	cr_assert_str_eq(sk_io_describe(io), "io_uring");
	sk_io_free(io);
	free_memory(m, size);
}

BOTH(opens_regular_files_only)
{
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
		.backend = backend });
	struct sk_err err = { "" };
	struct place p;
	int fd;

	place_make(&p);
	cr_assert_eq(mkfifoat(p.fd, "pipe", 0600), 0);
	cr_assert_eq(symlinkat("file", p.fd, "link"), 0);
	cr_assert_eq(sk_io_open(io, p.fd, "pipe", true, &err), -EINVAL);
	cr_assert_not_null(strstr(err.text, "regular"));
	cr_assert_eq(sk_io_open(io, p.fd, ".", false, NULL), -EINVAL);
	cr_assert_eq(sk_io_open(io, p.fd, "link", true, NULL), -ELOOP);
	cr_assert_eq(sk_io_open(io, p.fd, "file", true, NULL), -ENOENT);
	fd = openat(p.fd, "file", O_WRONLY | O_CREAT, 0600);
	close(fd);
	fd = sk_io_open(io, p.fd, "file", true, NULL);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
	cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	cr_assert_eq(sk_io_prepare_fd(io, fd, false), 0);
	cr_assert_eq(fcntl(fd, F_GETFL) & O_DIRECT, 0);
	close(fd);
	cr_assert_eq(sk_io_prepare_fd(io, -1, true), -EBADF);
	sk_io_free(io);
	place_remove(&p);
}

/* One sk_io, used by one thread after the other. */

struct passed_on {
	struct sk_io *io;
	struct sk_write w;
	struct sk_err err;
	int r;
};

static void *write_there(void *arg)
{
	struct passed_on *on = arg;

	on->r = sk_io_write_file(on->io, &on->w, &on->err);
	return NULL;
}

BOTH(goes_from_thread_to_thread)
{
	size_t bytes = 20 * SK_PAGE + 5;
	uint64_t state = 13;
	char *data = random_memory(bytes, &state);
	struct passed_on on = {
		.io = make_io(sk_os_linux(), (struct sk_io_opts){
			.backend = backend, .block = SK_PAGE }),
		.w = { .name = "file", .data = data, .bytes = bytes },
	};
	struct place p;
	int pinned;

	place_make(&p);
	on.w.dirfd = p.fd;
	pinned = sk_io_register(on.io, data, 21 * SK_PAGE);
	for (int i = 0; i < 3; i++) {
		pthread_t thread;

		cr_assert_eq(pthread_create(&thread, NULL, write_there, &on),
			     0);
		pthread_join(thread, NULL);
		cr_assert_eq(on.r, 0, "%s", on.err.text);
		check_file(&p, &on.w);
		unlinkat(p.fd, "file", 0);
		write_there(&on);
		cr_assert_eq(on.r, 0, "%s", on.err.text);
		check_file(&p, &on.w);
		unlinkat(p.fd, "file", 0);
	}
	if (pinned)
		cr_assert_not_null(strstr(sk_io_describe(on.io),
					  "registered"));
	sk_io_free(on.io);
	free_memory(data, bytes);
	place_remove(&p);
}
