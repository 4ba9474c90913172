/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that must be zero, and flags that nobody knows: refused by name, so
 * that they can mean something one day. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/rig.h"
#include "base/util.h"

struct field {
	enum sk_msg_type type;
	size_t offset;
	uint32_t bits;		/* each alone is refused */
	const char *name;
};

#define FIELD(type, member, field, bits)				\
	{ SK_MSG_##type, offsetof(struct sk_msg, body.member.field), (bits), \
	  #field }

#if SK_WIRE_VERSION >= 6
#define REGISTER_FLAGS							\
	(SK_REGISTER_LATER | SK_REGISTER_RETAIN | SK_REGISTER_BEGUN |	\
	 SK_REGISTER_NEWEST | SK_REGISTER_KNOWN | SK_REGISTER_DEVICES |	\
	 SK_REGISTER_KEEP)
#else
#define REGISTER_FLAGS (SK_REGISTER_LATER | SK_REGISTER_RETAIN)
#define AT_RESERVED offsetof(struct sk_msg, body.seal.reserved)
#endif

static const struct field fields[] = {
	FIELD(HELLO, hello, flags, ~0u),
	FIELD(REGISTER, reg, flags, ~REGISTER_FLAGS),
	FIELD(PREPARE, prepare, reserved, ~0u),
	FIELD(SLOT, slot, reserved, ~0u),
	FIELD(SLOT, slot, flags, ~(SK_SLOT_FLUSH | SK_SLOT_NO_FLUSH |
				   SK_SLOT_WILL_WAIT)),
	FIELD(SLOT_WAIT, slot_wait, reserved, ~0u),
#if SK_WIRE_VERSION >= 6
	FIELD(SEAL, seal, flags, ~SK_SEAL_PAGEABLE),
	FIELD(DISCARD, seal, flags, ~0u),
	FIELD(DEVICE_SEAL, seal, flags, ~0u),
#else
	/* As it is called since. */
	{ SK_MSG_SEAL, AT_RESERVED, ~0u, "flags" },
	{ SK_MSG_DISCARD, AT_RESERVED, ~0u, "flags" },
	{ SK_MSG_DEVICE_SEAL, AT_RESERVED, ~0u, "flags" },
#endif
	FIELD(LIST, list, flags, ~SK_LIST_KNOWN),
	FIELD(OPEN, open, flags, ~SK_OPEN_SUMS),
	FIELD(CLOSE, open, flags, ~0u),
	FIELD(PIN, manage, reserved, ~0u),
	FIELD(PIN, manage, flags, ~0u),
	FIELD(UNPIN, manage, reserved, ~0u),
	FIELD(UNPIN, manage, flags, ~0u),
	FIELD(EVICT, manage, reserved, ~0u),
	FIELD(EVICT, manage, flags, ~(SK_EVICT_FORCE | SK_EVICT_MEMORY |
				      SK_EVICT_DISK)),
	FIELD(FLUSH, manage, reserved, ~0u),
	FIELD(FLUSH, manage, flags, ~0u),
	FIELD(STOP, stop, reserved, ~0u),
	FIELD(STOP, stop, flags, ~SK_STOP_WAIT),
	FIELD(MAP, map, reserved, ~0u),
	FIELD(RETAIN, retain, flags, ~(SK_RETAIN_SET | SK_RETAIN_DEFAULT)),
	FIELD(RETAIN, retain, from, ~0u),
#if SK_WIRE_VERSION >= 6
	FIELD(DEVICE_SLOT, device_slot, flags, ~SK_DEVICE_SLOT_ANEW),
	FIELD(GATHER, gather, reserved, ~0u),
	FIELD(GATHER, gather, flags, ~SK_GATHER_MOVED),
	FIELD(DEVICE_OPEN, device_open, reserved, ~0u),
	FIELD(DEVICE_OPEN, device_open, flags, ~0u),
#endif
	FIELD(TAKEOVER, takeover, reserved, ~0u),
	FIELD(TAKEOVER, takeover, flags, ~0u),
};

static void check_bit(int sock, const struct field *f, uint32_t bit)
{
	struct sk_msg msg = { .type = (uint16_t)f->type };

	if (f->type == SK_MSG_HELLO)
		msg.body.hello.version = SK_WIRE_VERSION;
	memcpy((char *)&msg + f->offset, &bit, sizeof(bit));
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), -EINVAL, &msg);
	CHECK(strstr(rig_why(&msg), f->name), "%s does not name %s",
	      rig_why(&msg), f->name);
}

/* Each is refused by itself, whatever the others say. */
static void check_registration(int sock)
{
	static const struct {
		int32_t rank, world;
		uint32_t slots;
		uint64_t run, age_s, bytes;
		const char *named;
	} bad[] = {
		{ -1, 1, 2, 0, 0, 0, "rank -1 of 1" },
		{ INT32_MIN, 4, 2, 0, 0, 0, "rank -2147483648 of 4" },
		{ 0, 0, 2, 0, 0, 0, "rank 0 of 0" },
		{ 0, -1, 2, 0, 0, 0, "rank 0 of -1" },
		{ 4, 4, 2, 0, 0, 0, "rank 4 of 4" },
		{ 0, 1, 1, 0, 0, 0, "slots" },
		{ 0, 1, 65, 0, 0, 0, "slots" },
		{ 0, 1, 2, SK_RUN_READERS, 0, 0, "readers" },
		{ 0, 1, 2, 0, UINT64_MAX, 0, "an age" },
		{ 0, 1, 2, 0, 0, UINT64_MAX, "an age" },
		{ 0, 1, 2, 0, (uint64_t)INT64_MAX + 1, 0, "an age" },
		{ 0, 1, 2, 0, 0, (uint64_t)INT64_MAX + 1, "an age" },
		/* The most that may be: it is something else then. */
		{ 0, 1, 1, 0, INT64_MAX, INT64_MAX, "slots" },
	};
	struct sk_msg msg;

	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		msg = (struct sk_msg){ .type = SK_MSG_REGISTER, .body.reg = {
			.id = { .job = "fields", .rank = bad[i].rank,
				.world = bad[i].world, .run = bad[i].run },
			.slots = bad[i].slots,
			.retention = { .keep_age_s = bad[i].age_s,
				       .keep_bytes = bad[i].bytes } } };
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL),
			     -EINVAL, &msg);
		CHECK(strstr(rig_why(&msg), bad[i].named),
		      "\"%s\" does not say \"%s\"", rig_why(&msg),
		      bad[i].named);
	}
}

/* What cannot have been restored. */
static void check_begun(int sock)
{
#if SK_WIRE_VERSION >= 6
	static const struct sk_wire_begun bad[] = {
		{ 0, 1, 1 }, { (uint64_t)INT64_MAX, 1, 1 }, { 1, 1, -1 },
	};
	struct sk_msg msg;

	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		msg = (struct sk_msg){ .type = SK_MSG_REGISTER, .body.reg = {
			.id = { .job = "fields", .world = 1 }, .slots = 2,
			.flags = SK_REGISTER_BEGUN, .begun = bad[i] } };
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL),
			     -EINVAL, &msg);
		CHECK(strstr(rig_why(&msg), "began with"), "%s",
		      rig_why(&msg));
	}
#else
	(void)sock;
#endif
}

/* A header longer than its layout's, by a page: it is of another one. */
static void check_length(struct rig *rig, int sock)
{
	const struct rank_options o = { .job = "length", .world = 1 };
	char *header, words[64];
	struct rank r;
	size_t bytes;
	int fd;

	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	bytes = r.layouts[0]->header_bytes + 4096;
	header = calloc(1, bytes);
	CHECK(header, "calloc");
	memcpy(header, r.layouts[0]->header, bytes - 4096);
	fd = memfd_create("layout", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(write(fd, header, bytes) == (ssize_t)bytes, "write");
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "seal");
	r.msg = (struct sk_msg){ .type = SK_MSG_REGISTER, .body.reg = {
		.id = { .job = "length", .world = 1 }, .slots = 2,
		.header_bytes = { bytes }, .numa_node = -1,
		.image_bytes = { r.layouts[0]->image_bytes } } };
	CHECK_STATUS(rig_call(sock, &r.msg, &fd, 1, NULL, NULL), -EINVAL,
		     &r.msg);
	(void)snprintf(words, sizeof(words), "%zu bytes of header", bytes);
	CHECK(strstr(rig_why(&r.msg), words), "%s", rig_why(&r.msg));
	close(fd);
	free(header);
	rank_close(&r);
}

/* Readers are not registered: what they say of themselves is all there is. */
static void check_readers(int sock)
{
	static const struct {
		const char *job;
		int32_t rank, world;
	} bad[] = { { "", 0, 1 }, { "j", -1, 2 }, { "j", 2, 2 }, { "j", 0, 0 } };
	struct sk_msg msg;

	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		msg = (struct sk_msg){ .type = SK_MSG_GATHER, .body.gather = {
			.id = { .rank = bad[i].rank, .world = bad[i].world,
				.run = SK_RUN_READERS },
			.bytes = 4, .timeout_ms = 10 } };
		strcpy(msg.body.gather.id.job, bad[i].job);
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL),
			     -EINVAL, &msg);
		CHECK(strstr(rig_why(&msg), "cannot be"), "%s", rig_why(&msg));
	}
}

static void send_gather(int sock, int32_t rank)
{
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = { .job = "j", .rank = rank, .world = 2,
			.run = SK_RUN_READERS },
		.bytes = 4, .timeout_ms = WAIT_MS } };

	rig_send(sock, &msg);
}

/* Of two who say that they are one rank the later one is told so, and
 * disturbs neither. */
static void check_twice(struct rig *rig)
{
	struct pollfd p[2];
	struct sk_msg msg;
	int late;

	for (int i = 0; i < 2; i++)
		p[i] = (struct pollfd){ .fd = rig_connect(rig),
					.events = POLLIN };
	send_gather(p[0].fd, 0);
	send_gather(p[1].fd, 0);
	CHECK(poll(p, 2, WAIT_MS) == 1, "one of them is answered");
	late = p[1].revents ? 1 : 0;
	CHECK_STATUS(rig_reply(p[late].fd, &msg, NULL, NULL), -EEXIST, &msg);
	CHECK(strstr(rig_why(&msg), "rank 0 waits already"), "%s",
	      rig_why(&msg));
	send_gather(p[late].fd, 1);
	for (int i = 0; i < 2; i++) {
		CHECK_STATUS(rig_reply(p[i].fd, &msg, NULL, NULL), 0, &msg);
		close(p[i].fd);
	}
}

/* Who is not registered has no memory that could be waited for. */
static void check_unregistered(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .job = "nobody", .step = -1 }, .timeout_ms = 10 } };

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), -ENOENT, &msg);
	msg = (struct sk_msg){ .type = SK_MSG_SLOT_WAIT, .body.slot_wait = {
		.id = { .job = "nobody", .step = -1 }, .timeout_ms = 10 } };
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), -ENOENT, &msg);
}

int main(int argc, char **argv)
{
	struct rig rig;
	int sock;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--memory", "64M", NULL);
	sock = rig_connect(&rig);
	for (size_t i = 0; i < SK_ARRAY_SIZE(fields); i++) {
		for (uint32_t bit = 1; bit; bit <<= 1) {
			if (fields[i].bits & bit)
				check_bit(sock, &fields[i], bit);
		}
	}
	check_registration(sock);
	check_begun(sock);
	check_length(&rig, sock);
	check_readers(sock);
	check_twice(&rig);
	check_unregistered(sock);
	close(sock);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
