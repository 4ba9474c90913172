/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "conn/memfd.h"

/* Agents that may be killed over one meeting. */
#define AGENTS_MOST 8
/* Who did not hear the answer has lost its connection, and is there. */
#define LEAVE_MS 2000u

/* What a rank gives to a meeting, and where all that it brings goes. */
struct meeting {
	uint64_t round;
	const void *in;
	size_t bytes;
	void *out;
	uint64_t until_ns;
};

/* ---- one meeting at one agent ---- */

static int exchange(struct sk_agent_comm *c, struct sk_conn *conn,
		    const struct meeting *m, struct sk_msg *msg)
{
	const struct sk_os *os = c->sk->os;
	const struct iovec part = { (void *)m->in, m->bytes };
	int fds[SK_MSG_FDS], fd = -1, n = 0, r;
	struct sk_err err = { "" };

	if (m->bytes <= SK_GATHER_INLINE) {
		memcpy(msg->body.gather.data, m->in, m->bytes);
	} else {
		fd = sk_memfd_with(os, "shardkeep:gather", &part, 1);
		if (fd < 0)
			return fd;
	}
	r = sk_conn_call(conn, msg, &fd, fd >= 0, fds, &n, m->until_ns, &err);
	if (fd >= 0)
		(void)os->close(os, fd);
	if (r < 0)
		return r;
	r = n == 1 ? sk_read_all(os, fds[0], m->out, m->bytes *
				 (size_t)c->id.world, 0) : -EPROTO;
	sk_close_fds(os, fds, n);
	return r == -ENODATA ? -EPROTO : r;
}

/* -ESTALE: others have not been in the meeting before. */
static int meet_at(struct sk_agent_comm *c, struct sk_conn *conn,
		   const struct meeting *m)
{
	bool moved = c->agent && c->agent != conn->agent.instance;
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = c->id, .round = m->round, .bytes = (uint32_t)m->bytes,
		.timeout_ms = sk_wait_ms(c->sk, m->until_ns),
		.flags = moved ? SK_GATHER_MOVED : 0 } };
	int r = exchange(c, conn, m, &msg);

	if (r >= 0)
		c->agent = conn->agent.instance;
	/* Nothing of a snapshot is said by that. */
	return r == -ENOENT ? -ECONNRESET : r;
}

static int meet(struct sk_agent_comm *c, const struct meeting *m)
{
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_err err = { "" };
	int r = sk_conn_open_more(c->sk->os, &c->sk->conn, c->sk->socket_path,
				  m->until_ns, &conn, &err);

	if (r < 0)
		return r;
	r = meet_at(c, &conn, m);
	sk_conn_close(&conn);
	return r;
}

/* ---- at whichever agent there is ---- */

/* The last one once more, for those who did not hear of it. */
static int meet_again(struct sk_agent_comm *c, uint64_t until_ns)
{
	struct meeting m = { c->round - 1, c->last, c->last_bytes, NULL,
			     until_ns };
	int r;

	if (!c->round || !c->agent)
		return -EPROTO;
	m.out = malloc(m.bytes * (size_t)c->id.world + 1);
	if (!m.out)
		return -ENOMEM;
	r = meet(c, &m);
	free(m.out);
	return r;
}

static int meet_somewhere(struct sk_agent_comm *c, const struct meeting *m)
{
	int r, agents = 0;

	do {
		r = meet(c, m);
		if (r == -ESTALE)
			r = meet_again(c, m->until_ns);
		else if (r != -ECONNRESET)
			return r;
	} while ((r >= 0 || r == -ECONNRESET) && ++agents < AGENTS_MOST);
	return r < 0 ? r : -ECONNRESET;
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct sk_agent_comm *c = ctx;
	const struct meeting m = { c->round, in, bytes, out,
				   sk_until_ms(c->sk->os, timeout_ms) };
	void *last;
	int r;

	assert(c->id.rank >= 0 && c->id.rank < c->id.world);
	if (bytes > SK_GATHER_MAX)
		return -EMSGSIZE;
	last = malloc(bytes + 1);
	if (!last)
		return -ENOMEM;
	memcpy(last, in, bytes);
	r = meet_somewhere(c, &m);
	if (r < 0) {
		free(last);
		return r;
	}
	free(c->last);
	c->last = last;
	c->last_bytes = bytes;
	c->round++;
	return r;
}

void sk_comm_of_agent(struct sk_agent_comm *ctx, struct sk_comm *ret_comm)
{
	*ret_comm = (struct sk_comm){ .ctx = ctx, .allgather = allgather };
}

/* ---- the end ---- */

/* The agent tells all ranks at once: as long as it is there, it has. Else who
 * waits for us has us called back. -ECONNRESET: so it was, or another agent was
 * killed. */
static int take_leave(struct sk_agent_comm *c)
{
	static const char bye[] = "leaves";
	_cleanup_free_ char *out = malloc(sizeof(bye) * (size_t)c->id.world);
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_err err = { "" };
	struct meeting m = { c->round, bye, sizeof(bye), out,
			     sk_until_ms(c->sk->os, LEAVE_MS) };
	int r = out ? sk_conn_open_more(c->sk->os, &c->sk->conn,
					c->sk->socket_path, m.until_ns, &conn,
					&err) : -ENOMEM;

	if (r >= 0 && conn.agent.instance != c->agent)
		r = meet_at(c, &conn, &m);
	sk_conn_close(&conn);
	if (r == -ESTALE)
		r = meet_again(c, m.until_ns);
	else if (r >= 0)
		c->agent = 0;
	return r;
}

void sk_agent_comm_leave(struct sk_agent_comm *c)
{
	int r = 0;

	for (int i = 0; i < AGENTS_MOST && c->agent; i++) {
		r = take_leave(c);
		if (r < 0 && r != -ECONNRESET)
			break;
	}
	c->agent = 0;
}

void sk_agent_comm_free(struct sk_agent_comm *ctx)
{
	free(ctx->last);
	ctx->last = NULL;
}
