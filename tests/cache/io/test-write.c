/* SPDX-License-Identifier: Apache-2.0 */
/* Files as they are written where all goes well. */
#include "common.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/random.h"

static void write_random(enum sk_io_backend backend, const struct place *p,
			 uint64_t seed)
{
	uint64_t state = seed;
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
	struct sk_io *io = make_io(sk_os_linux(), (struct sk_io_opts){
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
