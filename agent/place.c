/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's place: a directory that nobody else can write, a lock in it
 * that one agent holds, and the socket. A socket file is removed only under
 * the lock, so it is either ours or a dead agent's.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "agent.h"

#define BACKLOG 1024

/* Where no --socket says it: the system's place, the user's, or /tmp. */
static int choose_path(char *path, size_t size, struct sk_err *err)
{
	const char *run = getenv("XDG_RUNTIME_DIR");
	int n;

	if (geteuid() == 0 || access("/run/shardkeep", W_OK) == 0)
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

static int check_dir(const char *dir, bool ours, struct sk_err *err)
{
	struct stat st;

	if (lstat(dir, &st) < 0)
		return sk_err_errno(err, -errno, "cannot look at %s", dir);
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

static int make_dir(const char *path, bool chosen, struct sk_err *err)
{
	mode_t mode = strncmp(path, "/run/shardkeep/", 15) == 0 ? 0755 : 0700;
	char dir[PATH_MAX], *slash;

	(void)snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return 0;
	*slash = 0;
	if (mkdir(dir, mode) < 0 && errno != EEXIST)
		return sk_err_errno(err, -errno, "cannot make %s", dir);
	/* Whatever the umask: other users must be able to come. */
	if (chosen && mode == 0755)
		(void)chmod(dir, mode);
	return check_dir(dir, chosen, err);
}

static int connect_to(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd, r = 0;

	memcpy(addr.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* EAGAIN: its queue is full, so there is one who listens. */
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 &&
	    errno != EAGAIN)
		r = -errno;
	close(fd);
	return r;
}

static int take_lock(struct place *p, struct sk_err *err)
{
	char path[sizeof(p->path) + 8];

	(void)snprintf(path, sizeof(path), "%s.lock", p->path);
	p->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (p->lock < 0)
		return sk_err_errno(err, -errno, "cannot open the lock %s",
				    path);
	if (flock(p->lock, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return sk_err_errno(err, -errno, "cannot lock %s", path);
	if (connect_to(p->path) == 0)
		return 1;
	return sk_err_set(err, -EBUSY, "another agent holds %s but does not "
			  "answer (yet); wait for it, or end it", path);
}

static int bind_socket(struct place *p, struct sk_err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	memcpy(addr.sun_path, p->path, strlen(p->path) + 1);
	p->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC |
			 SOCK_NONBLOCK, 0);
	if (p->sock < 0)
		return sk_err_errno(err, -errno, "cannot make a socket");
	if (unlink(p->path) < 0 && errno != ENOENT)
		return sk_err_errno(err, -errno, "cannot remove the dead "
				    "socket %s", p->path);
	if (bind(p->sock, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return sk_err_errno(err, -errno, "cannot bind %s", p->path);
	/* The directory says who may come; below /run all users may. */
	if (chmod(p->path, 0666) < 0)
		return sk_err_errno(err, -errno, "cannot open %s to clients",
				    p->path);
	if (listen(p->sock, BACKLOG) < 0)
		return sk_err_errno(err, -errno, "cannot listen on %s",
				    p->path);
	return 0;
}

int place_take(const char *path, struct place *ret, struct sk_err *err)
{
	struct place p = { .lock = -1, .sock = -1 };
	int r = 0;

	if (!path)
		r = choose_path(p.path, sizeof(p.path), err);
	else if (strlen(path) >= sizeof(p.path))
		r = sk_err_set(err, -ENAMETOOLONG, "the socket %s has a path "
			       "of more than %zu bytes", path,
			       sizeof(p.path) - 1);
	else
		(void)snprintf(p.path, sizeof(p.path), "%s", path);
	if (r == 0)
		r = make_dir(p.path, !path, err);
	if (r == 0)
		r = take_lock(&p, err);
	if (r == 0)
		r = bind_socket(&p, err);
	if (r) {
		sk_close_fd(p.sock);
		sk_close_fd(p.lock);
		if (r > 0)
			(void)snprintf(ret->path, sizeof(ret->path), "%s",
				       p.path);
		return r;
	}
	*ret = p;
	return 0;
}

void place_leave(struct place *p)
{
	/* The lock's file stays: removing it would let two agents lock two
	 * files of one name. */
	if (p->sock >= 0)
		(void)unlink(p->path);
	p->sock = sk_close_fd(p->sock);
	p->lock = sk_close_fd(p->lock);
}
