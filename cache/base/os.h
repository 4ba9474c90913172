/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the system does for us, as one table of operations.
 *
 * Files, memory, clock, randomness, sockets, waits, processes and libraries
 * pass through it, so that failing the N-th call, losing power after any write
 * and running on a virtual clock are loops in a test. Every function returns
 * a value >= 0 or a negative errno; errno itself is not used. EINTR is retried
 * inside, where retrying is right (never close). Every descriptor that is made
 * or received is close-on-exec, and none is 0, 1 or 2, but by dup2(), while
 * there are other numbers.
 *
 * Who waits says until when, on the clock of now_ns(): a deadline is carried
 * through all calls that serve it and never begins anew. SK_FOREVER: none.
 * A wait that is over is -ETIMEDOUT.
 *
 * Completions of io_uring pass through uring_result, which may replace a
 * result but normally returns it.
 *
 * Thread-safety: the table is immutable; functions are as safe as the system
 * calls they make.
 */
#ifndef SK_CACHE_BASE_OS_H
#define SK_CACHE_BASE_OS_H

#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>

#define SK_FOREVER UINT64_MAX
#define SK_SPAWN_FD 3	/* of a program that is started with one */

enum sk_uring_op { SK_URING_READ, SK_URING_WRITE, SK_URING_FSYNC };

struct sk_os {
	/* files */
	int (*openat)(const struct sk_os *os, int dirfd, const char *path,
		      int flags, mode_t mode);
	int (*close)(const struct sk_os *os, int fd);
	ssize_t (*pread)(const struct sk_os *os, int fd, void *buf,
			 size_t size, uint64_t offset);
	ssize_t (*pwrite)(const struct sk_os *os, int fd, const void *buf,
			  size_t size, uint64_t offset);
	int (*fallocate)(const struct sk_os *os, int fd, int mode,
			 uint64_t offset, uint64_t size);
	int (*ftruncate)(const struct sk_os *os, int fd, uint64_t size);
	int (*fsync)(const struct sk_os *os, int fd);
	int (*fstat)(const struct sk_os *os, int fd, struct stat *ret_st);
	int (*mkdirat)(const struct sk_os *os, int dirfd, const char *path,
		       mode_t mode);
	int (*renameat)(const struct sk_os *os, int olddir, const char *old,
			int newdir, const char *new_name, unsigned flags);
	int (*unlinkat)(const struct sk_os *os, int dirfd, const char *path,
			int flags);
	int (*fstatat)(const struct sk_os *os, int dirfd, const char *path,
		       int flags, struct stat *ret_st);
	int (*fstatfs)(const struct sk_os *os, int fd,
		       struct statfs *ret_st);
	int (*fchmodat)(const struct sk_os *os, int dirfd, const char *path,
			mode_t mode);
	/* The user alone; the group stays. */
	int (*fchown)(const struct sk_os *os, int fd, uid_t uid);
	int (*fremovexattr)(const struct sk_os *os, int fd, const char *name);
	int (*faccessat)(const struct sk_os *os, int dirfd, const char *path,
			 int mode);
	int (*getcwd)(const struct sk_os *os, char *ret_path, size_t size);
	int (*chdir)(const struct sk_os *os, const char *path);
	/* Not close-on-exec: for the numbers that a program starts with. */
	int (*dup2)(const struct sk_os *os, int fd, int as);
	int (*flock)(const struct sk_os *os, int fd, int operation);
	/* Those commands that take a number or nothing. */
	int (*fcntl)(const struct sk_os *os, int fd, int command, long arg);
	ssize_t (*read)(const struct sk_os *os, int fd, void *buf,
			size_t size);
	ssize_t (*write)(const struct sk_os *os, int fd, const void *buf,
			 size_t size);
	int (*pipe)(const struct sk_os *os, int ret_fds[2]);
	/* Records of struct dirent64; 0: the end. */
	ssize_t (*getdents)(const struct sk_os *os, int fd, void *buf,
			    size_t size);
	/* Of the descriptor itself; @mask as statx(2). */
	int (*statx)(const struct sk_os *os, int fd, unsigned mask,
		     struct statx *ret_st);
	/* For the whole file; advice of posix_fadvise(3). */
	int (*fadvise)(const struct sk_os *os, int fd, int advice);
	/* memory */
	int (*memfd_create)(const struct sk_os *os, const char *name,
			    unsigned flags);
	int (*fcntl_seal)(const struct sk_os *os, int fd, int seals);
	int (*mmap)(const struct sk_os *os, void *at, size_t size, int prot,
		    int flags, int fd, uint64_t offset, void **ret_map);
	int (*munmap)(const struct sk_os *os, void *map, size_t size);
	int (*madvise)(const struct sk_os *os, void *map, size_t size,
		       int advice);
	int (*mprotect)(const struct sk_os *os, void *map, size_t size,
			int prot);
	int (*mincore)(const struct sk_os *os, void *map, size_t size,
		       unsigned char *ret_seen);
	/* Where what is not there yet shall lie; MPOL_... of mbind(2). */
	int (*mbind)(const struct sk_os *os, void *map, size_t size,
		     int mode, const unsigned long *nodes,
		     unsigned long node_bits);
	/* sockets */
	int (*socket)(const struct sk_os *os, int domain, int type,
		      int protocol);
	int (*socketpair)(const struct sk_os *os, int domain, int type,
			  int protocol, int ret_fds[2]);
	int (*bind)(const struct sk_os *os, int fd,
		    const struct sockaddr *addr, socklen_t size);
	int (*listen)(const struct sk_os *os, int fd, int backlog);
	int (*connect)(const struct sk_os *os, int fd,
		       const struct sockaddr *addr, socklen_t size);
	/* flags: SOCK_NONBLOCK or 0 */
	int (*accept)(const struct sk_os *os, int fd, int flags);
	int (*shutdown)(const struct sk_os *os, int fd, int how);
	int (*getsockopt)(const struct sk_os *os, int fd, int level,
			  int option, void *ret_value, socklen_t *size);
	int (*setsockopt)(const struct sk_os *os, int fd, int level,
			  int option, const void *value, socklen_t size);
	int (*getsockname)(const struct sk_os *os, int fd,
			   struct sockaddr *ret_addr, socklen_t *size);
	ssize_t (*sendmsg)(const struct sk_os *os, int fd,
			   const struct msghdr *msg, int flags);
	ssize_t (*recvmsg)(const struct sk_os *os, int fd,
			   struct msghdr *msg, int flags);
	/* waits */
	int (*eventfd)(const struct sk_os *os);		/* non-blocking */
	int (*signalfd)(const struct sk_os *os,		/* non-blocking */
			const sigset_t *signals);
	int (*epoll_create)(const struct sk_os *os);
	int (*epoll_ctl)(const struct sk_os *os, int epoll, int operation,
			 int fd, struct epoll_event *event);
	/* The number of events, or -ETIMEDOUT. */
	int (*epoll_wait)(const struct sk_os *os, int epoll,
			  struct epoll_event *ret_events, int room,
			  uint64_t until_ns);
	/* The number of descriptors, or -ETIMEDOUT; none is a sleep. */
	int (*poll)(const struct sk_os *os, struct pollfd *fds, nfds_t n,
		    uint64_t until_ns);
	/* @cond is of sk_cond_init(). It may return early for no reason. */
	int (*cond_wait)(const struct sk_os *os, pthread_cond_t *cond,
			 pthread_mutex_t *mutex, uint64_t until_ns);
	/* processes */
	int (*fork)(const struct sk_os *os);		/* the child's id */
	/* Starts a program, looked for in PATH, which inherits the standard
	 * three, @keep_fd (-1: none) as SK_SPAWN_FD, no other descriptor, and
	 * no signal ignored or blocked; its process id. */
	int (*spawn)(const struct sk_os *os, const char *program,
		     char *const argv[], int keep_fd);
	int (*waitpid)(const struct sk_os *os, pid_t pid, int *ret_status);
	int (*kill)(const struct sk_os *os, pid_t pid, int signal);
	int (*pidfd_open)(const struct sk_os *os, pid_t pid);
	/* The kernel ends the process that late, unless it is said anew; 0:
	 * it does not. What was left of the one before; never an error. */
	int (*alarm)(const struct sk_os *os, unsigned seconds);
	int (*setsid)(const struct sk_os *os);
	int (*setpriority)(const struct sk_os *os, int which, id_t who,
			   int nice);
	int (*getrlimit)(const struct sk_os *os, int which,
			 struct rlimit *ret_limit);
	int (*setrlimit)(const struct sk_os *os, int which,
			 const struct rlimit *limit);
	/* libraries: dlerror(3) has the sentence; never closed again */
	int (*dlopen)(const struct sk_os *os, const char *file, int flags,
		      void **ret_library);	/* -ENOENT */
	int (*dlsym)(const struct sk_os *os, void *library, const char *name,
		     void **ret_symbol);	/* -ENOENT */
	/* clock and randomness */
	uint64_t (*now_ns)(const struct sk_os *os);	/* monotonic */
	uint64_t (*wall_ns)(const struct sk_os *os);	/* since 1970, UTC */
	int (*random)(const struct sk_os *os, void *buf, size_t size);
	/* io_uring */
	int (*uring_result)(const struct sk_os *os, enum sk_uring_op op,
			    int result);
	void *ctx;	/* of a table that wraps another */
};

/** A condition for cond_wait(), which waits on the clock of now_ns(). */
void sk_cond_init(pthread_cond_t *ret_cond);

/** The real system. */
const struct sk_os *sk_os_linux(void);

#endif
