/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define BACKLOG 32

static int refuse(const char *text, struct sk_err *err)
{
	return sk_err_set(err, -EINVAL, "\"%.64s\" is no address; it is a "
			  "port, such as 9477 or 127.0.0.1:9477, or the path "
			  "of a socket", text);
}

static int parse_path(const char *text, struct address *ret,
		      struct sk_err *err)
{
	struct sockaddr_un *un = &ret->local;

	if (strlen(text) >= sizeof(un->sun_path))
		return sk_err_set(err, -EINVAL, "the path of a socket has at "
				  "most %zu characters",
				  sizeof(un->sun_path) - 1);
	un->sun_family = AF_UNIX;
	strcpy(un->sun_path, text);
	ret->bytes = sizeof(*un);
	return 0;
}

/* -1: it is none. */
static int parse_port(const char *text)
{
	char *end;
	long port;

	if (!isdigit((unsigned char)*text))
		return -1;
	errno = 0;
	port = strtol(text, &end, 10);
	return *end || errno || port > UINT16_MAX ? -1 : (int)port;
}

static bool set_host(const char *host, in_port_t port, struct address *ret)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&ret->room;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&ret->room;

	if (strcmp(host, "localhost") == 0)
		host = "127.0.0.1";
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = port;
		ret->bytes = sizeof(*v4);
		return true;
	}
	if (inet_pton(AF_INET6, host, &v6->sin6_addr) != 1)
		return false;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = port;
	ret->bytes = sizeof(*v6);
	return true;
}

static bool is_loopback(const struct address *at)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&at->room;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&at->room;

	if (at->any.sa_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

int address_parse(const char *text, bool public_too, struct address *ret,
		  struct sk_err *err)
{
	struct address at = { .bytes = 0 };
	const char *colon = strrchr(text, ':');
	char host[64] = "127.0.0.1";
	int port = parse_port(colon ? colon + 1 : text);
	size_t n = colon ? (size_t)(colon - text) : 0;

	*ret = at;
	if (*text == '/')
		return parse_path(text, ret, err);
	if (port < 0 || n >= sizeof(host))
		return refuse(text, err);
	if (colon && n > 2 && *text == '[' && text[n - 1] == ']')
		(void)snprintf(host, sizeof(host), "%.*s", (int)n - 2,
			       text + 1);
	else if (colon)
		(void)snprintf(host, sizeof(host), "%.*s", (int)n, text);
	if (!set_host(host, htons((uint16_t)port), &at))
		return refuse(text, err);
	if (!public_too && !is_loopback(&at))
		return sk_err_set(err, -EPERM, "%.64s is reached from other "
				  "machines, which would see the names of all "
				  "jobs; --metrics-public says that they may",
				  text);
	*ret = at;
	return 0;
}

/* One that nobody listens at any more is in the way. */
static void clear_path(const struct sk_os *os, const struct address *at)
{
	struct stat st;
	int fd, r;

	if (os->fstatat(os, AT_FDCWD, at->local.sun_path,
			AT_SYMLINK_NOFOLLOW, &st) < 0 ||
	    !S_ISSOCK(st.st_mode))
		return;
	fd = os->socket(os, AF_UNIX, SOCK_STREAM, 0);
	if (fd < 0)
		return;
	r = os->connect(os, fd, &at->any, at->bytes);
	(void)os->close(os, fd);
	if (r == -ECONNREFUSED)
		(void)os->unlinkat(os, AT_FDCWD, at->local.sun_path, 0);
}

static int listen_at(const struct sk_os *os, int fd, const struct address *at)
{
	bool local = at->any.sa_family == AF_UNIX;
	int one = 1, r;

	/* Else what the last agent's clients left keeps the port for a
	 * minute. */
	if (!local)
		(void)os->setsockopt(os, fd, SOL_SOCKET, SO_REUSEADDR, &one,
				     sizeof(one));
	r = os->bind(os, fd, &at->any, at->bytes);
	/* Until then the mask keeps others from writing, and so from
	 * connecting. */
	if (r == 0 && local)
		r = os->fchmodat(os, AT_FDCWD, at->local.sun_path, 0600);
	return r < 0 ? r : os->listen(os, fd, BACKLOG);
}

int address_listen(const struct sk_os *os, const struct address *at,
		   struct sk_err *err)
{
	int fd, r;

	if (at->any.sa_family == AF_UNIX)
		clear_path(os, at);
	fd = os->socket(os, at->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return sk_err_errno(err, fd, "no socket for the metrics");
	r = listen_at(os, fd, at);
	if (r == 0)
		return fd;
	(void)os->close(os, fd);
	return sk_err_errno(err, r, "cannot serve metrics");
}

void address_format(const struct sk_os *os, int sock, char *ret, size_t size)
{
	struct address at = { .bytes = sizeof(at.room) };
	const struct sockaddr_in *v4 = (struct sockaddr_in *)&at.room;
	const struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&at.room;
	char host[INET6_ADDRSTRLEN] = "";

	*ret = 0;
	if (os->getsockname(os, sock, &at.any, &at.bytes) < 0)
		return;
	if (at.any.sa_family == AF_UNIX)
		(void)snprintf(ret, size, "%s", at.local.sun_path);
	else if (at.any.sa_family == AF_INET)
		(void)snprintf(ret, size, "http://%s:%u/metrics",
			       inet_ntop(AF_INET, &v4->sin_addr, host,
					 sizeof(host)), ntohs(v4->sin_port));
	else
		(void)snprintf(ret, size, "http://[%s]:%u/metrics",
			       inet_ntop(AF_INET6, &v6->sin6_addr, host,
					 sizeof(host)), ntohs(v6->sin6_port));
}

void address_leave(const struct sk_os *os, const struct address *at)
{
	if (at->any.sa_family == AF_UNIX)
		(void)os->unlinkat(os, AT_FDCWD, at->local.sun_path, 0);
}
