/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/seek.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "comm/links.h"
#include "comm/notice.h"

/* Rank 0 answers at once; who does not is not it. */
#define ANSWER_NS (UINT64_C(5) * 1000000000)
#define PAUSE_NS (UINT64_C(100) * 1000000)

static uint64_t within(const struct sk_os *os, uint64_t ns, uint64_t until)
{
	uint64_t then = os->now_ns(os) + ns;

	return then < until ? then : until;
}

/* For one of so many places, lest the first that takes no connection and
 * refuses none has all of the time. */
static uint64_t share(const struct sk_os *os, uint64_t until, uint32_t places)
{
	uint64_t now = os->now_ns(os), left = until > now ? until - now : 0;

	left /= places;
	return now + (left < ANSWER_NS ? left : ANSWER_NS);
}

int sk_seek_parse(const char *at, char ret_host[256], uint16_t *ret_port,
		  struct sk_err *err)
{
	const char *start = at;
	size_t all = strcspn(at, ",");
	const char *colon = memrchr(at, ':', all);
	size_t n = colon ? (size_t)(colon - at) : 0;
	unsigned long port = 0;
	char *rest = NULL;

	if (colon && colon[1] >= '0' && colon[1] <= '9')
		port = strtoul(colon + 1, &rest, 10);
	if (n > 2 && at[0] == '[' && at[n - 1] == ']') {
		at++;
		n -= 2;
	} else if (memchr(at, ':', n)) {
		n = 0;	/* of an IPv6 address the last part is no port */
	}
	if (!n || n > 255 || !rest || (*rest && *rest != ',') || port > 65535)
		return sk_err_set(err, -EINVAL, "ranks meet at \"HOST:PORT\", "
				  "\"[ADDRESS]:PORT\" or \"/PATH\", not at "
				  "\"%.*s\"", (int)sk_min_i64((int64_t)all,
								100), start);
	memcpy(ret_host, at, n);
	ret_host[n] = '\0';
	*ret_port = (uint16_t)port;
	return (int)all;
}

/* ---- addresses ---- */

static socklen_t to_address(const struct sk_spot *p,
			    struct sockaddr_storage *ret)
{
	struct sockaddr_in *four = (void *)ret;
	struct sockaddr_in6 *six = (void *)ret;

	*ret = (struct sockaddr_storage){ .ss_family = p->family };
	if (p->family == AF_INET) {
		four->sin_port = htons(p->port);
		memcpy(&four->sin_addr, p->ip, 4);
		return sizeof(*four);
	}
	six->sin6_port = htons(p->port);
	memcpy(&six->sin6_addr, p->ip, 16);
	return sizeof(*six);
}

static bool from_address(const struct sockaddr *a, struct sk_spot *ret)
{
	ret->family = a->sa_family;
	memset(ret->ip, 0, sizeof(ret->ip));	/* IPv4 is the shorter */
	if (a->sa_family == AF_INET)
		memcpy(ret->ip, &((const struct sockaddr_in *)(const void *)a)
			       ->sin_addr, 4);
	else if (a->sa_family == AF_INET6)
		memcpy(ret->ip, &((const struct sockaddr_in6 *)(const void *)a)
			       ->sin6_addr, 16);
	return a->sa_family == AF_INET || a->sa_family == AF_INET6;
}

static bool is_loopback(const struct sk_spot *p)
{
	return p->family == AF_INET ? p->ip[0] == 127 :
	       IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)
				    p->ip);
}

static bool is_of_a_link(const struct sk_spot *p)
{
	return p->family == AF_INET6 &&
	       IN6_IS_ADDR_LINKLOCAL((const struct in6_addr *)(const void *)
				     p->ip);
}

/* Where others meet this rank: where it speaks to rank 0 from. Who does so
 * over loopback, or from where rank 0 is itself, is on its node: others reach
 * that by other addresses, perhaps. */
static int tell_place(const struct sk_os *os, int fd,
		      const struct sk_spot *root, struct sk_spot *place)
{
	struct sockaddr_storage at;
	socklen_t size = sizeof(at);
	int r = os->getsockname(os, fd, (void *)&at, &size);

	if (r < 0)
		return r;
	if (!from_address((void *)&at, place))
		return -EAFNOSUPPORT;
	if (is_loopback(place) ||
	    (place->family == root->family &&
	     !memcmp(place->ip, root->ip, sizeof(root->ip))))
		place->family = 0;
	return 0;
}

static int look_up(const char *host, uint16_t port, struct sk_notice *ret,
		   struct sk_err *err)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct addrinfo *all = NULL;
	int r = getaddrinfo(host, NULL, &hints, &all);

	if (r)
		return sk_err_set(err, -ENOENT, "no address of \"%s\": %s",
				  host, gai_strerror(r));
	r = sk_err_set(err, -EADDRNOTAVAIL, "\"%s\" has no address but of one "
		       "link alone, which other nodes may have otherwise: "
		       "give one that all reach", host);
	for (struct addrinfo *a = all; a; a = a->ai_next) {
		struct sk_spot spot;

		if (ret->n == SK_NOTICE_PLACES ||
		    !from_address(a->ai_addr, &spot) || is_of_a_link(&spot))
			continue;
		spot.port = port;
		ret->places[ret->n++] = spot;
		r = 0;
	}
	freeaddrinfo(all);
	return r;
}

static int look_up_all(const char *at, struct sk_notice *ret,
		       struct sk_err *err)
{
	int r;

	do {
		char host[256];
		uint16_t port;

		r = sk_seek_parse(at, host, &port, err);
		if (r < 0)
			return r;
		at += r;
		r = look_up(host, port, ret, err);
	} while (*at++);
	return ret->n ? 0 : r;
}

static int find(const struct sk_os *os, const char *at, struct sk_notice *ret,
		struct sk_err *err)
{
	int r;

	*ret = (struct sk_notice){ 0 };
	if (at[0] != '/')
		return look_up_all(at, ret, err);
	r = sk_notice_read(os, at, ret);
	return r < 0 ? sk_err_errno(err, r, "cannot read the notice \"%s\"",
				    at) : 0;
}

/* ---- connecting ---- */

static int connect_by(const struct sk_os *os, int fd,
		      const struct sk_spot *place, uint64_t until)
{
	struct pollfd p = { fd, POLLOUT, 0 };
	struct sockaddr_storage to;
	socklen_t size = to_address(place, &to);
	int r = os->connect(os, fd, (void *)&to, size), e = 0;

	if (r < 0 && r != -EINPROGRESS && r != -EALREADY)
		return r;
	r = os->poll(os, &p, 1, until);
	size = sizeof(e);
	if (r >= 0)
		r = os->getsockopt(os, fd, SOL_SOCKET, SO_ERROR, &e, &size);
	return r < 0 ? r : -e;
}

int sk_seek_connect(const struct sk_os *os, const struct sk_spot *place,
		    uint64_t until_ns, int *ret_fd)
{
	int fd, r;

	if (place->family != AF_INET && place->family != AF_INET6)
		return -EPROTO;
	fd = os->socket(os, place->family,
			SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fd;
	r = connect_by(os, fd, place, until_ns);
	if (r < 0)
		(void)os->close(os, fd);
	else
		*ret_fd = fd;
	return r;
}

static int ask(const struct sk_os *os, int fd, const struct sk_spot *root,
	       struct sk_hello *hello, uint64_t until, struct sk_answer *ret)
{
	int r = tell_place(os, fd, root, &hello->place);

	if (r >= 0)
		r = sk_link_send(os, fd, hello, sizeof(*hello), until);
	if (r >= 0)
		r = sk_link_receive(os, fd, ret, sizeof(*ret), until);
	if (r >= 0 && ret->magic != SK_HELLO_MAGIC)
		r = -EPROTO;
	return r < 0 ? r : ret->result < 0;
}

static int try_all(const struct sk_os *os, const struct sk_notice *at,
		   uint64_t until, struct sk_hello *hello, int *ret_fd,
		   struct sk_spot *ret_root, struct sk_answer *ret_answer)
{
	int r = -ENOENT;

	for (uint32_t i = 0; i < at->n; i++) {
		uint64_t by = share(os, until, at->n - i);
		int fd;

		r = sk_seek_connect(os, &at->places[i], by, &fd);
		if (r < 0)
			continue;
		by = within(os, ANSWER_NS, until);
		r = ask(os, fd, &at->places[i], hello, by, ret_answer);
		if (!r) {
			*ret_fd = fd;
			*ret_root = at->places[i];
			return 0;
		}
		(void)os->close(os, fd);
		if (r > 0)
			return r;
	}
	return r;
}

int sk_seek(const struct sk_os *os, const char *at, uint64_t until_ns,
	    struct sk_hello *hello, int *ret_fd, struct sk_spot *ret_root,
	    struct sk_answer *ret_answer, struct sk_err *err)
{
	for (;;) {
		struct sk_err why = { "" };
		struct sk_notice all;
		int r = find(os, at, &all, &why);

		if (r == -EINVAL)
			return sk_err_set(err, r, "%s", why.text);
		if (r >= 0) {
			memcpy(hello->nonce, all.nonce, sizeof(all.nonce));
			r = try_all(os, &all, until_ns, hello, ret_fd,
				    ret_root, ret_answer);
			if (r >= 0)
				return r;
			(void)sk_err_errno(&why, r, "nobody let this rank in");
		}
		if (os->now_ns(os) >= until_ns)
			return sk_err_set(err, sk_door_lacks(r) ? r :
					  -ETIMEDOUT, "rank 0 was not met at "
					  "\"%s\": %s", at, why.text);
		(void)os->poll(os, NULL, 0, within(os, PAUSE_NS, until_ns));
	}
}
