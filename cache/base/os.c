/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>	/* renameat2 */
#include <sys/file.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/os-private.h"

static int result(int r)
{
	return sk_os_result(r);
}

int sk_os_new_fd(int r)
{
	int high;

	if (r < 0)
		return -errno;
	if (r > STDERR_FILENO)
		return r;
	high = fcntl(r, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (high < 0)
		return r;
	(void)close(r);
	return high;
}

int sk_os_new_fds(int r, const int fds[2], int ret_fds[2])
{
	if (r < 0)
		return -errno;
	for (int i = 0; i < 2; i++)
		ret_fds[i] = sk_os_new_fd(fds[i]);
	return 0;
}

static int linux_openat(const struct sk_os *os, int dirfd, const char *path,
			int flags, mode_t mode)
{
	int fd;

	(void)os;
	/* A program that a trainer starts must not inherit our files. */
	do {
		fd = openat(dirfd, path, flags | O_CLOEXEC, mode);
	} while (fd < 0 && errno == EINTR);
	return sk_os_new_fd(fd);
}

static int linux_close(const struct sk_os *os, int fd)
{
	(void)os;
	/* Linux has released the descriptor even where it says EINTR. */
	if (close(fd) < 0 && errno != EINTR)
		return -errno;
	return 0;
}

static ssize_t linux_pread(const struct sk_os *os, int fd, void *buf,
			   size_t size, uint64_t offset)
{
	ssize_t n;

	(void)os;
	do {
		n = pread(fd, buf, size, (off_t)offset);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static ssize_t linux_pwrite(const struct sk_os *os, int fd, const void *buf,
			    size_t size, uint64_t offset)
{
	ssize_t n;

	(void)os;
	do {
		n = pwrite(fd, buf, size, (off_t)offset);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static int linux_fallocate(const struct sk_os *os, int fd, int mode,
			   uint64_t offset, uint64_t size)
{
	int r;

	(void)os;
	do {
		r = fallocate(fd, mode, (off_t)offset, (off_t)size);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_ftruncate(const struct sk_os *os, int fd, uint64_t size)
{
	int r;

	(void)os;
	do {
		r = ftruncate(fd, (off_t)size);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_fsync(const struct sk_os *os, int fd)
{
	int r;

	(void)os;
	do {
		r = fsync(fd);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_fstat(const struct sk_os *os, int fd, struct stat *ret_st)
{
	struct stat st;

	(void)os;
	if (fstat(fd, &st) < 0)
		return -errno;
	*ret_st = st;
	return 0;
}

static int linux_mkdirat(const struct sk_os *os, int dirfd, const char *path,
			 mode_t mode)
{
	(void)os;
	return result(mkdirat(dirfd, path, mode));
}

static int linux_renameat(const struct sk_os *os, int olddir,
			  const char *old, int newdir, const char *new_name,
			  unsigned flags)
{
	(void)os;
	return result(renameat2(olddir, old, newdir, new_name, flags));
}

static int linux_unlinkat(const struct sk_os *os, int dirfd, const char *path,
			  int flags)
{
	(void)os;
	return result(unlinkat(dirfd, path, flags));
}

static int linux_fstatat(const struct sk_os *os, int dirfd, const char *path,
			 int flags, struct stat *ret_st)
{
	struct stat st;

	(void)os;
	if (fstatat(dirfd, path, &st, flags) < 0)
		return -errno;
	*ret_st = st;
	return 0;
}

static int linux_fstatfs(const struct sk_os *os, int fd,
			 struct statfs *ret_st)
{
	struct statfs st;
	int r;

	(void)os;
	do {
		r = fstatfs(fd, &st);
	} while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	*ret_st = st;
	return 0;
}

static int linux_fchmodat(const struct sk_os *os, int dirfd, const char *path,
			  mode_t mode)
{
	(void)os;
	return result(fchmodat(dirfd, path, mode, 0));
}

static int linux_fchown(const struct sk_os *os, int fd, uid_t uid)
{
	(void)os;
	return result(fchown(fd, uid, (gid_t)-1));
}

static int linux_faccessat(const struct sk_os *os, int dirfd,
			   const char *path, int mode)
{
	(void)os;
	return result(faccessat(dirfd, path, mode, 0));
}

static int linux_fremovexattr(const struct sk_os *os, int fd,
			      const char *name)
{
	(void)os;
	return result(fremovexattr(fd, name));
}

static int linux_getcwd(const struct sk_os *os, char *ret_path, size_t size)
{
	(void)os;
	return getcwd(ret_path, size) ? 0 : -errno;
}

static int linux_chdir(const struct sk_os *os, const char *path)
{
	(void)os;
	return result(chdir(path));
}

static int linux_dup2(const struct sk_os *os, int fd, int as)
{
	int r;

	(void)os;
	do {
		r = dup2(fd, as);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_flock(const struct sk_os *os, int fd, int operation)
{
	int r;

	(void)os;
	do {
		r = flock(fd, operation);
	} while (r < 0 && errno == EINTR);
	return result(r);
}

static int linux_fcntl(const struct sk_os *os, int fd, int command, long arg)
{
	(void)os;
	return result(fcntl(fd, command, arg));
}

static ssize_t linux_read(const struct sk_os *os, int fd, void *buf,
			  size_t size)
{
	ssize_t n;

	(void)os;
	do {
		n = read(fd, buf, size);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static ssize_t linux_write(const struct sk_os *os, int fd, const void *buf,
			   size_t size)
{
	ssize_t n;

	(void)os;
	do {
		n = write(fd, buf, size);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static int linux_pipe(const struct sk_os *os, int ret_fds[2])
{
	int fds[2];

	(void)os;
	return sk_os_new_fds(pipe2(fds, O_CLOEXEC), fds, ret_fds);
}

static ssize_t linux_getdents(const struct sk_os *os, int fd, void *buf,
			      size_t size)
{
	long n;

	(void)os;
	do {
		n = syscall(SYS_getdents64, fd, buf, size);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static int linux_statx(const struct sk_os *os, int fd, unsigned mask,
		       struct statx *ret_st)
{
	(void)os;
	return result(statx(fd, "", AT_EMPTY_PATH, mask, ret_st));
}

static int linux_fadvise(const struct sk_os *os, int fd, int advice)
{
	(void)os;
	return -posix_fadvise(fd, 0, 0, advice);
}

static int linux_random(const struct sk_os *os, void *buf, size_t size)
{
	char *at = buf;
	ssize_t n;

	(void)os;
	while (size) {
		n = getrandom(at, size, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += n;
		size -= (size_t)n;
	}
	return 0;
}

static int linux_uring_result(const struct sk_os *os, enum sk_uring_op op,
			      int uring_result)
{
	(void)os;
	(void)op;
	return uring_result;
}

static const struct sk_os linux_os = {
	.openat = linux_openat,
	.close = linux_close,
	.pread = linux_pread,
	.pwrite = linux_pwrite,
	.fallocate = linux_fallocate,
	.ftruncate = linux_ftruncate,
	.fsync = linux_fsync,
	.fstat = linux_fstat,
	.mkdirat = linux_mkdirat,
	.renameat = linux_renameat,
	.unlinkat = linux_unlinkat,
	.fstatat = linux_fstatat,
	.fstatfs = linux_fstatfs,
	.fchmodat = linux_fchmodat,
	.fchown = linux_fchown,
	.faccessat = linux_faccessat,
	.fremovexattr = linux_fremovexattr,
	.getcwd = linux_getcwd,
	.chdir = linux_chdir,
	.dup2 = linux_dup2,
	.flock = linux_flock,
	.fcntl = linux_fcntl,
	.read = linux_read,
	.write = linux_write,
	.pipe = linux_pipe,
	.getdents = linux_getdents,
	.statx = linux_statx,
	.fadvise = linux_fadvise,
	.memfd_create = sk_linux_memfd_create,
	.fcntl_seal = sk_linux_fcntl_seal,
	.mmap = sk_linux_mmap,
	.munmap = sk_linux_munmap,
	.madvise = sk_linux_madvise,
	.mincore = sk_linux_mincore,
	.mbind = sk_linux_mbind,
	.mprotect = sk_linux_mprotect,
	.socket = sk_linux_socket,
	.socketpair = sk_linux_socketpair,
	.bind = sk_linux_bind,
	.listen = sk_linux_listen,
	.connect = sk_linux_connect,
	.accept = sk_linux_accept,
	.shutdown = sk_linux_shutdown,
	.getsockopt = sk_linux_getsockopt,
	.setsockopt = sk_linux_setsockopt,
	.getsockname = sk_linux_getsockname,
	.sendmsg = sk_linux_sendmsg,
	.recvmsg = sk_linux_recvmsg,
	.epoll_create = sk_linux_epoll_create,
	.epoll_ctl = sk_linux_epoll_ctl,
	.epoll_wait = sk_linux_epoll_wait,
	.poll = sk_linux_poll,
	.cond_wait = sk_linux_cond_wait,
	.fork = sk_linux_fork,
	.spawn = sk_linux_spawn,
	.waitpid = sk_linux_waitpid,
	.kill = sk_linux_kill,
	.pidfd_open = sk_linux_pidfd_open,
	.alarm = sk_linux_alarm,
	.setsid = sk_linux_setsid,
	.setpriority = sk_linux_setpriority,
	.getrlimit = sk_linux_getrlimit,
	.setrlimit = sk_linux_setrlimit,
	.dlopen = sk_linux_dlopen,
	.dlsym = sk_linux_dlsym,
	.signalfd = sk_linux_signalfd,
	.eventfd = sk_linux_eventfd,
	.now_ns = sk_linux_now_ns,
	.wall_ns = sk_linux_wall_ns,
	.random = linux_random,
	.uring_result = linux_uring_result,
};

const struct sk_os *sk_os_linux(void)
{
	return &linux_os;
}
