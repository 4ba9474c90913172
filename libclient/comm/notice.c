/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/notice.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/memfd.h"

#define MAGIC UINT64_C(0x3143544e504b4853)	/* "SHKPNTC1" */

static bool to_place(const struct sockaddr *a, struct sk_spot *ret)
{
	*ret = (struct sk_spot){ 0 };
	if (!a || (a->sa_family != AF_INET && a->sa_family != AF_INET6))
		return false;
	ret->family = a->sa_family;
	if (a->sa_family == AF_INET) {
		memcpy(ret->ip, &((const struct sockaddr_in *)(const void *)a)
			       ->sin_addr, 4);
		return true;
	}
	memcpy(ret->ip, &((const struct sockaddr_in6 *)(const void *)a)
		       ->sin6_addr, 16);
	/* One of a link alone would need to be told by which of them. */
	return !(ret->ip[0] == 0xfe && (ret->ip[1] & 0xc0) == 0x80);
}

/* ---- which addresses ---- */

static bool is_among(const char *name, const char *names)
{
	size_t n = strlen(name);

	if (!names)
		return true;
	for (const char *at = names; *at;) {
		const char *end = strchrnul(at, ',');

		if ((size_t)(end - at) == n && !memcmp(at, name, n))
			return true;
		at = *end ? end + 1 : end;
	}
	return false;
}

static void add(struct sk_notice *notice, struct sk_spot spot)
{
	for (uint32_t i = 0; i < notice->n; i++)
		if (notice->places[i].family == spot.family &&
		    !memcmp(notice->places[i].ip, spot.ip, sizeof(spot.ip)))
			return;
	if (notice->n < SK_NOTICE_PLACES)
		notice->places[notice->n++] = spot;
}

/* Where this node would speak to that address from; nothing is sent. */
static bool spot_towards(const struct sk_os *os, const struct addrinfo *a,
			 struct sk_spot *ret)
{
	int fd = os->socket(os, a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_storage at = { 0 };
	socklen_t size = sizeof(at);
	int r;

	if (fd < 0)
		return false;
	r = os->connect(os, fd, a->ai_addr, a->ai_addrlen);
	if (r >= 0)
		r = os->getsockname(os, fd, (void *)&at, &size);
	(void)os->close(os, fd);
	return r >= 0 && to_place((void *)&at, ret);
}

/* Those among @own, of which it takes what is looked for. */
static void fill_towards(const struct sk_os *os, const char *host,
			 const struct ifaddrs *own, const char *interfaces,
			 uint16_t port, struct sk_notice *notice)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_DGRAM };
	struct addrinfo *all = NULL;

	/* A port, as there is no speaking to none. */
	if (getaddrinfo(host, "9", &hints, &all))
		return;
	for (struct addrinfo *a = all; a; a = a->ai_next) {
		struct sk_spot to, p;

		if (!spot_towards(os, a, &to))
			continue;
		to.port = port;
		/* Loopback stays last, whatever a hosts file says. */
		for (const struct ifaddrs *i = own; i; i = i->ifa_next)
			if (to_place(i->ifa_addr, &p) &&
			    !(i->ifa_flags & IFF_LOOPBACK) &&
			    p.family == to.family &&
			    !memcmp(p.ip, to.ip, sizeof(p.ip)) &&
			    is_among(i->ifa_name, interfaces))
				add(notice, to);
	}
	freeaddrinfo(all);
}

void sk_notice_fill_for(const struct sk_os *os, const char *host,
			const char *interfaces, uint16_t port,
			struct sk_notice *notice)
{
	struct ifaddrs *all = NULL;

	notice->magic = MAGIC;
	notice->n = 0;
	if (getifaddrs(&all) < 0)
		return;
	if (host)
		fill_towards(os, host, all, interfaces, port, notice);
	for (int loopback = 0; loopback < 2; loopback++)
		for (struct ifaddrs *a = all; a; a = a->ifa_next) {
			struct sk_spot p;

			if (!(a->ifa_flags & IFF_UP) ||
			    !!(a->ifa_flags & IFF_LOOPBACK) != loopback ||
			    !is_among(a->ifa_name, interfaces) ||
			    !to_place(a->ifa_addr, &p))
				continue;
			p.port = port;
			add(notice, p);
		}
	freeifaddrs(all);
}

void sk_notice_fill(struct sk_notice *notice, uint16_t port)
{
	sk_notice_fill_for(NULL, NULL, NULL, port, notice);
}

void sk_notice_print(const struct sk_notice *notice, char *buf, size_t size)
{
	size_t used = 0;

	*buf = '\0';
	for (uint32_t i = 0; i < notice->n; i++) {
		const struct sk_spot *p = &notice->places[i];
		bool six = p->family == AF_INET6;
		char ip[INET6_ADDRSTRLEN];
		int n;

		if (!inet_ntop(p->family, p->ip, ip, sizeof(ip)))
			continue;
		n = snprintf(buf + used, size - used, "%s%s%s%s:%u",
			     used ? "," : "", six ? "[" : "", ip,
			     six ? "]" : "", p->port);
		if (n < 0 || (size_t)n >= size - used) {
			buf[used] = '\0';
			return;
		}
		used += (size_t)n;
	}
}

/* ---- the file ---- */

static int write_it(const struct sk_os *os, const char *path,
		    const struct sk_notice *notice, struct stat *ret_st)
{
	int fd, r = sk_file_check(os, sizeof(*notice));
	ssize_t n;

	if (r < 0)
		return r;
	fd = os->openat(os, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL |
			O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return fd;
	n = os->pwrite(os, fd, notice, sizeof(*notice), 0);
	r = n < 0 ? (int)n : n == sizeof(*notice) ? 0 : -EIO;
	/* Other nodes see what is on the server. */
	if (r >= 0)
		r = os->fsync(os, fd);
	if (r >= 0)
		r = os->fstat(os, fd, ret_st);
	(void)os->close(os, fd);
	return r;
}

/* An older meeting's is, and nothing else: a path may be a wrong one. */
static int check_replaced(const struct sk_os *os, const char *path,
			  struct sk_err *err)
{
	struct sk_notice old;
	int r = sk_notice_read(os, path, &old);

	if (r == 0 || r == -ENOENT)
		return 0;
	if (r == -EPERM || r == -EPROTO || r == -EACCES || r == -ENXIO)
		return sk_err_set(err, -EEXIST, "\"%s\" is there already, and "
				  "is no file by which ranks met: name one "
				  "that is not there yet", path);
	return sk_err_errno(err, r, "cannot look at \"%s\", by which the "
			    "ranks are to meet", path);
}

/* Of a rank 0 that was killed while it wrote. */
static void remove_begun(const struct sk_os *os, const char *path)
{
	struct stat st;

	if (os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &st) >= 0 &&
	    S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	    st.st_size <= (off_t)sizeof(struct sk_notice))
		(void)os->unlinkat(os, AT_FDCWD, path, 0);
}

int sk_notice_put(const struct sk_os *os, const char *path,
		  const struct sk_notice *notice, struct stat *ret_st,
		  struct sk_err *err)
{
	char begun[PATH_MAX];
	int r = snprintf(begun, sizeof(begun), "%s.begun", path);

	if (r >= (int)sizeof(begun))
		return sk_err_set(err, -ENAMETOOLONG, "the path of the "
				  "meeting's file is too long");
	r = check_replaced(os, path, err);
	if (r < 0)
		return r;
	remove_begun(os, begun);
	r = write_it(os, begun, notice, ret_st);
	if (r >= 0)
		r = os->renameat(os, AT_FDCWD, begun, AT_FDCWD, path, 0);
	if (r >= 0)
		return 0;
	(void)os->unlinkat(os, AT_FDCWD, begun, 0);
	return sk_err_errno(err, r, "cannot write \"%s\", by which the ranks "
			    "are to meet", path);
}

bool sk_notice_stands(const struct sk_os *os, const char *path,
		      const struct stat *st)
{
	struct stat now;

	return os->fstatat(os, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, &now) >=
	       0 && now.st_ino == st->st_ino && now.st_dev == st->st_dev;
}

void sk_notice_remove(const struct sk_os *os, const char *path,
		      const struct stat *st)
{
	if (sk_notice_stands(os, path, st))
		(void)os->unlinkat(os, AT_FDCWD, path, 0);
}

static int read_it(const struct sk_os *os, int fd, struct sk_notice *ret)
{
	struct stat st;
	int r = os->fstat(os, fd, &st);
	ssize_t n;

	if (r < 0)
		return r;
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
	    st.st_mode & 077)
		return -EPERM;
	n = os->pread(os, fd, ret, sizeof(*ret), 0);
	if (n < 0)
		return (int)n;
	return n == sizeof(*ret) && ret->magic == MAGIC &&
	       ret->n <= SK_NOTICE_PLACES ? 0 : -EPROTO;
}

int sk_notice_read(const struct sk_os *os, const char *path,
		   struct sk_notice *ret_notice)
{
	int fd = os->openat(os, AT_FDCWD, path, O_RDONLY | O_NOFOLLOW |
			    O_NONBLOCK | O_CLOEXEC, 0), r;

	if (fd < 0)
		return fd == -ELOOP ? -EPERM : fd;
	r = read_it(os, fd, ret_notice);
	(void)os->close(os, fd);
	return r;
}
