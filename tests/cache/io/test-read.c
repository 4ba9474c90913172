/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of files as they are read. */
#include "common.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/files.h"
#include "support/random.h"

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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	io = make_io(&fault.os, (struct sk_io_opts){
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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make_io(&fault->os, (struct sk_io_opts){
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

/* ---- its buffers ---- */

struct advised {
	struct sk_os os;
	const struct sk_os *real;
	char *map;
	size_t mapped, in_huge;
};

static int note_mmap(const struct sk_os *os, void *at, size_t size, int prot,
		     int flags, int fd, uint64_t offset, void **ret_map)
{
	struct advised *a = (struct advised *)os;
	int r = a->real->mmap(a->real, at, size, prot, flags, fd, offset,
			      ret_map);

	if (fd < 0 && r == 0) {
		a->map = *ret_map;
		a->mapped = size;
	}
	return r;
}

/* As where huge pages are not to be had. They would be whole ones, from end to
 * end: of pages of two sizes the kernel joins none for the device. */
static int refuse_madvise(const struct sk_os *os, void *map, size_t size,
			  int advice)
{
	struct advised *a = (struct advised *)os;

	if (advice != MADV_HUGEPAGE)
		return -EINVAL;
	cr_assert_eq((uintptr_t)map % SK_HUGE_PAGE, 0);
	cr_assert_eq(size % SK_HUGE_PAGE, 0);
	cr_assert((char *)map >= a->map);
	cr_assert((char *)map + size <= a->map + a->mapped);
	a->in_huge += size;
	return -EINVAL;
}

Test(read, buffers_ask_for_huge_pages_and_do_without)
{
	struct advised a = { .os = *sk_os_linux(), .real = sk_os_linux() };
	uint64_t state = 7;
	struct library l;
	struct reading rd = { 0 };
	struct sk_range g = { 0 };
	int fds[FILES];
	struct sk_io *io;

	a.os.mmap = note_mmap;
	a.os.madvise = refuse_madvise;
	library_make(&l, &state, 1 << 20);
	g.bytes = l.bytes[0];
	rd.truth = (const char *const *)l.truth;
	rd.ranges = &g;
	io = make_io(&a.os, (struct sk_io_opts){
		.backend = SK_IO_THREADS, .depth = 4 });
	library_open(&l, io, true, fds);
	seen_make(&rd, 1);
	cr_assert_eq(sk_io_read(io, fds, &g, 1, 0, take, &rd, NULL), 0);
	seen_check(&rd, 1, 1);
	cr_assert_gt(a.in_huge, 4 << 20);
	for (int i = 0; i < FILES; i++)
		close(fds[i]);
	sk_io_free(io);
	library_free(&l);
}
