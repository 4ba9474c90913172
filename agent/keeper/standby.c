/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/standby.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"

/* True: all who could have said that it is not needed are dead. */
static bool await_word(const struct sk_os *os, int sock)
{
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	do {
		n = os->recvmsg(os, sock, &h, 0);
	} while (n == -EINTR);
	return n <= 0;
}

int standby_begin(const struct sk_os *os, struct standby *ret)
{
	int ends[2], r;

	r = os->socketpair(os, AF_UNIX, SOCK_SEQPACKET, 0, ends);
	if (r < 0)
		return r;
	r = os->fork(os);
	if (r == 0) {
		(void)os->close(os, ends[0]);
		if (!await_word(os, ends[1]))
			_exit(0);
		(void)os->close(os, ends[1]);
		*ret = (struct standby)STANDBY_NULL;
		return STANDBY_TAKES;
	}
	(void)os->close(os, ends[1]);
	if (r < 0) {
		(void)os->close(os, ends[0]);
		return r;
	}
	*ret = (struct standby){ .sock = ends[0], .pid = r };
	return 0;
}

void standby_dismiss(const struct sk_os *os, struct standby *s)
{
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	int status;

	if (s->sock < 0)
		return;
	(void)os->sendmsg(os, s->sock, &h, MSG_NOSIGNAL);
	s->sock = sk_close_fd(s->sock);
	/* Only its parent can, and who is not one need not. */
	(void)os->waitpid(os, s->pid, &status);
}
