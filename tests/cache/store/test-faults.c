/* SPDX-License-Identifier: Apache-2.0 */
/* The store where calls fail, and where others are at work beside it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

static enum sk_fault_op write_op(enum sk_io_backend backend)
{
	return backend == SK_IO_URING ? SK_FAULT_URING_WRITE : SK_FAULT_PWRITE;
}

/*
 * Fails each call of @op in turn while an image of run 2 is put where images
 * of run 1 may be, and checks what must hold after any fault.
 */
static int fail_put(enum sk_io_backend backend, enum sk_fault_op op, int error,
		    bool older)
{
	struct sk_fault_os fault;
	int n, r;

	for (n = 1; ; n++) {
		struct sk_err err = { "" };
		struct sk_store *store;
		struct place p;
		int fds;

		store = make_store(&p, &fault);
		if (older)
			cr_assert_eq(put(store, 1, 5, 1), 0);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, op, n, 1, error);
		r = put_with(store, backend, 2, 5, 0, &err);
		fault.rule_count = 0;
		cr_assert_eq(count_fds(), fds, "call %d", n);
		/* scan() checks that all it sees is whole. */
		cr_assert_leq(scan(store, NULL), 2);
		cr_assert(!older || holds(store, 1, 5, 1), "call %d", n);
		if (r == 0)
			cr_assert(holds(store, 2, 5, 0));
		else
			cr_assert(r == -error && err.text[0], "call %d: %d %s",
				  n, r, err.text);
		/* Who looks takes it for durable. */
		cr_assert(r == 0 || op != SK_FAULT_FSYNC ||
			  !holds(store, 2, 5, 0), "call %d", n);
		cr_assert_eq(put(store, 2, 5, 0), 0, "call %d", n);
		cr_assert(holds(store, 2, 5, 0));
		cr_assert_eq(settle(store, "job", 5, 2), 0);
		cr_assert_eq(scan(store, NULL), 1);
		sk_store_close(store);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
		/* A file's descriptor is closed when its name is final or
		 * gone, a directory's when all is done. */
		cr_assert(r < 0 || sk_fault_os_calls(&fault, SK_FAULT_CLOSE),
			  "call %d was not noticed", n);
	}
	cr_assert_eq(r, 0);
	return n - 1;
}

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

#define BOTH(name)						\
	static void name(enum sk_io_backend backend);		\
	Test(store_faults, name##_by_uring, .timeout = 300)	\
	{							\
		need_uring();					\
		name(SK_IO_URING);				\
	}							\
	Test(store_faults, name##_by_threads, .timeout = 300)	\
	{							\
		name(SK_IO_THREADS);				\
	}							\
	static void name(enum sk_io_backend backend)

BOTH(any_call_out_of_space)
{
	cr_assert_gt(fail_put(backend, SK_FAULT_ANY, ENOSPC, false), 30);
}

BOTH(any_call_fails)
{
	cr_assert_gt(fail_put(backend, SK_FAULT_ANY, EIO, true), 30);
}

/* A server that lost a file says nothing of runs: never are the two mixed up,
 * for what is said of runs is final. */
BOTH(a_stale_handle_is_no_word_about_runs)
{
	uint64_t hits = 1;

	for (uint64_t n = 1; hits; n++) {
		struct sk_fault_os fault;
		struct sk_store *store;
		struct place p;
		int r;

		store = make_store(&p, &fault);
		cr_assert_eq(put(store, 1, 5, 1), 0);
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, ESTALE);
		r = put_with(store, backend, 2, 5, 0, NULL);
		hits = sk_fault_os_hits(&fault);
		cr_assert_neq(r, -ESTALE, "call %d", (int)n);
		fault.rule_count = 0;
		cr_assert_eq(put(store, 2, 5, 0), 0, "call %d", (int)n);
		sk_store_close(store);
		place_remove(&p);
	}
}

/* The image is as durable as any, and who asked hears of it. */
BOTH(an_owner_is_refused)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int owned = 1;

	place_make(&p);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_FCHOWN, 1, 1, EPERM);
	store = open_store(&fault.os, &p);
	cr_assert_eq(put_owned(store, backend, geteuid(), &owned), 0);
	cr_assert_eq(sk_fault_os_hits(&fault), 1);
	cr_assert_eq(owned, -EPERM);
	cr_assert(holds(store, 1, 5, 0));
	/* Again, over the same: this time it is given. */
	cr_assert_eq(put_owned(store, backend, 0700, NULL), 0);
	cr_assert_eq(put_owned(store, backend, geteuid(), &owned), 0);
	cr_assert_eq(owned, 0);
	sk_store_close(store);
	place_remove(&p);
}

BOTH(each_fsync)
{
	/* store, .run, its directory, job, image, step */
	cr_assert_eq(fail_put(backend, SK_FAULT_FSYNC, EIO, false), 6);
	cr_assert_eq(fail_put(backend, SK_FAULT_FSYNC, ENOSPC, true), 6);
}

BOTH(each_rename)
{
	/* .run, the step, the image; with an older run, that too */
	cr_assert_eq(fail_put(backend, SK_FAULT_RENAMEAT, EIO, false), 3);
	cr_assert_eq(fail_put(backend, SK_FAULT_RENAMEAT, ENOSPC, true), 4);
}

BOTH(short_writes)
{
	for (uint64_t most = 0; most < 3 * SK_PAGE; most += 3001) {
		struct sk_fault_os fault;
		struct sk_store *store;
		struct place p;

		store = make_store(&p, &fault);
		/* By threads, the first writes ".run": also in pieces. */
		sk_fault_os_shorten(&fault, write_op(backend),
				    most ? 1 : 2, 4, most);
		cr_assert_eq(put_with(store, backend, 1, 5, 0, NULL), 0);
		cr_assert(sk_fault_os_hits(&fault));
		cr_assert(holds(store, 1, 5, 0));
		sk_store_close(store);
		place_remove(&p);
	}
}

static void take_step(void *ctx)
{
	const struct place *p = ctx;
	char step[128], aside[128];

	(void)snprintf(step, sizeof(step), "%s/job/step-000000000005",
		       p->store);
	(void)snprintf(aside, sizeof(aside), "%s/aside", p->path);
	(void)rename(step, aside);
}

/* Others have moved the step away while an image was written, and whether they
 * have cannot be looked at: nobody is told that it is durable. */
BOTH(where_it_cannot_be_looked_at_it_is_not_durable)
{
	struct sk_fault_os fault;
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;
	uint64_t opens = 0, looks = 0;

	for (int again = 0; again < 2; again++) {
		store = make_store(&p, &fault);
		cr_assert_eq(put(store, 1, 5, 1), 0);
		sk_fault_os_init(&fault, sk_os_linux());
		/* The last of each, of the file, and then of its step; but
		 * that the store itself is looked for at the end. */
		if (again) {
			sk_fault_os_meddle(&fault, SK_FAULT_FSTATAT, looks - 1,
					   take_step, &p);
			sk_fault_os_fail(&fault, SK_FAULT_OPENAT, opens, 1,
					 EIO);
		}
		cr_assert_eq(put_with(store, backend, 1, 5, 0, &err),
			     again ? -EIO : 0, "%s", err.text);
		cr_assert_eq(sk_fault_os_hits(&fault), again ? 2 : 0);
		opens = sk_fault_os_calls(&fault, SK_FAULT_OPENAT);
		looks = sk_fault_os_calls(&fault, SK_FAULT_FSTATAT);
		fault.rule_count = 0;
		cr_assert_eq(holds(store, 1, 5, 0), !again);
		sk_store_close(store);
		place_remove(&p);
	}
	cr_assert(strstr(err.text, "cannot look at"), "%s", err.text);
}

/* A name that is no step's is given back too, or it is said that it is not. */
Test(store_faults, what_cannot_be_unhidden_is_told)
{
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(sk_step_unhide(store, store->fd, "name", "gone"),
		     -ENOENT);
	make_dir(&p, "gone");
	cr_assert_eq(sk_step_unhide(store, store->fd, "name", "gone"), 0);
	cr_assert(exists(&p, "name"));
	sk_store_close(store);
	place_remove(&p);
}

/* A file that takes no more bytes is full, and said to be. */
Test(store_faults, a_write_of_nothing_is_an_error, .timeout = 300)
{
	struct sk_fault_os fault;
	FILE *file = tmpfile();

	cr_assert_not_null(file);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_shorten(&fault, SK_FAULT_PWRITE, 2, SK_FAULT_ALWAYS, 0);
	cr_assert_eq(sk_file_write(&fault.os, fileno(file), "ab", 1), 0);
	cr_assert_eq(sk_file_write(&fault.os, fileno(file), "ab", 2), -EIO);
	fclose(file);
}

/* Nothing is removed where a file has its name. */
Test(store_faults, a_file_that_is_made_stays)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;

	store = make_store(&p, &fault);
	sk_fault_os_init(&fault, sk_os_linux());
	cr_assert_eq(sk_file_make(&fault.os, store->fd, "half", "whole", "ab",
				  2, SK_FILE_SYNC), 0);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_UNLINKAT), 0);
	cr_assert(exists(&p, "whole") && !exists(&p, "half"));
	sk_fault_os_fail(&fault, SK_FAULT_RENAMEAT, 2, 1, EIO);
	cr_assert_eq(sk_file_make(&fault.os, store->fd, "half", "other", "ab",
				  2, SK_FILE_SYNC), -EIO);
	cr_assert(!exists(&p, "other") && !exists(&p, "half"));
	sk_store_close(store);
	place_remove(&p);
}

Test(store_faults, opening, .timeout = 300)
{
	struct sk_fault_os fault;
	int n;

	for (n = 1; ; n++) {
		struct sk_store *store = NULL;
		struct place p;
		int fds, r;

		place_make(&p);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = sk_store_open(&fault.os, p.store, 1, &store, NULL, NULL);
		cr_assert(r == 0 || (r == -EIO && !store));
		sk_store_close(store);
		cr_assert_eq(count_fds(), fds);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_gt(n, 10);
}

/* Entries of a directory in the store. */
static int count_in(const struct place *p, const char *name)
{
	char path[256];
	DIR *dir;
	int n = 0;

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	dir = opendir(path);
	cr_assert_not_null(dir, "%s", path);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

/* Deletes through faults: the step is there whole, or is gone. */
Test(store_faults, deleting, .timeout = 300)
{
	struct sk_fault_os fault;
	int n, r;

	for (n = 1; ; n++) {
		struct sk_store *store;
		struct place p;
		int fds;

		store = make_store(&p, &fault);
		cr_assert_eq(put(store, 1, 5, 0), 0);
		cr_assert_eq(put(store, 1, 5, 1), 0);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = delete(store, "job", "step-000000000005", 1, NULL);
		fault.rule_count = 0;
		cr_assert_eq(count_fds(), fds);
		cr_assert_eq(scan(store, NULL),
			     exists(&p, "job/step-000000000005") ? 2 : 0);
		/* Nor under another name, where nobody says so. */
		cr_assert(r < 0 || count_in(&p, "job") == 0, "call %d", n);
		sk_store_close(store);
		/* What is left is cleared away later. */
		sk_fault_os_clock(&fault, 0, UINT64_C(4000000000000000000));
		sk_store_close(open_store(&fault.os, &p));
		if (!exists(&p, "job/step-000000000005"))
			cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD,
						   p.store), 0);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_eq(r, 0);
	cr_assert_gt(n, 8);
}

static size_t count_errors(const struct sk_stored *images, size_t n)
{
	size_t errors = 0;

	for (size_t i = 0; i < n; i++)
		errors += images[i].error != 0;
	return errors;
}

/*
 * Whatever call fails while two steps are looked at: either that is said of
 * the whole job, or a record says it; never are there fewer steps and nobody
 * says why. One that is out of descriptors or memory finds nothing.
 */
static void fail_scan(int error, bool shortage)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int n, partial = 0;

	store = make_store(&p, &fault);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(put(store, 1, 6, 0), 0);
	for (n = 1; ; n++) {
		struct sk_stored *images = NULL;
		size_t found = 0, errors;
		int r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, error);
		r = sk_store_scan(store, "job", &images, &found, NULL);
		errors = count_errors(images, found);
		if (r == 0)
			cr_assert_eq(found, 2, "call %d", n);
		else
			cr_assert(r == -error && !images, "call %d: %d", n, r);
		cr_assert_leq(errors, 1);
		cr_assert(!errors || !shortage, "call %d", n);
		partial += errors;
		free(images);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_gt(n, 10);
	cr_assert(shortage ? !partial : partial >= 6, "%d", partial);
	sk_store_close(store);
	place_remove(&p);
}

Test(store_faults, no_error_of_looking_becomes_nothing, .timeout = 300)
{
	fail_scan(EIO, false);
	fail_scan(EACCES, false);
	fail_scan(EMFILE, true);
	fail_scan(ENFILE, true);
	fail_scan(ENOMEM, true);
}

/* Reading and small writes through faults. */
Test(store_faults, scanning_and_owning, .timeout = 300)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int fds, n;

	store = make_store(&p, &fault);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(claim(store, "job", 5), 5);
	fds = count_fds();
	for (n = 1; ; n++) {
		struct sk_stored *images = NULL;
		char **jobs = NULL;
		uid_t uid = 0, was = 0;
		size_t n_images = 0, n_jobs = 0;
		int64_t owner;
		int r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = sk_store_scan(store, "job", &images, &n_images, NULL);
		cr_assert(r == 0 ? n_images == 1 : r == -EIO && !images);
		r = sk_store_jobs(store, &jobs, &n_jobs, NULL);
		cr_assert(r == 0 ? n_jobs == 1 : r == -EIO && !jobs);
		r = sk_store_owner(store, "job", &was, NULL);
		cr_assert(r == 0 || r == -EIO);
		owner = claim(store, "job", 6);
		cr_assert(owner == 5 || owner == -EIO);
		owner = claim(store, "new", 6);
		cr_assert(owner == 6 || owner == -EIO);
		fault.rule_count = 0;
		cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), 0);
		cr_assert_eq(uid, 5);
		cr_assert_eq(claim(store, "new", owner < 0 ? 6 : 7), 6);
		cr_assert_eq(sk_dir_remove(sk_os_linux(), store->fd, "new"), 0);
		cr_assert_eq(count_fds(), fds);
		free(images);
		if (jobs)
			free(jobs[0]);
		free(jobs);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_gt(n, 20);
	sk_store_close(store);
	place_remove(&p);
}

/* The order that makes a name true, as the system sees it. */

struct trace {
	struct sk_os os;
	char text[512];
};

static void note(const struct sk_os *os, const char *what)
{
	struct trace *trace = os->ctx;
	size_t n = strlen(trace->text);
	size_t m = strlen(what);

	/* Many writes are one. */
	if (n >= m && strcmp(trace->text + n - m, what) == 0)
		return;
	(void)snprintf(trace->text + n, sizeof(trace->text) - n, "%s", what);
}

static int traced_fsync(const struct sk_os *os, int fd)
{
	struct stat st;

	fstat(fd, &st);
	note(os, S_ISDIR(st.st_mode) ? " sync-dir" : " sync-file");
	return sk_os_linux()->fsync(sk_os_linux(), fd);
}

static int traced_renameat(const struct sk_os *os, int olddir,
			   const char *old, int newdir, const char *new_name,
			   unsigned flags)
{
	note(os, strncmp(new_name, "rank-", 5) == 0 ? " rename-image" :
	     strncmp(new_name, "step-", 5) == 0 ? " rename-step" :
	     " rename");
	return sk_os_linux()->renameat(sk_os_linux(), olddir, old, newdir,
				       new_name, flags);
}

static ssize_t traced_pwrite(const struct sk_os *os, int fd, const void *buf,
			     size_t size, uint64_t offset)
{
	note(os, " write");
	return sk_os_linux()->pwrite(sk_os_linux(), fd, buf, size, offset);
}

static int traced_uring(const struct sk_os *os, enum sk_uring_op op,
			int result)
{
	if (op == SK_URING_WRITE)
		note(os, " write");
	return result;
}

static int traced_ftruncate(const struct sk_os *os, int fd, uint64_t size)
{
	note(os, " cut");
	return sk_os_linux()->ftruncate(sk_os_linux(), fd, size);
}

BOTH(nothing_is_named_before_it_is_synced)
{
	struct trace trace = { .os = *sk_os_linux() };
	struct sk_store *store;
	struct place p;

	trace.os.ctx = &trace;
	trace.os.fsync = traced_fsync;
	trace.os.renameat = traced_renameat;
	trace.os.pwrite = traced_pwrite;
	trace.os.ftruncate = traced_ftruncate;
	trace.os.uring_result = traced_uring;
	place_make(&p);
	store = open_store(&trace.os, &p);
	trace.text[0] = 0;
	cr_assert_eq(put_with(store, backend, 1, 5, 0, NULL), 0);
	cr_assert_str_eq(trace.text, " sync-dir"	/* job into store */
			 " write sync-file rename sync-dir"	/* .run */
			 " rename-step sync-dir"	/* step into job */
			 " write cut sync-file rename-image sync-dir");
	sk_store_close(store);
	place_remove(&p);
}

/* several agents */

#define AGENTS 4
#define ROUNDS 12

struct agent {
	struct sk_store *store;
	uint64_t run;
	int32_t rank;
	int r[ROUNDS];
	pthread_barrier_t *start;
};

static void *run_agent(void *arg)
{
	struct agent *a = arg;
	struct sk_io *io = NULL;

	(void)sk_io_new(sk_os_linux(), &(struct sk_io_opts){
		.backend = SK_IO_THREADS, .depth = 1 }, &io, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		struct image image;

		image_make(&image, a->run, (uint64_t)i, a->rank);
		pthread_barrier_wait(a->start);
		do {	/* as the flusher does */
			a->r[i] = sk_store_put_image(a->store, io, &image.put,
						     NULL);
		} while (a->r[i] == -EAGAIN);
		image_free(&image);
	}
	sk_io_free(io);
	return NULL;
}

/* Each with a descriptor of the store of its own, as on several nodes. */
static void run_agents(const struct place *p, struct agent *agents)
{
	pthread_barrier_t start;
	pthread_t threads[AGENTS];

	pthread_barrier_init(&start, NULL, AGENTS);
	for (int i = 0; i < AGENTS; i++) {
		agents[i].store = open_store(sk_os_linux(), p);
		agents[i].start = &start;
		cr_assert_eq(pthread_create(&threads[i], NULL, run_agent,
					    &agents[i]), 0);
	}
	for (int i = 0; i < AGENTS; i++) {
		pthread_join(threads[i], NULL);
		sk_store_close(agents[i].store);
	}
	pthread_barrier_destroy(&start);
}

Test(store_agents, of_one_run_fill_one_directory, .timeout = 300)
{
	struct agent agents[AGENTS] = { 0 };
	struct sk_store *store;
	struct place p;

	place_make(&p);
	for (int i = 0; i < AGENTS; i++)
		agents[i] = (struct agent){ .run = 3, .rank = i };
	run_agents(&p, agents);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(scan(store, NULL), AGENTS * ROUNDS);
	for (int i = 0; i < ROUNDS; i++) {
		for (int j = 0; j < AGENTS; j++) {
			cr_assert_eq(agents[j].r[i], 0);
			cr_assert(holds(store, 3, (uint64_t)i, j));
		}
	}
	sk_store_close(store);
	place_remove(&p);
}

/* Old and new runs at once: no directory ever holds images of two. */
Test(store_agents, of_two_runs_are_not_mixed, .timeout = 300)
{
	struct agent agents[AGENTS] = { 0 };
	struct sk_stored *images;
	struct sk_store *store;
	struct place p;
	size_t n;

	place_make(&p);
	for (int i = 0; i < AGENTS; i++)
		agents[i] = (struct agent){ .run = 3 + (uint64_t)i % 2,
					    .rank = i };
	run_agents(&p, agents);
	store = open_store(sk_os_linux(), &p);
	n = scan(store, &images);
	for (size_t i = 0; i + 1 < n; i++)
		if (strcmp(images[i].dir, images[i + 1].dir) == 0)
			cr_assert_eq(run_of(store, &images[i]),
				     run_of(store, &images[i + 1]), "%s",
				     images[i].dir);
	free(images);
	for (int i = 0; i < ROUNDS; i++) {
		for (int j = 0; j < AGENTS; j++) {
			int r = agents[j].r[i];

			/* The newer run never yields. */
			cr_assert(r == 0 || (r == -ESTALE && j % 2 == 0),
				  "round %d, agent %d: %d", i, j, r);
			if (r == 0)
				cr_assert(holds(store, agents[j].run,
						(uint64_t)i, j));
		}
		cr_assert_eq(settle(store, "job", (uint64_t)i, 4),
			     0);
	}
	cr_assert_eq(scan(store, NULL), AGENTS / 2 * ROUNDS);
	sk_store_close(store);
	place_remove(&p);
}

/* Two agents, one of which does all it does between two calls of the other:
 * whatever is said to be durable is there afterwards. */

struct other {
	struct sk_store *store;
	bool stranger;		/* than whose directory there is */
	bool again;		/* asks again where it is told to */
	int r;
};

static int put_rank(struct sk_store *store, bool stranger)
{
	return stranger ? put_stranger(store, 1, 5, 1, NULL) :
			  put(store, 1, 5, 0);
}

static void put_all(void *ctx)
{
	struct other *other = ctx;
	int tries = 0;

	do {
		other->r = put_rank(other->store, other->stranger);
	} while (other->r == -EAGAIN && other->again && ++tries < 9);
}

/* The step's directory of run 1, empty as after its making. */
static void make_empty_step(struct sk_store *store)
{
	const struct sk_store_run run = run_named(1);
	int job = sk_store_make_job_dir(store, "job", 0700, NULL);
	int fd = sk_step_acquire(store, job, 5, &run, 0700, NULL, NULL);

	cr_assert(job >= 0 && fd >= 0);
	close(fd);
	close(job);
}

/* @stranger: of the one that is interrupted. The number of calls. */
static int interrupt_put(bool stranger, bool empty)
{
	struct sk_fault_os fault;
	int n;

	for (n = 1; ; n++) {
		struct other other = { .stranger = !stranger, .again = true };
		struct sk_store *store;
		struct place p;
		int r, fds;

		store = make_store(&p, &fault);
		other.store = open_store(sk_os_linux(), &p);
		if (empty)
			make_empty_step(other.store);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_meddle(&fault, SK_FAULT_ANY, (uint64_t)n, put_all,
				   &other);
		r = put_rank(store, stranger);
		fault.rule_count = 0;
		if (r == -EAGAIN)
			r = put_rank(store, stranger);
		cr_assert_eq(count_fds(), fds, "call %d", n);
		cr_assert(r == 0 || r == -ESTALE, "call %d: %d", n, r);
		if (sk_fault_os_hits(&fault))
			cr_assert(other.r == 0 || other.r == -ESTALE,
				  "call %d: %d", n, other.r);
		cr_assert(r == 0 || other.r == 0, "call %d: neither", n);
		cr_assert(r < 0 || holds(store, 1, 5, stranger), "call %d: it "
			  "is lost", n);
		if (sk_fault_os_hits(&fault) && other.r == 0)
			cr_assert(holds(store, 1, 5, !stranger), "call %d: "
				  "the other's is lost", n);
		sk_store_close(other.store);
		sk_store_close(store);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	return n - 1;
}

struct newer {
	struct sk_store *store;
	uint64_t run;
	int r;
};

static void put_newer(void *ctx)
{
	struct newer *newer = ctx;

	newer->r = put(newer->store, newer->run, 5, 0);
}

/* Run 1's step is deleted while runs 2 and 3 take it over, before the calls
 * @first and @second of the deletion: theirs stay. */
static uint64_t interrupt_delete(uint64_t first, uint64_t second)
{
	struct newer newer[2] = { { .run = 2 }, { .run = 3 } };
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	uint64_t hits;

	store = make_store(&p, &fault);
	newer[0].store = newer[1].store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_meddle(&fault, SK_FAULT_ANY, first, put_newer, &newer[0]);
	sk_fault_os_meddle(&fault, SK_FAULT_ANY, second, put_newer, &newer[1]);
	(void)delete(store, "job", "step-000000000005", 1, NULL);
	hits = sk_fault_os_hits(&fault);
	fault.rule_count = 0;
	kill_store(store);
	(void)sk_store_sweep(newer[0].store, SK_STORE_DEAD_ONLY);
	for (uint64_t i = 0; i < hits; i++)
		cr_assert(newer[i].r == 0 &&
			  holds(newer[i].store, newer[i].run, 5, 0),
			  "calls %d and %d: %d, run %d is lost", (int)first,
			  (int)second, newer[i].r, (int)newer[i].run);
	sk_store_close(newer[0].store);
	place_remove(&p);
	return hits;
}

Test(store_agents, deletes_no_other_ones, .timeout = 300)
{
	uint64_t hits = 2;

	for (uint64_t n = 1; hits; n++) {
		hits = 2;
		for (uint64_t m = n + 1; hits == 2; m++)
			hits = interrupt_delete(n, m);
	}
}

Test(store_agents, lose_nothing_between_two_calls, .timeout = 300)
{
	for (int i = 0; i < 4; i++)
		cr_assert_gt(interrupt_put(i & 1, i & 2), 20);
}

/* Scans while steps come and go. */

struct churn {
	struct sk_store *store;
	int stop;	/* atomic */
};

static void *scan_on(void *arg)
{
	struct churn *churn = arg;
	long failed = 0;

	while (!__atomic_load_n(&churn->stop, __ATOMIC_ACQUIRE)) {
		struct sk_stored *images = NULL;
		char **jobs = NULL;
		size_t n = 0;

		failed += sk_store_scan(churn->store, "job", &images, &n,
					NULL) != 0;
		free(images);
		n = 0;
		failed += sk_store_jobs(churn->store, &jobs, &n, NULL) != 0;
		while (n--)
			free(jobs[n]);
		free(jobs);
	}
	return (void *)failed;
}

Test(store_agents, may_scan_meanwhile, .timeout = 300)
{
	struct churn churn = { 0 };
	pthread_t thread;
	struct place p;
	void *failed;
	char dir[SK_STORE_NAME_MAX];

	place_make(&p);
	churn.store = open_store(sk_os_linux(), &p);
	cr_assert_eq(pthread_create(&thread, NULL, scan_on, &churn), 0);
	for (uint64_t step = 0; step < 60; step++) {
		cr_assert_eq(put(churn.store, 1, step, 0), 0);
		sk_step_name_format(dir, step);
		cr_assert_eq(delete(churn.store, "job", dir, 1, NULL),
			     0);
	}
	__atomic_store_n(&churn.stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, &failed);
	cr_assert_eq((long)failed, 0);
	sk_store_close(churn.store);
	place_remove(&p);
}
