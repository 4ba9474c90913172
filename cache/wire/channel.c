/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/channel.h"

#include <assert.h>
#include <string.h>
#include <sys/uio.h>

#include "base/util.h"
#include "wire/version.h"

union control {
	char buf[CMSG_SPACE(SK_MSG_FDS * sizeof(int))];
	struct cmsghdr align;
};

union control_all {
	char buf[CMSG_SPACE(SK_CHANNEL_FDS * sizeof(int))];
	struct cmsghdr align;
};

int sk_channel_send(const struct sk_os *os, int sock, struct sk_msg *msg,
		    const int *fds, int n_fds)
{
	struct iovec iov = { .iov_base = msg, .iov_len = sizeof(*msg) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	union control control = { 0 };
	struct cmsghdr *c;
	ssize_t n;

	assert(fds || !n_fds);
	assert(n_fds >= 0 && n_fds <= SK_MSG_FDS);
	msg->magic = SK_WIRE_MAGIC;
	if (!msg->version)
		msg->version = SK_WIRE_VERSION;
	msg->bytes = SK_MSG_BYTES;
	msg->n_fds = (uint32_t)n_fds;
	msg->reserved = 0;
	if (n_fds) {
		h.msg_control = control.buf;
		h.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
	}
	n = os->sendmsg(os, sock, &h, MSG_NOSIGNAL);
	if (n < 0)
		return (int)n;
	return n == (ssize_t)sizeof(*msg) ? 0 : -EPROTO;
}

/* All descriptors of all control messages; *ret_other: there is something
 * else, which nobody has asked for. */
static int take_fds(struct msghdr *h, int *fds, bool *ret_other)
{
	int n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET ||
		    c->cmsg_type != SCM_RIGHTS) {
			*ret_other = true;
			continue;
		}
		assert(n + (int)k <= SK_CHANNEL_FDS);
		memcpy(fds + n, CMSG_DATA(c), k * sizeof(int));
		n += (int)k;
	}
	return n;
}

/* HELLO may come in any: who cannot read it is told so. */
static bool is_spoken(const struct sk_msg *m)
{
	return m->type == SK_MSG_HELLO || m->version == SK_WIRE_VERSION ||
	       m->version == SK_WIRE_OLDEST;
}

/* 0, or what is wrong with a message. There is room for all descriptors that
 * can come: those that the kernel leaves out we may not open, which is us, and
 * not the sender. */
static int judge(const struct sk_msg *m, ssize_t size, const struct msghdr *h,
		 int n_fds)
{
	if (size != (ssize_t)sizeof(*m) || h->msg_flags & MSG_TRUNC ||
	    m->magic != SK_WIRE_MAGIC || !is_spoken(m) ||
	    m->bytes != SK_MSG_BYTES || m->reserved || m->n_fds > SK_MSG_FDS)
		return -EPROTO;
	if (h->msg_flags & MSG_CTRUNC)
		return n_fds < (int)m->n_fds ? -EMFILE : -EPROTO;
	return m->n_fds == (uint32_t)n_fds ? 0 : -EPROTO;
}

int sk_channel_wait(const struct sk_os *os, int sock, uint64_t until_ns)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };
	int r = os->poll(os, &p, 1, until_ns);

	return r < 0 ? r : 0;
}

int sk_channel_recv_all(const struct sk_os *os, int sock,
			struct sk_msg *ret_msg, int *ret_fds, int *ret_n_fds)
{
	struct iovec iov = { .iov_base = ret_msg,
			     .iov_len = sizeof(*ret_msg) };
	union control_all control;
	struct msghdr h = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	bool other = false;
	ssize_t n;

	*ret_n_fds = 0;
	n = os->recvmsg(os, sock, &h, 0);
	/* Of an end that left something unread this comes once, before what it
	 * had sent. */
	if (n == -ECONNRESET)
		n = os->recvmsg(os, sock, &h, 0);
	if (n < 0)
		return (int)n;
	*ret_n_fds = take_fds(&h, ret_fds, &other);
	if (n == 0 && !*ret_n_fds)
		return -ECONNRESET;
	return other ? -EPROTO : judge(ret_msg, n, &h, *ret_n_fds);
}

int sk_channel_recv(const struct sk_os *os, int sock, struct sk_msg *ret_msg,
		    int *ret_fds, int *ret_n_fds)
{
	int fds[SK_CHANNEL_FDS], n, r;

	r = sk_channel_recv_all(os, sock, ret_msg, fds, &n);
	if (r < 0) {
		while (n)
			sk_close_fd(fds[--n]);
		return r;
	}
	assert(n >= 0 && n <= SK_MSG_FDS);	/* it was judged */
	memcpy(ret_fds, fds, (size_t)n * sizeof(*fds));
	*ret_n_fds = n;
	return 0;
}
