/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the real system's table share. */
#ifndef SK_CACHE_BASE_OS_PRIVATE_H
#define SK_CACHE_BASE_OS_PRIVATE_H

#include <errno.h>

#include "base/os.h"

/** What a system call returned, as a value or a negative errno. */
static inline int sk_os_result(int r)
{
	return r < 0 ? -errno : r;
}

/** The same of one that has made a descriptor, which is moved from where
 * standard input, output and error belong: a program that was started without
 * them writes what it prints to whatever came to lie there. It stays where it
 * is only if there is no other number for it. */
int sk_os_new_fd(int r);
/** The same of a pair. */
int sk_os_new_fds(int r, const int fds[2], int ret_fds[2]);

/* ---- os-memory.c ---- */

int sk_linux_memfd_create(const struct sk_os *os, const char *name,
			  unsigned flags);
int sk_linux_fcntl_seal(const struct sk_os *os, int fd, int seals);
int sk_linux_mmap(const struct sk_os *os, void *at, size_t size, int prot,
		  int flags, int fd, uint64_t offset, void **ret_map);
int sk_linux_munmap(const struct sk_os *os, void *map, size_t size);
int sk_linux_madvise(const struct sk_os *os, void *map, size_t size,
		     int advice);
int sk_linux_mprotect(const struct sk_os *os, void *map, size_t size,
		      int prot);
int sk_linux_mincore(const struct sk_os *os, void *map, size_t size,
		     unsigned char *ret_seen);
int sk_linux_mbind(const struct sk_os *os, void *map, size_t size, int mode,
		   const unsigned long *nodes, unsigned long node_bits);

/* ---- os-socket.c ---- */

int sk_linux_socket(const struct sk_os *os, int domain, int type,
		    int protocol);
int sk_linux_socketpair(const struct sk_os *os, int domain, int type,
			int protocol, int ret_fds[2]);
int sk_linux_bind(const struct sk_os *os, int fd, const struct sockaddr *addr,
		  socklen_t size);
int sk_linux_listen(const struct sk_os *os, int fd, int backlog);
int sk_linux_connect(const struct sk_os *os, int fd,
		     const struct sockaddr *addr, socklen_t size);
int sk_linux_accept(const struct sk_os *os, int fd, int flags);
int sk_linux_shutdown(const struct sk_os *os, int fd, int how);
int sk_linux_setsockopt(const struct sk_os *os, int fd, int level, int option,
			const void *value, socklen_t size);
int sk_linux_getsockname(const struct sk_os *os, int fd,
			 struct sockaddr *ret_addr, socklen_t *size);
int sk_linux_getsockopt(const struct sk_os *os, int fd, int level, int option,
			void *ret_value, socklen_t *size);
ssize_t sk_linux_sendmsg(const struct sk_os *os, int fd,
			 const struct msghdr *msg, int flags);
ssize_t sk_linux_recvmsg(const struct sk_os *os, int fd, struct msghdr *msg,
			 int flags);

/* ---- os-wait.c ---- */

uint64_t sk_linux_now_ns(const struct sk_os *os);
uint64_t sk_linux_wall_ns(const struct sk_os *os);
int sk_linux_eventfd(const struct sk_os *os);
int sk_linux_signalfd(const struct sk_os *os, const sigset_t *signals);
int sk_linux_epoll_create(const struct sk_os *os);
int sk_linux_epoll_ctl(const struct sk_os *os, int epoll, int operation,
		       int fd, struct epoll_event *event);
int sk_linux_epoll_wait(const struct sk_os *os, int epoll,
			struct epoll_event *ret_events, int room,
			uint64_t until_ns);
int sk_linux_poll(const struct sk_os *os, struct pollfd *fds, nfds_t n,
		  uint64_t until_ns);
int sk_linux_cond_wait(const struct sk_os *os, pthread_cond_t *cond,
		       pthread_mutex_t *mutex, uint64_t until_ns);

/* ---- os-process.c ---- */

int sk_linux_fork(const struct sk_os *os);
int sk_linux_spawn(const struct sk_os *os, const char *program,
		   char *const argv[], int keep_fd);
int sk_linux_waitpid(const struct sk_os *os, pid_t pid, int *ret_status);
int sk_linux_kill(const struct sk_os *os, pid_t pid, int signal);
int sk_linux_pidfd_open(const struct sk_os *os, pid_t pid);
int sk_linux_alarm(const struct sk_os *os, unsigned seconds);
int sk_linux_setsid(const struct sk_os *os);
int sk_linux_setpriority(const struct sk_os *os, int which, id_t who,
			 int nice);
int sk_linux_getrlimit(const struct sk_os *os, int which,
		       struct rlimit *ret_limit);
int sk_linux_setrlimit(const struct sk_os *os, int which,
		       const struct rlimit *limit);
int sk_linux_dlopen(const struct sk_os *os, const char *file, int flags,
		    void **ret_library);
int sk_linux_dlsym(const struct sk_os *os, void *library, const char *name,
		   void **ret_symbol);

#endif
