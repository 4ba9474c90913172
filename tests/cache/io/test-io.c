/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault-os.h"
#include "io/io.h"
#include "support/files.h"
#include "support/random.h"

/* Before anything is made: skipping leaves everything where it is. */
static void need_uring(void)
{
	const struct sk_io_opts opts = { .backend = SK_IO_URING };
	struct sk_err err = { "" };
	struct sk_io *io = NULL;

	if (sk_io_new(sk_os_linux(), &opts, &io, &err) < 0)
		cr_skip("no io_uring here: %s", err.text);
	sk_io_free(io);
}

/* Each behaviour is a function of the backend, and tested with both. */
#define BOTH(name)						\
	static void name(enum sk_io_backend backend);		\
	Test(io, name##_by_uring)				\
	{							\
		need_uring();					\
		name(SK_IO_URING);				\
	}							\
	Test(io, name##_by_threads)				\
	{							\
		name(SK_IO_THREADS);				\
	}							\
	static void name(enum sk_io_backend backend)

/* A directory on a disk, where O_DIRECT is likely. */
struct place {
	char path[64];
	int fd;
};

static void place_make(struct place *p)
{
	strcpy(p->path, "/var/tmp/shardkeep-io-XXXXXX");
	if (!mkdtemp(p->path)) {
		strcpy(p->path, "/tmp/shardkeep-io-XXXXXX");
		cr_assert(mkdtemp(p->path));
	}
	p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(p->fd, 0);
}

static void place_remove(struct place *p)
{
	DIR *dir = fdopendir(p->fd);
	struct dirent *e;

	cr_assert(dir);
	rewinddir(dir);
	while ((e = readdir(dir)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			unlinkat(p->fd, e->d_name, 0);
	closedir(dir);
	cr_assert_eq(rmdir(p->path), 0);
}

static bool exists(const struct place *p, const char *name)
{
	return faccessat(p->fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Page-aligned memory, readable to the next page, with random contents. */
static char *random_memory(size_t bytes, uint64_t *state)
{
	size_t whole = sk_round_up(bytes + 1, SK_PAGE);
	char *m = mmap(NULL, whole, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(m, MAP_FAILED);
	for (size_t i = 0; i < whole; i++)
		m[i] = (char)draw(state, 256);
	return m;
}

static void free_memory(char *m, size_t bytes)
{
	munmap(m, sk_round_up(bytes + 1, SK_PAGE));
}

static struct sk_io *make(const struct sk_os *os, struct sk_io_opts opts)
{
	struct sk_err err = { "" };
	struct sk_io *io = NULL;
	int r = sk_io_new(os, &opts, &io, &err);

	cr_assert_eq(r, 0, "%s", err.text);
	return io;
}

/* That the file is what @w says, to the byte. */
static void check_file(const struct place *p, const struct sk_write *w)
{
	size_t head = w->head ? w->head_bytes : 0;
	_cleanup_free_ char *got = malloc(w->bytes + 1);
	int fd = openat(p->fd, w->name, O_RDONLY);
	struct stat st;

	cr_assert_geq(fd, 0);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq((uint64_t)st.st_size, w->bytes, "%zu of %zu bytes",
		     (size_t)st.st_size, (size_t)w->bytes);
	cr_assert_eq(st.st_mode & 0777, 0600);
	cr_assert_eq((uint64_t)pread(fd, got, w->bytes + 1, 0), w->bytes);
	close(fd);
	cr_assert(!head || memcmp(got, w->head, head) == 0);
	cr_assert(w->bytes == head ||
		  memcmp(got + head, (const char *)w->data + head,
			 w->bytes - head) == 0);
}

static enum sk_fault_op write_op(enum sk_io_backend backend)
{
	return backend == SK_IO_URING ? SK_FAULT_URING_WRITE : SK_FAULT_PWRITE;
}

static enum sk_fault_op read_op(enum sk_io_backend backend)
{
	return backend == SK_IO_URING ? SK_FAULT_URING_READ : SK_FAULT_PREAD;
}

/* making */

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
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
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

/* writing */

static void write_random(enum sk_io_backend backend, const struct place *p,
			 uint64_t seed)
{
	uint64_t state = seed;
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend,
		.depth = 1 + (unsigned)draw(&state, 9),
		.block = SK_PAGE * (1 + draw(&state, 8)),
		.no_direct = draw(&state, 3) == 0 });
	size_t head = SK_PAGE * draw(&state, 5);
	size_t bytes = head + draw(&state, 20 * SK_PAGE);
	size_t skew = 8 * draw(&state, 2);
	char *data = random_memory(bytes, &state);
	char *header = random_memory(head + skew, &state);
	struct sk_write w = {
		.dirfd = p->fd, .name = "file", .data = data, .bytes = bytes,
		.head = head ? header + skew : NULL, .head_bytes = head,
	};
	struct sk_err err = { "" };

	if (draw(&state, 2))
		(void)sk_io_register(io, data, sk_round_up(bytes + 1,
							   SK_PAGE));
	if (draw(&state, 4) == 0)
		w.bytes = sk_round_up(bytes, SK_PAGE);
	cr_assert_eq(sk_io_write_file(io, &w, &err), 0, "seed %zu: %s",
		     (size_t)seed, err.text);
	check_file(p, &w);
	cr_assert_eq(unlinkat(p->fd, "file", 0), 0);
	sk_io_free(io);
	free_memory(data, bytes);
	free_memory(header, head + skew);
}

BOTH(writes_what_it_is_given)
{
	struct place p;

	place_make(&p);
	for (uint64_t seed = 1; seed <= 150; seed++)
		write_random(backend, &p, seed);
	place_remove(&p);
}

/* Scribbles on what it was shown, where it came from. */
struct seen {
	const struct sk_write *w;
	char *data, *copy;
	uint64_t at, end;
};

static int see(void *ctx, const void *bytes, size_t n, struct sk_err *err)
{
	struct seen *s = ctx;

	memcpy(s->copy + s->at, bytes, n);
	memset(s->data + s->at, 0x5a, n);
	s->at += n;
	return s->at < s->end ? 0 : sk_err_set(err, -EBADMSG, "seen enough");
}

static void write_seen(enum sk_io_backend backend, const struct place *p,
		       uint64_t seed)
{
	uint64_t state = seed;
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend, .depth = 1 + (unsigned)draw(&state, 5),
		.block = SK_PAGE * (1 + draw(&state, 8)) });
	size_t head = SK_PAGE * draw(&state, 4);
	size_t bytes = head + 1 + draw(&state, 20 * SK_PAGE);
	char *data = random_memory(bytes, &state);
	char *whole = random_memory(bytes, &state);
	char *header = random_memory(head, &state);
	struct seen seen = { .data = data, .copy = random_memory(bytes,
		&state), .at = head, .end = UINT64_MAX };
	struct sk_write w = { .dirfd = p->fd, .name = "file", .data = data,
			      .bytes = bytes, .head = head ? header : NULL,
			      .head_bytes = head, .see = see, .ctx = &seen };
	struct sk_err err = { "" };

	memcpy(whole, data, bytes);
	cr_assert_eq(sk_io_write_file(io, &w, &err), 0, "%s", err.text);
	cr_assert_eq(seen.at, bytes);
	cr_assert_eq(memcmp(seen.copy + head, whole + head, bytes - head), 0);
	w.data = whole;
	check_file(p, &w);
	cr_assert_eq(unlinkat(p->fd, "file", 0), 0);
	/* And what it says no to comes to nothing. */
	seen.at = head;
	seen.end = head + 1;
	cr_assert_eq(sk_io_write_file(io, &w, &err), -EBADMSG);
	cr_assert_str_eq(err.text, "seen enough");
	cr_assert_eq(unlinkat(p->fd, "file", 0), -1);
	sk_io_free(io);
	free_memory(data, bytes);
	free_memory(whole, bytes);
	free_memory(header, head);
	free_memory(seen.copy, bytes);
}

BOTH(writes_what_was_seen)
{
	struct place p;

	place_make(&p);
	for (uint64_t seed = 1; seed <= 60; seed++)
		write_seen(backend, &p, seed * 7919);
	place_remove(&p);
}

BOTH(writes_every_length_near_a_page)
{
	static const size_t lengths[] = { 0, 1, 511, 512, 4095, 4096, 4097,
					  8191, 8192, 8193, 12288 };
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend, .block = 2 * SK_PAGE });
	uint64_t seed = 3;
	char *data = random_memory(4 * SK_PAGE, &seed);
	struct place p;

	place_make(&p);
	for (size_t i = 0; i < SK_ARRAY_SIZE(lengths); i++) {
		struct sk_write w = { .dirfd = p.fd, .name = "file",
				      .data = data, .bytes = lengths[i] };

		cr_assert_eq(sk_io_write_file(io, &w, NULL), 0);
		check_file(&p, &w);
		unlinkat(p.fd, "file", 0);
	}
	sk_io_free(io);
	free_memory(data, 4 * SK_PAGE);
	place_remove(&p);
}

BOTH(refuses_to_overwrite)
{
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend });
	uint64_t seed = 4;
	char *data = random_memory(100, &seed);
	struct sk_err err = { "" };
	struct place p;
	struct sk_write w = { .name = "file", .data = data, .bytes = 100 };

	place_make(&p);
	w.dirfd = p.fd;
	cr_assert_eq(sk_io_write_file(io, &w, NULL), 0);
	w.bytes = 50;
	cr_assert_eq(sk_io_write_file(io, &w, &err), -EEXIST);
	cr_assert_not_null(strstr(err.text, "\"file\""), "%s", err.text);
	w.bytes = 100;
	check_file(&p, &w);
	sk_io_free(io);
	free_memory(data, 100);
	place_remove(&p);
}

BOTH(refuses_bad_writes)
{
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend });
	uint64_t seed = 5;
	char *d = random_memory(3 * SK_PAGE, &seed);
	const struct sk_write bad[] = {
		{ .name = NULL, .data = d, .bytes = 10 },
		{ .name = "", .data = d, .bytes = 10 },
		{ .name = "f", .data = NULL, .bytes = 10 },
		{ .name = "f", .data = d + 1, .bytes = 10 },
		{ .name = "f", .data = d, .bytes = UINT64_MAX },
		{ .name = "f", .data = d, .bytes = SK_PAGE, .head = d,
		  .head_bytes = 100 },
		{ .name = "f", .data = d, .bytes = SK_PAGE, .head = d,
		  .head_bytes = 2 * SK_PAGE },
	};
	struct place p;

	place_make(&p);
	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		struct sk_err err = { "" };
		struct sk_write w = bad[i];

		w.dirfd = p.fd;
		cr_assert_eq(sk_io_write_file(io, &w, &err), -EINVAL,
			     "case %zu", i);
		cr_assert(err.text[0]);
		cr_assert_not(exists(&p, "f"));
	}
	sk_io_free(io);
	free_memory(d, 3 * SK_PAGE);
	place_remove(&p);
}

/* A file of 10 blocks and a bit, through a system that fails. */
struct faulty_write {
	enum sk_io_backend backend;
	struct sk_fault_os fault;
	struct place p;
	struct sk_write w;
	size_t data_bytes;
};

static void faulty_make(struct faulty_write *f, enum sk_io_backend backend)
{
	uint64_t seed = 6;

	*f = (struct faulty_write){ .backend = backend };
	place_make(&f->p);
	f->data_bytes = 40 * SK_PAGE + 123;
	f->w = (struct sk_write){
		.dirfd = f->p.fd, .name = "file",
		.data = random_memory(f->data_bytes, &seed),
		.bytes = f->data_bytes,
		.head = random_memory(SK_PAGE, &seed), .head_bytes = SK_PAGE,
	};
	sk_fault_os_init(&f->fault, sk_os_linux());
}

static void faulty_free(struct faulty_write *f)
{
	free_memory((char *)f->w.data, f->data_bytes);
	free_memory((char *)f->w.head, SK_PAGE);
	place_remove(&f->p);
}

static int faulty_run(struct faulty_write *f, struct sk_err *err)
{
	struct sk_io *io = make(&f->fault.os, (struct sk_io_opts){
		.backend = f->backend, .depth = 4, .block = 4 * SK_PAGE });
	int r = sk_io_write_file(io, &f->w, err);

	sk_io_free(io);
	return r;
}

/* Whole or not there; that no descriptor stays; that a retry succeeds. */
static void faulty_check(struct faulty_write *f, int r, int fds)
{
	cr_assert_eq(count_fds(), fds);
	if (r == 0)
		check_file(&f->p, &f->w);
	else
		cr_assert_not(exists(&f->p, "file"));
	unlinkat(f->p.fd, "file", 0);
	sk_fault_os_init(&f->fault, sk_os_linux());
	cr_assert_eq(faulty_run(f, NULL), 0);
	check_file(&f->p, &f->w);
	unlinkat(f->p.fd, "file", 0);
	sk_fault_os_init(&f->fault, sk_os_linux());
}

/* Fails each call in turn, once or from then on; returns how many. */
static int fail_each(enum sk_io_backend backend, enum sk_fault_op op,
		     uint64_t times, int error)
{
	struct faulty_write f;
	int fds, n, r;

	faulty_make(&f, backend);
	fds = count_fds();
	for (n = 1; ; n++) {
		struct sk_err err = { "" };

		sk_fault_os_fail(&f.fault, op, n, times, error);
		r = faulty_run(&f, &err);
		if (!sk_fault_os_hits(&f.fault))
			break;
		/* Among all calls are those for speed alone: O_DIRECT. */
		cr_assert(r == -error || (r == 0 && op == SK_FAULT_ANY),
			  "call %d: %s", n, err.text);
		cr_assert(r == 0 || strstr(err.text, "file"), "%s", err.text);
		faulty_check(&f, r, fds);
	}
	cr_assert_eq(r, 0);
	faulty_free(&f);
	return n - 1;
}

BOTH(survives_any_failed_call)
{
	static const int errors[] = { ENOSPC, EIO, EDQUOT, EROFS };

	for (size_t i = 0; i < SK_ARRAY_SIZE(errors); i++) {
		/* openat, fallocate, 11 writes, ftruncate, fsync, close */
		cr_assert_geq(fail_each(backend, SK_FAULT_ANY, 1, errors[i]),
			      16);
	}
}

BOTH(survives_calls_that_fail_for_good)
{
	struct faulty_write f;
	int fds, r;

	faulty_make(&f, backend);
	fds = count_fds();
	for (int n = 1; ; n++) {
		/* Not unlinkat, without which nothing can be removed. */
		sk_fault_os_fail(&f.fault, SK_FAULT_FSYNC, n, SK_FAULT_ALWAYS,
				 EIO);
		sk_fault_os_fail(&f.fault, write_op(backend), n,
				 SK_FAULT_ALWAYS, EIO);
		r = faulty_run(&f, NULL);
		if (!sk_fault_os_hits(&f.fault))
			break;
		cr_assert_eq(r, -EIO);
		faulty_check(&f, r, fds);
	}
	faulty_free(&f);
}

BOTH(fails_with_the_fsync)
{
	cr_assert_eq(fail_each(backend, SK_FAULT_FSYNC, 1, EIO), 1);
	cr_assert_eq(fail_each(backend, SK_FAULT_FSYNC, 1, ENOSPC), 1);
}

/* A full disk is known before anything is written to it. */
BOTH(fails_before_it_writes)
{
	struct faulty_write f;
	int fds;

	faulty_make(&f, backend);
	fds = count_fds();
	sk_fault_os_fail(&f.fault, SK_FAULT_FALLOCATE, 1, 1, ENOSPC);
	cr_assert_eq(faulty_run(&f, NULL), -ENOSPC);
	cr_assert_eq(sk_fault_os_calls(&f.fault, write_op(backend)), 0);
	faulty_check(&f, -ENOSPC, fds);
	faulty_free(&f);
}

/* The last word of a server that writes late. */
BOTH(fails_with_the_close)
{
	struct faulty_write f;
	int fds;

	faulty_make(&f, backend);
	fds = count_fds();
	sk_fault_os_fail(&f.fault, SK_FAULT_CLOSE, 1, 1, EIO);
	cr_assert_eq(faulty_run(&f, NULL), -EIO);
	faulty_check(&f, -EIO, fds);
	faulty_free(&f);
}

/* Short at every place, by lengths that are and are not whole pages. */
BOTH(continues_short_writes)
{
	static const uint64_t most[] = { 0, 1, 511, 4096, 5000, 12288 };
	struct faulty_write f;
	uint64_t hits;
	int fds;

	faulty_make(&f, backend);
	fds = count_fds();
	for (size_t i = 0; i < SK_ARRAY_SIZE(most); i++) {
		for (int n = 1; ; n++) {
			struct sk_err err = { "" };
			int r;

			sk_fault_os_shorten(&f.fault, write_op(backend), n, 3,
					    most[i]);
			r = faulty_run(&f, &err);
			hits = sk_fault_os_hits(&f.fault);
			cr_assert_eq(r, 0, "%s", err.text);
			faulty_check(&f, 0, fds);
			if (!hits)
				break;
		}
	}
	/* Each write is one page: four times as many. */
	sk_fault_os_shorten(&f.fault, write_op(backend), 1, SK_FAULT_ALWAYS,
			    SK_PAGE);
	cr_assert_eq(faulty_run(&f, NULL), 0);
	cr_assert_geq(sk_fault_os_calls(&f.fault, write_op(backend)), 41);
	faulty_check(&f, 0, fds);
	faulty_free(&f);
}

BOTH(tries_again_when_told_so)
{
	static const int errors[] = { EAGAIN, EINTR };
	struct faulty_write f;
	int fds, r;

	faulty_make(&f, backend);
	fds = count_fds();
	for (size_t i = 0; i < SK_ARRAY_SIZE(errors); i++) {
		sk_fault_os_fail(&f.fault, write_op(backend), 2, 7, errors[i]);
		r = faulty_run(&f, NULL);
		cr_assert_eq(r, 0);
		cr_assert_eq(sk_fault_os_hits(&f.fault), 7);
		faulty_check(&f, r, fds);
	}
	/* But not for ever. */
	sk_fault_os_fail(&f.fault, write_op(backend), 1, SK_FAULT_ALWAYS,
			 EAGAIN);
	r = faulty_run(&f, NULL);
	cr_assert_eq(r, -EAGAIN);
	faulty_check(&f, r, fds);
	faulty_free(&f);
}

/* Filesystems that take the flag and refuse the requests. */
BOTH(does_without_direct_io)
{
	struct faulty_write f;
	int fds;

	faulty_make(&f, backend);
	fds = count_fds();
	for (int n = 1; n <= 11; n++) {
		sk_fault_os_fail(&f.fault, write_op(backend), n, 1, EINVAL);
		cr_assert_eq(faulty_run(&f, NULL), 0);
		cr_assert_eq(sk_fault_os_hits(&f.fault), 1);
		faulty_check(&f, 0, fds);
	}
	sk_fault_os_fail(&f.fault, write_op(backend), 1, SK_FAULT_ALWAYS,
			 EINVAL);
	cr_assert_eq(faulty_run(&f, NULL), -EINVAL);
	faulty_check(&f, -EINVAL, fds);
	faulty_free(&f);
}

static ssize_t pwrite_not_direct(const struct sk_os *os, int fd,
				 const void *buf, size_t size, uint64_t offset)
{
	(void)os;
	if (fcntl(fd, F_GETFL) & O_DIRECT)
		return -EINVAL;
	return sk_os_linux()->pwrite(sk_os_linux(), fd, buf, size, offset);
}

static int misaligned;	/* atomic */

static ssize_t pwrite_short(const struct sk_os *os, int fd, const void *buf,
			    size_t size, uint64_t offset)
{
	ssize_t n;

	(void)os;
	if ((fcntl(fd, F_GETFL) & O_DIRECT) &&
	    (offset % SK_PAGE || size % SK_PAGE))
		__atomic_store_n(&misaligned, 1, __ATOMIC_RELAXED);
	n = sk_os_linux()->pwrite(sk_os_linux(), fd, buf, size, offset);
	return n > 5000 ? 5000 : n;
}

/* A short direct write goes on at a page, not where it stopped. */
Test(io, continues_direct_writes_at_pages)
{
	struct faulty_write f;
	int fds;

	faulty_make(&f, SK_IO_THREADS);
	fds = count_fds();
	f.fault.os.pwrite = pwrite_short;
	cr_assert_eq(faulty_run(&f, NULL), 0);
	cr_assert_not(misaligned);
	faulty_check(&f, 0, fds);
	faulty_free(&f);
}

/* All in flight meet the refusal, and the first takes the flag away. */
Test(io, does_without_direct_io_for_all_in_flight)
{
	struct faulty_write f;
	int fds;

	faulty_make(&f, SK_IO_THREADS);
	fds = count_fds();
	for (int i = 0; i < 50; i++) {
		f.fault.os.pwrite = pwrite_not_direct;
		cr_assert_eq(faulty_run(&f, NULL), 0);
		faulty_check(&f, 0, fds);
	}
	faulty_free(&f);
}

BOTH(does_without_fallocate)
{
	static const int errors[] = { EOPNOTSUPP, ENOSYS };
	struct faulty_write f;
	int fds;

	faulty_make(&f, backend);
	fds = count_fds();
	for (size_t i = 0; i < SK_ARRAY_SIZE(errors); i++) {
		sk_fault_os_fail(&f.fault, SK_FAULT_FALLOCATE, 1, 1,
				 errors[i]);
		cr_assert_eq(faulty_run(&f, NULL), 0);
		cr_assert_eq(sk_fault_os_hits(&f.fault), 1);
		faulty_check(&f, 0, fds);
	}
	faulty_free(&f);
}

struct watch {
	struct sk_fault_os *fault;
	uint64_t step_ns;	/* the clock goes on by this at each look */
	uint64_t last;
	int calls, stop_at;
};

static int look(void *ctx, uint64_t done)
{
	struct watch *watch = ctx;

	cr_assert_geq(done, watch->last, "progress goes back");
	watch->last = done;
	watch->calls++;
	if (watch->step_ns)
		sk_fault_os_advance(watch->fault, watch->step_ns);
	return watch->stop_at && watch->calls >= watch->stop_at;
}

BOTH(tells_its_progress)
{
	struct faulty_write f;
	struct watch watch = { 0 };

	faulty_make(&f, backend);
	f.w.progress = look;
	f.w.ctx = &watch;
	cr_assert_eq(faulty_run(&f, NULL), 0);
	cr_assert_eq(watch.last, f.w.bytes);
	cr_assert_geq(watch.calls, 11);
	unlinkat(f.p.fd, "file", 0);
	faulty_free(&f);
}

BOTH(stops_when_asked)
{
	struct faulty_write f;
	int fds;

	faulty_make(&f, backend);
	fds = count_fds();
	for (int at = 1; at < 10; at++) {
		struct watch watch = { .stop_at = at };
		struct sk_err err = { "" };

		f.w.progress = look;
		f.w.ctx = &watch;
		cr_assert_eq(faulty_run(&f, &err), -ECANCELED);
		cr_assert_eq(watch.calls, at);
		cr_assert_not_null(strstr(err.text, "cancelled"));
		f.w.progress = NULL;
		faulty_check(&f, -ECANCELED, fds);
	}
	faulty_free(&f);
}

/* A sleep on the virtual clock, which nobody else moves meanwhile. */
static int sleep_at_once(const struct sk_os *os, struct pollfd *fds, nfds_t n,
			 uint64_t until_ns)
{
	struct sk_fault_os *fault = os->ctx;

	(void)fds;
	cr_assert_eq(n, 0);
	if (until_ns > fault->now)
		sk_fault_os_advance(fault, until_ns - fault->now);
	return -ETIMEDOUT;
}

/* By a clock that progress moves in small steps, and sleep. */
BOTH(keeps_to_its_rate)
{
	static const uint64_t rates[] = { 64 << 20, 1 << 30, 2000000001 };
	struct faulty_write f;

	faulty_make(&f, backend);
	for (size_t i = 0; i < SK_ARRAY_SIZE(rates); i++) {
		struct watch watch = { .fault = &f.fault };
		uint64_t all = f.w.bytes * UINT64_C(1000000000) / rates[i];
		uint64_t block = SK_PAGE * 4 * UINT64_C(1000000000) / rates[i];

		watch.step_ns = block / 8;
		sk_fault_os_clock(&f.fault, 1000, 1000);
		f.fault.os.poll = sleep_at_once;
		f.w.progress = look;
		f.w.ctx = &watch;
		f.w.max_rate = rates[i];
		cr_assert_eq(faulty_run(&f, NULL), 0);
		cr_assert_geq(f.fault.now - 1000 + 2 * block, all,
			      "faster than %zu", (size_t)rates[i]);
		cr_assert_leq(f.fault.now - 1000, 3 * all,
			      "much slower than %zu", (size_t)rates[i]);
		check_file(&f.p, &f.w);
		unlinkat(f.p.fd, "file", 0);
		sk_fault_os_init(&f.fault, sk_os_linux());
	}
	faulty_free(&f);
}

/* A slow write lets others pass, and hears of a cancellation. */
BOTH(writes_small_blocks_when_slow)
{
	struct watch watch = { .step_ns = UINT64_C(1000000000000) };
	struct faulty_write f;
	struct sk_io *io;

	faulty_make(&f, backend);
	watch.fault = &f.fault;
	sk_fault_os_clock(&f.fault, 0, 0);
	f.fault.os.poll = sleep_at_once;
	f.w.progress = look;
	f.w.ctx = &watch;
	f.w.max_rate = 1000;
	io = make(&f.fault.os, (struct sk_io_opts){ .backend = backend });
	cr_assert_eq(sk_io_write_file(io, &f.w, NULL), 0);
	/* A header, twice 64 KiB, and what is left. */
	cr_assert_eq(sk_fault_os_calls(&f.fault, write_op(backend)), 4);
	check_file(&f.p, &f.w);
	sk_io_free(io);
	faulty_free(&f);
}

/* reading */

struct reading {
	const char *const *truth;	/* by file */
	const struct sk_range *ranges;
	uint64_t align;
	unsigned char **seen;		/* by range, a count for each byte */
	uint64_t calls;
	int stop_at, stop_with;
};

static int take(void *ctx, size_t index, uint64_t at, const void *data,
		size_t bytes)
{
	struct reading *rd = ctx;
	const struct sk_range *g = &rd->ranges[index];

	cr_assert_gt(bytes, 0);
	cr_assert_leq(at + bytes, g->bytes);
	if (rd->align) {
		cr_assert_eq(at % rd->align, 0);
		cr_assert(at + bytes == g->bytes ||
			  (at + bytes) % rd->align == 0);
	}
	cr_assert_eq(memcmp(data, rd->truth[g->file] + g->offset + at, bytes),
		     0);
	for (size_t i = 0; i < bytes; i++)
		rd->seen[index][at + i]++;
	rd->calls++;
	return rd->stop_at && rd->calls >= (uint64_t)rd->stop_at ?
		rd->stop_with : 0;
}

static void seen_make(struct reading *rd, size_t n)
{
	rd->seen = calloc(n + 1, sizeof(*rd->seen));
	for (size_t i = 0; i < n; i++)
		rd->seen[i] = calloc(rd->ranges[i].bytes + 1, 1);
}

/* Ends it, each byte seen so often. */
static void seen_check(struct reading *rd, size_t n, int times)
{
	for (size_t i = 0; i < n; i++) {
		for (uint64_t j = 0; j < rd->ranges[i].bytes && times >= 0; j++)
			cr_assert_eq(rd->seen[i][j], times,
				     "byte %zu of range %zu: %d times",
				     (size_t)j, i, rd->seen[i][j]);
		free(rd->seen[i]);
	}
	free(rd->seen);
}

#define FILES 3

struct library {
	struct place p;
	char name[FILES][16];
	char *truth[FILES];
	size_t bytes[FILES];
};

static void library_make(struct library *l, uint64_t *state, size_t most)
{
	place_make(&l->p);
	for (int i = 0; i < FILES; i++) {
		int fd;

		snprintf(l->name[i], sizeof(l->name[i]), "f%d", i);
		l->bytes[i] = 1 + draw(state, most);
		l->truth[i] = random_memory(l->bytes[i], state);
		fd = openat(l->p.fd, l->name[i], O_WRONLY | O_CREAT, 0600);
		cr_assert_eq(write(fd, l->truth[i], l->bytes[i]),
			     (ssize_t)l->bytes[i]);
		close(fd);
	}
}

static void library_free(struct library *l)
{
	for (int i = 0; i < FILES; i++)
		free_memory(l->truth[i], l->bytes[i]);
	place_remove(&l->p);
}

static void library_open(struct library *l, struct sk_io *io, bool direct,
			 int fds[FILES])
{
	for (int i = 0; i < FILES; i++) {
		fds[i] = sk_io_open(io, l->p.fd, l->name[i], direct, NULL);
		cr_assert_geq(fds[i], 0);
	}
}

static int compare_ranges(const void *a, const void *b)
{
	const struct sk_range *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Ranges of any kind: tiny, empty, adjacent, overlapping, to the very end. */
static size_t draw_ranges(const struct library *l, uint64_t *state,
			  struct sk_range *ranges, size_t most)
{
	size_t n = draw(state, most);

	for (size_t i = 0; i < n; i++) {
		struct sk_range *g = &ranges[i];
		uint64_t left;

		g->file = (uint32_t)draw(state, FILES);
		if (i && draw(state, 3) == 0) {	/* adjacent */
			g->file = ranges[i - 1].file;
			g->offset = ranges[i - 1].offset + ranges[i - 1].bytes;
		} else {
			g->offset = draw(state, l->bytes[g->file] + 1);
		}
		left = l->bytes[g->file] - g->offset;
		g->bytes = draw(state, left + 1);
		if (draw(state, 2))
			g->bytes = draw(state, (left < 100 ? left : 100) + 1);
		if (draw(state, 10) == 0)
			g->bytes = left;
	}
	if (draw(state, 4))
		qsort(ranges, n, sizeof(*ranges), compare_ranges);
	return n;
}

static void read_random(enum sk_io_backend backend, uint64_t seed)
{
	static const uint64_t aligns[] = { 0, 1, 100, 512, 4096, 10000, 16384 };
	struct sk_range ranges[60];
	int fds[FILES];
	struct sk_err err = { "" };
	struct library l;
	uint64_t state = seed;
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend,
		.depth = 1 + (unsigned)draw(&state, 9),
		.block = SK_PAGE * (1 + draw(&state, 8)) });
	struct reading rd = { .truth = (const char *const *)l.truth,
			      .ranges = ranges };

	library_make(&l, &state, 200000);
	library_open(&l, io, draw(&state, 2), fds);
	for (int i = 0; i < 4; i++) {	/* one reader, several reads */
		size_t n = draw_ranges(&l, &state, ranges, 60);
		int r;

		rd.align = aligns[draw(&state, SK_ARRAY_SIZE(aligns))];
		seen_make(&rd, n);
		r = sk_io_read(io, fds, ranges, n, rd.align, take, &rd, &err);
		cr_assert_eq(r, 0, "seed %zu: %s", (size_t)seed, err.text);
		seen_check(&rd, n, 1);
	}
	for (int i = 0; i < FILES; i++)
		close(fds[i]);
	sk_io_free(io);
	library_free(&l);
}

BOTH(reads_what_is_wanted)
{
	for (uint64_t seed = 1; seed <= 60; seed++)
		read_random(backend, seed);
}

/* Reads @n ranges of file 0 and returns how many requests it took. */
static uint64_t requests_for(struct library *l, enum sk_io_backend backend,
			     const struct sk_range *ranges, size_t n)
{
	struct sk_fault_os fault;
	struct sk_io *io;
	struct reading rd = { .truth = (const char *const *)l->truth,
			      .ranges = ranges };
	uint64_t calls;
	int fds[FILES];

	sk_fault_os_init(&fault, sk_os_linux());
	io = make(&fault.os, (struct sk_io_opts){
		.backend = backend, .block = 64 * SK_PAGE });
	library_open(l, io, true, fds);
	seen_make(&rd, n);
	cr_assert_eq(sk_io_read(io, fds, ranges, n, 0, take, &rd, NULL), 0);
	seen_check(&rd, n, 1);
	for (int i = 0; i < FILES; i++)
		close(fds[i]);
	calls = sk_fault_os_calls(&fault, read_op(backend));
	sk_io_free(io);
	return calls;
}

BOTH(gathers_neighbours_and_leaves_gaps)
{
	struct sk_range ranges[256];
	struct library l;
	uint64_t state = 8;
	size_t mib = 1 << 20;

	library_make(&l, &state, 10);
	free_memory(l.truth[0], l.bytes[0]);
	l.bytes[0] = 4 * mib;
	l.truth[0] = random_memory(l.bytes[0], &state);
	unlinkat(l.p.fd, "f0", 0);
	{
		int fd = openat(l.p.fd, "f0", O_WRONLY | O_CREAT, 0600);

		cr_assert_eq(write(fd, l.truth[0], l.bytes[0]),
			     (ssize_t)l.bytes[0]);
		close(fd);
	}
	for (size_t i = 0; i < 256; i++)
		ranges[i] = (struct sk_range){ .offset = 100 + i * 1000,
					       .bytes = 1000 };
	cr_assert_leq(requests_for(&l, backend, ranges, 256), 2);
	ranges[1].offset = 3 * mib;
	cr_assert_eq(requests_for(&l, backend, ranges, 2), 2);
	ranges[1].offset = 100;		/* the same again rides along */
	cr_assert_eq(requests_for(&l, backend, ranges, 2), 1);
	ranges[0] = (struct sk_range){ .bytes = 4 * mib };
	cr_assert_eq(requests_for(&l, backend, ranges, 1), 16);
	ranges[0].bytes = 0;
	cr_assert_eq(requests_for(&l, backend, ranges, 1), 0);
	cr_assert_eq(requests_for(&l, backend, NULL, 0), 0);
	library_free(&l);
}

BOTH(says_that_a_file_ends_early)
{
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend, .block = 2 * SK_PAGE });
	struct library l;
	uint64_t state = 9;
	int fds[FILES];

	library_make(&l, &state, 50000);
	for (int direct = 0; direct < 2; direct++) {
		library_open(&l, io, direct, fds);
		for (uint64_t beyond = 1; beyond < 100000; beyond *= 3) {
			struct sk_range g = { .file = 1, .offset = 5,
				.bytes = l.bytes[1] - 5 + beyond };
			struct reading rd = {
				.truth = (const char *const *)l.truth,
				.ranges = &g };
			struct sk_err err = { "" };

			seen_make(&rd, 1);
			cr_assert_eq(sk_io_read(io, fds, &g, 1, 0, take, &rd,
						&err), -ENODATA);
			cr_assert_not_null(strstr(err.text, "file 1 ends"));
			seen_check(&rd, 1, -1);
		}
		for (int i = 0; i < FILES; i++)
			close(fds[i]);
	}
	sk_io_free(io);
	library_free(&l);
}

BOTH(ends_when_the_reader_says_so)
{
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend, .block = SK_PAGE });
	struct library l;
	uint64_t state = 10;
	struct sk_range g = { 0 };
	int fds[FILES];

	library_make(&l, &state, 90000);
	library_open(&l, io, true, fds);
	for (int i = 0; i < FILES; i++)
		if (l.bytes[i] > g.bytes)
			g = (struct sk_range){ .file = (uint32_t)i,
					       .bytes = l.bytes[i] };
	cr_assert_gt(g.bytes, 4 * SK_PAGE);
	for (int at = 0; at < 4; at++) {
		struct reading rd = {
			.truth = (const char *const *)l.truth, .ranges = &g,
			.stop_at = at, .stop_with = at % 2 ? -ESTALE : 17 };

		seen_make(&rd, 1);
		cr_assert_eq(sk_io_read(io, fds, &g, 1, 0, take, &rd, NULL),
			     at ? rd.stop_with : 0);
		seen_check(&rd, 1, at ? -1 : 1);
	}
	for (int i = 0; i < FILES; i++)
		close(fds[i]);
	sk_io_free(io);
	library_free(&l);
}

BOTH(refuses_bad_reads)
{
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
		.backend = backend });
	struct sk_range g = { .offset = UINT64_MAX, .bytes = 2 };
	struct sk_err err = { "" };
	int fd = -1;

	cr_assert_eq(sk_io_read(io, &fd, &g, 1, 0, take, NULL, &err), -EINVAL);
	g.offset = INT64_MAX;
	cr_assert_eq(sk_io_read(io, &fd, &g, 1, 0, take, NULL, &err), -EINVAL);
	g.offset = 0;
	cr_assert_eq(sk_io_read(io, &fd, &g, 1, UINT64_MAX, take, NULL, &err),
		     -EINVAL);
	cr_assert_eq(sk_io_read(io, &fd, &g, 1, 0, take, NULL, &err), -EBADF);
	sk_io_free(io);
}

/* One read of everything through a system with one fault. */
static int read_faulty(struct library *l, enum sk_io_backend backend,
		       struct sk_fault_os *fault)
{
	struct sk_io *io = make(&fault->os, (struct sk_io_opts){
		.backend = backend, .depth = 3, .block = 2 * SK_PAGE });
	struct sk_range ranges[FILES];
	struct reading rd = { .truth = (const char *const *)l->truth,
			      .ranges = ranges, .align = 100 };
	int fds[FILES], r = 0, n = 0;

	for (; n < FILES && r == 0; n++) {
		fds[n] = sk_io_open(io, l->p.fd, l->name[n], n % 2, NULL);
		r = fds[n] < 0 ? fds[n] : 0;
		ranges[n] = (struct sk_range){ .file = (uint32_t)n,
					       .bytes = l->bytes[n] };
	}
	seen_make(&rd, (size_t)n);
	if (r == 0)
		r = sk_io_read(io, fds, ranges, FILES, 100, take, &rd, NULL);
	seen_check(&rd, (size_t)n, r ? -1 : 1);
	while (n--)
		sk_close_fd(fds[n]);
	sk_io_free(io);
	return r;
}

BOTH(reports_any_failed_call_of_a_read)
{
	struct sk_fault_os fault;
	struct library l;
	uint64_t state = 11;
	int fds, n;

	library_make(&l, &state, 60000);
	fds = count_fds();
	for (n = 1; ; n++) {
		int r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = read_faulty(&l, backend, &fault);
		cr_assert_eq(count_fds(), fds);
		if (!sk_fault_os_hits(&fault))
			break;
		/* Whether munmap fails is nobody's concern. */
		cr_assert(r == -EIO || (r == 0 && sk_fault_os_calls(&fault,
			  SK_FAULT_MUNMAP)), "call %d", n);
	}
	cr_assert_gt(n, 10);
	library_free(&l);
}

BOTH(continues_short_reads)
{
	static const uint64_t most[] = { 0, 1, 4095, 4096, 5000 };
	struct sk_fault_os fault;
	struct library l;
	uint64_t state = 12;

	library_make(&l, &state, 60000);
	for (size_t i = 0; i < SK_ARRAY_SIZE(most); i++) {
		for (int n = 1; n < 30; n++) {
			sk_fault_os_init(&fault, sk_os_linux());
			sk_fault_os_shorten(&fault, read_op(backend), n, 2,
					    most[i]);
			cr_assert_eq(read_faulty(&l, backend, &fault), 0);
		}
	}
	library_free(&l);
}

BOTH(opens_regular_files_only)
{
	struct sk_io *io = make(sk_os_linux(), (struct sk_io_opts){
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
		.io = make(sk_os_linux(), (struct sk_io_opts){
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
