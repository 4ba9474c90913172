/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "store/private.h"

#define DEPTH_MAX 64	/* that is looked up for another filesystem */
#define ROOT_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

/* Root's agent has all users' jobs: each comes through to what is theirs. */
static mode_t root_mode(void)
{
	return geteuid() == 0 ? SK_DIR_ENTERED : SK_DIR_OURS;
}

/* Makes what is missing of @path, each level durable in the one above. */
static int make_path(const struct sk_os *os, const char *path)
{
	_cleanup_free_ char *parent = strdup(path);
	char *slash;
	int fd, r;

	if (!parent)
		return -ENOMEM;
	slash = strrchr(parent, '/');
	if (!slash)
		strcpy(parent, ".");
	else
		slash[slash == parent] = 0;
	fd = os->openat(os, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY |
			O_CLOEXEC, 0);
	if (fd == -ENOENT && slash && slash != parent) {
		r = make_path(os, parent);
		if (r < 0)
			return r;
		fd = os->openat(os, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY |
				O_CLOEXEC, 0);
	}
	if (fd < 0)
		return fd;
	r = os->mkdirat(os, AT_FDCWD, path, root_mode());
	if (r == 0 || r == -EEXIST)
		r = sk_dir_sync(os, fd);
	os->close(os, fd);
	return r;
}

static int open_root(const struct sk_os *os, const char *path)
{
	int fd, r;

	fd = os->openat(os, AT_FDCWD, path, ROOT_FLAGS, 0);
	if (fd != -ENOENT)
		return fd;
	r = make_path(os, path);
	if (r < 0)
		return r;
	return os->openat(os, AT_FDCWD, path, ROOT_FLAGS, 0);
}

bool sk_store_is_volatile(const struct statfs *fs)
{
	return fs->f_type == TMPFS_MAGIC || fs->f_type == RAMFS_MAGIC;
}

/* To take away what is not there goes as far as any write does. */
int sk_store_probe(const struct sk_os *os, int fd)
{
	return os->fremovexattr(os, fd, "user.shardkeep.probe") == -EROFS ?
	       -EROFS : 0;
}

static int is_volatile(const struct sk_os *os, int fd)
{
	struct statfs sfs;

	return os->fstatfs(os, fd, &sfs) == 0 && sk_store_is_volatile(&sfs);
}

/* The filesystem that the one of @fd, @device, is mounted on: that of the first
 * directory above that is on another. */
static uint64_t find_below(const struct sk_os *os, int fd, uint64_t device)
{
	char up[3 * DEPTH_MAX] = "..";
	struct stat st, last = { 0 };

	for (int i = 0; i < DEPTH_MAX - 1; i++) {
		if (os->fstatat(os, fd, up, 0, &st) < 0)
			break;
		if (st.st_dev != device)
			return st.st_dev;
		if (i && st.st_ino == last.st_ino)
			break;	/* the root */
		last = st;
		strcat(up, "/..");
	}
	return device;
}

static void note_place(struct sk_store *store)
{
	const struct sk_os *os = store->os;
	struct stat st;

	if (os->fstat(os, store->fd, &st) < 0)
		return;
	atomic_store(&store->device, st.st_dev);
	atomic_store(&store->below, find_below(os, store->fd, st.st_dev));
}

struct sk_store_place sk_store_place(const struct sk_store *store)
{
	return (struct sk_store_place){
		.device = atomic_load(&store->device),
		.below = atomic_load(&store->below),
	};
}

/* A copy without slashes at its end. */
static char *trimmed(const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	return strndup(path, n);
}

int sk_store_open(const struct sk_os *os, const char *path, unsigned stale_s,
		  struct sk_store **ret_store, int *ret_volatile,
		  struct sk_err *err)
{
	struct sk_store *store __attribute__((cleanup(sk_store_closep))) = NULL;
	uint32_t instance;
	int r;

	if (!*path)
		return sk_err_set(err, -EINVAL, "the path of the store is "
				  "empty");
	store = calloc(1, sizeof(*store));
	if (!store)
		return sk_err_errno(err, -ENOMEM, "cannot open a store");
	store->os = os;
	store->fd = store->alive = -1;
	pthread_mutex_init(&store->lock, NULL);
	pthread_mutex_init(&store->alive_lock, NULL);
	sk_restoring_open(store);
	store->path = trimmed(path);
	if (!store->path)
		return sk_err_errno(err, -ENOMEM, "cannot open a store");
	store->fd = open_root(os, store->path);
	if (store->fd < 0)
		return sk_err_errno(err, store->fd, "cannot open or make the "
				    "store \"%s\"", path);
	note_place(store);
	r = os->random(os, &instance, sizeof(instance));
	if (r < 0)
		return sk_err_errno(err, r, "cannot draw an id for the store "
				    "\"%s\"", path);
	store->instance = instance;
	if (stale_s != SK_STORE_LATER)
		(void)sk_store_sweep(store, stale_s);
	if (ret_volatile)
		*ret_volatile = is_volatile(os, store->fd);
	*ret_store = sk_take_ptr(store);
	return 0;
}

struct sk_store *sk_store_close(struct sk_store *store)
{
	if (!store)
		return NULL;
	sk_restoring_close(store);
	sk_store_die(store);
	if (store->fd >= 0)
		store->os->close(store->os, store->fd);
	pthread_mutex_destroy(&store->alive_lock);
	pthread_mutex_destroy(&store->lock);
	free(store->path);
	free(store);
	return NULL;
}

const char *sk_store_path(const struct sk_store *store)
{
	return store->path;
}

/* 1: the path is another directory than the one that is open. What cannot be
 * told is not another one, unless a server has lost it. -ENODEV: it is the one
 * that its filesystem was mounted on. */
static int has_moved(const struct sk_store *store)
{
	const struct sk_store_place place = sk_store_place(store);
	const struct sk_os *os = store->os;
	struct stat open, named;
	int r;

	r = os->fstatat(os, AT_FDCWD, store->path, 0, &named);
	if (r < 0)
		return r == -ENOENT || r == -ENOTDIR ? -ENOENT : 0;
	if (sk_store_is_below(&place, named.st_dev))
		return -ENODEV;
	r = os->fstat(os, store->fd, &open);
	if (r < 0)
		return r == -ESTALE;
	return open.st_dev != named.st_dev || open.st_ino != named.st_ino;
}

/* The new directory gets the number of the old one, which other threads may
 * be using. */
static int reopen(struct sk_store *store)
{
	const struct sk_store_place place = sk_store_place(store);
	const struct sk_os *os = store->os;
	int fd = os->openat(os, AT_FDCWD, store->path, ROOT_FLAGS, 0);
	struct stat st;
	int r;

	if (fd < 0)
		return fd;
	/* It may have been unmounted since it was looked up. */
	r = os->fstat(os, fd, &st);
	if (r == 0 && sk_store_is_below(&place, st.st_dev))
		r = -ENODEV;
	if (r == 0)
		r = os->dup2(os, fd, store->fd);
	if (r >= 0) {
		(void)os->fcntl(os, store->fd, F_SETFD, FD_CLOEXEC);
		note_place(store);
		sk_store_move(store);
	}
	os->close(os, fd);
	return r < 0 ? r : 0;
}

int sk_store_lost(const struct sk_store *store, int r, const char *what,
		  struct sk_err *err)
{
	if (r == -ENODEV)
		return sk_err_set(err, r, "%s \"%s\": its filesystem is not "
				  "mounted, and what lies there is another "
				  "one's", what, store->path);
	return sk_err_errno(err, r, "%s \"%s\"", what, store->path);
}

int sk_store_find(struct sk_store *store)
{
	int r;

	pthread_mutex_lock(&store->lock);
	r = has_moved(store);
	if (r > 0)
		r = reopen(store);
	pthread_mutex_unlock(&store->lock);
	return sk_not_stale(r);
}

static bool is_link(const struct sk_store *store, const char *job)
{
	struct stat st;

	return store->os->fstatat(store->os, store->fd, job,
				  AT_SYMLINK_NOFOLLOW, &st) >= 0 &&
	       S_ISLNK(st.st_mode);
}

int sk_store_job_dir(struct sk_store *store, const char *job,
		     struct sk_err *err)
{
	int fd, r;

	assert(store->fd >= 0);
	r = sk_job_check(job, err);
	if (r < 0)
		return r;
	(void)sk_store_find(store);
	fd = sk_dir_open(store->os, store->fd, job);
	/* Who takes that for nothing begins anew. */
	if ((fd == -ENOTDIR || fd == -ELOOP) && is_link(store, job))
		return sk_err_set(err, -EIO, "%s/%s is a link, which nobody "
				  "follows: bring back what it leads to, or "
				  "move it aside", store->path, job);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open job \"%s\" of the "
				    "store \"%s\"", job, store->path);
	return fd;
}

int sk_store_make_job_dir(struct sk_store *store, const char *job,
			  mode_t mode, struct sk_err *err)
{
	int r;

	assert(store->fd >= 0);
	r = sk_job_check(job, err);
	if (r < 0)
		return r;
	r = sk_store_find(store);
	if (r < 0)
		return sk_store_lost(store, r, "cannot find the store", err);
	r = store->os->mkdirat(store->os, store->fd, job, mode);
	/* Another agent may have made it and not come to this yet. */
	if (r == 0 || r == -EEXIST)
		r = sk_dir_sync(store->os, store->fd);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make job \"%s\" in the "
				    "store \"%s\"", job, store->path);
	return sk_store_job_dir(store, job, err);
}

bool sk_store_has_job(struct sk_store *store, const char *job)
{
	int fd = sk_store_job_dir(store, job, NULL);

	if (fd >= 0)
		store->os->close(store->os, fd);
	return !sk_is_gone(fd);
}

/* Of the job whose directory @fd is. */
static int read_owner(struct sk_store *store, int fd, const char *job,
		      uid_t *ret_uid, struct sk_err *err)
{
	char text[32];
	uint64_t uid;
	int r;

	r = sk_dir_read_text(store->os, fd, SK_OWNER_FILE, text, sizeof(text));
	/* (uid_t)-1 means "nobody said" to the system. */
	if (r == 0 && (!sk_decimal_parse(text, &uid) || uid >= (uid_t)-1))
		r = -EBADMSG;
	if (r == -EBADMSG)
		return sk_err_set(err, r, "%s/%s/%s does not hold a user's "
				  "number: write there whose job it is",
				  store->path, job, SK_OWNER_FILE);
	if (r < 0)
		return sk_err_errno(err, r, "cannot read the owner of job "
				    "\"%s\" of the store \"%s\"", job,
				    store->path);
	*ret_uid = (uid_t)uid;
	return 0;
}

int sk_store_owner(struct sk_store *store, const char *job, uid_t *ret_uid,
		   struct sk_err *err)
{
	int fd, r;

	fd = sk_store_job_dir(store, job, err);
	if (fd < 0)
		return sk_is_gone(fd) ? -ENOENT : fd;
	r = read_owner(store, fd, job, ret_uid, err);
	store->os->close(store->os, fd);
	return r;
}

/* Of two that do so at once one is the first; the other has -EEXIST. */
static int write_owner(struct sk_store *store, int fd, const char *job,
		       uid_t uid, struct sk_err *err)
{
	char text[32];
	int r;

	(void)snprintf(text, sizeof(text), "%" PRIu32 "\n", (uint32_t)uid);
	r = sk_dir_write_new_text(store, fd, SK_OWNER_FILE, text, err);
	return r < 0 ? sk_err_prefix(err, r, "the owner of job \"%s\"", job) :
		       0;
}

int sk_store_claim(struct sk_store *store, const char *job, uid_t uid,
		   uid_t *ret_owner, struct sk_err *err)
{
	int fd, r;

	assert(uid != (uid_t)-1);
	fd = sk_store_make_job_dir(store, job, uid != geteuid() ? root_mode() :
				   SK_DIR_OURS, err);
	if (fd < 0)
		return fd;
	r = read_owner(store, fd, job, ret_owner, err);
	if (r == -ENOENT) {
		r = write_owner(store, fd, job, uid, err);
		/* Also where the last one stands: it may not be ours. */
		if (r == 0 || r == -EEXIST)
			r = read_owner(store, fd, job, ret_owner, err);
	}
	store->os->close(store->os, fd);
	return r;
}
