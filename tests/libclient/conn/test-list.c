/* SPDX-License-Identifier: Apache-2.0 */
/* How long a list waits for an agent that looks at a large store. The test is
 * the agent, and its clock. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "conn/list.h"
#include "fault-os.h"

#define SPAN_NS UINT64_C(10000000000)	/* what a request may take */

static struct {
	struct sk_fault_os os;
	unsigned asked;		/* so often */
	unsigned looks;		/* so many answers that it looks */
	uint64_t files;		/* more, each time */
	uint32_t record_bytes;	/* of the list; 0: as ours */
	uint64_t records;	/* of which so many are said */
	uint64_t written;	/* and so many there */
} agent;

/* Each is told by its step; what an older or newer side does not know is not
 * zero. */
static void write_records(int fd)
{
	size_t bytes = agent.record_bytes;
	size_t room = bytes + sizeof(struct sk_wire_snapshot);
	char *one = malloc(room);

	cr_assert_not_null(one);
	for (uint64_t i = 0; i < agent.written; i++) {
		struct sk_wire_snapshot s = { .id.step = (int64_t)i,
					      .text = "said" };

		memset(one, 0x77, room);
		memcpy(one, &s, bytes < sizeof(s) ? bytes : sizeof(s));
		cr_assert_eq(pwrite(fd, one, bytes, (off_t)(i * bytes)),
			     (ssize_t)bytes);
	}
	free(one);
}

int sk_conn_call(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fds, int *ret_n_fds, uint64_t until_ns,
		 struct sk_err *err)
{
	uint64_t now = conn->os->now_ns(conn->os);
	uint64_t wait_ns = msg->body.list.wait_ms * UINT64_C(1000000);

	(void)fds;
	(void)n_fds;
	(void)err;
	cr_assert_eq(msg->type, SK_MSG_LIST);
	cr_assert_gt(wait_ns, 0);
	cr_assert_leq(now + wait_ns, until_ns);
	*msg = (struct sk_msg){ .type = SK_MSG_LIST };
	*ret_n_fds = 0;
	if (agent.asked++ < agent.looks) {
		sk_fault_os_advance(&agent.os, wait_ns);
		msg->body.list_reply.looking = 1;
		msg->body.list_reply.n = agent.asked * agent.files;
		return 0;
	}
	ret_fds[(*ret_n_fds)++] = memfd_create("list", MFD_CLOEXEC);
	msg->body.list_reply.record_bytes = agent.record_bytes;
	msg->body.list_reply.n = agent.records;
	write_records(ret_fds[0]);
	return 0;
}

static int ask(struct sk_wire_snapshot **ret, size_t *ret_n,
	       struct sk_err *err)
{
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_wire_id id = { .job = "j", .step = -1, .rank = -1 };
	struct sk_list_gaps gaps;

	sk_fault_os_init(&agent.os, sk_os_linux());
	sk_fault_os_clock(&agent.os, 1000, 1000);
	agent.asked = 0;
	conn.os = &agent.os.os;
	return sk_list_snapshots(&conn, &id, 0, 1000 + SPAN_NS, ret, ret_n,
				 &gaps, err);
}

static int list(unsigned looks, uint64_t files, struct sk_err *err)
{
	struct sk_wire_snapshot *s = NULL;
	size_t n = 1;
	int r;

	agent.record_bytes = sizeof(*s);
	agent.looks = looks;
	agent.files = files;
	r = ask(&s, &n, err);
	cr_assert(r < 0 || !n);
	free(s);
	return r;
}

/* Twenty times as long as a request may take. */
Test(list, it_waits_while_files_are_looked_at)
{
	struct sk_err err = { "" };

	cr_assert_eq(list(60, 1, &err), 0, "%s", err.text);
	cr_assert_eq(agent.asked, 61);
}

Test(list, it_ends_where_no_more_files_are_looked_at)
{
	struct sk_err err = { "" };

	cr_assert_eq(list(UINT32_MAX, 0, &err), -ETIMEDOUT);
	cr_assert(strstr(err.text, "looking at the store"), "%s", err.text);
}

/* Nor for ever where there are. */
Test(list, it_has_a_bound)
{
	struct sk_err err = { "" };

	cr_assert_eq(list(UINT32_MAX, 1, &err), -ETIMEDOUT);
	cr_assert(strstr(err.text, "looking at the store"), "%s", err.text);
}

/* ---- records ---- */

static int ask_records(uint32_t record_bytes, uint64_t said, uint64_t written,
		       struct sk_wire_snapshot **ret)
{
	struct sk_err err = { "" };
	size_t n = 0;
	int r;

	agent.record_bytes = record_bytes;
	agent.records = said;
	agent.written = written;
	r = ask(ret, &n, &err);
	if (r >= 0)
		cr_assert_eq(n, said);
	else
		cr_assert(err.text[0]);
	return r;
}

/* What an agent that knows more has behind each is passed over; what one that
 * knows less has not is zero. */
Test(list, records_may_be_longer_or_shorter)
{
	const uint32_t ours = sizeof(struct sk_wire_snapshot);
	const uint32_t less = offsetof(struct sk_wire_snapshot, text);
	const uint32_t lengths[] = { ours, ours + 1, ours + 40, 3 * ours,
				     less, less + 2 };

	for (size_t i = 0; i < SK_ARRAY_SIZE(lengths); i++) {
		struct sk_wire_snapshot *s = NULL;
		char text[sizeof(s->text)] = "said";

		memset(text + (lengths[i] < ours ? lengths[i] - less : 4), 0,
		       lengths[i] < ours ? 4 : 0);
		cr_assert_eq(ask_records(lengths[i], 3, 3, &s), 0, "%u",
			     lengths[i]);
		for (int k = 0; k < 3; k++) {
			cr_assert_eq(s[k].id.step, k, "%u", lengths[i]);
			cr_assert(!memcmp(s[k].text, text, sizeof(text)),
				  "%u", lengths[i]);
		}
		free(s);
	}
}

Test(list, records_that_make_no_sense_are_refused)
{
	const uint32_t ours = sizeof(struct sk_wire_snapshot);
	struct sk_wire_snapshot *s = NULL;

	cr_assert_eq(ask_records(0, 3, 0, &s), -EPROTO);
	cr_assert_eq(ask_records(UINT32_MAX, 0, 0, &s), -EPROTO);
	cr_assert_eq(ask_records(ours, 3, 2, &s), -EPROTO);
	cr_assert_eq(ask_records(ours + 8, 3, 2, &s), -EPROTO);
	cr_assert_eq(ask_records(ours - 8, UINT64_MAX / 16, 1, &s), -EPROTO);
}
