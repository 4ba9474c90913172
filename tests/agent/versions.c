/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of other versions of the protocol: those one step away are served in
 * what both speak, all others hear which version to upgrade. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/rig.h"
#include "wire/version.h"

static int dial(const struct rig *rig)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, rig->socket);
	CHECK(connect(sock, (struct sockaddr *)&addr, sizeof(addr)) == 0,
	      "connect");
	return sock;
}

/* Says hello in @version; *ret_msg: the answer. */
static int greet(const struct rig *rig, unsigned version,
		 struct sk_msg *ret_msg)
{
	int sock = dial(rig);

	*ret_msg = sk_wire_hello(version);
	ret_msg->body.hello.version = version;
	(void)rig_call(sock, ret_msg, NULL, 0, NULL, NULL);
	return sock;
}

/* Written so that who is refused can read it. */
static void refused(const struct rig *rig, unsigned version, const char *what)
{
	char theirs[48], ours[48];
	struct sk_msg msg;
	int sock = greet(rig, version, &msg);

	CHECK_STATUS(msg.status, -EPROTO, &msg);
	CHECK(msg.version == (uint16_t)version, "in version %u", msg.version);
	snprintf(theirs, sizeof(theirs), "the client version %u;", version);
	snprintf(ours, sizeof(ours), "speaks versions %u and %u",
		 SK_WIRE_VERSION - 1, SK_WIRE_VERSION);
	CHECK(strstr(rig_why(&msg), theirs), "%s", rig_why(&msg));
	CHECK(strstr(rig_why(&msg), ours), "%s", rig_why(&msg));
	CHECK(strstr(rig_why(&msg), what), "%s", rig_why(&msg));
	/* It was no greeting. */
	msg = (struct sk_msg){ .type = SK_MSG_STATS };
	CHECK(rig_call(sock, &msg, NULL, 0, NULL, NULL) == -ECONNRESET,
	      "it is served");
	close(sock);
}

static void served(const struct rig *rig, unsigned version, unsigned in)
{
	struct sk_msg msg;
	int sock = greet(rig, version, &msg);

	CHECK_STATUS(msg.status, 0, &msg);
	CHECK(msg.version == in, "in version %u", msg.version);
	CHECK(msg.body.hello_reply.wire == SK_WIRE_VERSION, "its newest");
	msg = (struct sk_msg){ .type = SK_MSG_STATUS,
			       .version = (uint16_t)in };
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	CHECK(msg.version == in, "in version %u", msg.version);
	/* In no other from now on. */
	msg = (struct sk_msg){ .type = SK_MSG_STATUS,
			       .version = (uint16_t)(in == SK_WIRE_VERSION ?
						     SK_WIRE_OLDEST :
						     SK_WIRE_VERSION) };
	CHECK(rig_call(sock, &msg, NULL, 0, NULL, NULL) == -ECONNRESET,
	      "two versions on one connection");
	close(sock);
}

/* What came with a version is refused before it, by its name. */
static void newer(const struct rig *rig)
{
	for (size_t i = 0; i < sk_wire_n_changes; i++) {
		const struct sk_wire_change *c = &sk_wire_changes[i];
		uint32_t bit = c->bits & -c->bits;
		struct sk_msg msg;
		int sock;

		if (c->reply)
			continue;
		sock = greet(rig, SK_WIRE_OLDEST, &msg);
		msg = (struct sk_msg){ .type = (uint16_t)c->type,
				       .version = SK_WIRE_OLDEST };
		memcpy((char *)&msg + c->offset, &bit, sizeof(bit));
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL),
			     -EINVAL, &msg);
		CHECK(strstr(rig_why(&msg), c->name ? c->name : "message"),
		      "%s", rig_why(&msg));
		close(sock);
	}
}

int main(int argc, char **argv)
{
	const unsigned v = SK_WIRE_VERSION;
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--memory", "64M", NULL);
	for (unsigned i = 1; i < v - 1; i++)
		refused(&rig, i, "upgrade the client");
	served(&rig, v - 1, v - 1);
	served(&rig, v, v);
	served(&rig, v + 1, v);
	refused(&rig, v + 2, "upgrade the agent");
	refused(&rig, UINT16_MAX, "upgrade the agent");
	newer(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
