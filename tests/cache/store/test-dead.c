/* SPDX-License-Identifier: Apache-2.0 */
/* What the dead leave, what is strange, and a directory that goes. */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DELETED ".deleted-0123456789abcdef-0000000000000001-step-000000000009"
#define LEFT_STEP "job/.step-000000000009.0123456789abcdef.tmp"
#define LEFT_OWNER "job/..owner.0123456789abcdef.tmp"
#define LEFT_IMAGE "job/step-000000000005/" \
		   ".rank-00000-of-00004.safetensors.0123456789abcdef.tmp"
#define FOREIGN "job/step-000000000005/.rank-00000-of-00004.tmp"

/* As a deletion leaves it that was ended. */
static void make_deleted(const struct place *p, char ret_name[256])
{
	char from[256], to[512];
	struct stat st;

	make_dir(p, "job/half");
	make_file(p, "job/half/rank-00000-of-00004.safetensors", "x");
	make_dir(p, "job/half/deep");
	make_file(p, "job/half/deep/file", "x");
	(void)snprintf(from, sizeof(from), "%s/job/half", p->store);
	cr_assert_eq(stat(from, &st), 0);
	(void)snprintf(ret_name, 256, "job/.deleted-0123456789abcdef-%016lx-"
		       "step-000000000007", (unsigned long)st.st_ino);
	(void)snprintf(to, sizeof(to), "%s/%s", p->store, ret_name);
	cr_assert_eq(rename(from, to), 0);
}

Test(store, clears_away_what_the_dead_left)
{
	char deleted[256];
	struct sk_fault_os fault;
	struct sk_store *store;
	struct timespec now;
	struct place p;
	uint64_t wall;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	sk_store_close(store);
	make_deleted(&p, deleted);
	make_dir(&p, LEFT_STEP);
	make_file(&p, LEFT_STEP "/.run", "1\n");
	make_file(&p, LEFT_OWNER, "1\n");
	make_file(&p, LEFT_IMAGE, "x");
	make_file(&p, FOREIGN, "x");
	make_file(&p, DELETED, "not ours here");

	clock_gettime(CLOCK_REALTIME, &now);
	wall = now.tv_sec * UINT64_C(1000000000);
	sk_fault_os_init(&fault, sk_os_linux());
	/* Young, or from the future of a clock that was set back. */
	sk_fault_os_clock(&fault, 0, wall);
	sk_store_close(open_store(&fault.os, &p));
	sk_fault_os_clock(&fault, 0, wall - DAY_NS);
	sk_store_close(open_store(&fault.os, &p));
	cr_assert(exists(&p, deleted) && exists(&p, LEFT_STEP) &&
		  exists(&p, LEFT_OWNER) && exists(&p, LEFT_IMAGE));
	sk_fault_os_clock(&fault, 0, wall + DAY_NS);
	store = open_store(&fault.os, &p);
	cr_assert_not(exists(&p, deleted));
	cr_assert_not(exists(&p, LEFT_STEP));
	cr_assert_not(exists(&p, LEFT_OWNER));
	cr_assert_not(exists(&p, LEFT_IMAGE));
	cr_assert(exists(&p, FOREIGN));
	cr_assert(exists(&p, DELETED));
	cr_assert(holds(store, 1, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* Whose agent is dead is told at once, whatever the age; whose lives is left
 * alone, whatever the age. */
Test(store, knows_the_dead_from_the_living)
{
	struct sk_store *store, *other, *third;
	char ours[LEFT_MAX], theirs[LEFT_MAX], thirds[LEFT_MAX];
	struct sk_fault_os old;
	struct timespec now;
	struct place p;

	store = make_store(&p, NULL);
	other = open_store(sk_os_linux(), &p);
	third = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	left_by(&p, store, ours);
	left_by(&p, other, theirs);
	left_by(&p, third, thirds);
	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_init(&old, sk_os_linux());
	sk_fault_os_clock(&old, 0, now.tv_sec * UINT64_C(1000000000) + DAY_NS);
	sk_store_close(open_store(&old.os, &p));
	cr_assert(exists(&p, ours) && exists(&p, theirs) &&
		  exists(&p, thirds), "they live");
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 0);
	kill_store(other);
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 1);
	cr_assert_not(exists(&p, theirs), "swept by one that runs");
	cr_assert(exists(&p, ours) && exists(&p, thirds));
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 0);
	kill_store(third);
	sk_store_close(open_store(sk_os_linux(), &p));
	cr_assert_not(exists(&p, thirds), "swept at a start");
	cr_assert(exists(&p, ours) && holds(store, 1, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* Where writing hangs an agent begins all the same: what dead ones left is for
 * later, and so is the word that it lives, but no later than what bears it. */
Test(store, who_opens_writes_nothing)
{
	struct sk_store *store, *first;
	struct sk_fault_os fault;
	char name[SK_STORE_NAME_MAX];
	struct place p;

	first = make_store(&p, NULL);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_FLOCK, 1, SK_FAULT_ALWAYS, EIO);
	sk_fault_os_fail(&fault, SK_FAULT_UNLINKAT, 1, SK_FAULT_ALWAYS, EIO);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(sk_store_open(&fault.os, p.store, SK_STORE_LATER,
					   &store, NULL, NULL), 0);
		cr_assert_eq(sk_fault_os_hits(&fault), 0);
		fault.rule_count = 0;
		sk_alive_name_format(name, store->instance);
		cr_assert_not(exists(&p, name));
		if (i)
			(void)sk_store_sweep(store, SK_STORE_DEAD_ONLY);
		else
			cr_assert_eq(put(store, 1, 5, 0), 0);
		sk_alive_name_format(name, store->instance);
		cr_assert(exists(&p, name), "%d", i);
		sk_store_close(store);
		cr_assert_not(exists(&p, name), "%d", i);
	}
	sk_store_close(first);
	place_remove(&p);
}

/* An agent that was killed in its first flush leaves a directory of a run that
 * nobody knows of: the next one has that number again, and the step. */
Test(store, nothing_is_in_nobodys_way)
{
	const struct sk_store_run first = { 1, 77 };
	const char *image = "job/step-000000000005/"
			    "rank-00000-of-00004.safetensors";
	struct sk_store *store;
	struct place p;
	char left[LEFT_MAX], path[512];
	int job, fd;

	store = make_store(&p, NULL);
	job = sk_store_make_job_dir(store, "job", 0700, NULL);
	fd = sk_step_acquire(store, job, 5, &first, 0700, NULL, NULL);
	cr_assert(job >= 0 && fd >= 0);
	left_by(&p, store, left);
	cr_assert_eq(put(store, 1, 5, 0), -ESTALE, "it is being written");
	snprintf(path, sizeof(path), "%s/%s", p.store, left);
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert(exists(&p, image) && holds(store, 1, 5, 0));
	cr_assert_eq(sk_step_acquire(store, job, 5, &first, 0700,
				     NULL, NULL), -ESTALE);
	close(fd);
	close(job);
	sk_store_close(store);
	place_remove(&p);
}

/* Nor is what it was writing: nobody will end it. */
Test(store, the_dead_are_in_nobodys_way)
{
	const struct sk_store_run first = { 1, 77 };
	struct sk_store *store, *other;
	struct place p;
	char left[LEFT_MAX];
	int job, fd;

	store = make_store(&p, NULL);
	other = open_store(sk_os_linux(), &p);
	job = sk_store_make_job_dir(other, "job", 0700, NULL);
	fd = sk_step_acquire(other, job, 5, &first, 0700, NULL, NULL);
	cr_assert(job >= 0 && fd >= 0);
	left_by(&p, other, left);
	cr_assert_eq(put(store, 1, 5, 0), -ESTALE, "it lives");
	cr_assert(exists(&p, left));
	kill_store(other);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert(holds(store, 1, 5, 0));
	close(fd);
	close(job);
	sk_store_close(store);
	place_remove(&p);
}

/* Whatever somebody put where our small files and directories stand. */
Test(store, strange_things_are_in_nobodys_way)
{
	struct sk_store *store;
	struct place p;
	char path[256];
	int r[4] = { 0 };

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	/* Each in place of the run's file. */
	for (int i = 0; i < 4; i++) {
		(void)snprintf(path, sizeof(path),
			       "%s/job/step-000000000005/.run", p.store);
		cr_assert_eq(remove(path), 0);
		r[i] = i == 0 ? mkdir(path, 0700) :
		       i == 1 ? mkfifo(path, 0600) :
		       i == 2 ? symlink("/dev/zero", path) :
		       mknod(path, S_IFSOCK | 0600, 0);
		cr_assert_eq(r[i], 0, "%d", i);
		cr_assert_eq(scan(store, NULL), 1, "case %d", i);
	}
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-0"));
	/* And of the names that older runs' steps get. */
	make_file(&p, "job/step-000000000005.run-2", "x");
	(void)snprintf(path, sizeof(path),
		       "%s/job/step-000000000005.run-2-2", p.store);
	cr_assert_eq(symlink("..", path), 0);
	make_dir(&p, "job/step-000000000005.run-2-3");
	make_file(&p, "job/step-000000000005.run-2-3/file", "x");
	cr_assert_eq(put(store, 3, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-2-4/.run"));
	cr_assert(holds(store, 3, 5, 0) && holds(store, 2, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* Where there are no locks age decides, and nobody looks dead who is not. */
Test(store, lives_without_locks)
{
	struct sk_fault_os none;
	struct sk_store *store;
	char left[LEFT_MAX];
	struct place p;

	place_make(&p);
	sk_fault_os_init(&none, sk_os_linux());
	sk_fault_os_fail(&none, SK_FAULT_FLOCK, 1, UINT64_MAX, ENOLCK);
	store = open_store(&none.os, &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	left_by(&p, store, left);
	sk_store_close(open_store(sk_os_linux(), &p));
	cr_assert(exists(&p, left));
	sk_store_close(store);
	place_remove(&p);
}

/* Removed and made anew, it is found again. */
Test(store, finds_its_directory_again)
{
	struct sk_store *store, *other;
	char aside[128], left[LEFT_MAX];
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	snprintf(aside, sizeof(aside), "%s.aside", p.store);
	cr_assert_eq(rename(p.store, aside), 0);
	cr_assert_eq(mkdir(p.store, 0700), 0);
	cr_assert_not(holds(store, 1, 5, 0));
	cr_assert_eq(put(store, 1, 6, 0), 0);
	cr_assert(holds(store, 1, 6, 0));
	cr_assert(exists(&p, "job/step-000000000006"));
	/* And it lives there. */
	other = open_store(sk_os_linux(), &p);
	cr_assert_eq(sk_store_sweep(other, SK_STORE_DEAD_ONLY), 0);
	sk_store_close(other);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, p.store), 0);
	cr_assert_neq(put(store, 1, 7, 0), 0);
	cr_assert_eq(rename(aside, p.store), 0);
	cr_assert_eq(put(store, 1, 7, 0), 0);
	cr_assert(holds(store, 1, 5, 0) && holds(store, 1, 7, 0));
	/* And lives there again, where it was taken for dead meanwhile. */
	left_by(&p, store, left);
	sk_store_close(open_store(sk_os_linux(), &p));
	cr_assert(exists(&p, left));
	sk_store_close(store);
	place_remove(&p);
}

static void take_store(void *ctx)
{
	const struct place *p = ctx;
	char aside[128];

	(void)snprintf(aside, sizeof(aside), "%s.aside", p->store);
	(void)rename(p->store, aside);
}

/* Moved away, it is read where it is, and as the agent would write or delete
 * where nobody looks for it, nothing changes there. */
Test(store, neither_writes_nor_deletes_what_was_moved_away)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	char aside[128];
	struct place p;

	store = make_store(&p, &fault);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	snprintf(aside, sizeof(aside), "%s.aside", p.store);
	cr_assert_eq(rename(p.store, aside), 0);
	cr_assert(holds(store, 1, 5, 0));
	cr_assert_eq(put(store, 1, 6, 0), -ENOENT);
	cr_assert_eq(delete (store, "job", "step-000000000005", 1, NULL),
		     -EIO);
	cr_assert_not(exists(&p, "job"));
	cr_assert_eq(rename(aside, p.store), 0);
	cr_assert(exists(&p, "job/step-000000000005"));
	cr_assert_not(exists(&p, "job/step-000000000006"));
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_meddle(&fault, SK_FAULT_RENAMEAT, 1, take_store, &p);
	cr_assert_eq(put(store, 1, 6, 1), -ENOENT);
	fault.rule_count = 0;
	cr_assert_eq(rename(aside, p.store), 0);
	cr_assert_eq(put(store, 1, 6, 1), 0);
	cr_assert(holds(store, 1, 5, 0) && holds(store, 1, 6, 1));
	sk_store_close(store);
	place_remove(&p);
}

/* What is open may not even say any more which directory it was. */
Test(store, finds_its_directory_again_after_a_server_lost_it)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;

	store = make_store(&p, &fault);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_DUP2), 0);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_FSTAT, 1, 1, ESTALE);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_DUP2), 1);
	cr_assert(holds(store, 1, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* ---- a filesystem that is not mounted ---- */

/* To whom the directories of these inodes are each on a device of its own: the
 * first on number 1 beyond that of all others, and so on. */
struct mounts {
	struct sk_os os;
	ino_t inodes[2];
};

static void tell_device(const struct sk_os *os, struct stat *st)
{
	const struct mounts *m = (const struct mounts *)os;

	for (unsigned i = 0; i < 2; i++)
		if (m->inodes[i] && m->inodes[i] == st->st_ino)
			st->st_dev += 1 + i;
}

static int fstat_mounted(const struct sk_os *os, int fd, struct stat *ret_st)
{
	int r = sk_os_linux()->fstat(sk_os_linux(), fd, ret_st);

	if (r == 0)
		tell_device(os, ret_st);
	return r;
}

static int fstatat_mounted(const struct sk_os *os, int dirfd, const char *path,
			   int flags, struct stat *ret_st)
{
	int r = sk_os_linux()->fstatat(sk_os_linux(), dirfd, path, flags,
				       ret_st);

	if (r == 0)
		tell_device(os, ret_st);
	return r;
}

static void mount_at(struct mounts *m, unsigned i, const char *path)
{
	struct stat st;

	cr_assert_eq(mkdir(path, 0700), 0);
	cr_assert_eq(stat(path, &st), 0);
	m->inodes[i] = st.st_ino;
}

/* Nothing comes into the directory below the mount point, which would be taken
 * for the store where nobody looks for it later. */
static void check_bare(struct sk_store *store, const struct place *p)
{
	struct sk_err err = { "" };

	cr_assert_eq(mkdir(p->store, 0700), 0);
	cr_assert_eq(put_with(store, SK_IO_AUTO, 1, 6, 0, &err), -ENODEV);
	cr_assert(strstr(err.text, "not mounted"), "%s", err.text);
	cr_assert_eq(delete(store, "job", "step-000000000005", 1, NULL),
		     -EIO);
	cr_assert(holds(store, 1, 5, 0), "it is read where it is");
	cr_assert_eq(sk_store_restoring(store, "job", NULL), -ENODEV);
	sk_store_restored(store, "job");
	cr_assert_eq(rmdir(p->store), 0, "something lies there");
}

Test(store, is_not_what_it_was_mounted_on)
{
	struct mounts m = { .os = *sk_os_linux() };
	char aside[128], other[128];
	struct sk_store *store;
	struct place p;

	m.os.fstat = fstat_mounted;
	m.os.fstatat = fstatat_mounted;
	place_make(&p);
	(void)snprintf(aside, sizeof(aside), "%s.aside", p.store);
	(void)snprintf(other, sizeof(other), "%s.other", p.store);
	sk_store_close(open_store(&m.os, &p));
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, p.store), 0);
	mount_at(&m, 0, p.store);
	store = open_store(&m.os, &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(rename(p.store, aside), 0);
	check_bare(store, &p);
	/* Mounted again; and then another one in its place. */
	cr_assert_eq(rename(aside, p.store), 0);
	cr_assert_eq(put(store, 1, 6, 0), 0);
	cr_assert_eq(rename(p.store, aside), 0);
	mount_at(&m, 1, p.store);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_not(holds(store, 1, 6, 0));
	cr_assert_eq(rename(p.store, other), 0);
	check_bare(store, &p);
	cr_assert_eq(rename(aside, p.store), 0);
	cr_assert_eq(put(store, 1, 7, 0), 0);
	cr_assert(holds(store, 1, 6, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* An agent that was started before its filesystem was mounted goes there. */
Test(store, goes_to_what_is_mounted_over_it)
{
	struct mounts m = { .os = *sk_os_linux() };
	struct sk_store *store;
	char aside[128];
	struct place p;

	m.os.fstat = fstat_mounted;
	m.os.fstatat = fstatat_mounted;
	place_make(&p);
	(void)snprintf(aside, sizeof(aside), "%s.aside", p.store);
	store = open_store(&m.os, &p);
	cr_assert_eq(rename(p.store, aside), 0);
	mount_at(&m, 0, p.store);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert(holds(store, 1, 5, 0));
	cr_assert(exists(&p, "job/step-000000000005"));
	sk_store_close(store);
	place_remove(&p);
}
