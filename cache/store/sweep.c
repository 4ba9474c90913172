/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, what dead agents left: each open store has a number, which stands in
 * its temporary names, and holds a lock on a file of that number while it
 * lives. Where there is no such file, for locks do not work there or the
 * names are older, their age decides.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "store/private.h"

#define SECOND_NS UINT64_C(1000000000)
#define LIVE_TRIES 8
#define DEAD_MOST 64u	/* in one sweep */

static int same_file(const struct sk_os *os, int dirfd, const char *name,
		     int fd)
{
	struct stat a, b;

	return os->fstatat(os, dirfd, name, AT_SYMLINK_NOFOLLOW, &a) == 0 &&
	       os->fstat(os, fd, &b) == 0 && a.st_dev == b.st_dev &&
	       a.st_ino == b.st_ino;
}

/* ---- our life ---- */

/* -EEXIST: the number is somebody's, or a sweep took the file just then.
 * @how: O_EXCL, or 0 where a file of the number is ours from before. */
static int make_alive(struct sk_store *store, int how)
{
	const struct sk_os *os = store->os;
	char name[SK_STORE_NAME_MAX];
	int fd, r;

	sk_alive_name_format(name, store->instance);
	fd = os->openat(os, store->fd, name, O_RDWR | O_CREAT | how |
			O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return fd;
	r = os->flock(os, fd, LOCK_EX | LOCK_NB);
	if (r == -EWOULDBLOCK ||
	    (r == 0 && !same_file(os, store->fd, name, fd)))
		r = -EEXIST;
	if (r == 0) {
		store->alive = fd;
		return 0;
	}
	/* One without a lock would look dead. */
	if (r != -EEXIST)
		(void)os->unlinkat(os, store->fd, name, 0);
	os->close(os, fd);
	return r;
}

/* One whose number is taken draws another. */
static void be_alive(struct sk_store *store)
{
	const struct sk_os *os = store->os;
	int r = make_alive(store, O_EXCL);

	for (int i = 1; i < LIVE_TRIES && r == -EEXIST; i++) {
		uint32_t instance;

		if (os->random(os, &instance, sizeof(instance)) < 0)
			return;
		store->instance = instance;
		r = make_alive(store, O_EXCL);
	}
}

void sk_store_live(struct sk_store *store)
{
	if (store->lives)
		return;
	pthread_mutex_lock(&store->alive_lock);
	if (!store->lives)
		be_alive(store);
	store->lives = true;
	pthread_mutex_unlock(&store->alive_lock);
}

void sk_store_die(struct sk_store *store)
{
	char name[SK_STORE_NAME_MAX];

	if (store->alive < 0)
		return;
	sk_alive_name_format(name, store->instance);
	if (same_file(store->os, store->fd, name, store->alive))
		(void)store->os->unlinkat(store->os, store->fd, name, 0);
	store->os->close(store->os, store->alive);
	store->alive = -1;
}

void sk_store_move(struct sk_store *store)
{
	pthread_mutex_lock(&store->alive_lock);
	if (store->alive >= 0)
		store->os->close(store->os, store->alive);
	store->alive = -1;
	if (store->lives)
		(void)make_alive(store, 0);
	pthread_mutex_unlock(&store->alive_lock);
}

/* ---- the dead ---- */

struct cleaning {
	struct sk_store *store;
	unsigned stale_s;
	int depth;		/* 0: the store, 1: a job, 2: a step */
	uint32_t dead[DEAD_MOST];
	int locks[DEAD_MOST];	/* held, so that one of us cleans up */
	unsigned n_dead;
};

static int note_dead(void *ctx, int dirfd, const char *name)
{
	struct cleaning *c = ctx;
	const struct sk_os *os = c->store->os;
	uint32_t instance;
	int fd;

	if (c->n_dead == DEAD_MOST ||
	    !sk_alive_name_parse(name, &instance) ||
	    instance == c->store->instance)
		return 0;
	fd = os->openat(os, dirfd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK |
			O_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	if (os->flock(os, fd, LOCK_EX | LOCK_NB) < 0 ||
	    !same_file(os, dirfd, name, fd)) {
		os->close(os, fd);
		return 0;
	}
	c->dead[c->n_dead] = instance;
	c->locks[c->n_dead++] = fd;
	return 0;
}

static bool is_dead(const struct cleaning *c, uint32_t instance)
{
	for (unsigned i = 0; i < c->n_dead; i++)
		if (c->dead[i] == instance)
			return true;
	return false;
}

static bool lives(const struct cleaning *c, uint32_t instance)
{
	const struct sk_os *os = c->store->os;
	char name[SK_STORE_NAME_MAX];
	struct stat st;

	sk_alive_name_format(name, instance);
	return instance == c->store->instance ||
	       os->fstatat(os, c->store->fd, name, AT_SYMLINK_NOFOLLOW,
			   &st) == 0;
}

/* Old enough that its agent must be dead. A clock that went back says no. */
static bool is_stale(const struct cleaning *c, int dirfd, const char *name)
{
	const struct sk_os *os = c->store->os;
	uint64_t now = os->wall_ns(os);
	uint64_t then;
	struct stat st;

	if (os->fstatat(os, dirfd, name, AT_SYMLINK_NOFOLLOW, &st) < 0)
		return false;
	/* The change time: renaming to ".deleted-" counts as life. */
	then = (uint64_t)st.st_ctim.tv_sec * SECOND_NS +
	       (uint64_t)st.st_ctim.tv_nsec;
	return now > then && now - then > c->stale_s * SECOND_NS;
}

static bool is_left(void *ctx, int dirfd, const char *name, uint32_t instance)
{
	const struct cleaning *c = ctx;

	return is_dead(c, instance) ||
	       (!lives(c, instance) && is_stale(c, dirfd, name));
}

/* A directory that got its name by a race of its agent with another one, which
 * wrote it, is no left-over: it gets back what its agent owed it. */
static int clear_left(const struct cleaning *c, int dirfd, const char *name,
		      const struct sk_leftover *left)
{
	const struct sk_os *os = c->store->os;
	struct stat st;
	int r;

	if (!left->of)
		return sk_dir_remove(os, dirfd, name);
	r = os->fstatat(os, dirfd, name, AT_SYMLINK_NOFOLLOW, &st);
	if (r < 0)
		return r;
	if (!S_ISDIR(st.st_mode) || st.st_ino == left->inode)
		return sk_dir_remove(os, dirfd, name);
	r = sk_step_unhide(c->store, dirfd, left->of, name);
	return r < 0 ? r : sk_dir_sync(os, dirfd);
}

/* Whether left-over names may stand in this directory. */
static bool is_cleaned(const struct cleaning *c, const char *name)
{
	struct sk_step_name step;

	if (c->depth == 0)
		return sk_job_check(name, NULL) == 0;
	return c->depth == 1 && sk_step_name_parse(name, &step);
}

/* What cannot be cleaned is in nobody's way: no error is one here. */
static int clean_entry(void *ctx, int dirfd, const char *name)
{
	struct cleaning *c = ctx;
	const struct sk_os *os = c->store->os;
	struct sk_leftover left;
	int fd;

	if (c->depth > 0 && sk_leftover_name(name, &left)) {
		if (is_left(c, dirfd, name, left.instance))
			(void)clear_left(c, dirfd, name, &left);
		return 0;
	}
	if (!is_cleaned(c, name))
		return 0;
	fd = sk_dir_open(os, dirfd, name);
	if (fd < 0)
		return 0;
	c->depth++;
	(void)sk_dir_each(os, fd, clean_entry, c);
	c->depth--;
	os->close(os, fd);
	return 0;
}

/* Nothing of them is left: their files go last, so that whoever is ended half
 * way leaves them to the next. */
static void bury(struct cleaning *c)
{
	const struct sk_os *os = c->store->os;
	char name[SK_STORE_NAME_MAX];

	while (c->n_dead) {
		c->n_dead--;
		sk_alive_name_format(name, c->dead[c->n_dead]);
		(void)os->unlinkat(os, c->store->fd, name, 0);
		os->close(os, c->locks[c->n_dead]);
	}
}

unsigned sk_store_sweep(struct sk_store *store, unsigned stale_s)
{
	struct cleaning c = { .store = store, .stale_s = stale_s };
	unsigned n;

	(void)sk_store_find(store);
	sk_store_live(store);
	(void)sk_dir_each(store->os, store->fd, note_dead, &c);
	n = c.n_dead;
	if (n || stale_s != SK_STORE_DEAD_ONLY) {
		(void)sk_dir_each(store->os, store->fd, clean_entry, &c);
		sk_index_sweep(store, is_left, &c);
		sk_restoring_sweep(store, is_left, &c);
	}
	bury(&c);
	return n;
}
