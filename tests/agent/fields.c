/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that must be zero, and flags that nobody knows: refused by name, so
 * that they can mean something one day. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
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

static const struct field fields[] = {
	FIELD(HELLO, hello, flags, ~0u),
	FIELD(REGISTER, reg, flags, ~(SK_REGISTER_LATER |
				      SK_REGISTER_RETAIN)),
	FIELD(PREPARE, prepare, reserved, ~0u),
	FIELD(SLOT, slot, reserved, ~0u),
	FIELD(SLOT, slot, flags, ~(SK_SLOT_FLUSH | SK_SLOT_NO_FLUSH |
				   SK_SLOT_WILL_WAIT)),
	FIELD(SLOT_WAIT, slot_wait, reserved, ~0u),
	FIELD(SEAL, seal, reserved, ~0u),
	FIELD(DISCARD, seal, reserved, ~0u),
	FIELD(LIST, list, reserved, ~0u),
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
	FIELD(DEVICE_SLOT, device_slot, reserved, ~0u),
	FIELD(DEVICE_SEAL, seal, reserved, ~0u),
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
	close(sock);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
