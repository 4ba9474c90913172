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
} agent;

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
	msg->body.list_reply.record_bytes = sizeof(struct sk_wire_snapshot);
	return 0;
}

static int list(unsigned looks, uint64_t files, struct sk_err *err)
{
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_wire_snapshot *s = NULL;
	struct sk_wire_id id = { .job = "j", .step = -1, .rank = -1 };
	struct sk_list_gaps gaps;
	size_t n = 1;
	int r;

	sk_fault_os_init(&agent.os, sk_os_linux());
	sk_fault_os_clock(&agent.os, 1000, 1000);
	agent.asked = 0;
	agent.looks = looks;
	agent.files = files;
	conn.os = &agent.os.os;
	r = sk_list_snapshots(&conn, &id, 0, 1000 + SPAN_NS, &s, &n, &gaps,
			      err);
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
