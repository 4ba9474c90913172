/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "fault-os.h"
#include "base/util.h"

/* ---- a directory of the test's own ---- */

struct dir {
	char path[64];
	int fd;
};

static struct dir make_dir(void)
{
	struct dir dir = { .path = "/tmp/shardkeep-test-XXXXXX" };

	cr_assert_not_null(mkdtemp(dir.path));
	dir.fd = open(dir.path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	cr_assert_geq(dir.fd, 0);
	return dir;
}

static void drop_dir(struct dir *dir)
{
	close(dir->fd);
	cr_assert_eq(rmdir(dir->path), 0, "%s is not empty", dir->path);
}

/* ---- the real system ---- */

static void stale(void)
{
	errno = EINTR;
}

/* Each call that begins again when a signal comes: what is in errno from
 * before is none of its business, and it would never end. */
Test(os, an_interruption_of_long_ago_is_none)
{
	const struct sk_os *os = sk_os_linux();
	struct dir dir = make_dir();
	struct statfs fs;
	char buf[512];
	int fd;

	stale();
	fd = os->openat(os, dir.fd, "a", O_RDWR | O_CREAT | O_EXCL, 0600);
	cr_assert_geq(fd, 0);
	stale();
	cr_assert_eq(os->pwrite(os, fd, "ab", 2, 0), 2);
	stale();
	cr_assert_eq(os->pread(os, fd, buf, 2, 0), 2);
	stale();
	cr_assert_eq(os->pread(os, fd, buf, 2, 2), 0);
	stale();
	cr_assert_eq(os->write(os, fd, "ab", 2), 2);
	stale();
	cr_assert_eq(os->write(os, fd, "", 0), 0);
	stale();
	cr_assert_eq(os->read(os, fd, buf, 2), 0);
	stale();
	cr_assert_eq(os->ftruncate(os, fd, 1), 0);
	stale();
	cr_assert_eq(os->fallocate(os, fd, 0, 0, 100), 0);
	stale();
	cr_assert_eq(os->fsync(os, fd), 0);
	stale();
	cr_assert_eq(os->fstatfs(os, fd, &fs), 0);
	stale();
	cr_assert_eq(os->flock(os, fd, LOCK_EX), 0);
	stale();
	cr_assert_eq(os->dup2(os, fd, fd), fd);
	stale();
	cr_assert_gt(os->getdents(os, dir.fd, buf, sizeof(buf)), 0);
	stale();
	cr_assert_eq(os->random(os, buf, sizeof(buf)), 0);
	stale();
	cr_assert_eq(os->close(os, fd), 0);
	cr_assert_eq(os->unlinkat(os, dir.fd, "a", 0), 0);
	drop_dir(&dir);
}

Test(os, finds_what_a_library_has_and_says_what_it_lacks)
{
	const struct sk_os *os = sk_os_linux();
	void *library, *symbol;

	cr_assert_eq(os->dlopen(os, "libnobody.so.7", RTLD_NOW, &library),
		     -ENOENT);
	cr_assert_eq(os->dlopen(os, NULL, RTLD_NOW, &library), 0);
	cr_assert_eq(os->dlsym(os, library, "malloc", &symbol), 0);
	cr_assert_not_null(symbol);
	cr_assert_eq(os->dlsym(os, library, "nobody_s_function", &symbol),
		     -ENOENT);
}

Test(os, every_operation_is_there)
{
	const struct sk_os *os = sk_os_linux();

	cr_assert(os->openat && os->close && os->pread && os->pwrite);
	cr_assert(os->fallocate && os->ftruncate && os->fsync && os->fstat);
	cr_assert(os->mkdirat && os->renameat && os->unlinkat);
	cr_assert(os->memfd_create && os->fcntl_seal && os->mmap);
	cr_assert(os->munmap && os->madvise && os->now_ns && os->wall_ns);
	cr_assert(os->random && os->uring_result);
}

/* 0, or which operation took the place of standard input. */
static int take_places(const struct sk_os *os, struct dir *dir)
{
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1,
			      .msg_control = control.room,
			      .msg_controllen = sizeof(control.room) };
	int pair[2], pipe[2], low = open("/dev/null", O_RDONLY | O_CLOEXEC);
	sigset_t none;

	sigemptyset(&none);
	if (low != 0 || os->socketpair(os, AF_UNIX, SOCK_SEQPACKET, 0, pair))
		return 1;
	*CMSG_FIRSTHDR(&msg) = (struct cmsghdr){ CMSG_LEN(sizeof(int)),
						 SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), &low, sizeof(low));
	if (os->sendmsg(os, pair[0], &msg, 0) != 1)
		return 2;
	(void)close(low);
	if (os->recvmsg(os, pair[1], &msg, 0) != 1)
		return 3;
	memcpy(&low, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(low));
	if (pair[0] < 3 || pair[1] < 3 || low < 3)
		return 4;
	if (os->pipe(os, pipe) || pipe[0] < 3 || pipe[1] < 3)
		return 5;
	if (os->socket(os, AF_UNIX, SOCK_SEQPACKET, 0) < 3 ||
	    os->memfd_create(os, "m", 0) < 3 || os->eventfd(os) < 3 ||
	    os->epoll_create(os) < 3 || os->signalfd(os, &none) < 3 ||
	    os->pidfd_open(os, getpid()) < 3)
		return 6;
	return os->openat(os, dir->fd, ".", O_RDONLY, 0) < 3 ? 7 :
	       fcntl(0, F_GETFD) >= 0 ? 8 : 0;
}

Test(os, what_a_program_prints_goes_to_no_descriptor_of_ours)
{
	struct dir dir = make_dir();
	pid_t pid = fork();
	int status;

	cr_assert_geq(pid, 0);
	if (!pid) {
		for (int fd = 0; fd < 3; fd++)
			(void)close(fd);
		_exit(take_places(sk_os_linux(), &dir));
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status));
	cr_assert_eq(WEXITSTATUS(status), 0, "%d", WEXITSTATUS(status));
	drop_dir(&dir);
}

Test(os, files_live_and_die)
{
	const struct sk_os *os = sk_os_linux();
	struct dir dir = make_dir();
	char text[4] = { 0 };
	struct stat st;
	int fd;

	fd = os->openat(os, dir.fd, "a", O_RDWR | O_CREAT | O_EXCL, 0600);
	cr_assert_geq(fd, 0);
	cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	cr_assert_eq(os->fallocate(os, fd, 0, 0, 100), 0);
	cr_assert_eq(os->pwrite(os, fd, "abc", 3, 7), 3);
	cr_assert_eq(os->pread(os, fd, text, 3, 7), 3);
	cr_assert_str_eq(text, "abc");
	cr_assert_eq(os->ftruncate(os, fd, 5000), 0);
	cr_assert_eq(os->fsync(os, fd), 0);
	cr_assert_eq(os->fstat(os, fd, &st), 0);
	cr_assert_eq(st.st_size, 5000);
	cr_assert_eq(os->fchown(os, fd, geteuid()), 0);
	cr_assert_eq(os->close(os, fd), 0);
	cr_assert_eq(os->fchown(os, fd, geteuid()), -EBADF);
	cr_assert_eq(os->mkdirat(os, dir.fd, "d", 0700), 0);
	cr_assert_eq(os->renameat(os, dir.fd, "a", dir.fd, "d/b",
				  RENAME_NOREPLACE), 0);
	cr_assert_eq(os->unlinkat(os, dir.fd, "d/b", 0), 0);
	cr_assert_eq(os->unlinkat(os, dir.fd, "d", AT_REMOVEDIR), 0);
	drop_dir(&dir);
}

Test(os, offsets_pass_four_gibibytes)
{
	const struct sk_os *os = sk_os_linux();
	uint64_t far = (UINT64_C(5) << 30) + 3;
	int fd = os->memfd_create(os, "far", MFD_CLOEXEC);
	struct stat st;
	char c = 0;

	cr_assert_geq(fd, 0);
	cr_assert_eq(os->ftruncate(os, fd, far), 0);
	cr_assert_eq(os->pwrite(os, fd, "x", 1, far), 1);
	cr_assert_eq(os->pread(os, fd, &c, 1, far), 1);
	cr_assert_eq(c, 'x');
	cr_assert_eq(os->fstat(os, fd, &st), 0);
	cr_assert_eq((uint64_t)st.st_size, far + 1);
	os->close(os, fd);
}

Test(os, a_process_says_where_and_who_it_is)
{
	const struct sk_os *os = sk_os_linux();
	struct dir dir = make_dir();
	char path[4096];
	int fd;

	cr_assert_eq(os->faccessat(os, dir.fd, ".", W_OK), 0);
	cr_assert_eq(os->faccessat(os, dir.fd, "none", F_OK), -ENOENT);
	cr_assert_eq(os->chdir(os, dir.path), 0);
	cr_assert_eq(os->getcwd(os, path, sizeof(path)), 0);
	cr_assert_str_eq(path, dir.path);
	cr_assert_eq(os->getcwd(os, path, 1), -ERANGE);
	cr_assert_eq(os->chdir(os, "/no/such/place"), -ENOENT);
	fd = os->openat(os, dir.fd, ".", O_RDONLY, 0);
	cr_assert_eq(os->dup2(os, fd, fd + 1), fd + 1);
	cr_assert_eq(os->dup2(os, -1, fd), -EBADF);
	cr_assert_eq(os->setpriority(os, PRIO_PROCESS, 0, 19), 0);
	cr_assert_eq(getpriority(PRIO_PROCESS, 0), 19);
	/* Of a leader's own group there is no new session to be made. */
	(void)os->setsid(os);
	cr_assert_eq(os->setsid(os), -EPERM);
	sk_close_fd(fd + 1);
	sk_close_fd(fd);
	drop_dir(&dir);
}

Test(os, failures_are_negative_errnos)
{
	const struct sk_os *os = sk_os_linux();
	struct stat st = { .st_size = 77 };
	struct dir dir = make_dir();
	void *map = &st;
	char c;

	cr_assert_eq(os->openat(os, dir.fd, "none", O_RDONLY, 0), -ENOENT);
	cr_assert_eq(os->close(os, -1), -EBADF);
	cr_assert_eq(os->pread(os, -1, &c, 1, 0), -EBADF);
	cr_assert_eq(os->pwrite(os, -1, "x", 1, 0), -EBADF);
	cr_assert_eq(os->fallocate(os, -1, 0, 0, 1), -EBADF);
	cr_assert_eq(os->ftruncate(os, dir.fd, 1), -EINVAL);
	cr_assert_eq(os->fsync(os, -1), -EBADF);
	cr_assert_eq(os->fstat(os, -1, &st), -EBADF);
	cr_assert_eq(st.st_size, 77);
	cr_assert_eq(os->mkdirat(os, dir.fd, ".", 0700), -EEXIST);
	cr_assert_eq(os->renameat(os, dir.fd, "none", dir.fd, "b", 0),
		     -ENOENT);
	cr_assert_eq(os->unlinkat(os, dir.fd, "none", 0), -ENOENT);
	cr_assert_eq(os->memfd_create(os, "m", ~0u), -EINVAL);
	cr_assert_eq(os->fcntl_seal(os, -1, F_SEAL_GROW), -EBADF);
	cr_assert_eq(os->mmap(os, NULL, 4096, PROT_READ, MAP_SHARED, -1, 0,
			      &map), -EBADF);
	cr_assert_eq(map, &st);
	cr_assert_eq(os->munmap(os, (void *)1, 1), -EINVAL);
	cr_assert_eq(os->madvise(os, (void *)1, 1, MADV_DONTDUMP), -EINVAL);
	drop_dir(&dir);
}

Test(os, failures_of_descriptors_are_negative_errnos)
{
	const struct sk_os *os = sk_os_linux();
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(at);
	struct msghdr msg = { 0 };
	struct epoll_event event = { 0 };
	struct statx sx = { 0 };
	struct statfs fs;
	struct stat st;
	char bytes[64];
	int value = 0;

	cr_assert_eq(os->fstatfs(os, -1, &fs), -EBADF);
	cr_assert_eq(os->fstatat(os, -1, "x", 0, &st), -EBADF);
	cr_assert_eq(os->fchmodat(os, -1, "x", 0600), -EBADF);
	cr_assert_eq(os->faccessat(os, -1, "x", R_OK), -EBADF);
	cr_assert_eq(os->fremovexattr(os, -1, "user.x"), -EBADF);
	cr_assert_eq(os->flock(os, -1, LOCK_EX), -EBADF);
	cr_assert_eq(os->fcntl(os, -1, F_GETFD, 0), -EBADF);
	cr_assert_eq(os->read(os, -1, bytes, 1), -EBADF);
	cr_assert_eq(os->write(os, -1, "x", 1), -EBADF);
	cr_assert_eq(os->getdents(os, -1, bytes, sizeof(bytes)), -EBADF);
	cr_assert_eq(os->statx(os, -1, STATX_SIZE, &sx), -EBADF);
	cr_assert_eq(os->fadvise(os, -1, POSIX_FADV_NORMAL), -EBADF);
	cr_assert_eq(os->bind(os, -1, (struct sockaddr *)&at, size), -EBADF);
	cr_assert_eq(os->connect(os, -1, (struct sockaddr *)&at, size),
		     -EBADF);
	cr_assert_eq(os->listen(os, -1, 1), -EBADF);
	cr_assert_eq(os->accept(os, -1, 0), -EBADF);
	cr_assert_eq(os->shutdown(os, -1, SHUT_WR), -EBADF);
	cr_assert_eq(os->getsockname(os, -1, (struct sockaddr *)&at, &size),
		     -EBADF);
	size = sizeof(value);
	cr_assert_eq(os->getsockopt(os, -1, SOL_SOCKET, SO_TYPE, &value,
				    &size), -EBADF);
	cr_assert_eq(os->setsockopt(os, -1, SOL_SOCKET, SO_SNDBUF, &value,
				    size), -EBADF);
	cr_assert_eq(os->sendmsg(os, -1, &msg, 0), -EBADF);
	cr_assert_eq(os->recvmsg(os, -1, &msg, 0), -EBADF);
	cr_assert_eq(os->epoll_ctl(os, -1, EPOLL_CTL_ADD, 0, &event), -EBADF);
}

Test(os, failures_of_the_rest_are_negative_errnos)
{
	const struct sk_os *os = sk_os_linux();
	struct rlimit limit = { .rlim_cur = 2, .rlim_max = 1 };
	unsigned char seen;
	char path[2];
	int fds[2], status;

	cr_assert_eq(os->mprotect(os, (void *)1, 1, PROT_READ), -EINVAL);
	cr_assert_eq(os->mincore(os, (void *)1, 1, &seen), -EINVAL);
	cr_assert_eq(os->mbind(os, (void *)1, 1, 0, NULL, 0), -EINVAL);
	cr_assert_eq(os->socket(os, -1, SOCK_STREAM, 0), -EAFNOSUPPORT);
	cr_assert_eq(os->socketpair(os, -1, SOCK_STREAM, 0, fds),
		     -EAFNOSUPPORT);
	cr_assert_eq(os->getcwd(os, path, 1), -ERANGE);
	cr_assert_eq(os->chdir(os, "/nonexistent"), -ENOENT);
	cr_assert_eq(os->waitpid(os, getpid(), &status), -ECHILD);
	cr_assert_eq(os->kill(os, getpid(), -1), -EINVAL);
	cr_assert_eq(os->pidfd_open(os, -1), -EINVAL);
	cr_assert_eq(os->setpriority(os, -1, 0, 0), -EINVAL);
	cr_assert_eq(os->getrlimit(os, -1, &limit), -EINVAL);
	cr_assert_eq(os->setrlimit(os, RLIMIT_CORE, &limit), -EINVAL);
}

Test(os, memory_is_mapped_and_sealed)
{
	const struct sk_os *os = sk_os_linux();
	int fd = os->memfd_create(os, "m", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char *map;

	cr_assert_geq(fd, 0);
	cr_assert_eq(os->ftruncate(os, fd, 8192), 0);
	cr_assert_eq(os->fcntl_seal(os, fd, F_SEAL_SHRINK), 0);
	cr_assert_eq(os->ftruncate(os, fd, 0), -EPERM);
	cr_assert_eq(os->mmap(os, NULL, 4096, PROT_READ | PROT_WRITE,
			      MAP_SHARED, fd, 4096, (void **)&map), 0);
	map[1] = 'y';
	cr_assert_eq(os->madvise(os, map, 4096, MADV_DONTDUMP), 0);
	cr_assert_eq(os->pread(os, fd, (char[1]){ 0 }, 1, 4097), 1);
	cr_assert_eq(os->munmap(os, map, 4096), 0);
	os->close(os, fd);
}

Test(os, clocks_run_and_random_bytes_differ)
{
	const struct sk_os *os = sk_os_linux();
	uint64_t first = os->now_ns(os);
	char a[300] = { 0 }, b[300] = { 0 };

	cr_assert_geq(os->now_ns(os), first);
	/* After 2020, before 2200. */
	cr_assert_gt(os->wall_ns(os), UINT64_C(1577836800000000000));
	cr_assert_lt(os->wall_ns(os), UINT64_C(7258118400000000000));
	cr_assert_eq(os->random(os, a, sizeof(a)), 0);
	cr_assert_eq(os->random(os, b, sizeof(b)), 0);
	cr_assert_neq(memcmp(a, b, sizeof(a)), 0);
	cr_assert_neq(memcmp(a + 250, (char[50]){ 0 }, 50), 0);
	cr_assert_eq(os->uring_result(os, SK_URING_READ, -5), -5);
	cr_assert_eq(os->uring_result(os, SK_URING_WRITE, 4096), 4096);
}

Test(os, waits_end_at_their_deadline)
{
	const struct sk_os *os = sk_os_linux();
	uint64_t now = os->now_ns(os), until = now + 20000000;
	int wake = os->eventfd(os), epoll = os->epoll_create(os);
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd p = { .fd = wake, .events = POLLIN };
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	pthread_cond_t cond;

	sk_cond_init(&cond);
	cr_assert_eq(os->epoll_ctl(os, epoll, EPOLL_CTL_ADD, wake, &event), 0);
	cr_assert_eq(os->poll(os, &p, 1, until), -ETIMEDOUT);
	cr_assert_geq(os->now_ns(os), until);
	cr_assert_eq(os->epoll_wait(os, epoll, &event, 1, until), -ETIMEDOUT);
	pthread_mutex_lock(&mutex);
	while (os->cond_wait(os, &cond, &mutex, until + 1000000) == 0)
		;
	cr_assert_geq(os->now_ns(os), until + 1000000);
	pthread_mutex_unlock(&mutex);
	cr_assert_eq(os->write(os, wake, &(uint64_t){ 1 }, 8), 8);
	cr_assert_eq(os->poll(os, &p, 1, SK_FOREVER), 1);
	cr_assert_eq(os->epoll_wait(os, epoll, &event, 1, SK_FOREVER), 1);
	pthread_cond_destroy(&cond);
	sk_close_fd(epoll);
	sk_close_fd(wake);
}

Test(os, a_program_is_started_and_inherits_one_descriptor)
{
	const struct sk_os *os = sk_os_linux();
	char text[64], *argv[] = { (char *)"sh", (char *)"-c", text, NULL };
	int fds[2], status = 0, pid;
	char c = 0;

	cr_assert_eq(os->pipe(os, fds), 0);
	cr_assert_eq(os->fcntl(os, fds[1], F_GETFD, 0), FD_CLOEXEC);
	snprintf(text, sizeof(text), "printf x >/proc/self/fd/%d", SK_SPAWN_FD);
	pid = os->spawn(os, "sh", argv, fds[1]);
	cr_assert_gt(pid, 0);
	cr_assert_eq(os->waitpid(os, pid, &status), pid);
	cr_assert_eq(status, 0);
	cr_assert_eq(os->read(os, fds[0], &c, 1), 1);
	cr_assert_eq(c, 'x');
	cr_assert_eq(os->spawn(os, "/no/such/program", argv, -1), -ENOENT);
	sk_close_fd(fds[0]);
	sk_close_fd(fds[1]);
}

/* Itself, not by a shell, which blocks signals of its own accord. */
static int run_program(const struct sk_os *os, char *const argv[])
{
	int status = -1, pid = os->spawn(os, argv[0], argv, -1);

	cr_assert_gt(pid, 0);
	(void)os->waitpid(os, pid, &status);
	return status;
}

/* What a host program has opened, ignored and blocked is its own. Signals 32
 * and 33 are the C library's. */
Test(os, a_program_is_started_with_nothing_else_of_its_parents)
{
	char *blocked[] = { (char *)"grep", (char *)"-q",
			    (char *)"^SigBlk:.0*$",
			    (char *)"/proc/self/status", NULL };
	char *ignored[] = { (char *)"grep", (char *)"-q",
			    (char *)"^SigIgn:.*0000000$",
			    (char *)"/proc/self/status", NULL };
	char *has_file[] = { (char *)"test", (char *)"-e",
			     (char *)"/proc/self/fd/57", NULL };
	const struct sk_os *os = sk_os_linux();
	sigset_t set;

	cr_assert_eq(dup2(STDERR_FILENO, 57), 57);
	cr_assert_neq(signal(SIGUSR1, SIG_IGN), SIG_ERR);
	cr_assert_neq(signal(SIGTERM, SIG_IGN), SIG_ERR);
	sigfillset(&set);
	cr_assert_eq(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
	cr_assert_eq(run_program(os, blocked), 0);
	cr_assert_eq(run_program(os, ignored), 0);
	cr_assert_eq(WEXITSTATUS(run_program(os, has_file)), 1);
	close(57);
}

/* ---- the one that fails ---- */

static void call_files(const struct sk_os *os, const struct dir *dir)
{
	struct statx stx;
	struct statfs fs;
	struct stat st;
	char buf[512];
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC), fds[2];

	if (os->pipe(os, fds) >= 0) {
		sk_close_fd(fds[0]);
		sk_close_fd(fds[1]);
	}
	(void)os->mprotect(os, NULL, 0, PROT_READ);
	(void)os->fstatat(os, dir->fd, ".", 0, &st);
	(void)os->fstatfs(os, dir->fd, &fs);
	(void)os->fchmodat(os, dir->fd, ".", 0700);
	(void)os->fchown(os, dir->fd, geteuid());
	(void)os->faccessat(os, dir->fd, ".", R_OK);
	(void)os->fremovexattr(os, dir->fd, "user.x");
	(void)os->getcwd(os, buf, sizeof(buf));
	(void)os->chdir(os, ".");
	(void)os->dup2(os, fd, fd);
	(void)os->flock(os, dir->fd, LOCK_SH);
	(void)os->fcntl(os, dir->fd, F_GETFD, 0);
	(void)os->read(os, fd, buf, 1);
	(void)os->write(os, fd, "a", 1);
	(void)os->getdents(os, dir->fd, buf, sizeof(buf));
	(void)os->statx(os, fd, STATX_TYPE, &stx);
	(void)os->fadvise(os, fd, POSIX_FADV_NORMAL);
	sk_close_fd(fd);
}

static void call_sockets(const struct sk_os *os)
{
	struct sockaddr_un none = { .sun_family = AF_UNIX };
	struct msghdr empty = { 0 };
	socklen_t size = sizeof(int);
	struct epoll_event event;
	sigset_t signals;
	int value, fd, pair[2];

	sigemptyset(&signals);
	if (os->socketpair(os, AF_UNIX, SOCK_SEQPACKET, 0, pair) >= 0) {
		sk_close_fd(pair[0]);
		sk_close_fd(pair[1]);
	}
	fd = os->socket(os, AF_UNIX, SOCK_SEQPACKET, 0);
	(void)os->bind(os, fd, (void *)&none, sizeof(none.sun_family));
	(void)os->listen(os, fd, 1);
	(void)os->connect(os, fd, (void *)&none, sizeof(none));
	(void)os->accept(os, -1, 0);
	(void)os->shutdown(os, fd, SHUT_RDWR);
	(void)os->getsockopt(os, fd, SOL_SOCKET, SO_TYPE, &value, &size);
	(void)os->setsockopt(os, fd, SOL_SOCKET, SO_PASSCRED, &value, size);
	size = sizeof(none);
	(void)os->getsockname(os, fd, (void *)&none, &size);
	(void)os->sendmsg(os, fd, &empty, MSG_NOSIGNAL);
	(void)os->recvmsg(os, fd, &empty, MSG_DONTWAIT);
	sk_close_fd(fd);
	sk_close_fd(os->eventfd(os));
	sk_close_fd(os->signalfd(os, &signals));
	fd = os->epoll_create(os);
	(void)os->epoll_ctl(os, fd, EPOLL_CTL_DEL, 0, NULL);
	(void)os->epoll_wait(os, fd, &event, 1, 0);
	(void)os->poll(os, NULL, 0, 0);
	sk_close_fd(fd);
}

static void call_processes(const struct sk_os *os)
{
	char *argv[] = { (char *)"true", NULL };
	struct rlimit limit;
	int status, pid;

	pid = os->fork(os);
	if (pid == 0)
		_exit(0);
	sk_close_fd(os->pidfd_open(os, getpid()));
	(void)os->kill(os, getpid(), 0);
	if (os->waitpid(os, pid, &status) < 0 && pid > 0)
		waitpid(pid, &status, 0);
	pid = os->spawn(os, "true", argv, -1);
	if (pid > 0)
		waitpid(pid, &status, 0);
	(void)os->setsid(os);
	(void)os->setpriority(os, PRIO_PROCESS, 0, 0);
	(void)os->getrlimit(os, RLIMIT_NOFILE, &limit);
	getrlimit(RLIMIT_NOFILE, &limit);
	(void)os->setrlimit(os, RLIMIT_NOFILE, &limit);
}

static void call_libraries(const struct sk_os *os)
{
	void *library = dlopen(NULL, RTLD_NOW), *symbol;

	(void)os->dlopen(os, NULL, RTLD_NOW, &library);
	(void)os->dlsym(os, library, "malloc", &symbol);
}

/* Calls every operation that can fail once, as far as each goes. */
static void call_everything(const struct sk_os *os, const struct dir *dir)
{
	unsigned char seen;
	void *map = NULL;
	struct stat st;
	char c[2];
	int fd;

	fd = os->memfd_create(os, "m", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	(void)os->ftruncate(os, fd, 4096);
	(void)os->fallocate(os, fd, 0, 0, 4096);
	(void)os->fcntl_seal(os, fd, F_SEAL_SHRINK);
	(void)os->pwrite(os, fd, "ab", 2, 0);
	(void)os->pread(os, fd, c, 2, 0);
	(void)os->fsync(os, fd);
	(void)os->fstat(os, fd, &st);
	(void)os->mmap(os, NULL, 4096, PROT_READ, MAP_SHARED, fd, 0, &map);
	(void)os->madvise(os, map, 4096, MADV_DONTDUMP);
	(void)os->mincore(os, map, 4096, &seen);
	(void)os->mbind(os, map, 4096, 0, NULL, 0);
	(void)os->munmap(os, map, 4096);
	(void)os->close(os, fd);
	(void)os->mkdirat(os, dir->fd, "a", 0700);
	(void)os->renameat(os, dir->fd, "a", dir->fd, "b", 0);
	call_files(os, dir);
	(void)os->unlinkat(os, dir->fd, "b", AT_REMOVEDIR);
	/* Whichever of the two is left where one of the above failed. */
	unlinkat(dir->fd, "a", AT_REMOVEDIR);
	unlinkat(dir->fd, "b", AT_REMOVEDIR);
	fd = os->openat(os, dir->fd, ".", O_RDONLY, 0);
	sk_close_fd(fd);
	call_sockets(os);
	call_processes(os);
	call_libraries(os);
	(void)os->random(os, c, 1);
	(void)os->uring_result(os, SK_URING_READ, 1);
	(void)os->uring_result(os, SK_URING_WRITE, 1);
	(void)os->uring_result(os, SK_URING_FSYNC, 0);
}

static bool happened;

/* The time is over, and what is waited for happens before the mutex is had
 * again: no signal tells of it any more. */
static int wait_too_short(const struct sk_os *os, pthread_cond_t *cond,
			  pthread_mutex_t *mutex, uint64_t until_ns)
{
	(void)os;
	(void)cond;
	(void)mutex;
	(void)until_ns;
	cr_assert_not(happened, "nobody looks whether it has happened");
	happened = true;
	return -ETIMEDOUT;
}

Test(fault_os, a_look_at_the_clock_loses_no_signal)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	struct sk_os inner = *sk_os_linux();
	struct sk_fault_os fault;
	pthread_cond_t cond;

	sk_cond_init(&cond);
	inner.cond_wait = wait_too_short;
	sk_fault_os_init(&fault, &inner);
	sk_fault_os_clock(&fault, 1000, 1000);
	pthread_mutex_lock(&mutex);
	cr_assert_eq(fault.os.cond_wait(&fault.os, &cond, &mutex, 2000), 0);
	happened = false;
	cr_assert_eq(fault.os.cond_wait(&fault.os, &cond, &mutex, 1000),
		     -ETIMEDOUT);
	pthread_mutex_unlock(&mutex);
	pthread_cond_destroy(&cond);
}

Test(fault_os, counts_every_operation)
{
	struct dir dir = make_dir();
	struct sk_fault_os fault;

	sk_fault_os_init(&fault, sk_os_linux());
	call_everything(&fault.os, &dir);
	for (int op = 0; op < SK_FAULT_ANY; op++)
		cr_assert_eq(sk_fault_os_calls(&fault, op), 1, "op %d", op);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_ANY), SK_FAULT_ANY);
	cr_assert_eq(sk_fault_os_hits(&fault), 0);
	drop_dir(&dir);
}

Test(fault_os, any_reaches_every_operation_once)
{
	struct dir dir = make_dir();

	for (int op = 0; op < SK_FAULT_ANY; op++) {
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, op + 1, 1, EIO);
		call_everything(&fault.os, &dir);
		cr_assert_eq(sk_fault_os_hits(&fault), 1, "call %d", op + 1);
	}
	drop_dir(&dir);
}

Test(fault_os, fails_the_named_calls_only)
{
	const struct sk_os *os;
	struct sk_fault_os fault;
	struct stat st;

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_FSTAT, 2, 2, EIO);
	sk_fault_os_fail(&fault, SK_FAULT_FSTAT, 5, SK_FAULT_ALWAYS, ENOSPC);
	os = &fault.os;
	cr_assert_eq(os->fstat(os, 0, &st), 0);
	cr_assert_eq(os->fstat(os, 0, &st), -EIO);
	cr_assert_eq(os->fstat(os, 0, &st), -EIO);
	cr_assert_eq(os->fstat(os, 0, &st), 0);
	for (int i = 0; i < 10; i++)
		cr_assert_eq(os->fstat(os, 0, &st), -ENOSPC);
	cr_assert_eq(sk_fault_os_hits(&fault), 12);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_FSTAT), 14);
}

Test(fault_os, failed_close_and_munmap_release_all_the_same)
{
	const struct sk_os *os;
	struct sk_fault_os fault;
	unsigned char vec[1];
	void *map;
	int fd;

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_CLOSE, 1, 1, EIO);
	sk_fault_os_fail(&fault, SK_FAULT_MUNMAP, 1, 1, EINVAL);
	os = &fault.os;
	fd = os->memfd_create(os, "m", MFD_CLOEXEC);
	cr_assert_eq(os->ftruncate(os, fd, 4096), 0);
	cr_assert_eq(os->mmap(os, NULL, 4096, PROT_READ, MAP_SHARED, fd, 0,
			      &map), 0);
	cr_assert_eq(os->munmap(os, map, 4096), -ENOMEM);
	cr_assert_eq(mincore(map, 4096, vec), -1);
	cr_assert_eq(os->close(os, fd), -EIO);
	cr_assert_eq(fcntl(fd, F_GETFD), -1);
}

Test(fault_os, shortens_reads_and_writes)
{
	const struct sk_os *os;
	struct sk_fault_os fault;
	char text[9] = { 0 };
	int fd;

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_shorten(&fault, SK_FAULT_PWRITE, 1, 1, 3);
	sk_fault_os_shorten(&fault, SK_FAULT_PREAD, 2, 1, 2);
	sk_fault_os_shorten(&fault, SK_FAULT_URING_WRITE, 1, 2, 512);
	sk_fault_os_fail(&fault, SK_FAULT_URING_FSYNC, 1, 1, EIO);
	os = &fault.os;
	fd = os->memfd_create(os, "m", MFD_CLOEXEC);
	cr_assert_eq(os->pwrite(os, fd, "abcdefgh", 8, 0), 3);
	cr_assert_eq(os->pread(os, fd, text, 8, 0), 3);
	cr_assert_str_eq(text, "abc");
	cr_assert_eq(os->pwrite(os, fd, "abcdefgh", 8, 0), 8);
	cr_assert_eq(os->pread(os, fd, text, 8, 0), 2);
	cr_assert_eq(os->pread(os, fd, text, 8, 0), 8);
	cr_assert_eq(os->uring_result(os, SK_URING_WRITE, 4096), 512);
	cr_assert_eq(os->uring_result(os, SK_URING_WRITE, -EIO), -EIO);
	cr_assert_eq(os->uring_result(os, SK_URING_WRITE, 4096), 4096);
	cr_assert_eq(os->uring_result(os, SK_URING_READ, 4096), 4096);
	cr_assert_eq(os->uring_result(os, SK_URING_FSYNC, 0), -EIO);
	os->close(os, fd);
}

Test(fault_os, its_clock_stands_until_advanced)
{
	struct sk_fault_os fault;
	const struct sk_os *os = &fault.os;

	sk_fault_os_init(&fault, sk_os_linux());
	cr_assert_gt(os->now_ns(os), 0);
	cr_assert_gt(os->wall_ns(os), 0);
	sk_fault_os_clock(&fault, 100, 7000);
	cr_assert_eq(os->now_ns(os), 100);
	cr_assert_eq(os->now_ns(os), 100);
	sk_fault_os_advance(&fault, 50);
	cr_assert_eq(os->now_ns(os), 150);
	cr_assert_eq(os->wall_ns(os), 7050);
}

Test(fault_os, wraps_one_that_wraps)
{
	struct sk_fault_os inner, outer;
	struct stat st;

	sk_fault_os_init(&inner, sk_os_linux());
	sk_fault_os_init(&outer, &inner.os);
	sk_fault_os_fail(&inner, SK_FAULT_FSTAT, 1, 1, EIO);
	cr_assert_eq(outer.os.fstat(&outer.os, 0, &st), -EIO);
	cr_assert_eq(outer.os.fstat(&outer.os, 0, &st), 0);
	cr_assert_eq(sk_fault_os_calls(&inner, SK_FAULT_FSTAT), 2);
	cr_assert_eq(sk_fault_os_hits(&outer), 0);
}
