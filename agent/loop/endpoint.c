/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory, the lock and the socket. A socket file is removed only under
 * the lock, so it is either ours or a dead agent's.
 */
#include "loop/endpoint.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/un.h>

#include "base/util.h"

/* Short: who comes while others keep it full is one of few. */
#define BACKLOG 32
#define LISTEN_NS UINT64_C(2000000000)	/* most, from the lock on */
#define RETRY_NS UINT64_C(20000000)

/* Where no --socket says it: the system's place, the user's, or /tmp. */
static int choose_path(const struct sk_os *os, char *path, size_t size,
		       struct sk_err *err)
{
	const char *run = getenv("XDG_RUNTIME_DIR");
	int n;

	if (geteuid() == 0 ||
	    os->faccessat(os, AT_FDCWD, "/run/shardkeep", W_OK) == 0)
		n = snprintf(path, size, "/run/shardkeep/agent.sock");
	else if (run && *run == '/')
		n = snprintf(path, size, "%s/shardkeep/agent.sock", run);
	else
		n = snprintf(path, size, "/tmp/shardkeep-%u/agent.sock",
			     (unsigned)geteuid());
	if (n < 0 || (size_t)n >= size)
		return sk_err_set(err, -ENAMETOOLONG, "the socket's path is "
				  "longer than %zu bytes; use --socket",
				  size - 1);
	return 0;
}

static int check_dir(const struct sk_os *os, const char *dir, bool ours,
		     struct sk_err *err)
{
	struct stat st;
	int r;

	r = os->fstatat(os, AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, &st);
	if (r < 0)
		return sk_err_errno(err, r, "cannot look at %s", dir);
	if (!S_ISDIR(st.st_mode))
		return sk_err_set(err, -ENOTDIR, "%s is not a directory", dir);
	/* A named directory may be shared on purpose; a chosen one that
	 * somebody else made is a trap. */
	if (ours && (st.st_uid != geteuid() || st.st_mode & 022))
		return sk_err_set(err, -EPERM, "%s belongs to uid %u with "
				  "mode %04o, it must be ours alone to "
				  "write; remove it or use --socket", dir,
				  (unsigned)st.st_uid, st.st_mode & 07777u);
	return 0;
}

static int make_dir(const struct sk_os *os, const char *path, bool chosen,
		    struct sk_err *err)
{
	mode_t mode = strncmp(path, "/run/shardkeep/", 15) == 0 ? 0755 : 0700;
	char dir[PATH_MAX], *slash;
	int r;

	(void)snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return 0;
	*slash = 0;
	r = os->mkdirat(os, AT_FDCWD, dir, mode);
	if (r < 0 && r != -EEXIST)
		return sk_err_errno(err, r, "cannot make %s", dir);
	/* Whatever the umask: other users must be able to come, and we. One
	 * that was made by somebody is as they want it. */
	if (r == 0 || (chosen && mode == 0755))
		(void)os->fchmodat(os, AT_FDCWD, dir, mode);
	return check_dir(os, dir, chosen, err);
}

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	assert(strlen(path) < sizeof(addr.sun_path));
	memcpy(addr.sun_path, path, strlen(path) + 1);
	return addr;
}

static int connect_to(const struct sk_os *os, const char *path)
{
	const struct sockaddr_un addr = address_of(path);
	int fd, r;

	fd = os->socket(os, AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fd;
	r = os->connect(os, fd, (const struct sockaddr *)&addr, sizeof(addr));
	(void)os->close(os, fd);
	/* EAGAIN: its queue is full, so there is one who listens. */
	return r == -EAGAIN ? 0 : r;
}

/* Where several begin at once, the quickest has the lock a moment before it
 * listens: the others wait for that. 1: it answers. */
static int await_lock(const struct sk_os *os, const struct endpoint *e)
{
	uint64_t until_ns = os->now_ns(os) + LISTEN_NS;
	int r;

	for (;;) {
		r = os->flock(os, e->lock, LOCK_EX | LOCK_NB);
		if (r != -EWOULDBLOCK)
			return r;
		if (connect_to(os, e->path) == 0)
			return 1;
		if (os->now_ns(os) >= until_ns)
			return r;
		(void)os->poll(os, NULL, 0, os->now_ns(os) + RETRY_NS);
	}
}

/* The lock that we hold is the one that others would try to take. */
static bool lock_is_there(const struct sk_os *os, const struct endpoint *e)
{
	char path[sizeof(e->path) + 8];
	struct stat ours, there;

	(void)snprintf(path, sizeof(path), "%s.lock", e->path);
	return os->fstat(os, e->lock, &ours) >= 0 &&
	       os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW,
			   &there) >= 0 &&
	       ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

static int take_lock(const struct sk_os *os, struct endpoint *e,
		     struct sk_err *err)
{
	char path[sizeof(e->path) + 8];
	int r;

	(void)snprintf(path, sizeof(path), "%s.lock", e->path);
	e->lock = os->openat(os, AT_FDCWD, path,
			     O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
	if (e->lock < 0)
		return sk_err_errno(err, e->lock, "cannot open the lock %s",
				    path);
	r = await_lock(os, e);
	if (r >= 0)
		return r;
	if (r != -EWOULDBLOCK)
		return sk_err_errno(err, r, "cannot lock %s", path);
	return sk_err_set(err, -EBUSY, "another agent holds %s but does not "
			  "answer (yet); wait for it, or end it", path);
}

static int remember_file(const struct sk_os *os, struct endpoint *e,
			 struct sk_err *err)
{
	struct stat st;
	int r = os->fstatat(os, AT_FDCWD, e->path, AT_SYMLINK_NOFOLLOW, &st);

	if (r < 0)
		return sk_err_errno(err, r, "cannot look at %s", e->path);
	e->dev = st.st_dev;
	e->ino = st.st_ino;
	return 0;
}

/* A name that was mistyped may be that of somebody's file, or of another
 * service's socket. */
static int check_name(const struct sk_os *os, const char *path,
		      struct sk_err *err)
{
	struct stat st;
	int r = os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &st);

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return sk_err_errno(err, r, "cannot look at %s", path);
	if (!S_ISSOCK(st.st_mode))
		return sk_err_set(err, -EEXIST, "%s is there already and is no "
				  "socket; give --socket another path, or "
				  "remove it", path);
	if (connect_to(os, path) == -EPROTOTYPE)
		return sk_err_set(err, -EADDRINUSE, "%s is the socket of "
				  "another service; give --socket another "
				  "path", path);
	return 0;
}

static int bind_socket(const struct sk_os *os, struct endpoint *e,
		       struct sk_err *err)
{
	const struct sockaddr_un addr = address_of(e->path);
	int r;

	r = check_name(os, e->path, err);
	if (r < 0)
		return r;
	e->sock = os->socket(os, AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	if (e->sock < 0)
		return sk_err_errno(err, e->sock, "cannot make a socket");
	r = os->unlinkat(os, AT_FDCWD, e->path, 0);
	if (r < 0 && r != -ENOENT)
		return sk_err_errno(err, r, "cannot remove the dead socket "
				    "%s", e->path);
	r = os->bind(os, e->sock, (const struct sockaddr *)&addr,
		     sizeof(addr));
	if (r < 0)
		return sk_err_errno(err, r, "cannot bind %s", e->path);
	/* The directory says who may come; below /run all users may. */
	r = os->fchmodat(os, AT_FDCWD, e->path, 0666);
	if (r < 0)
		return sk_err_errno(err, r, "cannot open %s to clients",
				    e->path);
	r = os->listen(os, e->sock, BACKLOG);
	if (r < 0)
		return sk_err_errno(err, r, "cannot listen on %s", e->path);
	return remember_file(os, e, err);
}

int endpoint_find(const struct sk_os *os, const char *path,
		  struct endpoint *e, struct sk_err *err)
{
	if (!path)
		return choose_path(os, e->path, sizeof(e->path), err);
	if (strlen(path) >= sizeof(e->path))
		return sk_err_set(err, -ENAMETOOLONG, "the socket %s has a "
				  "path of more than %zu bytes", path,
				  sizeof(e->path) - 1);
	(void)snprintf(e->path, sizeof(e->path), "%s", path);
	return 0;
}

static int open_at(const struct sk_os *os, const char *path,
		   struct endpoint *e, struct sk_err *err)
{
	int r;

	e->chosen = !path;
	r = endpoint_find(os, path, e, err);
	if (r == 0)
		r = make_dir(os, e->path, !path, err);
	if (r == 0 && (e->lock < 0 || !lock_is_there(os, e))) {
		e->lock = sk_close_fd(e->lock);
		r = take_lock(os, e, err);
	}
	if (r)
		return r;
	/* Whoever else bound the name would have had to have the lock. */
	if (e->sock >= 0 && remember_file(os, e, err) == 0)
		return 0;
	e->sock = sk_close_fd(e->sock);
	return bind_socket(os, e, err);
}

int endpoint_adopt(const struct sk_os *os, const char *path, int lock,
		   int sock, struct endpoint *ret, struct sk_err *err)
{
	/* Without the lock, another agent's socket may have its name. */
	struct endpoint e = { .lock = lock,
			      .sock = lock < 0 ? sk_close_fd(sock) : sock };
	int r = open_at(os, path, &e, err);

	if (r) {
		e.sock = sk_close_fd(e.sock);
		e.lock = sk_close_fd(e.lock);
	}
	*ret = e;
	return r;
}

int endpoint_open(const struct sk_os *os, const char *path,
		  struct endpoint *ret, struct sk_err *err)
{
	return endpoint_adopt(os, path, -1, -1, ret, err);
}

bool endpoint_is_there(const struct sk_os *os, const struct endpoint *e)
{
	struct stat st;

	return os->fstatat(os, AT_FDCWD, e->path, AT_SYMLINK_NOFOLLOW,
			   &st) >= 0 &&
	       st.st_dev == e->dev && st.st_ino == e->ino;
}

int endpoint_renew(const struct sk_os *os, struct endpoint *e,
		   struct sk_err *err)
{
	struct endpoint fresh = *e;
	bool locked = lock_is_there(os, e);
	int r;

	fresh.sock = -1;
	fresh.lock = locked ? e->lock : -1;
	r = make_dir(os, fresh.path, fresh.chosen, err);
	if (r == 0 && !locked)
		r = take_lock(os, &fresh, err);
	if (r == 0)
		r = bind_socket(os, &fresh, err);
	if (r) {
		sk_close_fd(fresh.sock);
		sk_close_fd(locked ? -1 : fresh.lock);
		return r;
	}
	sk_close_fd(e->sock);
	sk_close_fd(locked ? -1 : e->lock);
	*e = fresh;
	return 0;
}

void endpoint_log_path(const struct endpoint *e, char *ret, size_t size)
{
	const char *slash = strrchr(e->path, '/');
	int dir = slash ? (int)(slash - e->path) + 1 : 0;

	(void)snprintf(ret, size, "%.*sagent.log", dir, e->path);
}

void endpoint_leave(struct endpoint *e)
{
	e->sock = sk_close_fd(e->sock);
	e->lock = sk_close_fd(e->lock);
}

void endpoint_close(const struct sk_os *os, struct endpoint *e)
{
	/* The lock's file stays: removing it would let two agents lock two
	 * files of one name. */
	if (e->sock >= 0 && endpoint_is_there(os, e))
		(void)os->unlinkat(os, AT_FDCWD, e->path, 0);
	endpoint_leave(e);
}
