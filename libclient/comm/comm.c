/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "conn/memfd.h"
#include "state/register.h"

/* Agents that may be killed over one meeting. */
#define AGENTS_MOST 8
/* Who did not hear the answer has lost its connection, and is there. */
#define LEAVE_MS 2000u
/* Of a lack that may pass: looks so often whether it has. */
#define PAUSE_NS 10000000u

/* What a rank gives to a meeting, and where all that it brings goes. */
struct meeting {
	uint64_t round;
	const void *in;
	size_t bytes;
	void *out;
	uint64_t until_ns;
};

/* ---- what may pass ---- */

/* The others wait for this rank, and nobody else could tell them that it does
 * not come: what it lacks it waits for as well. After a pause. */
static bool must_try_again(const struct sk_agent_comm *c, int r,
			   uint64_t until_ns)
{
	const struct sk_os *os = c->sk->os;

	if (r != -ENOMEM && r != -ENOBUFS && r != -EMFILE && r != -ENFILE)
		return false;
	if (os->now_ns(os) >= until_ns)
		return false;
	(void)os->poll(os, NULL, 0, os->now_ns(os) + PAUSE_NS);
	return true;
}

static void *make_room(const struct sk_agent_comm *c, size_t bytes,
		       uint64_t until_ns)
{
	void *room;

	do
		room = malloc(bytes + 1);
	while (!room && must_try_again(c, -ENOMEM, until_ns));
	return room;
}

static int connect_to(struct sk_agent_comm *c, uint64_t until_ns,
		      struct sk_conn *ret)
{
	struct sk_err err = { "" };

	*ret = (struct sk_conn)SK_CONN_NULL;
	return sk_conn_open_more(c->sk->os, &c->sk->conn, c->sk->socket_path,
				 until_ns, ret, &err);
}

/* ---- an agent that does not know the run ---- */

/* It was registered at another one, and may not be the first to come here. */
static bool is_unknown(const struct sk_agent_comm *c,
		       const struct sk_conn *conn)
{
	return c->state && !c->agent &&
	       c->state->instance != conn->agent.instance;
}

/* Others are in another run there, so nobody has met this one. */
static int go_where_others_are(struct sk_agent_comm *c, uint64_t until_ns)
{
	struct sk_err err = { "" };
	int r;

	sk_state_unregister(c->state);
	sk_state_set_run(c->state, 0, 0);
	r = sk_state_register(c->state, false, until_ns, &err);
	if (r < 0)
		return r;
	c->id = sk_state_wire_id(c->state, 0);
	c->astray = true;
	return -ECONNRESET;
}

/* Comes back into its run. */
static int come_in(struct sk_agent_comm *c, uint64_t until_ns)
{
	struct sk_err err = { "" };
	int r = sk_state_register(c->state, false, until_ns, &err);

	if (c->fresh && (r == -EEXIST || r == -ESTALE))
		return go_where_others_are(c, until_ns);
	return r;
}

static int connect_known(struct sk_agent_comm *c, uint64_t until_ns,
			 struct sk_conn *ret)
{
	int r, agents = 0;

	do {
		r = connect_to(c, until_ns, ret);
		if (r < 0 || !is_unknown(c, ret))
			return r;
		sk_conn_close(ret);
		r = come_in(c, until_ns);
	} while ((r >= 0 || r == -ECONNRESET) && !c->astray &&
		 ++agents < AGENTS_MOST);
	return r < 0 ? r : -ECONNRESET;
}

/* ---- one meeting at one agent ---- */

static int ask(struct sk_agent_comm *c, struct sk_conn *conn,
	       const struct meeting *m, int fd, struct sk_msg *msg)
{
	bool moved = c->agent && c->agent != conn->agent.instance;
	struct sk_err err = { "" };

	*msg = (struct sk_msg){ .type = SK_MSG_GATHER, .body.gather = {
		.id = c->id, .round = m->round, .bytes = (uint32_t)m->bytes,
		.timeout_ms = sk_wait_ms(c->sk, m->until_ns),
		.flags = moved ? SK_GATHER_MOVED : 0 } };
	if (fd < 0)
		memcpy(msg->body.gather.data, m->in, m->bytes);
	return sk_conn_ask(conn, msg, &fd, fd >= 0, m->until_ns, &err);
}

/* The descriptor of what is given: of what is said in the message itself one of
 * no use, in the place of that which the answer will bring. Who cannot have one
 * now could not take it either, when the others have gone on. */
static int make_descriptor(struct sk_agent_comm *c, const struct meeting *m,
			   const struct sk_conn *conn)
{
	const struct sk_os *os = c->sk->os;
	const struct iovec part = { (void *)m->in, m->bytes };

	if (m->bytes > SK_GATHER_INLINE)
		return sk_memfd_with(os, "shardkeep:gather", &part, 1);
	return os->fcntl(os, conn->sock, F_DUPFD_CLOEXEC, 3);
}

static int try_to_give(struct sk_agent_comm *c, const struct meeting *m,
		       struct sk_conn *conn, struct sk_msg *msg, int *ret_fd)
{
	int fd, r = connect_known(c, m->until_ns, conn);

	if (r < 0)
		return r;
	r = fd = make_descriptor(c, m, conn);
	if (r >= 0)
		r = ask(c, conn, m, m->bytes > SK_GATHER_INLINE ? fd : -1, msg);
	if (r < 0) {
		sk_close_fds(c->sk->os, &fd, fd >= 0);
		sk_conn_close(conn);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

/* The descriptor is held until there is an answer. */
static int give(struct sk_agent_comm *c, const struct meeting *m,
		struct sk_conn *conn, struct sk_msg *msg)
{
	const struct sk_os *os = c->sk->os;
	struct pollfd answer = { .events = POLLIN };
	int r, fd = -1;

	do
		r = try_to_give(c, m, conn, msg, &fd);
	while (must_try_again(c, r, m->until_ns));
	if (r < 0)
		return r;
	answer.fd = conn->sock;
	(void)os->poll(os, &answer, 1, m->until_ns);
	(void)os->close(os, fd);
	return 0;
}

/* Once it is held this rank has been there, whatever it can take of it. */
static int take(struct sk_agent_comm *c, const struct meeting *m,
		struct sk_conn *conn, struct sk_msg *msg)
{
	const struct sk_os *os = c->sk->os;
	int fds[SK_MSG_FDS], n = 0, r;

	r = sk_conn_hear(conn, msg, fds, &n, m->until_ns, &c->err);
	c->met = r >= 0 || r == -EMFILE;
	if (c->met)
		c->agent = conn->agent.instance;
	if (r < 0)
		return r;
	if (m->out)
		r = n == 1 ? sk_read_all(os, fds[0], m->out, m->bytes *
					 (size_t)c->id.world, 0) : -EPROTO;
	sk_close_fds(os, fds, n);
	return r == -ENODATA ? -EPROTO : r;
}

/* -ESTALE: others have not been in the meeting before. */
static int meet(struct sk_agent_comm *c, const struct meeting *m)
{
	struct sk_conn conn;
	struct sk_msg msg;
	int r;

	c->met = c->over = false;
	r = give(c, m, &conn, &msg);
	if (r < 0)
		return r;
	r = take(c, m, &conn, &msg);
	c->over = r == -ENOENT && c->state &&
		  c->state->instance == conn.agent.instance;
	sk_conn_close(&conn);
	if (r == -ENOENT && c->state && c->fresh && !c->agent)
		return go_where_others_are(c, m->until_ns);
	/* Nothing of a snapshot is said by that. */
	return r == -ENOENT ? -ECONNRESET : r;
}

/* ---- at whichever agent there is ---- */

/* The last one once more, for those who did not hear of it. */
static int meet_again(struct sk_agent_comm *c, uint64_t until_ns)
{
	const struct meeting m = { c->round - 1, c->last, c->last_bytes, NULL,
				   until_ns };
	int r;

	if (!c->round || !c->agent)
		return -EPROTO;
	r = meet(c, &m);
	if (c->met)
		r = 0;
	c->met = false;
	return r;
}

static int meet_somewhere(struct sk_agent_comm *c, const struct meeting *m)
{
	int r, agents = 0;

	do {
		r = meet(c, m);
		if (r == -ESTALE)
			r = meet_again(c, m->until_ns);
		else if (r != -ECONNRESET || c->astray)
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
	_cleanup_free_ void *last = NULL;
	int r;

	assert(c->id.rank >= 0 && c->id.rank < c->id.world);
	c->met = false;
	c->err.text[0] = '\0';
	if (bytes > SK_GATHER_MAX)
		return -EMSGSIZE;
	last = make_room(c, bytes, m.until_ns);
	if (!last)
		return -ENOMEM;
	memcpy(last, in, bytes);
	r = meet_somewhere(c, &m);
	if (!c->met)
		return r;
	free(c->last);
	c->last = sk_take_ptr(last);
	c->last_bytes = bytes;
	c->round++;
	return r;
}

void sk_comm_of_agent(struct sk_agent_comm *ctx, struct sk_comm *ret_comm)
{
	*ret_comm = (struct sk_comm){ .ctx = ctx, .allgather = allgather };
}

/* ---- the end ---- */

/* 1: the agent of the last meeting is there; 0: another one. */
static int is_there(struct sk_agent_comm *c, uint64_t until_ns)
{
	struct sk_conn conn;
	int r;

	do
		r = connect_to(c, until_ns, &conn);
	while (must_try_again(c, r, until_ns));
	if (r >= 0)
		r = conn.agent.instance == c->agent;
	sk_conn_close(&conn);
	return r;
}

/* The agent tells all ranks at once: as long as it is there, it has. Else who
 * waits for us has us called back. -ECONNRESET: so it was, or another agent was
 * killed. */
static int take_leave(struct sk_agent_comm *c)
{
	static const char bye[] = "leaves";
	const struct meeting m = { c->round, bye, sizeof(bye), NULL,
				   sk_until_ms(c->sk->os, LEAVE_MS) };
	int r = is_there(c, m.until_ns);

	if (!r)
		r = meet(c, &m);
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
