/* SPDX-License-Identifier: Apache-2.0 */
/* Garbage, floods and lies: the sender is let go, the others go on. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/rig.h"

#define SEED 20250

static int connect_raw(const struct rig *rig)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, rig->socket);
	CHECK(connect(sock, (struct sockaddr *)&addr, sizeof(addr)) == 0,
	      "connect");
	return sock;
}

/* The agent closes the connection. */
static void expect_closed(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLRDHUP };
	char buf[4096];

	CHECK(poll(&p, 1, (int)WAIT_MS) == 1, "it is still open");
	while (recv(sock, buf, sizeof(buf), 0) > 0)
		;
	close(sock);
}

static void send_raw(int sock, const void *bytes, size_t n)
{
	/* It may be closed already. */
	(void)send(sock, bytes, n, MSG_NOSIGNAL);
}

static void test_garbage(struct rig *rig, struct rank *other)
{
	static const size_t sizes[] = { 1, 31, 32, SK_MSG_BYTES - 1,
					SK_MSG_BYTES, SK_MSG_BYTES + 1, 4096,
					65536 };
	char *bytes = malloc(65536);
	double before = stat_value(other->sock,
				   "shardkeep_protocol_errors_total");

	srandom(SEED);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		int sock = connect_raw(rig);

		for (size_t k = 0; k < sizes[i]; k++)
			bytes[k] = (char)random();
		send_raw(sock, bytes, sizes[i]);
		expect_closed(sock);
	}
	free(bytes);
	CHECK(stat_value(other->sock, "shardkeep_protocol_errors_total") ==
	      before + 8, "errors are counted");
	rank_snapshot(other, 1);
}

static void test_no_hello(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	int sock = connect_raw(rig);

	rig_send(sock, &msg);
	expect_closed(sock);
	sock = connect_raw(rig);
	msg = (struct sk_msg){ .type = SK_MSG_HELLO, .body.hello.version = 9 };
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), -EPROTO, &msg);
	close(sock);
	/* Of no type that there is. */
	sock = rig_connect(rig);
	msg = (struct sk_msg){ .type = 999 };
	rig_send(sock, &msg);
	expect_closed(sock);
}

/* Well-formed headers, random bodies: every answer is an error or harmless,
 * and the agent lives. */
static void test_random_bodies(struct rig *rig, struct rank *other)
{
	int sock = rig_connect(rig);

	srandom(SEED);
	for (int i = 0; i < 3000; i++) {
		struct sk_msg msg = { 0 };
		struct pollfd p = { .fd = sock, .events = POLLIN };
		int fd = -1;

		for (size_t k = 0; k < sizeof(msg.body.raw); k++)
			msg.body.raw[k] = random() % 16 ? 0 :
					  (uint8_t)random();
		if (random() % 2)
			strcpy((char *)msg.body.raw, "other");
		msg.type = (uint16_t)(1 + random() % (SK_MSG_TYPE_COUNT - 1));
		if (msg.type == SK_MSG_STOP || msg.type == SK_MSG_HELLO)
			continue;
		if (random() % 3 == 0)
			fd = memfd_create("x", 0);
		CHECK(sk_channel_send(sk_os_linux(), sock, &msg, &fd,
				      fd >= 0) == 0,
		      "seed %d, message %d", SEED, i);
		if (fd >= 0)
			close(fd);
		/* Deferred ones are not waited for. */
		if (poll(&p, 1, 0) == 1) {
			int r = rig_reply(sock, &msg, NULL, NULL);

			CHECK(r != -ECONNRESET && r != -EPROTO,
			      "seed %d, message %d: %d", SEED, i, r);
		}
		if (i % 500 == 0) {
			close(sock);
			sock = rig_connect(rig);
		}
	}
	close(sock);
	rank_snapshot(other, 2);
}

/* One that asks and never listens. */
static void test_flood(struct rig *rig, struct rank *other)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	int sock = rig_connect(rig);

	CHECK(fcntl(sock, F_SETFL, O_NONBLOCK) == 0, "fcntl");
	for (int i = 0; i < 20000; i++) {
		if (sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0) < 0)
			break;
	}
	rank_snapshot(other, 3);
	close(sock);
}

static int register_with(struct rig *rig, struct sk_wire_register reg, int fd)
{
	struct sk_msg msg = { .type = SK_MSG_REGISTER, .body.reg = reg };
	int sock = rig_connect(rig), r;

	r = rig_call(sock, &msg, &fd, fd >= 0, NULL, NULL);
	close(sock);
	return r;
}

static int memory_of(const char *bytes, size_t n, int seals)
{
	int fd = memfd_create("layout", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(write(fd, bytes, n) == (ssize_t)n, "write");
	CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0, "seal");
	return fd;
}

static void test_register_lies(struct rig *rig, struct rank *other)
{
	const struct sk_layout *l = other->layouts[0];
	struct sk_wire_register good = {
		.id = { .job = "other", .world = 1 }, .slots = 2,
		.header_bytes = { l->header_bytes },
		.image_bytes = { l->image_bytes }, .numa_node = -1,
	}, reg;
	char *junk = calloc(1, l->header_bytes);
	int fd = memory_of(l->header, l->header_bytes, F_SEAL_SHRINK);
	int bad;

	/* Another job's name, another rank, too few slots, other sizes. */
	strcpy(good.id.job, "liar");
	CHECK(register_with(rig, good, fd) == -EINVAL, "job");
	strcpy(good.id.job, "other");
	reg = good;
	reg.id.rank = 1;
	CHECK(register_with(rig, reg, fd) == -EINVAL, "rank");
	reg = good;
	reg.slots = 1;
	CHECK(register_with(rig, reg, fd) == -EINVAL, "slots");
	reg = good;
	reg.image_bytes[0] += 4096;
	CHECK(register_with(rig, reg, fd) < 0, "size");
	reg = good;
	reg.image_bytes[0] = UINT64_MAX;
	CHECK(register_with(rig, reg, fd) == -EINVAL, "size");
	reg = good;
	reg.header_bytes[0] = 1ull << 40;
	CHECK(register_with(rig, reg, fd) == -EINVAL, "header");
	reg = good;
	memset(reg.id.job, 'x', sizeof(reg.id.job));
	CHECK(register_with(rig, reg, fd) == -EINVAL, "endless name");
	/* What is to stay, up to what a number holds. */
	reg = good;
	reg.retention.keep_bytes = (uint64_t)INT64_MAX + 1;
	CHECK(register_with(rig, reg, fd) == -EINVAL, "bytes");
	reg.retention.keep_bytes = 0;
	reg.retention.keep_age_s = (uint64_t)INT64_MAX + 1;
	CHECK(register_with(rig, reg, fd) == -EINVAL, "age");
	reg.retention.keep_bytes = reg.retention.keep_age_s = INT64_MAX;
	CHECK(register_with(rig, reg, fd) != -EINVAL, "the most of both");
	CHECK(register_with(rig, good, -1) == -EINVAL, "no descriptor");
	close(fd);
	/* Not sealed, a pipe, junk. */
	bad = memory_of(l->header, l->header_bytes, F_SEAL_GROW);
	CHECK(register_with(rig, good, bad) == -EINVAL, "unsealed");
	close(bad);
	bad = memory_of(junk, l->header_bytes, F_SEAL_SHRINK);
	CHECK(register_with(rig, good, bad) == -EBADMSG, "junk");
	close(bad);
	free(junk);
	rank_snapshot(other, 4);
}

/* A client tears a hole into its slot and seals: refused, not a signal. */
static void test_hole(struct rig *rig, struct rank *other)
{
	struct sk_msg msg = { .type = SK_MSG_MAP };
	struct rank r;
	int fds[SK_MSG_FDS], n, slot;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "hole", .world = 1 }), 0, &r.msg);
	slot = rank_slot(&r, 1, 0);
	CHECK(slot >= 0, "slot");
	rank_fill(&r, slot, 1);
	msg.body.map.state = r.state;
	msg.body.map.slot = (uint32_t)slot;
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, fds, &n), 0, &msg);
	CHECK(fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			4096) == 0, "punch");
	CHECK(ftruncate(fds[0], 0) < 0, "a slot can shrink");
	CHECK(ftruncate(fds[0], 1 << 30) < 0, "a slot can grow");
	close(fds[0]);
	CHECK_STATUS(rank_seal(&r, slot, 1), -EBADMSG, &r.msg);
	rank_close(&r);
	rank_snapshot(other, 5);
}

/* Another connection's state is nobody else's. */
static void test_foreign_state(struct rig *rig, struct rank *other)
{
	struct rank thief = *other;

	thief.sock = rig_connect(rig);
	CHECK_STATUS(rank_slot(&thief, 9, 0), -ENOENT, &thief.msg);
	CHECK_STATUS(rank_seal(&thief, 0, 9), -ENOENT, &thief.msg);
	close(thief.sock);
}

/* With --seal-writes a sealed slot cannot be torn by its writer either. */
static void test_seal_writes(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_MAP };
	struct rank r, next;
	int fds[SK_MSG_FDS], n;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "strict", .world = 1 }), 0, &r.msg);
	for (int64_t step = 1; step < 6; step++)
		rank_snapshot(&r, step);
	msg.body.map.state = r.state;
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, fds, &n), 0, &msg);
	CHECK(fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			4096) < 0 && errno == EPERM, "punched");
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0],
		   0) == MAP_FAILED, "mapped for writing");
	close(fds[0]);
	rank_close(&r);
	/* The next rank gets slots that it can map. */
	CHECK_STATUS(rank_open(&next, rig, &(struct rank_options){
		.job = "strict", .world = 1 }), 0, &next.msg);
	rank_snapshot(&next, 6);
	rank_close(&next);
}

int main(int argc, char **argv)
{
	struct rank other;
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--memory", "256M", "--log-level", "error", NULL);
	CHECK_STATUS(rank_open(&other, &rig, &(struct rank_options){
		.job = "other", .world = 1 }), 0, &other.msg);
	test_garbage(&rig, &other);
	test_no_hello(&rig);
	test_random_bodies(&rig, &other);
	test_flood(&rig, &other);
	test_register_lies(&rig, &other);
	test_hole(&rig, &other);
	test_foreign_state(&rig, &other);
	CHECK_STATUS(rank_wait(&other, 5, 2, WAIT_MS), 0, &other.msg);
	rank_close(&other);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_start(&rig, "--memory", "256M", "--seal-writes", NULL);
	test_seal_writes(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
