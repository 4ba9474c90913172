/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of messages: who answers one, and what must be zero in it. A
 * field that is refused today unless it is zero can mean something tomorrow.
 */
#include "calls/table.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "calls/call.h"
#include "calls/unread.h"
#include "shardkeep-version.h"
#include "wire/version.h"

/* Fields of 32 bits. */
struct zero_field {
	const char *name;	/* NULL: there is none */
	size_t offset;		/* in struct sk_msg */
	uint32_t known;		/* bits that may be set */
};

struct message {
	int (*handler)(struct call *c);
	struct zero_field fields[2];
	int most_fds;		/* that it may carry */
};

#define FIELD(member, field, bits)					\
	{ #field, offsetof(struct sk_msg, body.member.field), (bits) }
#define RESERVED(member) FIELD(member, reserved, 0)
#define MANAGE(bits)							\
	{ call_manage, { RESERVED(manage), FIELD(manage, flags, bits) } }

#define SLOT_FLAGS							\
	(SK_SLOT_FLUSH | SK_SLOT_NO_FLUSH | SK_SLOT_WILL_WAIT)
#define REGISTER_FLAGS							\
	(SK_REGISTER_LATER | SK_REGISTER_RETAIN | SK_REGISTER_BEGUN |	\
	 SK_REGISTER_NEWEST | SK_REGISTER_KNOWN | SK_REGISTER_DEVICES |	\
	 SK_REGISTER_KEEP)
#define EVICT_FLAGS (SK_EVICT_FORCE | SK_EVICT_MEMORY | SK_EVICT_DISK)

static const struct message messages[SK_MSG_TYPE_COUNT] = {
	[SK_MSG_HELLO] = { call_hello, { { 0 } } },
	[SK_MSG_REGISTER] = { call_register, {
		FIELD(reg, flags, REGISTER_FLAGS) }, 1 },
	[SK_MSG_PREPARE] = { call_wait, { RESERVED(prepare) } },
	[SK_MSG_SLOT] = { call_slot, { RESERVED(slot),
				       FIELD(slot, flags, SLOT_FLAGS) } },
	[SK_MSG_SLOT_WAIT] = { call_wait, { RESERVED(slot_wait) } },
	[SK_MSG_SEAL] = { call_seal, {
		FIELD(seal, flags, SK_SEAL_PAGEABLE) } },
	[SK_MSG_DISCARD] = { call_discard, { FIELD(seal, flags, 0) } },
	[SK_MSG_UNREGISTER] = { call_unregister, { { 0 } } },
	[SK_MSG_WAIT] = { call_wait, { { 0 } } },
	[SK_MSG_GATHER] = { call_gather, {
		RESERVED(gather), FIELD(gather, flags, SK_GATHER_MOVED) }, 1 },
	[SK_MSG_LIST] = { call_list, {
		FIELD(list, flags, SK_LIST_KNOWN) } },
	[SK_MSG_OPEN] = { call_open, {
		FIELD(open, flags, SK_OPEN_SUMS) } },
	[SK_MSG_CLOSE] = { call_close, { FIELD(open, flags, 0) } },
	[SK_MSG_REPORT_BAD] = { call_report_bad, { { 0 } } },
	[SK_MSG_PIN] = MANAGE(0),
	[SK_MSG_UNPIN] = MANAGE(0),
	[SK_MSG_EVICT] = MANAGE(EVICT_FLAGS),
	[SK_MSG_FLUSH] = MANAGE(0),
	[SK_MSG_STATS] = { call_stats, { { 0 } } },
	[SK_MSG_STATUS] = { call_status, { { 0 } } },
	[SK_MSG_STOP] = { call_stop, { RESERVED(stop),
				       FIELD(stop, flags, SK_STOP_WAIT) } },
	[SK_MSG_MAP] = { call_map, { RESERVED(map) } },
	[SK_MSG_RETAIN] = { call_retain, {
		FIELD(retain, flags, SK_RETAIN_SET | SK_RETAIN_DEFAULT),
		FIELD(retain, from, 0) } },
	[SK_MSG_KEEP] = { call_keep, { { 0 } } },
	/* One that commits to nothing is nobody's. */
	[SK_MSG_TAKEOVER] = { call_takeover, {
		RESERVED(takeover), FIELD(takeover, flags, 0) } },
	[SK_MSG_DEVICE_SLOT] = { call_device_slot, {
		FIELD(device_slot, flags, SK_DEVICE_SLOT_ANEW) }, 1 },
	[SK_MSG_DEVICE_SEAL] = { call_device_seal, {
		FIELD(seal, flags, 0) } },
	[SK_MSG_DEVICE_OPEN] = { call_device_open, {
		RESERVED(device_open), FIELD(device_open, flags, 0) } },
};

static int check_fds(const struct message *m, const struct sk_msg *in,
		     int n_fds, struct sk_err *err)
{
	if (n_fds <= m->most_fds)
		return 0;
	return sk_err_set(err, -EINVAL, "a message \"%s\" carries at "
			  "most %d descriptors, not %d", sk_msg_type_name(in->type),
			  m->most_fds, n_fds);
}

static int check_fields(const struct message *m, const struct sk_msg *in,
			struct sk_err *err)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(m->fields); i++) {
		const struct zero_field *f = &m->fields[i];
		uint32_t value;

		if (!f->name)
			continue;
		assert(f->offset + sizeof(value) <= sizeof(*in));
		memcpy(&value, (const char *)in + f->offset, sizeof(value));
		if (value & ~f->known)
			return sk_err_set(err, -EINVAL, "the field \"%s\" of a "
					  "message \"%s\" has bits %#x that "
					  "mean nothing here; is the client "
					  "newer than the agent %s?", f->name,
					  sk_msg_type_name(in->type),
					  value & ~f->known, SK_VERSION);
	}
	return 0;
}

static void answer(struct call *c, int r)
{
	assert(r < 0 || c->n_out <= SK_MSG_FDS);
	assert(r >= 0 || c->err.text[0]);
	if (r == CALL_LATER)
		return;
	session_reply(c->session, c->in->type, c->in->seq, r, &c->out,
		      c->out_fds, r < 0 ? 0 : c->n_out, &c->err);
}

void call_dispatch(struct session *s, const struct sk_msg *in, int *fds,
		   int n_fds)
{
	struct call c = { .session = s, .agent = s->agent, .in = in,
			  .fds = fds, .n_fds = n_fds };
	const struct message *m;
	int r;

	assert(!s->closing);
	m = in->type < SK_MSG_TYPE_COUNT ? &messages[in->type] : NULL;
	if (!m || !m->handler) {
		session_protocol_error(s, "it sent a message of no known "
				       "type");
		return;
	}
	if (!s->greeted && in->type != SK_MSG_HELLO) {
		session_protocol_error(s, "it did not say hello");
		return;
	}
	if (!s->greeted)	/* it is answered in its own */
		s->version = in->version;
	if (s->greeted && in->type != SK_MSG_HELLO &&
	    in->version != s->version) {
		session_protocol_error(s, "it speaks another version than it "
				       "greeted in");
		return;
	}
	log_debug(s->agent, "%s from pid %d", sk_msg_type_name(in->type),
		  (int)s->pid);
	r = check_fds(m, in, n_fds, &c.err);
	if (r == 0 && in->type != SK_MSG_HELLO)
		r = sk_wire_check(sk_wire_changes, sk_wire_n_changes,
				  s->version, false, in, &c.err);
	if (r == 0)
		r = check_fields(m, in, &c.err);
	if (r == 0)
		r = call_when_read(&c);
	answer(&c, r != 0 ? r : m->handler(&c));
}
