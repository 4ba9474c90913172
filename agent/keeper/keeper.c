/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/keeper.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "base/util.h"

#define WAIT_NS UINT64_C(1000000000)	/* for a keeper that does not read */

struct keeper keeper_from_environment(const struct sk_os *os)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct keeper k = KEEPER_NULL;
	const char *path = getenv("NOTIFY_SOCKET");
	size_t n = path ? strlen(path) : 0;
	socklen_t size;

	if (!n || n >= sizeof(addr.sun_path) ||
	    (*path != '/' && *path != '@'))
		return k;
	memcpy(addr.sun_path, path, n);
	if (*path == '@')
		addr.sun_path[0] = 0;
	size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n +
			   (*path == '/'));
	k.sock = os->socket(os, AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	if (k.sock >= 0 && os->connect(os, k.sock, (struct sockaddr *)&addr,
				       size) < 0)
		k.sock = sk_close_fd(k.sock);
	k.sock = k.sock < 0 ? -1 : k.sock;
	k.kind = k.sock < 0 ? KEEPER_NONE : KEEPER_SYSTEMD;
	/* What we start is no service. */
	(void)unsetenv("NOTIFY_SOCKET");
	return k;
}

void keeper_close(const struct sk_os *os, struct keeper *k)
{
	if (k->sock >= 0)
		(void)os->close(os, k->sock);
	*k = (struct keeper)KEEPER_NULL;
}

static ssize_t send_once(const struct sk_os *os, const struct keeper *k,
			 const char *text, const int *fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { (void *)text, strlen(text) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;

	if (fd) {
		h.msg_control = control.buf;
		h.msg_controllen = sizeof(control.buf);
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), fd, sizeof(int));
	}
	return os->sendmsg(os, k->sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static bool tell(const struct sk_os *os, struct keeper *k, const char *text,
		 const int *fd)
{
	struct pollfd p = { .fd = k->sock, .events = POLLOUT };
	ssize_t n;

	if (k->sock < 0 || k->lost)
		return false;
	n = send_once(os, k, text, fd);
	if (n == -EAGAIN && !k->slow) {
		k->slow = os->poll(os, &p, 1, os->now_ns(os) + WAIT_NS) <= 0;
		n = send_once(os, k, text, fd);
	}
	k->slow = n == -EAGAIN;
	k->lost = n == -EPIPE || n == -ECONNRESET || n == -ECONNREFUSED ||
		  n == -ENOTCONN;
	return n >= 0;
}

bool keeper_give(const struct sk_os *os, struct keeper *k, const char *name,
		 int fd)
{
	char text[128];
	bool kept;

	/* There is nothing to poll a slot for. */
	(void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s\nFDPOLL=0",
		       name);
	kept = tell(os, k, text, &fd);
	k->refused += !kept && k->kind != KEEPER_NONE;
	return kept;
}

void keeper_forget(const struct sk_os *os, struct keeper *k,
		   const char *name)
{
	char text[128];

	(void)snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s",
		       name);
	(void)tell(os, k, text, NULL);
}

void keeper_ready(const struct sk_os *os, struct keeper *k)
{
	(void)tell(os, k, "READY=1", NULL);
}

void keeper_stopping(const struct sk_os *os, struct keeper *k)
{
	(void)tell(os, k, "STOPPING=1", NULL);
}
