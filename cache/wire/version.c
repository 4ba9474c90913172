/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/version.h"

#include <assert.h>
#include <string.h>

#include "shardkeep-version.h"

const struct sk_wire_change sk_wire_changes[] = {
	/* Who does not say how long it waits waits until the look is over. */
	{ .since = 6, .type = SK_MSG_LIST, .name = "wait_ms",
	  .bits = UINT32_MAX,
	  .offset = offsetof(struct sk_msg, body.list.wait_ms) },
	{ .since = 6, .type = SK_MSG_LIST, .name = "looking", .reply = true,
	  .needed = true, .bits = UINT32_MAX,
	  .offset = offsetof(struct sk_msg, body.list_reply.looking) },
	/* Who does not say what it began with has it kept as any other; what a
	 * GPU writes to, as what processes do. */
	{ .since = 6, .type = SK_MSG_REGISTER, .name = "flags",
	  .bits = SK_REGISTER_BEGUN | SK_REGISTER_NEWEST |
		  SK_REGISTER_DEVICES | SK_REGISTER_KEEP,
	  .offset = offsetof(struct sk_msg, body.reg.flags) },
	{ .since = 6, .type = SK_MSG_REGISTER, .name = "flags",
	  .needed = true, .bits = SK_REGISTER_KNOWN,
	  .offset = offsetof(struct sk_msg, body.reg.flags) },
	/* Nobody reads the device slot of one who could not be told. */
	{ .since = 6, .type = SK_MSG_SLOT, .name = "no_device", .reply = true,
	  .bits = UINT32_MAX,
	  .offset = offsetof(struct sk_msg, body.slot_reply.no_device) },
	{ .since = 6, .type = SK_MSG_DEVICE_OPEN },
	{ .since = 6, .type = SK_MSG_KEEP },
	/* Of who does not say nobody knows. */
	{ .since = 6, .type = SK_MSG_SEAL, .name = "flags",
	  .bits = SK_SEAL_PAGEABLE,
	  .offset = offsetof(struct sk_msg, body.seal.flags) },
	/* Who is not told to go back waits for those who are behind. */
	{ .since = 6, .type = SK_MSG_GATHER, .name = "flags",
	  .bits = UINT32_MAX,
	  .offset = offsetof(struct sk_msg, body.gather.flags) },
};
const size_t sk_wire_n_changes = sizeof(sk_wire_changes) /
				 sizeof(sk_wire_changes[0]);

/* ---- greeting ---- */

unsigned sk_wire_common(unsigned theirs)
{
	if (theirs < SK_WIRE_OLDEST || theirs > SK_WIRE_VERSION + 1)
		return 0;
	return theirs < SK_WIRE_VERSION ? theirs : SK_WIRE_VERSION;
}

struct sk_msg sk_wire_hello(unsigned version)
{
	return (struct sk_msg){ .type = SK_MSG_HELLO,
				.version = (uint16_t)version,
				.body.hello.version = version };
}

unsigned sk_wire_greet_next(unsigned version)
{
	return version > SK_WIRE_MUTE ? SK_WIRE_MUTE : version - 1;
}

int sk_wire_greeted(const struct sk_msg *reply, struct sk_err *err)
{
	const struct sk_wire_hello_reply *agent = &reply->body.hello_reply;

	assert(reply->status >= 0);
	if (reply->version == SK_WIRE_VERSION ||
	    reply->version == SK_WIRE_OLDEST)
		return reply->version;
	return sk_err_set(err, -EPROTO, "the agent %.*s speaks version %u of "
			  "the protocol, this %s versions %u and %u; upgrade "
			  "the %s", (int)sizeof(agent->version),
			  agent->version, reply->version, SK_VERSION,
			  SK_WIRE_OLDEST, SK_WIRE_VERSION,
			  reply->version < SK_WIRE_OLDEST ? "agent" :
			  "client");
}

/* ---- what an older version lacks ---- */

static bool is_in(const struct sk_wire_change *c, unsigned version,
		  bool reply, const struct sk_msg *msg, uint32_t *ret_value)
{
	if (c->since <= version || c->type != msg->type)
		return false;
	if (!c->bits)
		return true;
	assert(c->offset + sizeof(*ret_value) <= sizeof(*msg));
	/* A refusal has its sentence there. */
	if (c->reply != reply || msg->status < 0)
		return false;
	memcpy(ret_value, (const char *)msg + c->offset, sizeof(*ret_value));
	return *ret_value & c->bits;
}

static int lacks(const struct sk_wire_change *c, int r, unsigned version,
		 struct sk_err *err)
{
	const char *type = sk_msg_type_name(c->type);

	if (!c->bits)
		return sk_err_set(err, r, "version %u of the protocol, which "
				  "the other side speaks, has no message "
				  "\"%s\"; upgrade it", version, type);
	return sk_err_set(err, r, "version %u of the protocol, which the "
			  "other side speaks, has no \"%s\" in a message "
			  "\"%s\"; upgrade it", version, c->name, type);
}

int sk_wire_lower(const struct sk_wire_change *changes, size_t n,
		  unsigned version, bool reply, struct sk_msg *msg,
		  struct sk_err *err)
{
	for (size_t i = 0; i < n; i++) {
		const struct sk_wire_change *c = &changes[i];
		uint32_t value = 0;

		if (!is_in(c, version, reply, msg, &value))
			continue;
		if (!c->bits || c->needed)
			return lacks(c, -EOPNOTSUPP, version, err);
		value &= ~c->bits;
		memcpy((char *)msg + c->offset, &value, sizeof(value));
	}
	return 0;
}

int sk_wire_check(const struct sk_wire_change *changes, size_t n,
		  unsigned version, bool reply, const struct sk_msg *msg,
		  struct sk_err *err)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t value = 0;

		if (is_in(&changes[i], version, reply, msg, &value))
			return lacks(&changes[i], -EINVAL, version, err);
	}
	return 0;
}

/* ---- records of lists ---- */

/* Of lists whose records have grown, what they had in SK_WIRE_RIGID. */
static const struct {
	unsigned type;
	size_t bytes;
} rigid[] = {
	{ SK_MSG_STATS, offsetof(struct sk_wire_stat, rest) },
};

size_t sk_wire_record_bytes(unsigned version, unsigned type, size_t bytes)
{
	for (size_t i = 0; i < sizeof(rigid) / sizeof(rigid[0]); i++)
		if (version <= SK_WIRE_RIGID && rigid[i].type == type)
			return rigid[i].bytes;
	return bytes;
}

void sk_wire_records_fit(const void *records, size_t n, size_t from,
			 void *ret, size_t to)
{
	size_t both = from < to ? from : to;

	for (size_t i = 0; i < n; i++) {
		char *one = (char *)ret + i * to;

		memcpy(one, (const char *)records + i * from, both);
		memset(one + both, 0, to - both);
	}
}
