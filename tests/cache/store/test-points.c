/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call of the system in every deed of a store is a point at which its
 * process is killed, and at which the call fails with each error that may be
 * expected of it, once and from there on; every allocation too; and pairs of
 * faults by chance, also in the start after a kill. After each: what was
 * durable is whole, what was not is whole or absent, the next start cleans up,
 * and the next image is written.
 *
 * SK_FAULTS in the environment: how many faults (default: one case in five,
 * and some pairs).
 */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/history.h"
#include "support/fault-alloc.h"
#include "support/random.h"

#define ERRORS 5
#define STRIDE 5
#define PAIRS 200
#define CALLS_MOST 2000

/* ---- the deeds ---- */

static int put_next(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int put_beside(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int put_newer(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int delete_step(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int settle_newer(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int pin_step(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int unpin_step(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int retain_job(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);
static int own_job(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err);

/* Of run 1 there are step 4, which is pinned, and both ranks of step 5. */
static const struct deed {
	const char *name;
	int (*fn)(struct sk_store *store, struct sk_io *io,
		  struct sk_err *err);
	/* What is there when it said 0. */
	uint64_t run, step;
	int32_t rank;
	bool twice;		/* run 2's step 5 is there as well */
} deeds[] = {
	{ "a new step", put_next, 1, 6, 0, false },
	{ "a step's next rank", put_beside, 1, 5, 2, false },
	{ "a newer run's step", put_newer, 2, 5, 0, false },
	{ "deletion", delete_step, 0, 0, 0, false },
	{ "older runs' end", settle_newer, 2, 5, 0, true },
	{ "a pin", pin_step, 1, 5, 0, false },
	{ "a pin's end", unpin_step, 1, 4, 0, false },
	{ "what is kept", retain_job, 1, 5, 0, false },
	{ "an owner", own_job, 1, 5, 0, false },
};

static int put_by(struct sk_store *store, struct sk_io *io, uint64_t run,
		  uint64_t step, int32_t rank, struct sk_err *err)
{
	/* Made without faults: it is the test's. */
	static char bytes[IMAGE_BYTES + SK_PAGE]
		__attribute__((aligned(SK_PAGE)));
	const struct sk_store_put put = {
		.job = "job", .run = run_named(run), .step = step,
		.rank = rank, .world = 4, .head = bytes,
		.head_bytes = SK_PAGE, .data = bytes, .bytes = IMAGE_BYTES };

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)(i + run * 31 + step * 7 +
				  (uint64_t)rank);
	return sk_store_put_image(store, io, &put, err);
}

static int put_next(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	return put_by(store, io, 1, 6, 0, err);
}

static int put_beside(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	return put_by(store, io, 1, 5, 2, err);
}

static int put_newer(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	return put_by(store, io, 2, 5, 0, err);
}

static int delete_step(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	(void)io;
	return delete(store, "job", "step-000000000005", 1, err);
}

static int settle_newer(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	const struct sk_store_run run = run_named(2);

	(void)io;
	return sk_store_settle(store, "job", 5, &run, err);
}

static int pin(struct sk_store *store, const char *dir, bool pinned,
	       struct sk_err *err)
{
	const struct sk_store_run run = run_named(1);

	return sk_store_pin(store, "job", dir, &run, pinned, err);
}

static int pin_step(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	(void)io;
	return pin(store, "step-000000000005", true, err);
}

static int unpin_step(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	(void)io;
	return pin(store, "step-000000000004", false, err);
}

static int retain_job(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	const struct sk_retention keep = { .keep_last = 7 };

	(void)io;
	return sk_store_set_retention(store, "job", SK_RETENTION_JOB, &keep,
				      err);
}

static int own_job(struct sk_store *store, struct sk_io *io,
		    struct sk_err *err)
{
	uid_t owner;

	(void)io;
	return sk_store_claim(store, "job", geteuid(), &owner, err);
}

/* ---- faults ---- */

/* Of those that a store calls, what may be expected of them. */
static const struct plausible {
	enum sk_fault_op op;
	int errors[ERRORS];	/* 0: no more */
} plausibles[] = {
	{ SK_FAULT_OPENAT, { EIO, EMFILE, ENOSPC, EACCES, EROFS } },
	{ SK_FAULT_CLOSE, { EIO } },
	{ SK_FAULT_PREAD, { EIO, ESTALE } },
	{ SK_FAULT_PWRITE, { EIO, ENOSPC, EDQUOT, EROFS } },
	{ SK_FAULT_READ, { EIO, ESTALE } },
	{ SK_FAULT_WRITE, { EIO, ENOSPC, EDQUOT } },
	{ SK_FAULT_FALLOCATE, { ENOSPC, EDQUOT, EIO, EOPNOTSUPP } },
	{ SK_FAULT_FTRUNCATE, { EIO, ENOSPC } },
	{ SK_FAULT_FSYNC, { EIO, ENOSPC, EDQUOT } },
	{ SK_FAULT_FSTAT, { EIO, ESTALE } },
	{ SK_FAULT_FSTATAT, { EIO, EACCES, ESTALE } },
	{ SK_FAULT_FSTATFS, { EIO } },
	{ SK_FAULT_MKDIRAT, { EIO, ENOSPC, EDQUOT, EACCES, EROFS } },
	{ SK_FAULT_RENAMEAT, { EIO, ENOSPC, EACCES, EROFS } },
	{ SK_FAULT_UNLINKAT, { EIO, EACCES, EROFS, EBUSY } },
	{ SK_FAULT_FCHMODAT, { EIO, EPERM } },
	{ SK_FAULT_FCHOWN, { EIO, EPERM } },
	{ SK_FAULT_FLOCK, { EIO, ENOLCK } },
	{ SK_FAULT_FCNTL, { EINVAL } },
	{ SK_FAULT_GETDENTS, { EIO, ESTALE } },
	{ SK_FAULT_STATX, { EIO, ENOSYS } },
	{ SK_FAULT_FADVISE, { EIO } },
	{ SK_FAULT_RANDOM, { EIO } },
};

#define N_PLAUSIBLES (sizeof(plausibles) / sizeof(*plausibles))

struct scene {
	struct place place;
	struct sk_fault_os fault;
	struct sk_store *store;
	struct sk_io *io;
	int fds;
	uint64_t calls[SK_FAULT_OP_COUNT];	/* of the deed */
	uint64_t allocations;
};

struct tally {
	uint64_t points, cases, faults, kills, failed;
};

static struct sk_store *store_at(const struct sk_os *os,
				 const struct place *p)
{
	struct sk_store *store = NULL;
	struct sk_err err = { "" };

	/* What has no lock is old enough. */
	cr_assert_eq(sk_store_open(os, p->store, 0, &store, NULL, &err), 0,
		     "%s", err.text);
	return store;
}

static void begin(struct scene *s, const struct deed *d)
{
	strcpy(s->place.path, "/dev/shm/shardkeep-points-XXXXXX");
	cr_assert(mkdtemp(s->place.path));
	(void)snprintf(s->place.store, sizeof(s->place.store), "%s/store",
		       s->place.path);
	sk_fault_os_init(&s->fault, sk_os_linux());
	s->fds = count_fds();
	sk_fault_alloc_fail(0, 0);
	s->store = store_at(&s->fault.os, &s->place);
	s->io = make_io(&s->fault.os, SK_IO_THREADS);
	cr_assert_eq(put_by(s->store, s->io, 1, 4, 0, NULL), 0);
	cr_assert_eq(put_by(s->store, s->io, 1, 5, 0, NULL), 0);
	cr_assert_eq(put_by(s->store, s->io, 1, 5, 1, NULL), 0);
	cr_assert_eq(pin(s->store, "step-000000000004", true, NULL), 0);
	if (d->twice)
		cr_assert_eq(put_by(s->store, s->io, 2, 5, 0, NULL), 0);
	sk_fault_os_forget(&s->fault);
}

static bool is_pinned(const struct scene *s)
{
	return exists(&s->place, "job/step-000000000004/" SK_PINNED_FILE);
}

/* What was durable; what the deed said, and what it may have done. */
static void check(const struct scene *s, const struct deed *d, int r,
		  struct sk_store *store, const char *what)
{
	bool first = holds(store, 1, 5, 0), second = holds(store, 1, 5, 1);
	bool deletes = d->fn == delete_step || d->fn == settle_newer;

	cr_assert(holds(store, 1, 4, 0), "%s: step 4 is lost", what);
	cr_assert(is_pinned(s) || d->fn == unpin_step, "%s: its pin", what);
	cr_assert(r < 0 || d->fn != unpin_step || !is_pinned(s),
		  "%s: it is pinned", what);
	cr_assert(first == second, "%s: half of step 5", what);
	cr_assert(first || deletes, "%s: step 5 is lost", what);
	cr_assert(r < 0 || !deletes || !first, "%s: step 5 is there", what);
	cr_assert(r < 0 || !d->run || holds(store, d->run, d->step, d->rank),
		  "%s: what was done is not there", what);
	cr_assert(!d->twice || holds(store, 2, 5, 0), "%s: run 2", what);
}

static int check_name(void *ctx, int fd, const char *name)
{
	struct sk_leftover left;

	(void)fd;
	cr_assert_not(sk_leftover_name(name, &left), "%s: \"%s\" is left",
		      (const char *)ctx, name);
	return 0;
}

static void check_clean(const struct scene *s, const char *what)
{
	char job[128];
	int fd;

	(void)snprintf(job, sizeof(job), "%s/job", s->place.store);
	fd = open(job, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0, "%s: the job", what);
	cr_assert_eq(sk_dir_each(sk_os_linux(), fd, check_name,
				 (void *)what), 0);
	close(fd);
}

/* The next start, without faults. */
static void check_next(const struct scene *s, const struct deed *d, int r,
		       const char *what)
{
	struct sk_store *next = store_at(sk_os_linux(), &s->place);

	check(s, d, r, next, what);
	check_clean(s, what);
	cr_assert_eq(put(next, 2, 9, 0), 0, "%s: the next image", what);
	sk_store_close(next);
	cr_assert_eq(count_fds(), s->fds, "%s: descriptors", what);
	place_remove(&s->place);
}

/* One deed, with the rules that are set; killed: it makes no call after;
 * @error: of the one rule that there is. */
static void finish(struct scene *s, const struct deed *d, bool killed,
		   int error, struct tally *t, const char *what)
{
	struct sk_err err = { "" };
	int r = d->fn(s->store, s->io, &err);
	uint64_t hits = sk_fault_os_hits(&s->fault), live;

	for (int op = 0; op < SK_FAULT_OP_COUNT; op++)
		s->calls[op] = sk_fault_os_calls(&s->fault, op);
	sk_fault_os_forget(&s->fault);
	/* The living one knows what is so; of the dead one nobody asks. */
	if (!killed)
		check(s, d, r, s->store, what);
	sk_io_free(s->io);
	if (killed)
		kill_store(s->store);
	else
		sk_store_close(s->store);
	(void)sk_fault_alloc_end(&live);
	cr_assert(killed || !live, "%s: %d allocations are left", what,
		  (int)live);
	cr_assert(r == 0 || err.text[0], "%s: no sentence", what);
	/* A stale handle is what the network lost, or a failed one. */
	cr_assert(r == 0 || !error || r == -error ||
		  (error == ESTALE && r == -EIO), "%s: it says %d, %s", what,
		  r, err.text);
	check_next(s, d, r, what);
	t->cases++;
	t->faults += hits > 0;
	t->kills += killed && hits;
	t->failed += r < 0;
}

/* ---- enumeration ---- */

static uint64_t one(const struct deed *d, struct scene *s, enum sk_fault_op op,
		    uint64_t nth, uint64_t times, int error, struct tally *t)
{
	uint64_t before = t->faults;
	char what[128];

	(void)snprintf(what, sizeof(what), "%s, operation %d, call %d, %s, "
		       "times %s", d->name, (int)op, (int)nth,
		       strerror(error), times == 1 ? "1" : "all");
	begin(s, d);
	sk_fault_os_fail(&s->fault, op, nth, times, error);
	finish(s, d, op == SK_FAULT_ANY, error, t, what);
	return t->faults - before;
}

/* Its @nth call with each error, once and from there on. */
static void fail_call(const struct deed *d, const struct plausible *p,
		      uint64_t nth, uint64_t stride, struct tally *t)
{
	struct scene s;

	for (int e = 0; e < 2 * ERRORS && p->errors[e / 2]; e++)
		if (t->points++ % stride == 0)
			(void)one(d, &s, p->op, nth,
				  e % 2 ? SK_FAULT_ALWAYS : 1,
				  p->errors[e / 2], t);
}

static void enumerate_errors(const struct deed *d, const uint64_t *calls,
			     uint64_t stride, struct tally *t)
{
	for (size_t i = 0; i < N_PLAUSIBLES; i++)
		for (uint64_t n = 1; n <= calls[plausibles[i].op]; n++)
			fail_call(d, &plausibles[i], n, stride, t);
}

/* Killed before each call. */
static void enumerate_kills(const struct deed *d, uint64_t stride,
			    struct tally *t)
{
	struct scene s;
	uint64_t n;

	for (n = 1; n < CALLS_MOST; n += stride)
		if (!one(d, &s, SK_FAULT_ANY, n, SK_FAULT_ALWAYS, EIO, t))
			return;
	cr_assert(false, "%s does not end", d->name);
}

/* True: there was an @nth allocation, and it failed. */
static bool fail_allocation(const struct deed *d, uint64_t nth, uint64_t times,
			    struct tally *t)
{
	struct scene s;
	struct sk_err err = { "" };
	char what[96];
	uint64_t hits, live;
	int r;

	(void)snprintf(what, sizeof(what), "%s, allocation %d", d->name,
		       (int)nth);
	begin(&s, d);
	sk_fault_alloc_fail(nth, times);
	r = d->fn(s.store, s.io, &err);
	sk_fault_alloc_mend();
	check(&s, d, r, s.store, what);
	sk_io_free(s.io);
	sk_store_close(s.store);
	hits = sk_fault_alloc_end(&live);
	cr_assert_eq(live, 0, "%s: %d others are left", what, (int)live);
	cr_assert(r == 0 || (r == -ENOMEM && err.text[0]), "%s: %d, \"%s\"",
		  what, r, err.text);
	check_next(&s, d, r, what);
	t->cases++;
	t->faults += hits > 0;
	t->failed += r < 0;
	return hits;
}

static void enumerate_memory(const struct deed *d, uint64_t stride,
			     struct tally *t)
{
	for (uint64_t n = 1; fail_allocation(d, n, 1, t); n += stride)
		;
	for (uint64_t n = 1; fail_allocation(d, n, UINT64_MAX, t); n += stride)
		;
}

/* ---- pairs ---- */

static void draw_fault(struct sk_fault_os *fault, const uint64_t *calls,
		       uint64_t *dice)
{
	const struct plausible *p;
	uint64_t n;

	do {
		p = &plausibles[draw(dice, N_PLAUSIBLES)];
		n = calls ? calls[p->op] : 12;
	} while (!n);
	do {
		n = draw(dice, ERRORS);
	} while (!p->errors[n]);
	sk_fault_os_fail(fault, p->op,
			 1 + draw(dice, calls ? calls[p->op] : 12),
			 draw(dice, 4) ? 1 : SK_FAULT_ALWAYS, p->errors[n]);
}

/* Two of them in one deed. */
static void pair(const struct deed *d, const uint64_t *calls, uint64_t *dice,
		 struct tally *t)
{
	uint64_t seed = *dice;
	struct scene s;
	char what[96];

	(void)snprintf(what, sizeof(what), "%s, a pair, seed %llu", d->name,
		       (unsigned long long)seed);
	begin(&s, d);
	draw_fault(&s.fault, calls, dice);
	draw_fault(&s.fault, calls, dice);
	finish(&s, d, false, 0, t, what);
}

/* Killed, and the start after that meets a fault; the one after does not. */
static void kill_and_fault(const struct deed *d, const uint64_t *calls,
			   uint64_t *dice, struct tally *t)
{
	struct sk_store *second = NULL;
	struct sk_fault_os fault;
	uint64_t seed = *dice;
	struct scene s;
	char what[96];
	int r;

	(void)snprintf(what, sizeof(what), "%s, twice, seed %llu", d->name,
		       (unsigned long long)seed);
	begin(&s, d);
	sk_fault_os_fail(&s.fault, SK_FAULT_ANY,
			 1 + draw(dice, calls[SK_FAULT_ANY]), SK_FAULT_ALWAYS,
			 EIO);
	r = d->fn(s.store, s.io, NULL);
	t->faults += sk_fault_os_hits(&s.fault) > 0;
	sk_fault_os_forget(&s.fault);
	sk_io_free(s.io);
	kill_store(s.store);
	sk_fault_os_init(&fault, sk_os_linux());
	draw_fault(&fault, NULL, dice);
	(void)sk_store_open(&fault.os, s.place.store, 0, &second, NULL, NULL);
	t->faults += sk_fault_os_hits(&fault) > 0;
	sk_fault_os_forget(&fault);
	if (second)
		kill_store(second);
	check_next(&s, d, r, what);
	t->cases++;
	t->kills++;
}

/* ---- all of it ---- */

static void count_calls(const struct deed *d, uint64_t *ret_calls)
{
	struct tally none = { 0 };
	struct scene s;

	begin(&s, d);
	finish(&s, d, false, 0, &none, d->name);
	cr_assert_eq(none.failed, 0, "%s fails without a fault", d->name);
	memcpy(ret_calls, s.calls, sizeof(s.calls));
	cr_assert_gt(ret_calls[SK_FAULT_ANY], 3, "%s calls nothing", d->name);
}

Test(store_points, each_call_of_each_deed, .timeout = 7200)
{
	const char *many = getenv("SK_FAULTS");
	uint64_t faults = many ? strtoull(many, NULL, 10) : 0, dice = 13;
	uint64_t calls[SK_ARRAY_SIZE(deeds)][SK_FAULT_OP_COUNT];
	uint64_t stride = many ? 1 : STRIDE;
	struct tally t = { 0 };

	for (size_t i = 0; i < SK_ARRAY_SIZE(deeds); i++) {
		count_calls(&deeds[i], calls[i]);
		enumerate_errors(&deeds[i], calls[i], stride, &t);
		enumerate_kills(&deeds[i], stride, &t);
		enumerate_memory(&deeds[i], stride, &t);
	}
	printf("enumerated: %llu faults\n", (unsigned long long)t.faults);
	for (uint64_t n = 0; n < PAIRS || t.faults < faults; n++) {
		size_t i = draw(&dice, SK_ARRAY_SIZE(deeds));

		(draw(&dice, 2) ? pair : kill_and_fault)(&deeds[i], calls[i],
							 &dice, &t);
	}
	printf("%llu cases, %llu faults, %llu kills, %llu deeds failed\n",
	       (unsigned long long)t.cases, (unsigned long long)t.faults,
	       (unsigned long long)t.kills, (unsigned long long)t.failed);
}

/* With what it has found so far. */
static void fail_scans(struct scene *s, int error)
{
	uint64_t hits = 1, live;
	int r = 0;

	for (uint64_t n = 1; hits; n++) {
		struct sk_stored *images = NULL;
		struct sk_err err = { "" };
		size_t n_images = 0;

		sk_fault_os_forget(&s->fault);
		sk_fault_os_fail(&s->fault, SK_FAULT_ANY, n, 1, error);
		sk_fault_alloc_fail(0, 0);
		r = sk_store_scan(s->store, "job", &images, &n_images, &err);
		hits = sk_fault_os_hits(&s->fault);
		if (r == 0)
			free(images);
		(void)sk_fault_alloc_end(&live);
		cr_assert_eq(live, 0, "call %d", (int)n);
		cr_assert(r == 0 || (r == -error && err.text[0]),
			  "call %d: %d %s", (int)n, r, err.text);
		cr_assert(r < 0 || n_images == 4 || hits, "call %d", (int)n);
	}
	cr_assert_eq(r, 0);
}

Test(store_points, a_scan_that_fails_leaves_nothing)
{
	struct scene s;

	begin(&s, &deeds[0]);
	cr_assert_eq(put_by(s.store, s.io, 1, 6, 0, NULL), 0);
	fail_scans(&s, EIO);
	/* What is short goes on nowhere. */
	fail_scans(&s, EMFILE);
	sk_io_free(s.io);
	sk_store_close(s.store);
	place_remove(&s.place);
}

/* A path of which some levels are missing, with each allocation failed. */
Test(store_points, who_has_no_memory_to_open_says_so)
{
	uint64_t hits = 1, live;

	for (uint64_t n = 1; hits; n++) {
		struct sk_store *store = NULL;
		struct sk_err err = { "" };
		char path[64], deep[96];
		int r;

		strcpy(path, "/dev/shm/shardkeep-points-XXXXXX");
		cr_assert(mkdtemp(path));
		(void)snprintf(deep, sizeof(deep), "%s/a/b/store", path);
		sk_fault_alloc_fail(n, 1);
		r = sk_store_open(sk_os_linux(), deep, 0, &store, NULL, &err);
		sk_fault_alloc_mend();
		sk_store_close(store);
		hits = sk_fault_alloc_end(&live);
		cr_assert_eq(live, 0, "allocation %d", (int)n);
		cr_assert(r == 0 || (r == -ENOMEM && err.text[0] && hits),
			  "allocation %d: %d %s", (int)n, r, err.text);
		cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, path), 0);
	}
}

/* ---- looks ---- */

/* As its header was read. */
static void note_file(struct sk_history *h)
{
	struct sk_history_step *s = sk_history_find(h, "step-000000000006");
	struct sk_history_file file = { .rank = 0, .world = 1 };

	cr_assert_not_null(s);
	file.run = s->run;
	cr_assert_eq(sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY, NULL, 0,
				   &file.layout, NULL), 0);
	cr_assert_not_null(sk_history_file_note(s, &file));
	sk_layout_free(file.layout);
}

static bool is_noted(const struct sk_history *h)
{
	const struct sk_history_step *s =
		sk_history_find(h, "step-000000000006");

	return s && sk_history_file_find(s, 0, 1);
}

/* What was noted of files too, where a step has come meanwhile. */
Test(store_points, a_look_that_fails_leaves_what_was_known)
{
	struct sk_history *h = sk_history_new("job");
	uint64_t hits = 1;
	struct scene s;

	begin(&s, &deeds[0]);
	cr_assert_eq(put_by(s.store, s.io, 1, 6, 0, NULL), 0);
	cr_assert_eq(sk_history_look(h, s.store, NULL), 0);
	note_file(h);
	cr_assert_eq(put_by(s.store, s.io, 1, 7, 0, NULL), 0);
	for (uint64_t n = 1; hits; n++) {
		struct sk_err err = { "" };
		int r;

		sk_fault_alloc_fail(n, 1);
		r = sk_history_look(h, s.store, &err);
		hits = sk_fault_alloc_end(NULL);
		cr_assert(hits ? r == -ENOMEM : r == 0, "allocation %d: %d %s",
			  (int)n, r, err.text);
		cr_assert(is_noted(h), "allocation %d", (int)n);
	}
	sk_history_free(h);
	sk_io_free(s.io);
	sk_store_close(s.store);
	place_remove(&s.place);
}
