/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, who restores: an agent whose ranks may be about to read a step of a
 * job has an empty file "<id>-<job>" in the store's directory ".restoring", and
 * whoever retires a step of that job looks for such names before and after the
 * renaming: among those who restore, not among all jobs of the store. A name is
 * never used twice: who lives renews it, so one that stands for long is of
 * nobody, whatever any clock says; and those of an agent that is known to be
 * dead are swept.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

/* Ours; of a job once. */
struct restoring {
	struct sk_link link;
	char job[SK_JOB_MAX + 1];
	char name[SK_RESTORING_NAME_MAX];	/* "": it could not be made */
};

/* Another agent's name, as long as it stands. */
struct seen {
	struct sk_link link;
	char name[SK_RESTORING_NAME_MAX];
	uint64_t since_ns;	/* our clock; when it was seen first */
	bool there;		/* in this look */
};

void sk_restoring_open(struct sk_store *store)
{
	pthread_mutex_init(&store->restoring_lock, NULL);
	sk_link_init(&store->restoring);
	sk_link_init(&store->seen);
}

/* ---- the directory ---- */

static int open_dir(struct sk_store *store)
{
	return sk_dir_open(store->os, store->fd, SK_RESTORING_DIR);
}

/* Whoever may make names in the store may do so there. */
static int make_dir(struct sk_store *store)
{
	const struct sk_os *os = store->os;
	struct stat st;
	int r = os->fstat(os, store->fd, &st);

	if (r == 0)
		r = os->mkdirat(os, store->fd, SK_RESTORING_DIR,
				st.st_mode & 07777);
	if (r == 0)	/* whatever the umask */
		(void)os->fchmodat(os, store->fd, SK_RESTORING_DIR,
				   st.st_mode & 07777);
	return r < 0 && r != -EEXIST ? r : open_dir(store);
}

static void remove_at(struct sk_store *store, int dir, const char *name)
{
	if (*name)
		(void)store->os->unlinkat(store->os, dir, name, 0);
}

static void remove_name(struct sk_store *store, const char *name)
{
	int dir = *name ? open_dir(store) : -ENOENT;

	if (dir < 0)
		return;
	remove_at(store, dir, name);
	store->os->close(store->os, dir);
}

void sk_restoring_forget(struct sk_store *store)
{
	struct restoring *mine;
	struct seen *seen;

	sk_link_each(mine, &store->restoring, link) {
		sk_link_remove(&mine->link);
		free(mine);
	}
	sk_link_each(seen, &store->seen, link) {
		sk_link_remove(&seen->link);
		free(seen);
	}
}

void sk_restoring_close(struct sk_store *store)
{
	struct restoring *mine;

	sk_link_each(mine, &store->restoring, link)
		remove_name(store, mine->name);
	sk_restoring_forget(store);
	pthread_mutex_destroy(&store->restoring_lock);
}

/* ---- ours ---- */

static struct restoring *find(struct sk_store *store, const char *job)
{
	struct restoring *mine;

	sk_link_each(mine, &store->restoring, link)
		if (strcmp(mine->job, job) == 0)
			return mine;
	return NULL;
}

static struct restoring *find_or_add(struct sk_store *store, const char *job)
{
	struct restoring *mine = find(store, job);

	if (mine)
		return mine;
	mine = calloc(1, sizeof(*mine));
	if (!mine)
		return NULL;
	(void)snprintf(mine->job, sizeof(mine->job), "%s", job);
	sk_link_insert(&store->restoring, &mine->link);
	return mine;
}

/* The new name is there before the one that it stands for goes. */
static int renew_at(struct sk_store *store, int dir, struct restoring *mine)
{
	const struct sk_os *os = store->os;
	char name[SK_RESTORING_NAME_MAX];
	int fd;

	sk_restoring_name(store, mine->job, name);
	fd = os->openat(os, dir, name, O_WRONLY | O_CREAT | O_EXCL |
			O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return fd;
	os->close(os, fd);
	remove_at(store, dir, mine->name);
	memcpy(mine->name, name, sizeof(name));
	return 0;
}

static int renew(struct sk_store *store, struct restoring *mine)
{
	int dir, r = sk_store_find(store);

	if (r < 0)
		return r;
	dir = open_dir(store);
	if (dir == -ENOENT)
		dir = make_dir(store);
	if (dir < 0)
		return dir;
	r = renew_at(store, dir, mine);
	store->os->close(store->os, dir);
	return r;
}

int sk_store_restoring(struct sk_store *store, const char *job,
		       struct sk_err *err)
{
	struct restoring *mine;
	int r = sk_job_check(job, err);

	if (r < 0)
		return r;
	pthread_mutex_lock(&store->restoring_lock);
	mine = find_or_add(store, job);
	r = mine ? renew(store, mine) : -ENOMEM;
	pthread_mutex_unlock(&store->restoring_lock);
	if (r < 0)
		return sk_err_errno(err, r, "other agents on the store \"%s\" "
				    "cannot be told that ranks of job \"%s\" "
				    "restore", store->path, job);
	return 0;
}

void sk_store_restored(struct sk_store *store, const char *job)
{
	struct restoring *mine;

	pthread_mutex_lock(&store->restoring_lock);
	mine = find(store, job);
	if (mine) {
		remove_name(store, mine->name);
		sk_link_remove(&mine->link);
		free(mine);
	}
	pthread_mutex_unlock(&store->restoring_lock);
}

/* ---- the others' ---- */

struct look {
	struct sk_store *store;
	const char *job;
	uint64_t now_ns;
	bool found;
};

static struct seen *see(struct sk_store *store, const char *name,
			uint64_t now_ns)
{
	struct seen *seen;

	sk_link_each(seen, &store->seen, link)
		if (strcmp(seen->name, name) == 0)
			return seen;
	seen = calloc(1, sizeof(*seen));
	if (!seen)
		return NULL;
	(void)snprintf(seen->name, sizeof(seen->name), "%s", name);
	seen->since_ns = now_ns;
	sk_link_insert(&store->seen, &seen->link);
	return seen;
}

static int look_at(void *ctx, int fd, const char *name)
{
	struct look *look = ctx;
	struct seen *seen;
	const char *job;
	uint32_t instance;

	(void)fd;
	if (!sk_restoring_name_parse(name, &instance, &job) ||
	    instance == look->store->instance)
		return 0;
	seen = see(look->store, name, look->now_ns);
	if (!seen)
		return -ENOMEM;
	seen->there = true;
	if (strcmp(job, look->job) == 0 &&
	    look->now_ns - seen->since_ns <= SK_RESTORING_NS)
		look->found = true;
	return 0;
}

static void forget_gone(struct sk_store *store)
{
	struct seen *seen;

	sk_link_each(seen, &store->seen, link) {
		if (!seen->there) {
			sk_link_remove(&seen->link);
			free(seen);
			continue;
		}
		seen->there = false;
	}
}

/* Where there is no directory nobody restores. */
static int look_at_all(struct sk_store *store, struct look *look)
{
	int dir = open_dir(store), r = 0;

	if (dir >= 0) {
		r = sk_dir_each(store->os, dir, look_at, look);
		store->os->close(store->os, dir);
	}
	forget_gone(store);
	return dir < 0 && dir != -ENOENT ? dir : r;
}

int sk_store_is_restoring(struct sk_store *store, const char *job)
{
	struct look look = { .store = store, .job = job,
			     .now_ns = store->os->now_ns(store->os) };
	int r = 0;

	pthread_mutex_lock(&store->restoring_lock);
	look.found = find(store, job);
	if (!look.found)
		r = look_at_all(store, &look);
	pthread_mutex_unlock(&store->restoring_lock);
	return r < 0 ? sk_not_stale(r) : look.found;
}

/* ---- what the dead left ---- */

struct restoring_sweep {
	struct sk_store *store;
	bool (*is_left)(void *ctx, int dirfd, const char *name,
			uint32_t instance);
	void *ctx;
};

static int sweep_name(void *ctx, int dirfd, const char *name)
{
	const struct restoring_sweep *sweep = ctx;
	uint32_t instance;
	const char *job;

	if (sk_restoring_name_parse(name, &instance, &job) &&
	    sweep->is_left(sweep->ctx, dirfd, name, instance))
		remove_at(sweep->store, dirfd, name);
	return 0;
}

void sk_restoring_sweep(struct sk_store *store,
			bool (*is_left)(void *ctx, int dirfd, const char *name,
					uint32_t instance),
			void *ctx)
{
	struct restoring_sweep sweep = { store, is_left, ctx };
	int dir = open_dir(store);

	if (dir < 0)
		return;
	(void)sk_dir_each(store->os, dir, sweep_name, &sweep);
	store->os->close(store->os, dir);
}
