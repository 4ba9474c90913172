/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire: what is well-formed arrives whole, everything else is -EPROTO, and
 * no descriptor that came with it stays open.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/util.h"
#include "support/files.h"
#include "wire/channel.h"
#include "wire/version.h"

#define FDS_MAX 16

struct pair {
	int a, b;
};

static int give(int sock, struct sk_msg *msg, const int *fds, int n_fds)
{
	return sk_channel_send(sk_os_linux(), sock, msg, fds, n_fds);
}

static int take(int sock, struct sk_msg *ret_msg, int *ret_fds, int *ret_n)
{
	return sk_channel_recv(sk_os_linux(), sock, ret_msg, ret_fds, ret_n);
}

static struct pair connected(void)
{
	int sock[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
				sock), 0);
	return (struct pair){ sock[0], sock[1] };
}

static void disconnect(struct pair p)
{
	close(p.a);
	close(p.b);
}

static struct sk_msg good(int n_fds)
{
	return (struct sk_msg){
		.magic = SK_WIRE_MAGIC, .version = SK_WIRE_VERSION,
		.type = SK_MSG_LIST, .seq = 7, .bytes = SK_MSG_BYTES,
		.n_fds = (uint32_t)n_fds,
	};
}

/* Sends any bytes and descriptors, as somebody else's program might. */
static void send_raw(int sock, const void *data, size_t size, const int *fds,
		     int n_fds)
{
	union {
		char buf[CMSG_SPACE(FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec iov = { (void *)data, size };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n_fds) {
		size_t bytes = (size_t)n_fds * sizeof(int);

		h.msg_control = control.buf;
		h.msg_controllen = CMSG_SPACE(bytes);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(bytes);
		memcpy(CMSG_DATA(&control.align), fds, bytes);
	}
	cr_assert_eq(sendmsg(sock, &h, MSG_NOSIGNAL), (ssize_t)size);
}

/* Sends it with @n_fds descriptors; expects @r, and that none stays. */
static void expect(const void *data, size_t size, int n_fds, int r)
{
	int before = count_fds(), got[SK_MSG_FDS], n = 0, fds[FDS_MAX];
	struct pair p = connected();
	struct sk_msg msg;

	for (int i = 0; i < n_fds; i++)
		cr_assert_geq(fds[i] = memfd_create("t", MFD_CLOEXEC), 0);
	send_raw(p.a, data, size, fds, n_fds);
	for (int i = 0; i < n_fds; i++)
		close(fds[i]);
	cr_assert_eq(take(p.b, &msg, got, &n), r,
		     "%zu bytes, %d descriptors", size, n_fds);
	for (int i = 0; r >= 0 && i < n; i++)
		close(got[i]);
	disconnect(p);
	cr_assert_eq(count_fds(), before, "descriptors were left open");
}

Test(channel, carries_messages_and_descriptors)
{
	for (int n_fds = 0; n_fds <= SK_MSG_FDS; n_fds++) {
		int fds[SK_MSG_FDS], got[SK_MSG_FDS], n = -1;
		struct sk_msg msg = { .type = SK_MSG_MAP, .seq = 99,
				      .status = -EBUSY,
				      .body.map = { .state = 5, .slot = 3 } };
		struct pair p = connected();
		struct sk_msg back;

		for (int i = 0; i < n_fds; i++) {
			fds[i] = memfd_create("t", MFD_CLOEXEC);
			cr_assert_eq(ftruncate(fds[i], 100 + i), 0);
		}
		cr_assert_eq(give(p.a, &msg, fds, n_fds), 0);
		cr_assert_eq(take(p.b, &back, got, &n), 0);
		cr_assert_eq(n, n_fds);
		cr_assert_eq(memcmp(&msg, &back, sizeof(msg)), 0);
		cr_assert_eq(back.n_fds, (uint32_t)n_fds);
		for (int i = 0; i < n; i++) {
			cr_assert_eq(lseek(got[i], 0, SEEK_END), 100 + i);
			cr_assert(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
			close(got[i]);
			close(fds[i]);
		}
		disconnect(p);
	}
}

/* Each field of the frame that must have one value, given others. */
Test(channel, refuses_every_wrong_field)
{
	static const uint32_t wrong[] = {
		0, SK_WIRE_VERSION + 1, 0x31574b52, 0x3157, UINT32_MAX,
		SK_MSG_BYTES - 1 };

	for (int n_fds = 0; n_fds <= SK_MSG_FDS; n_fds++) {
		struct sk_msg m = good(n_fds);

		expect(&m, sizeof(m), n_fds, 0);
		for (size_t i = 0; i < SK_ARRAY_SIZE(wrong); i++) {
			m = good(n_fds);
			m.magic = wrong[i];
			expect(&m, sizeof(m), n_fds, -EPROTO);
			m = good(n_fds);
			m.version = (uint16_t)wrong[i];
			expect(&m, sizeof(m), n_fds, -EPROTO);
			m = good(n_fds);
			m.bytes = wrong[i];
			expect(&m, sizeof(m), n_fds, -EPROTO);
			m = good(n_fds);
			m.reserved = (uint64_t)1 << (i * 11);
			expect(&m, sizeof(m), n_fds, -EPROTO);
		}
	}
}

/* Two are spoken; HELLO tells those who speak no other way what we do. */
Test(channel, takes_two_versions_and_hello_in_any)
{
	for (unsigned v = 0; v <= UINT16_MAX; v += v < 32 ? 1 : 99) {
		bool ours = v == SK_WIRE_VERSION || v == SK_WIRE_OLDEST;
		struct sk_msg m = good(0);

		m.version = (uint16_t)v;
		expect(&m, sizeof(m), 0, ours ? 0 : -EPROTO);
		m.type = SK_MSG_HELLO;
		expect(&m, sizeof(m), 0, 0);
	}
}

/* Any bit of the frame but those of type, sequence and status; and those that
 * make another version of it that is spoken. */
Test(channel, refuses_every_flipped_bit_of_the_frame)
{
	for (size_t bit = 0; bit < 8 * offsetof(struct sk_msg, body); bit++) {
		size_t at = bit / 8;
		bool free_bits = at >= offsetof(struct sk_msg, type) &&
				 at < offsetof(struct sk_msg, bytes);
		struct sk_msg m = good(0);

		((uint8_t *)&m)[at] ^= (uint8_t)(1u << bit % 8);
		free_bits |= m.version == SK_WIRE_OLDEST;
		expect(&m, sizeof(m), 0, free_bits ? 0 : -EPROTO);
	}
}

Test(channel, refuses_other_numbers_of_descriptors)
{
	for (int said = 0; said <= SK_MSG_FDS + 2; said++)
		for (int sent = 0; sent <= FDS_MAX; sent++) {
			struct sk_msg m = good(said);
			bool fine = said == sent && sent <= SK_MSG_FDS;

			expect(&m, sizeof(m), sent, fine ? 0 : -EPROTO);
		}
}

Test(channel, refuses_other_sizes)
{
	char data[2 * sizeof(struct sk_msg)] = { 0 };
	struct sk_msg m = good(0);

	memcpy(data, &m, sizeof(m));
	for (size_t n = 1; n < sizeof(data); n += n < 600 ? 13 : 101)
		if (n != sizeof(m))
			expect(data, n, 0, -EPROTO);
	m.n_fds = 2;
	memcpy(data, &m, sizeof(m));
	expect(data, sizeof(m) - 1, 2, -EPROTO);
	expect(data, sizeof(m) + 1, 2, -EPROTO);
	expect(data, 1, 4, -EPROTO);
	expect(data, 1, 9, -EPROTO);
	/* Nothing but descriptors; nothing at all reads like the end. */
	expect(data, 0, 3, -EPROTO);
	expect(data, 0, 0, -ECONNRESET);
}

Test(channel, refuses_random_bytes)
{
	uint64_t seed = 5;
	uint8_t data[700];

	for (int round = 0; round < 3000; round++) {
		size_t size;

		for (size_t i = 0; i < sizeof(data); i++) {
			seed = seed * 6364136223846793005u + 1;
			data[i] = (uint8_t)(seed >> 56);
		}
		size = round % 2 ? sizeof(struct sk_msg) :
				   1 + (seed >> 20) % sizeof(data);
		expect(data, size, (int)(seed >> 40) % 3, -EPROTO);
	}
}

/* Credentials that came along take the descriptors' room. */
Test(channel, closes_descriptors_beside_other_control_data)
{
	int before = count_fds(), on = 1, got[SK_MSG_FDS], n = 0;
	struct sk_msg m = good(SK_MSG_FDS), back;
	struct pair p = connected();
	int fds[SK_MSG_FDS];

	cr_assert_eq(setsockopt(p.b, SOL_SOCKET, SO_PASSCRED, &on,
				sizeof(on)), 0);
	for (int i = 0; i < SK_MSG_FDS; i++)
		cr_assert_geq(fds[i] = memfd_create("t", MFD_CLOEXEC), 0);
	send_raw(p.a, &m, sizeof(m), fds, SK_MSG_FDS);
	for (int i = 0; i < SK_MSG_FDS; i++)
		close(fds[i]);
	cr_assert_eq(take(p.b, &back, got, &n), -EPROTO);
	disconnect(p);
	cr_assert_eq(count_fds(), before);
}

Test(channel, says_when_nothing_comes)
{
	const struct sk_os *os = sk_os_linux();
	int got[SK_MSG_FDS], n = 0;
	struct sk_msg m = good(0);
	struct pair p = connected();

	cr_assert_eq(sk_channel_wait(os, p.b, os->now_ns(os)), -ETIMEDOUT);
	cr_assert_eq(fcntl(p.b, F_SETFL, O_NONBLOCK), 0);
	cr_assert_eq(take(p.b, &m, got, &n), -EAGAIN);
	close(p.a);
	cr_assert_eq(take(p.b, &m, got, &n), -ECONNRESET);
	/* Without SIGPIPE, which would end this process. */
	cr_assert_eq(give(p.b, &m, NULL, 0), -EPIPE);
	close(p.b);
}

/* Who is killed has read no reply, and may have said something before. */
Test(channel, what_was_sent_by_one_that_left_something_unread)
{
	int got[SK_MSG_FDS], n = 0;
	struct sk_msg m = good(0), back;

	for (int blocks = 0; blocks < 2; blocks++) {
		struct pair p = connected();

		cr_assert_eq(fcntl(p.b, F_SETFL, blocks ? 0 : O_NONBLOCK), 0);
		cr_assert_eq(give(p.b, &m, NULL, 0), 0);
		cr_assert_eq(give(p.a, &m, NULL, 0), 0);
		cr_assert_eq(give(p.a, &m, NULL, 0), 0);
		close(p.a);
		cr_assert_eq(take(p.b, &back, got, &n), 0);
		cr_assert_eq(take(p.b, &back, got, &n), 0);
		cr_assert_eq(take(p.b, &back, got, &n), -ECONNRESET);
		close(p.b);
	}
}

Test(channel, a_full_socket_says_so)
{
	struct pair p = connected();
	struct sk_msg m = good(0);
	int r, n = 0;

	cr_assert_eq(fcntl(p.a, F_SETFL, O_NONBLOCK), 0);
	while (!(r = give(p.a, &m, NULL, 0)))
		cr_assert_lt(++n, 1000000);
	cr_assert_eq(r, -EAGAIN);
	disconnect(p);
}

/* ---- ids ---- */

static struct sk_wire_id good_id(void)
{
	return (struct sk_wire_id){ .job = "llama-3.1_x", .run = 3,
				    .step = 10, .rank = 1, .world = 4 };
}

static void refuse_id(const struct sk_wire_id *id, const char *words)
{
	struct sk_err err = { "" };

	cr_assert_eq(sk_wire_check_id(id, &err), -EINVAL, "expected \"%s\"",
		     words);
	cr_assert(strstr(err.text, words), "\"%s\" lacks \"%s\"", err.text,
		  words);
}

Test(channel, ids_have_terminated_legal_names)
{
	static const char *const wrong[] = { "../up", "..", "a/b", "a b" };
	struct sk_wire_id id = good_id();

	cr_assert_eq(sk_wire_check_id(&id, NULL), 0);
	id = (struct sk_wire_id){ .step = -1, .rank = -1 };
	cr_assert_eq(sk_wire_check_id(&id, NULL), 0, "a list of all");
	id = good_id();
	memset(id.job, 'a', sizeof(id.job));
	refuse_id(&id, "without an end");
	id = good_id();
	memset(id.job, 'a', SK_JOB_MAX);
	cr_assert_eq(sk_wire_check_id(&id, NULL), 0, "the longest name");
	id.job[SK_JOB_MAX] = 'a';
	refuse_id(&id, "job");
	for (size_t i = 0; i < SK_ARRAY_SIZE(wrong); i++) {
		id = good_id();
		strcpy(id.job, wrong[i]);
		refuse_id(&id, "job");
	}
}

Test(channel, ids_have_numbers_in_range)
{
	struct sk_wire_id id = good_id();

	id.step = -2;
	refuse_id(&id, "step -2 is negative");
	id = good_id();
	id.run = SK_RUN_MAX + 1;
	refuse_id(&id, "out of range");
	id = good_id();
	id.rank = -2;
	refuse_id(&id, "rank -2 of 4 ranks");
	id = good_id();
	id.world = -1;
	refuse_id(&id, "rank 1 of -1 ranks");
	id.world = SK_MESH_MAX_RANKS + 1;
	refuse_id(&id, "rank 1 of 16777217 ranks");
}

Test(channel, every_type_has_a_name)
{
	for (unsigned t = 1; t < SK_MSG_TYPE_COUNT; t++) {
		cr_assert_str_neq(sk_msg_type_name(t), "unknown", "%u", t);
		for (unsigned u = 1; u < t; u++)
			cr_assert_str_neq(sk_msg_type_name(t),
					  sk_msg_type_name(u));
	}
	cr_assert_str_eq(sk_msg_type_name(0), "unknown");
	cr_assert_str_eq(sk_msg_type_name(SK_MSG_TYPE_COUNT), "unknown");
	cr_assert_str_eq(sk_msg_type_name(UINT32_MAX), "unknown");
}

/* What others leave on the stack. */
static void __attribute__((noinline)) make_dirty(void)
{
	volatile uint8_t dirt[8 * sizeof(struct sk_msg)];

	for (size_t i = 0; i < sizeof(dirt); i++)
		dirt[i] = 0xa5;
}

static struct sk_msg __attribute__((noinline))
make_list(const struct sk_wire_id *id)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = *id, .what = SK_LIST_PARTS, .flags = SK_LIST_KNOWN } };

	return msg;
}

static struct sk_msg __attribute__((noinline)) make_looking(uint64_t n)
{
	struct sk_msg msg = { .body.list_reply = { .looking = 1, .n = n } };

	return msg;
}

static struct sk_msg __attribute__((noinline)) make_state(uint64_t state)
{
	struct sk_msg msg = { .type = SK_MSG_UNREGISTER, .body.state = state };

	return msg;
}

static void check_rest(const struct sk_msg *msg, size_t bytes)
{
	for (size_t i = bytes; i < sizeof(msg->body.raw); i++)
		cr_assert_eq(msg->body.raw[i], 0, "byte %zu of type %u", i,
			     msg->type);
}

Test(channel, what_is_left_out_of_a_message_is_zero)
{
	struct sk_wire_id id = good_id();
	struct sk_msg msg;

	make_dirty();
	msg = make_list(&id);
	check_rest(&msg, sizeof(msg.body.list));
	make_dirty();
	msg = make_looking(3);
	check_rest(&msg, sizeof(msg.body.list_reply));
	make_dirty();
	msg = make_state(3);
	check_rest(&msg, sizeof(msg.body.state));
}
