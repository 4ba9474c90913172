/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "util.h"

union control {
	char buf[CMSG_SPACE(SK_MSG_FDS * sizeof(int))];
	struct cmsghdr align;
};

int sk_wire_send(int sock, struct sk_msg *msg, const int *fds, int n_fds)
{
	struct iovec iov = { .iov_base = msg, .iov_len = sizeof(*msg) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	union control control = { 0 };
	struct cmsghdr *c;
	ssize_t n;

	assert(n_fds >= 0 && n_fds <= SK_MSG_FDS);
	msg->magic = SK_WIRE_MAGIC;
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
	do
		n = sendmsg(sock, &h, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return n == (ssize_t)sizeof(*msg) ? 0 : -EPROTO;
}

/* All descriptors of all control messages; those beyond the room and those
 * of a message we refuse are closed, whatever the sender meant by them. */
static int take_fds(struct msghdr *h, int *fds, int room)
{
	int n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < k; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int),
			       sizeof(fd));
			if (n < room)
				fds[n++] = fd;
			else
				sk_close_fd(fd);
		}
	}
	return n;
}

static int wait_readable(int sock, int timeout_ms)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };
	int r;

	if (timeout_ms < 0)
		return 0;
	do
		r = poll(&p, 1, timeout_ms);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	return r ? 0 : -ETIMEDOUT;
}

static bool well_formed(const struct sk_msg *m, ssize_t size,
			const struct msghdr *h, int n_fds)
{
	return size == (ssize_t)sizeof(*m) &&
	       !(h->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
	       m->magic == SK_WIRE_MAGIC && m->version == SK_WIRE_VERSION &&
	       m->bytes == SK_MSG_BYTES && !m->reserved &&
	       m->n_fds == (uint32_t)n_fds;
}

int sk_wire_recv(int sock, struct sk_msg *ret_msg, int *ret_fds,
		 int *ret_n_fds, int timeout_ms)
{
	struct iovec iov = { .iov_base = ret_msg,
			     .iov_len = sizeof(*ret_msg) };
	union control control;
	struct msghdr h = {
		.msg_iov = &iov, .msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	int fds[SK_MSG_FDS], n_fds, r;
	ssize_t n;

	r = wait_readable(sock, timeout_ms);
	if (r < 0)
		return r;
	do
		n = recvmsg(sock, &h, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	n_fds = take_fds(&h, fds, SK_MSG_FDS);
	if (n == 0 && !n_fds)
		return -ECONNRESET;
	if (!well_formed(ret_msg, n, &h, n_fds)) {
		while (n_fds)
			sk_close_fd(fds[--n_fds]);
		return -EPROTO;
	}
	memcpy(ret_fds, fds, (size_t)n_fds * sizeof(int));
	*ret_n_fds = n_fds;
	return 0;
}

int sk_wire_check_id(const struct sk_wire_id *id, struct sk_err *err)
{
	if (!memchr(id->job, 0, sizeof(id->job)))
		return sk_err_set(err, -EINVAL,
				  "a job name without an end");
	if (id->job[0] && sk_job_check(id->job, err) < 0)
		return -EINVAL;
	if (id->step < -1)
		return sk_err_set(err, -EINVAL, "step %lld is negative",
				  (long long)id->step);
	if (id->run > INT64_MAX)
		return sk_err_set(err, -EINVAL, "run %llu is out of range",
				  (unsigned long long)id->run);
	if (id->rank < -1 || id->world < 0 || id->world > SK_MESH_MAX_RANKS)
		return sk_err_set(err, -EINVAL, "rank %d of %d ranks",
				  id->rank, id->world);
	return 0;
}

static const char *const type_names[SK_MSG_TYPE_COUNT] = {
	[SK_MSG_HELLO] = "hello",
	[SK_MSG_REGISTER] = "register",
	[SK_MSG_PREPARE] = "prepare",
	[SK_MSG_SLOT] = "slot",
	[SK_MSG_SLOT_WAIT] = "slot-wait",
	[SK_MSG_SEAL] = "seal",
	[SK_MSG_DISCARD] = "discard",
	[SK_MSG_UNREGISTER] = "unregister",
	[SK_MSG_WAIT] = "wait",
	[SK_MSG_GATHER] = "gather",
	[SK_MSG_LIST] = "list",
	[SK_MSG_OPEN] = "open",
	[SK_MSG_CLOSE] = "close",
	[SK_MSG_REPORT_BAD] = "report-bad",
	[SK_MSG_PIN] = "pin",
	[SK_MSG_UNPIN] = "unpin",
	[SK_MSG_EVICT] = "evict",
	[SK_MSG_FLUSH] = "flush",
	[SK_MSG_STATS] = "stats",
	[SK_MSG_STOP] = "stop",
	[SK_MSG_MAP] = "map",
};

const char *sk_msg_type_name(unsigned type)
{
	return type < SK_MSG_TYPE_COUNT && type_names[type] ?
	       type_names[type] : "unknown";
}
