/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that are not what they should be. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "util.h"
#include "wire.h"

static void make_pair(int sock[2])
{
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
				sock), 0);
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* @bytes of @data with @n_fds descriptors, whatever they are. */
static void send_raw(int sock, const void *data, size_t bytes, int n_fds)
{
	union {
		char buf[CMSG_SPACE(sizeof(int) * 32)];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec iov = { .iov_base = (void *)data, .iov_len = bytes };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fds[32];

	if (n_fds) {
		struct cmsghdr *c = &control.align;

		h.msg_control = control.buf;
		h.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n_fds);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n_fds);
		for (int i = 0; i < n_fds; i++)
			fds[i] = STDERR_FILENO;
		memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)n_fds);
	}
	cr_assert_eq(sendmsg(sock, &h, 0), (ssize_t)bytes);
}

static struct sk_msg good(int n_fds)
{
	struct sk_msg m = { .magic = SK_WIRE_MAGIC,
			    .version = SK_WIRE_VERSION, .type = SK_MSG_LIST,
			    .seq = 5, .bytes = SK_MSG_BYTES,
			    .n_fds = (uint32_t)n_fds };

	return m;
}

static int receive(int sock, struct sk_msg *ret)
{
	int fds[SK_MSG_FDS], n = 0;
	int r = sk_wire_recv(sock, ret, fds, &n, 1000);

	for (int i = 0; r >= 0 && i < n; i++) {
		cr_assert(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
		close(fds[i]);
	}
	return r < 0 ? r : n;
}

Test(wire, there_and_back)
{
	struct sk_msg out = { .type = SK_MSG_SLOT, .seq = 9,
			      .body.slot = { .state = 3, .step = 44 } };
	struct sk_msg in;
	int sock[2];

	make_pair(sock);
	for (int n = 0; n <= SK_MSG_FDS; n++) {
		int fds[SK_MSG_FDS] = { STDERR_FILENO, STDERR_FILENO };

		for (int i = 0; i < n; i++)
			fds[i] = STDERR_FILENO;
		cr_assert_eq(sk_wire_send(sock[0], &out, fds, n), 0);
		cr_assert_eq(receive(sock[1], &in), n);
		cr_assert(in.type == SK_MSG_SLOT && in.seq == 9 &&
			  in.body.slot.step == 44);
	}
	cr_assert_eq(sk_wire_recv(sock[1], &in, (int[SK_MSG_FDS]){ 0 },
				  &(int){ 0 }, 1), -ETIMEDOUT);
	close(sock[0]);
	cr_assert_eq(receive(sock[1], &in), -ECONNRESET);
	close(sock[1]);
}

Test(wire, no_signal_when_nobody_listens)
{
	struct sk_msg out = { .type = SK_MSG_STATS };
	int sock[2];

	make_pair(sock);
	close(sock[1]);
	cr_assert_eq(sk_wire_send(sock[0], &out, NULL, 0), -EPIPE);
	close(sock[0]);
}

/* Each field wrong by itself, with and without descriptors. */
Test(wire, refuses_and_closes)
{
	int sock[2], before;
	struct sk_msg in;

	make_pair(sock);
	before = open_fds();
	for (int wrong = 0; wrong < 6; wrong++) {
		for (int n_fds = 0; n_fds <= SK_MSG_FDS; n_fds++) {
			struct sk_msg m = good(n_fds);
			size_t bytes = sizeof(m);

			m.magic ^= wrong == 0;
			m.version ^= wrong == 1;
			m.bytes ^= wrong == 2;
			m.reserved = wrong == 3;
			m.n_fds += wrong == 4;
			bytes -= wrong == 5;
			send_raw(sock[0], &m, bytes, n_fds);
			cr_assert_eq(receive(sock[1], &in), -EPROTO,
				     "field %d, %d descriptors", wrong,
				     n_fds);
			cr_assert_eq(open_fds(), before);
		}
	}
	close(sock[0]);
	close(sock[1]);
}

Test(wire, more_than_there_is_room_for)
{
	char big[SK_MSG_BYTES + 100] = { 0 };
	struct sk_msg m = good(16), in;
	int sock[2], before;

	make_pair(sock);
	before = open_fds();
	send_raw(sock[0], &m, sizeof(m), 16);
	cr_assert_eq(receive(sock[1], &in), -EPROTO);
	m = good(0);
	memcpy(big, &m, sizeof(m));
	send_raw(sock[0], big, sizeof(big), 0);
	cr_assert_eq(receive(sock[1], &in), -EPROTO);
	cr_assert_eq(open_fds(), before);
	close(sock[0]);
	close(sock[1]);
}

Test(wire, random_bytes)
{
	int sock[2], before;
	struct sk_msg in;

	make_pair(sock);
	before = open_fds();
	srandom(4711);
	for (int round = 0; round < 2000; round++) {
		char bytes[SK_MSG_BYTES + 32];
		size_t n = 1 + (size_t)random() % sizeof(bytes);

		for (size_t i = 0; i < n; i++)
			bytes[i] = (char)random();
		send_raw(sock[0], bytes, n, (int)(random() % 5));
		cr_assert_eq(receive(sock[1], &in), -EPROTO);
	}
	cr_assert_eq(open_fds(), before);
	close(sock[0]);
	close(sock[1]);
}

Test(wire, ids)
{
	struct sk_wire_id fine = { .job = "llama-3.1_x", .step = -1,
				   .rank = -1 }, id;
	struct sk_err err = { "" };

	cr_assert_eq(sk_wire_check_id(&fine, &err), 0);
	id = fine;
	memset(id.job, 'a', sizeof(id.job));
	cr_assert_eq(sk_wire_check_id(&id, &err), -EINVAL);
	id = fine;
	strcpy(id.job, "a/b");
	cr_assert_eq(sk_wire_check_id(&id, &err), -EINVAL);
	strcpy(id.job, "..");
	cr_assert_eq(sk_wire_check_id(&id, &err), -EINVAL, "a directory");
	id = fine;
	id.step = -2;
	cr_assert_eq(sk_wire_check_id(&id, &err), -EINVAL);
	id = fine;
	id.run = UINT64_MAX;
	cr_assert_eq(sk_wire_check_id(&id, &err), -EINVAL);
	id = fine;
	id.rank = -2;
	cr_assert_eq(sk_wire_check_id(&id, &err), -EINVAL);
	id = fine;
	id.world = INT32_MAX;
	cr_assert_eq(sk_wire_check_id(&id, &err), -EINVAL);
}
