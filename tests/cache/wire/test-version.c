/* SPDX-License-Identifier: Apache-2.0 */
/* What two versions have in common, and what is done where one lacks
 * something. The changes are ours here, so that there are all kinds of them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "wire/version.h"

#define NEW 9u

static const struct sk_wire_change changes[] = {
	{ .since = NEW, .type = SK_MSG_STATUS },
	{ .since = NEW, .type = SK_MSG_SLOT, .name = "flags", .bits = 4,
	  .offset = offsetof(struct sk_msg, body.slot.flags) },
	{ .since = NEW, .type = SK_MSG_PIN, .name = "flags", .bits = 2,
	  .needed = true,
	  .offset = offsetof(struct sk_msg, body.manage.flags) },
	{ .since = NEW, .type = SK_MSG_LIST, .name = "flags", .reply = true,
	  .bits = UINT32_MAX,
	  .offset = offsetof(struct sk_msg, body.list_reply.flags) },
	{ .since = NEW - 1, .type = SK_MSG_SLOT, .name = "reserved",
	  .bits = UINT32_MAX,
	  .offset = offsetof(struct sk_msg, body.slot.reserved) },
};

static int lower(unsigned version, bool reply, struct sk_msg *msg,
		 struct sk_err *err)
{
	return sk_wire_lower(changes, SK_ARRAY_SIZE(changes), version, reply,
			     msg, err);
}

static int check(unsigned version, bool reply, const struct sk_msg *msg,
		 struct sk_err *err)
{
	return sk_wire_check(changes, SK_ARRAY_SIZE(changes), version, reply,
			     msg, err);
}

/* Each version speaks itself and the one before. */
Test(version, one_step_of_slack_each_way)
{
	const unsigned v = SK_WIRE_VERSION;

	cr_assert_eq(sk_wire_common(v - 1), v - 1);
	cr_assert_eq(sk_wire_common(v), v);
	cr_assert_eq(sk_wire_common(v + 1), v);
	for (unsigned i = 0; i < v - 1; i++)
		cr_assert_eq(sk_wire_common(i), 0);
	cr_assert_eq(sk_wire_common(v + 2), 0);
	cr_assert_eq(sk_wire_common(UINT32_MAX), 0);
}

/* Those that hang up are greeted in their own, each once. */
Test(version, who_hung_up_is_greeted_in_all_that_hang_up)
{
	unsigned v = SK_WIRE_VERSION, seen = 0;

	while ((v = sk_wire_greet_next(v)))
		cr_assert_eq(v, SK_WIRE_MUTE - seen++);
	cr_assert_eq(seen, SK_WIRE_MUTE);
}

Test(version, an_agent_of_another_is_told_which)
{
	struct sk_msg reply = { .type = SK_MSG_HELLO,
				.body.hello_reply.version = "9.8" };
	struct sk_err err = { "" };
	char words[64];

	for (unsigned v = SK_WIRE_VERSION - 1; v <= SK_WIRE_VERSION; v++) {
		reply.version = (uint16_t)v;
		cr_assert_eq(sk_wire_greeted(&reply, &err), (int)v);
	}
	reply.version = SK_WIRE_VERSION + 1;
	cr_assert_eq(sk_wire_greeted(&reply, &err), -EPROTO);
	cr_assert(strstr(err.text, "upgrade the client"), "%s", err.text);
	reply.version = SK_WIRE_VERSION - 2;
	cr_assert_eq(sk_wire_greeted(&reply, &err), -EPROTO);
	cr_assert(strstr(err.text, "upgrade the agent"), "%s", err.text);
	cr_assert(strstr(err.text, "agent 9.8 speaks"), "%s", err.text);
	snprintf(words, sizeof(words), "version %u of", SK_WIRE_VERSION - 2);
	cr_assert(strstr(err.text, words), "%s", err.text);
	snprintf(words, sizeof(words), "versions %u and %u",
		 SK_WIRE_VERSION - 1, SK_WIRE_VERSION);
	cr_assert(strstr(err.text, words), "%s", err.text);
}

Test(version, what_nobody_needs_is_left_out)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT,
			      .body.slot = { .flags = 7, .step = -1 } };

	cr_assert_eq(lower(NEW, false, &msg, NULL), 0);
	cr_assert_eq(msg.body.slot.flags, 7);
	cr_assert_eq(lower(NEW - 1, false, &msg, NULL), 0);
	cr_assert_eq(msg.body.slot.flags, 3);
	cr_assert_eq(msg.body.slot.step, -1);
	/* The same bytes of a reply are something else. */
	msg.body.slot.flags = 7;
	cr_assert_eq(lower(NEW - 1, true, &msg, NULL), 0);
	cr_assert_eq(msg.body.slot.flags, 7);
}

Test(version, what_is_needed_is_refused_by_name)
{
	struct sk_msg msg = { .type = SK_MSG_PIN, .body.manage.flags = 1 };
	struct sk_err err = { "" };

	cr_assert_eq(lower(NEW - 1, false, &msg, &err), 0);
	msg.body.manage.flags = 3;
	cr_assert_eq(lower(NEW, false, &msg, &err), 0);
	cr_assert_eq(lower(NEW - 1, false, &msg, &err), -EOPNOTSUPP);
	cr_assert_str_eq(err.text, "version 8 of the protocol, which the other "
			 "side speaks, has no \"flags\" in a message "
			 "\"pin\"; upgrade it");
	cr_assert_eq(msg.body.manage.flags, 3);
	msg = (struct sk_msg){ .type = SK_MSG_STATUS };
	cr_assert_eq(lower(NEW, false, &msg, &err), 0);
	cr_assert_eq(lower(NEW - 1, false, &msg, &err), -EOPNOTSUPP);
	cr_assert(strstr(err.text, "has no message \"status\""), "%s",
		  err.text);
}

/* A version says only what it has. */
Test(version, what_came_has_nothing_newer)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT, .body.slot.flags = 3 };
	struct sk_err err = { "" };

	cr_assert_eq(check(NEW - 1, false, &msg, &err), 0);
	msg.body.slot.flags = 4;
	cr_assert_eq(check(NEW, false, &msg, &err), 0);
	cr_assert_eq(check(NEW - 1, true, &msg, &err), 0);
	cr_assert_eq(check(NEW - 1, false, &msg, &err), -EINVAL);
	cr_assert(strstr(err.text, "\"flags\""), "%s", err.text);
	msg = (struct sk_msg){ .type = SK_MSG_STATUS };
	cr_assert_eq(check(NEW - 1, false, &msg, &err), -EINVAL);
	cr_assert_eq(check(NEW - 1, true, &msg, &err), -EINVAL);
	cr_assert_eq(check(NEW, true, &msg, &err), 0);
}

/* Two versions apart both steps count; a step is not undone twice. */
Test(version, each_step_counts)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT,
			      .body.slot = { .flags = 4, .reserved = 1 } };

	cr_assert_eq(lower(NEW - 1, false, &msg, NULL), 0);
	cr_assert_eq(msg.body.slot.reserved, 1);
	cr_assert_eq(lower(NEW - 2, false, &msg, NULL), 0);
	cr_assert_eq(msg.body.slot.reserved, 0);
}

/* A sentence stands where a reply's fields are. */
Test(version, a_refusal_keeps_its_sentence)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .status = -EINVAL };
	struct sk_msg before;

	memset(msg.body.text, 'x', sizeof(msg.body.raw));
	before = msg;
	cr_assert_eq(lower(NEW - 1, true, &msg, NULL), 0);
	cr_assert_eq(memcmp(&msg, &before, sizeof(msg)), 0);
	msg.status = 0;
	cr_assert_eq(lower(NEW - 1, true, &msg, NULL), 0);
	cr_assert_eq(msg.body.list_reply.flags, 0);
}

/* The real ones: of the step that we can take, of 32 bits each. */
Test(version, the_table_is_of_versions_that_we_speak)
{
	for (size_t i = 0; i < sk_wire_n_changes; i++) {
		const struct sk_wire_change *c = &sk_wire_changes[i];

		cr_assert_eq(c->since, SK_WIRE_VERSION, "%zu: a step that "
			     "nobody takes any more", i);
		cr_assert_lt(c->type, SK_MSG_TYPE_COUNT);
		cr_assert(!c->bits || c->name);
		cr_assert_leq(c->offset + 4, sizeof(struct sk_msg));
	}
}

/* Those whose records have grown are given what they know. */
Test(version, readers_that_insist_on_a_length_are_given_it)
{
	cr_assert_eq(sk_wire_record_bytes(SK_WIRE_RIGID, SK_MSG_STATS,
					  sizeof(struct sk_wire_stat)), 376);
	cr_assert_eq(sk_wire_record_bytes(SK_WIRE_RIGID + 1, SK_MSG_STATS,
					  sizeof(struct sk_wire_stat)),
		     sizeof(struct sk_wire_stat));
	cr_assert_eq(sk_wire_record_bytes(SK_WIRE_RIGID, SK_MSG_LIST, 48), 48);
}

Test(version, records_are_cut_or_filled_with_zeros)
{
	char out[] = "xxxxxxxxxxxx";

	/* What lies behind them is not theirs. */
	sk_wire_records_fit("abcdefgh", 2, 4, out, 3);
	cr_assert(!memcmp(out, "abcefgx", 7));
	sk_wire_records_fit("abcdefgh", 2, 4, out, 6);
	cr_assert(!memcmp(out, "abcd\0\0efgh\0\0", 12));
	sk_wire_records_fit("abcdefgh", 2, 4, out, 4);
	cr_assert(!memcmp(out, "abcdefgh", 8));
}
