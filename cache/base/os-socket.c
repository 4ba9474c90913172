/* SPDX-License-Identifier: Apache-2.0 */
/* The real system: sockets. */
#include "base/os-private.h"

int sk_linux_socket(const struct sk_os *os, int domain, int type,
		    int protocol)
{
	(void)os;
	return sk_os_new_fd(socket(domain, type | SOCK_CLOEXEC, protocol));
}

int sk_linux_socketpair(const struct sk_os *os, int domain, int type,
			int protocol, int ret_fds[2])
{
	int fds[2];

	(void)os;
	return sk_os_new_fds(socketpair(domain, type | SOCK_CLOEXEC, protocol,
					fds), fds, ret_fds);
}

int sk_linux_bind(const struct sk_os *os, int fd, const struct sockaddr *addr,
		  socklen_t size)
{
	(void)os;
	return sk_os_result(bind(fd, addr, size));
}

int sk_linux_listen(const struct sk_os *os, int fd, int backlog)
{
	(void)os;
	return sk_os_result(listen(fd, backlog));
}

int sk_linux_connect(const struct sk_os *os, int fd,
		     const struct sockaddr *addr, socklen_t size)
{
	int r;

	(void)os;
	/* Between AF_UNIX sockets nothing is under way after EINTR. */
	do {
		r = connect(fd, addr, size);
	} while (r < 0 && errno == EINTR);
	return sk_os_result(r);
}

int sk_linux_accept(const struct sk_os *os, int fd, int flags)
{
	int r;

	(void)os;
	do {
		r = accept4(fd, NULL, NULL, flags | SOCK_CLOEXEC);
	} while (r < 0 && errno == EINTR);
	return sk_os_new_fd(r);
}

int sk_linux_shutdown(const struct sk_os *os, int fd, int how)
{
	(void)os;
	return sk_os_result(shutdown(fd, how));
}

int sk_linux_getsockopt(const struct sk_os *os, int fd, int level, int option,
			void *ret_value, socklen_t *size)
{
	(void)os;
	return sk_os_result(getsockopt(fd, level, option, ret_value, size));
}

int sk_linux_setsockopt(const struct sk_os *os, int fd, int level, int option,
			const void *value, socklen_t size)
{
	(void)os;
	return sk_os_result(setsockopt(fd, level, option, value, size));
}

int sk_linux_getsockname(const struct sk_os *os, int fd,
			 struct sockaddr *ret_addr, socklen_t *size)
{
	(void)os;
	return sk_os_result(getsockname(fd, ret_addr, size));
}

ssize_t sk_linux_sendmsg(const struct sk_os *os, int fd,
			 const struct msghdr *msg, int flags)
{
	ssize_t n;

	(void)os;
	do {
		n = sendmsg(fd, msg, flags);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static void move_received(struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c;
	     c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int *fds = (int *)(void *)CMSG_DATA(c);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++)
			fds[i] = sk_os_new_fd(fds[i]);
	}
}

ssize_t sk_linux_recvmsg(const struct sk_os *os, int fd, struct msghdr *msg,
			 int flags)
{
	ssize_t n;

	(void)os;
	do {
		n = recvmsg(fd, msg, flags | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	move_received(msg);
	return n;
}
