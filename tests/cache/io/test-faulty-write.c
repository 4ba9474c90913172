/* SPDX-License-Identifier: Apache-2.0 */
/* Files as they are written by a system that fails, slowly, or not to the end.
 */
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "io/backend.h"
#include "support/files.h"

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
	struct sk_io *io = make_io(&f->fault.os, (struct sk_io_opts){
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

static int seen(void *ctx, const void *bytes, size_t n, struct sk_err *err)
{
	size_t *sum = ctx;

	(void)bytes;
	(void)err;
	*sum += n;
	return 0;
}

/* What is shown is copied: without memory for that nothing is written. */
BOTH(what_cannot_be_shown_is_not_written)
{
	struct faulty_write f;
	struct sk_err err = { "" };
	int fds;
	size_t sum = 0;

	faulty_make(&f, backend);
	f.w.see = seen;
	f.w.ctx = &sum;
	fds = count_fds();
	sk_fault_os_fail(&f.fault, SK_FAULT_MMAP, 1, SK_FAULT_ALWAYS, ENOMEM);
	cr_assert_eq(faulty_run(&f, &err), -ENOMEM);
	cr_assert(strstr(err.text, "buffers"), "%s", err.text);
	cr_assert_eq(sum, 0);
	faulty_check(&f, -ENOMEM, fds);
	cr_assert_eq(sum, f.w.bytes - f.w.head_bytes);
	faulty_free(&f);
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

/* As many tries as there are belong to each step forward. */
BOTH(counts_tries_anew_after_progress)
{
	const size_t bytes = 2 * SK_IO_TRIES * SK_PAGE;
	struct sk_fault_os fault;
	struct sk_err err = { "" };
	uint64_t seed = 7;
	struct sk_io *io;
	struct place p;
	struct sk_write w;

	place_make(&p);
	sk_fault_os_init(&fault, sk_os_linux());
	io = make_io(&fault.os, (struct sk_io_opts){
		.backend = backend, .depth = 1, .block = bytes });
	w = (struct sk_write){ .dirfd = p.fd, .name = "file", .bytes = bytes,
			       .data = random_memory(bytes, &seed) };
	sk_fault_os_fail(&fault, write_op(backend), SK_IO_TRIES + 9, 1,
			 EAGAIN);
	sk_fault_os_shorten(&fault, write_op(backend), 1, SK_FAULT_ALWAYS,
			    SK_PAGE);
	cr_assert_eq(sk_io_write_file(io, &w, &err), 0, "%s", err.text);
	check_file(&p, &w);
	sk_io_free(io);
	free_memory((char *)w.data, bytes);
	place_remove(&p);
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
	io = make_io(&f.fault.os, (struct sk_io_opts){ .backend = backend });
	cr_assert_eq(sk_io_write_file(io, &f.w, NULL), 0);
	/* A header, twice 64 KiB, and what is left. */
	cr_assert_eq(sk_fault_os_calls(&f.fault, write_op(backend)), 4);
	check_file(&f.p, &f.w);
	sk_io_free(io);
	faulty_free(&f);
}

/* What came of a transfer that ended short counts, to the byte; with direct
 * I/O to the page. Without a page it was nothing. */
Test(io, what_ended_short_counts)
{
	static const struct {
		int flags, done, counts;
	} ends[] = {
		{ 0, 100, 100 },
		{ 0, SK_PAGE + 100, SK_PAGE + 100 },
		{ O_DIRECT, SK_PAGE + 100, SK_PAGE },
		{ O_DIRECT, 100, 0 },
		{ 0, 0, 0 },
		{ O_DIRECT, 4 * SK_PAGE, 4 * SK_PAGE },
	};
	struct place p;

	place_make(&p);
	for (size_t i = 0; i < SK_ARRAY_SIZE(ends); i++) {
		struct sk_io io = { .os = sk_os_linux() };
		struct sk_io_request q = { .bytes = 4 * SK_PAGE, .tries = 1,
					   .result = ends[i].done };

		q.fd = openat(p.fd, "file", O_RDWR | O_CREAT | ends[i].flags,
			      0600);
		if (q.fd < 0 && ends[i].flags)
			continue;	/* not on this filesystem */
		cr_assert_geq(q.fd, 0);
		cr_assert_eq(sk_io_judge(&io, &q), ends[i].counts, "%zu", i);
		close(q.fd);
	}
	place_remove(&p);
}
