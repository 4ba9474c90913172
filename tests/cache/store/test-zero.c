/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor may be 0, as where a process has closed its standard input: all
 * that the store does goes on with it, and gives it back. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "store/history.h"

#define STEP_5 "step-000000000005"
#define OPENS_MOST 1000

static void free_zero(void *ctx)
{
	(void)ctx;
	(void)close(0);
}

static void take_zero(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	cr_assert_geq(fd, 0);
	if (fd > 0)
		close(fd);
}

static void read_all_images(struct sk_store *store, size_t n)
{
	struct sk_stored *images = NULL;
	bool gone[9] = { true };

	cr_assert(n && n < 9);
	cr_assert_eq(scan(store, &images), n);
	for (size_t i = 0; i < n; i++) {
		int fd = sk_store_open_image(store, &images[i], NULL);

		cr_assert_geq(fd, 0);
		close(fd);
	}
	cr_assert_eq(sk_store_gone(store, images, n, gone, NULL), 0);
	cr_assert(!gone[0] && !gone[n - 1]);
	free(images);
}

static void note_and_ask(struct sk_store *store)
{
	const struct sk_retention nine = { .keep_last = 9 };
	struct sk_retention keeps = { 0 };
	enum sk_retention_from from;
	char **jobs = NULL;
	size_t n = 0;
	uid_t uid = 0;

	cr_assert_eq(claim(store, "job", 77), 77);
	cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), 0);
	cr_assert_eq(uid, 77);
	cr_assert_eq(sk_store_set_retention(store, "job",
					    SK_RETENTION_OPERATOR, &nine,
					    NULL), 0);
	cr_assert_eq(sk_store_retention(store, "job", &from, &keeps, NULL), 0);
	cr_assert(from == SK_RETENTION_OPERATOR && keeps.keep_last == 9);
	cr_assert_eq(sk_store_jobs(store, &jobs, &n, NULL), 0);
	cr_assert_eq(n, 1);
	cr_assert(sk_store_has_job(store, "job"));
	free(jobs[0]);
	free(jobs);
}

/* Written, and by another one found, and looked at for good: all an hour
 * later, when what has one time has been changed no more since. */
static void know_it(struct sk_store *store, struct sk_fault_os *fault)
{
	struct sk_history *h = sk_history_new("job");
	const struct sk_retention none = { 0 };
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_clock(fault, 1, ((uint64_t)now.tv_sec + 3600) *
					    1000000000);
	cr_assert_eq(sk_history_look(h, store, NULL), 0);
	cr_assert_eq(sk_history_save(h, store, NULL), 0);
	sk_history_free(h);
	/* The job's directory is another one than the index knows. */
	cr_assert_eq(sk_store_set_retention(store, "job",
					    SK_RETENTION_DEFAULT, &none, NULL),
		     0);
	h = sk_history_new("job");
	cr_assert_eq(sk_history_look(h, store, NULL), 0);
	cr_assert_eq(sk_history_count(h), 2);
	cr_assert_eq(sk_history_unproved(h), 2);
	cr_assert_eq(sk_history_prove_some(h, store, 9, NULL), 0);
	cr_assert_eq(sk_history_unproved(h), 0);
	sk_history_free(h);
}

/* Another directory is the store by now, and the old one again. */
static void move_and_back(const struct place *p, struct sk_store *store)
{
	char away[96];

	(void)snprintf(away, sizeof(away), "%s/away", p->path);
	cr_assert_eq(rename(p->store, away), 0);
	cr_assert_eq(mkdir(p->store, 0700), 0);
	cr_assert_eq(scan(store, NULL), 0);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, p->store), 0);
	cr_assert_eq(rename(away, p->store), 0);
	cr_assert_neq(scan(store, NULL), 0);
}

/* In memory: here it is no matter what is durable. */
static void make_place(struct place *p)
{
	strcpy(p->path, "/dev/shm/shardkeep-zero-XXXXXX");
	cr_assert(mkdtemp(p->path));
	(void)snprintf(p->store, sizeof(p->store), "%s/store", p->path);
}

static void do_all(const struct place *p, struct sk_fault_os *fault)
{
	const struct sk_store_run one = run_named(1), two = run_named(2);
	struct sk_store *store = open_store(&fault->os, p);

	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert_eq(put(store, 2, 6, 0), 0);
	read_all_images(store, 3);
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	note_and_ask(store);
	know_it(store, fault);
	cr_assert_eq(sk_store_pin(store, "job", STEP_5, &two, true, NULL), 0);
	cr_assert_eq(sk_store_retire(store, "job", STEP_5, &two, NULL),
		     -EBUSY);
	cr_assert_eq(sk_store_pin(store, "job", STEP_5, &two, false, NULL), 0);
	cr_assert_eq(sk_store_retire(store, "job", STEP_5, &one, NULL),
		     -ESTALE);
	move_and_back(p, store);
	cr_assert_eq(sk_store_retire(store, "job", STEP_5, &two, NULL), 0);
	cr_assert_eq(scan(store, NULL), 1);
	sk_store_close(store);
}

/* A process was killed, and what it left goes with the next one's start. */
static void leave_some(const struct place *p)
{
	struct sk_store *store = open_store(sk_os_linux(), p);
	char left[LEFT_MAX];

	make_dir(p, "job");
	make_dir(p, "job/" STEP_5);
	left_by(p, store, left);
	kill_store(store);
}

Test(store_zero, any_descriptor_may_be_0, .timeout = 300)
{
	uint64_t hits = 1, n;

	take_zero();
	for (n = 1; hits; n++) {
		struct sk_fault_os fault;
		struct place p;
		int fds;

		make_place(&p);
		leave_some(&p);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_meddle(&fault, SK_FAULT_OPENAT, n, free_zero,
				   NULL);
		do_all(&p, &fault);
		hits = sk_fault_os_hits(&fault);
		cr_assert(!hits || fcntl(0, F_GETFD) < 0, "open %d: 0 is left",
			  (int)n);
		take_zero();
		cr_assert_eq(count_fds(), fds, "open %d", (int)n);
		place_remove(&p);
	}
	cr_assert(n > 60 && n < OPENS_MOST, "%d opens", (int)n);
}
