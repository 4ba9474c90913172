/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/door.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* ---- opening ---- */

static int bind_any(const struct sk_os *os, int fd, int family, uint16_t port)
{
	struct sockaddr_in6 six = { .sin6_family = AF_INET6,
				    .sin6_port = htons(port) };
	struct sockaddr_in four = { .sin_family = AF_INET,
				    .sin_port = htons(port) };

	if (family == AF_INET6)
		return os->bind(os, fd, (void *)&six, sizeof(six));
	return os->bind(os, fd, (void *)&four, sizeof(four));
}

static int open_family(const struct sk_os *os, int family, uint16_t port)
{
	int fd = os->socket(os, family, SOCK_STREAM | SOCK_CLOEXEC |
			    SOCK_NONBLOCK, 0), on = 1, off = 0, r = 0;

	if (fd < 0)
		return fd;
	/* The last meeting's connections may still be closing. */
	r = os->setsockopt(os, fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (r >= 0 && family == AF_INET6)
		r = os->setsockopt(os, fd, IPPROTO_IPV6, IPV6_V6ONLY, &off,
				   sizeof(off));
	if (r >= 0)
		r = bind_any(os, fd, family, port);
	if (r >= 0)
		r = os->listen(os, fd, SOMAXCONN);
	if (r >= 0)
		return fd;
	(void)os->close(os, fd);
	return r;
}

static int ask_port(struct sk_door *d)
{
	struct sockaddr_in6 at;
	socklen_t size = sizeof(at);
	int r = d->os->getsockname(d->os, d->fd, (void *)&at, &size);

	/* Of both families it stands at the same place. */
	d->port = r < 0 ? 0 : ntohs(at.sin6_port);
	return r;
}

int sk_door_open(const struct sk_os *os, uint16_t port, struct sk_door *d,
		 struct sk_err *err)
{
	int r;

	*d = (struct sk_door){ .os = os };
	d->fd = open_family(os, AF_INET6, port);
	if (d->fd < 0 && d->fd != -EADDRINUSE)
		d->fd = open_family(os, AF_INET, port);
	r = d->fd < 0 ? d->fd : ask_port(d);
	if (r >= 0)
		return 0;
	if (d->fd >= 0)
		(void)os->close(os, d->fd);
	return sk_err_errno(err, r, "cannot listen at port %u, where the "
			    "other ranks are to come", port);
}

void sk_door_close(struct sk_door *d)
{
	for (int i = 0; i < d->n; i++)
		(void)d->os->close(d->os, d->guests[i].fd);
	d->n = 0;
	(void)d->os->close(d->os, d->fd);
}

/* ---- who comes ---- */

static void forget(struct sk_door *d, int i)
{
	d->n--;
	memmove(&d->guests[i], &d->guests[i + 1],
		(size_t)(d->n - i) * sizeof(d->guests[0]));
}

static void put_out(struct sk_door *d, int i)
{
	(void)d->os->close(d->os, d->guests[i].fd);
	forget(d, i);
}

bool sk_door_lacks(int r)
{
	return r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -ENOBUFS;
}

static int let_in(struct sk_door *d)
{
	int fd = d->os->accept(d->os, d->fd, SOCK_NONBLOCK);

	/* Whoever it was may be gone again; but one that cannot be taken for
	 * want of ours would be there at each look. */
	if (fd < 0)
		return sk_door_lacks(fd) ? fd : 0;
	if (d->n == SK_DOOR_ROOM)
		put_out(d, 0);
	d->guests[d->n++] = (struct sk_guest){ .fd = fd };
	return 0;
}

static bool is_like(const struct sk_hello *h, const struct sk_hello *like)
{
	unsigned differ = 0;

	/* All of it, so that the time tells nobody how much was right. */
	for (size_t i = 0; i < sizeof(h->secret); i++)
		differ |= (unsigned)(h->secret[i] ^ like->secret[i]);
	return !differ && h->magic == like->magic && h->kind == like->kind &&
	       !memcmp(h->nonce, like->nonce, sizeof(h->nonce));
}

/* Who had no answer in time has gone, and comes again: what it left behind
 * would be taken for it, and then for one that died. */
static bool is_gone(const struct sk_door *d, const struct sk_guest *g)
{
	char byte;
	struct iovec part = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t n = d->os->recvmsg(d->os, g->fd, &msg, MSG_PEEK);

	return n <= 0 && n != -EAGAIN;
}

/* 1: has said all; 0: not yet; else it is to go. */
static int listen_to(struct sk_door *d, struct sk_guest *g)
{
	struct iovec part = { (char *)&g->hello + g->got,
			      sizeof(g->hello) - g->got };
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t n = d->os->recvmsg(d->os, g->fd, &msg, 0);

	if (n == -EAGAIN)
		return 0;
	if (n <= 0)
		return -ECONNRESET;
	g->got += (size_t)n;
	if (g->got >= sizeof(g->hello.magic) &&
	    g->hello.magic != SK_HELLO_MAGIC)
		return -EPROTO;
	if (g->got < sizeof(g->hello))
		return 0;
	return is_gone(d, g) ? -ECONNRESET : 1;
}

static bool hear(struct sk_door *d, const struct sk_hello *like,
		 struct sk_hello *ret_hello, int *ret_fd)
{
	for (int i = 0; i < d->n;) {
		struct sk_guest *g = &d->guests[i];
		int r = listen_to(d, g);

		if (r > 0 && is_like(&g->hello, like)) {
			*ret_hello = g->hello;
			*ret_fd = g->fd;
			forget(d, i);
			return true;
		}
		if (r)
			put_out(d, i);
		else
			i++;
	}
	return false;
}

static int wait_for(struct sk_door *d, const int *watch, int n,
		    uint64_t until, int *ret_at)
{
	_cleanup_free_ struct pollfd *p = calloc(
		(size_t)(1 + SK_DOOR_ROOM + n), sizeof(*p));
	int k = 1, r;

	if (!p)
		return -ENOMEM;
	p[0] = (struct pollfd){ d->fd, POLLIN, 0 };
	for (int i = 0; i < d->n; i++)
		p[k++] = (struct pollfd){ d->guests[i].fd, POLLIN, 0 };
	for (int i = 0; i < n; i++)
		if (watch[i] >= 0)
			p[k++] = (struct pollfd){ watch[i], POLLIN, 0 };
	r = d->os->poll(d->os, p, (nfds_t)k, until);
	if (r < 0)
		return r;
	k = 1 + d->n;
	r = p[0].revents ? let_in(d) : 0;
	if (r < 0)
		return r;
	for (int i = 0; i < n; i++)
		if (watch[i] >= 0 && p[k++].revents) {
			*ret_at = i;
			return 1;
		}
	return 0;
}

int sk_door_next(struct sk_door *d, const struct sk_hello *like,
		 const int *watch, int n, uint64_t until_ns,
		 struct sk_hello *ret_hello, int *ret_fd, int *ret_at)
{
	for (;;) {
		int r;

		if (hear(d, like, ret_hello, ret_fd))
			return 0;
		r = wait_for(d, watch, n, until_ns, ret_at);
		if (r)
			return r;
		/* Strangers that come without end end no deadline. */
		if (d->os->now_ns(d->os) >= until_ns)
			return -ETIMEDOUT;
	}
}
