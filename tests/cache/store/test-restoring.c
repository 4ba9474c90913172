/* SPDX-License-Identifier: Apache-2.0 */
/* Who restores, and who retires: stores of several agents in one directory. */
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STEP "step-000000000005"

static int retire(struct sk_store *store, const char *job)
{
	const struct sk_store_run run = run_named(1);

	return sk_store_retire(store, job, STEP, &run, NULL);
}

/* Names in the store that say so. */
static int names(const struct place *p)
{
	struct dirent *entry;
	char path[128];
	DIR *dir;
	int n = 0;

	(void)snprintf(path, sizeof(path), "%s/" SK_RESTORING_DIR, p->store);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

Test(restoring, nothing_of_the_job_goes_wherever_ranks_restore)
{
	struct sk_store *store, *other;
	struct place p;

	store = make_store(&p, NULL);
	other = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_restoring(other, "job", NULL), 0);
	cr_assert_eq(sk_store_restoring(other, "job", NULL), 0, "once more");
	cr_assert_eq(names(&p), 1);
	cr_assert_eq(retire(store, "job"), -EAGAIN);
	cr_assert_eq(retire(other, "job"), -EAGAIN);
	cr_assert(holds(store, 1, 5, 0));
	cr_assert_eq(sk_store_is_restoring(store, "job-2"), 0);
	cr_assert_eq(sk_store_is_restoring(store, "ob"), 0);
	sk_store_restored(other, "job");
	cr_assert_eq(names(&p), 0);
	cr_assert_eq(sk_store_restoring(store, "job", NULL), 0);
	cr_assert_eq(retire(store, "job"), -EAGAIN, "its own");
	sk_store_restored(store, "job");
	sk_store_restored(store, "job");
	/* Whoever deletes by order does not ask. */
	cr_assert_eq(sk_store_restoring(other, "job", NULL), 0);
	cr_assert_eq(delete(store, "job", STEP, 1, NULL), 0);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	sk_store_close(other);
	cr_assert_eq(names(&p), 0, "it has ended");
	cr_assert_eq(retire(store, "job"), 0);
	sk_store_close(store);
	place_remove(&p);
}

/* What an older run left is spared as well, and goes another time. */
Test(restoring, nor_what_was_moved_aside)
{
	struct sk_store *store, *other;
	struct place p;

	store = make_store(&p, NULL);
	other = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert_eq(sk_store_restoring(other, "job", NULL), 0);
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	cr_assert(holds(store, 1, 5, 0));
	sk_store_restored(other, "job");
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	cr_assert_not(holds(store, 1, 5, 0));
	sk_store_close(other);
	sk_store_close(store);
	place_remove(&p);
}

static void come(void *ctx)
{
	cr_assert_eq(sk_store_restoring(ctx, "job", NULL), 0);
}

static int retire_as_one_comes(struct sk_store *store,
			       struct sk_fault_os *fault, enum sk_fault_op op,
			       uint64_t nth, struct sk_store *other,
			       bool *ret_came)
{
	int r;

	cr_assert_eq(put(store, 1, 5, 0), 0);
	sk_fault_os_forget(fault);
	sk_fault_os_meddle(fault, op, nth, come, other);
	r = retire(store, "job");
	*ret_came = sk_fault_os_calls(fault, op) >= nth;
	sk_fault_os_forget(fault);
	cr_assert(r == 0 || r == -EAGAIN, "call %d: %d", (int)nth, r);
	cr_assert_eq(holds(other, 1, 5, 0), r == -EAGAIN, "call %d: %d",
		     (int)nth, r);
	sk_store_restored(other, "job");
	return r;
}

/* Whoever comes at any call finds the step, or it was gone before. */
Test(restoring, who_comes_while_it_goes)
{
	struct sk_store *store, *other;
	struct sk_fault_os fault;
	bool came = true;
	struct place p;

	store = make_store(&p, &fault);
	other = open_store(sk_os_linux(), &p);
	for (uint64_t nth = 1; came; nth++)
		(void)retire_as_one_comes(store, &fault, SK_FAULT_ANY, nth,
					  other, &came);
	/* It had looked already, and looks again. */
	cr_assert_eq(retire_as_one_comes(store, &fault, SK_FAULT_RENAMEAT, 1,
					 other, &came), -EAGAIN);
	cr_assert(came);
	sk_store_close(other);
	sk_store_close(store);
	place_remove(&p);
}

/* No clock of another machine counts, and a name that stands for long is
 * nobody's: its agent hangs, or nobody can tell that it has died. */
Test(restoring, who_hangs_is_not_waited_for)
{
	const uint64_t most = 5 * SK_STORE_RENEW_NS;
	struct sk_store *store, *other;
	struct sk_fault_os fault;
	struct place p;

	store = make_store(&p, &fault);
	other = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_restoring(other, "job", NULL), 0);
	sk_fault_os_clock(&fault, 1000 * DAY_NS, 0);
	cr_assert_eq(retire(store, "job"), -EAGAIN);
	sk_fault_os_advance(&fault, most);
	cr_assert_eq(retire(store, "job"), -EAGAIN);
	/* It lives. */
	cr_assert_eq(sk_store_restoring(other, "job", NULL), 0);
	sk_fault_os_advance(&fault, 1);
	cr_assert_eq(retire(store, "job"), -EAGAIN);
	sk_fault_os_advance(&fault, most + 1);
	cr_assert_eq(retire(store, "job"), 0);
	sk_store_close(other);
	sk_store_close(store);
	place_remove(&p);
}

/* Of one that is killed nobody waits for that time. */
Test(restoring, who_is_dead_is_swept)
{
	struct sk_store *store, *other;
	struct place p;

	store = make_store(&p, NULL);
	other = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_restoring(other, "job", NULL), 0);
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 0);
	cr_assert_eq(retire(store, "job"), -EAGAIN, "it lives");
	kill_store(other);
	cr_assert_eq(names(&p), 1);
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 1);
	cr_assert_eq(names(&p), 0);
	cr_assert_eq(retire(store, "job"), 0);
	sk_store_close(store);
	place_remove(&p);
}

/* Where no name can be made this agent knows it all the same; and what is no
 * such name says nothing. */
Test(restoring, a_full_disk_and_strange_names)
{
	struct sk_err err = { "" };
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;

	store = make_store(&p, &fault);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_restoring(store, "other", NULL), 0);
	sk_store_restored(store, "other");
	make_file(&p, SK_RESTORING_DIR "/job", "");
	make_file(&p, SK_RESTORING_DIR "/0123456789abcdef", "");
	make_file(&p, SK_RESTORING_DIR "/0123456789abcdeg-job", "");
	make_file(&p, SK_RESTORING_DIR "/0123456789abcdef-.job", "");
	cr_assert_eq(sk_store_is_restoring(store, "job"), 0);
	sk_fault_os_forget(&fault);
	sk_fault_os_fail(&fault, SK_FAULT_OPENAT, 1, 1, ENOSPC);
	cr_assert_eq(sk_store_restoring(store, "job", &err), -ENOSPC);
	cr_assert(strstr(err.text, "\"job\""), "%s", err.text);
	cr_assert_eq(names(&p), 4);
	cr_assert_eq(retire(store, "job"), -EAGAIN);
	cr_assert_eq(sk_store_restoring(store, "job", NULL), 0);
	cr_assert_eq(names(&p), 5);
	sk_store_restored(store, "job");
	cr_assert_eq(retire(store, "job"), 0);
	cr_assert_eq(sk_store_restoring(store, "no/job", NULL), -EINVAL);
	sk_store_close(store);
	place_remove(&p);
}

/* Whether anybody restores must be known before anything goes. */
Test(restoring, what_cannot_be_told_deletes_nothing)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;

	store = make_store(&p, &fault);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_restoring(store, "other", NULL), 0);
	for (uint64_t nth = 1; nth <= 2; nth++) {
		sk_fault_os_forget(&fault);
		sk_fault_os_fail(&fault, SK_FAULT_GETDENTS, nth, 1, EIO);
		cr_assert_eq(retire(store, "job"), -EIO);
		sk_fault_os_forget(&fault);
		cr_assert(holds(store, 1, 5, 0), "call %d", (int)nth);
	}
	sk_store_close(store);
	place_remove(&p);
}

/* ---- the directory of those names ---- */

/* Calls that read names, of one that is retired beside @n other jobs. */
static uint64_t reads_to_retire(int n)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	char path[128];
	uint64_t reads;

	store = make_store(&p, &fault);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_restoring(store, "other", NULL), 0);
	for (int i = 0; i < n; i++) {
		(void)snprintf(path, sizeof(path), "%s/other-%d", p.store, i);
		cr_assert_eq(mkdir(path, 0700), 0);
	}
	sk_fault_os_forget(&fault);
	cr_assert_eq(retire(store, "job"), 0);
	reads = sk_fault_os_calls(&fault, SK_FAULT_GETDENTS);
	sk_store_close(store);
	place_remove(&p);
	return reads;
}

Test(restoring, other_jobs_of_the_store_are_not_looked_at)
{
	cr_assert_eq(reads_to_retire(1), reads_to_retire(2000));
}

/* Whoever can make names in the store can do so there; and where it is lost it
 * is made again. */
Test(restoring, the_directory_is_as_the_store_is)
{
	struct sk_store *store;
	char path[128];
	struct stat st;
	struct place p;

	store = make_store(&p, NULL);
	(void)snprintf(path, sizeof(path), "%s/" SK_RESTORING_DIR, p.store);
	cr_assert_eq(chmod(p.store, 0770), 0);
	cr_assert_eq(sk_store_restoring(store, "job", NULL), 0);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0770, "%o", st.st_mode);
	remove_tree(path);
	sk_store_restored(store, "job");
	cr_assert_eq(sk_store_is_restoring(store, "job"), 0);
	cr_assert_eq(sk_store_restoring(store, "job", NULL), 0);
	cr_assert_eq(names(&p), 1);
	/* What is none is no word that nobody restores. */
	sk_store_restored(store, "job");
	remove_tree(path);
	make_file(&p, SK_RESTORING_DIR, "");
	cr_assert_eq(sk_store_is_restoring(store, "job"), -ENOTDIR);
	sk_store_close(store);
	place_remove(&p);
}
