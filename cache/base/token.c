/* SPDX-License-Identifier: Apache-2.0 */
#include "base/token.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/util.h"

int sk_token_new(const struct sk_os *os, const void *what, size_t bytes,
		 int *ret_token, int *ret_holder)
{
	struct iovec part = { .iov_base = (void *)what, .iov_len = bytes };
	const struct msghdr h = { .msg_iov = &part, .msg_iovlen = 1 };
	int fds[2], r;
	ssize_t n;

	r = os->socketpair(os, AF_UNIX, SOCK_SEQPACKET, 0, fds);
	if (r < 0)
		return r;
	n = os->sendmsg(os, fds[1], &h, MSG_NOSIGNAL);
	if (n != (ssize_t)bytes) {
		(void)os->close(os, fds[0]);
		(void)os->close(os, fds[1]);
		return n < 0 ? (int)n : -EMSGSIZE;
	}
	*ret_token = fds[0];
	*ret_holder = fds[1];
	return 0;
}

/* It stays there for the next. */
int sk_token_read(const struct sk_os *os, int token, void *ret, size_t bytes)
{
	struct iovec part = { .iov_base = ret, .iov_len = bytes };
	struct msghdr h = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t n = os->recvmsg(os, token, &h, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return (int)n;
	return n == (ssize_t)bytes && !(h.msg_flags & MSG_TRUNC) ? 0 :
								    -EBADMSG;
}

static bool is_over(const struct sk_os *os, int fd, uint64_t until_ns)
{
	struct pollfd p = { .fd = fd };

	return os->poll(os, &p, 1, until_ns) == 1 &&
	       p.revents & (POLLHUP | POLLERR | POLLNVAL);
}

bool sk_token_is_void(const struct sk_os *os, int either)
{
	char first;

	/* A device's descriptor may say anything to who polls it. */
	if (sk_token_read(os, either, &first, 1) == -ENOTSOCK)
		return false;
	return is_over(os, either, os->now_ns(os));
}

void sk_token_await(const struct sk_os *os, int either, uint64_t until_ns)
{
	(void)is_over(os, either, until_ns);
}
