/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TAKEOVER: another shardkeepd takes this agent's place. It gets all that is
 * kept, as if this agent had been killed in this very moment, and so nothing
 * else is served until that is over: slots do not change meanwhile. Where it
 * does not say that it has all, this agent goes on as if nothing had been.
 */
#include <stdio.h>
#include <string.h>

#include "calls/call.h"
#include "calls/device.h"
#include "keeper/kept.h"
#include "memory/memory.h"
#include "memory/record.h"
#include "session/rights.h"

#define BOUND_NS UINT64_C(5000000000)	/* others wait for no longer */

struct handover {
	struct call *call;
	uint64_t until_ns;
	uint32_t left;		/* descriptors to be sent */
	bool counting;
};

static int check(struct call *c)
{
	const struct sk_wire_takeover *in = &c->in->body.takeover;
	struct agent *a = c->agent;

	if (session_check_admin(c->session, "take this agent's place",
				&c->err) < 0)
		return -EPERM;
	if (a->keeper.kind == KEEPER_SYSTEMD)
		return sk_err_set(&c->err, -EOPNOTSUPP, "this agent is a "
				  "service of systemd; \"systemctl restart\" "
				  "takes its place, and loses nothing");
	if (a->keeper.kind == KEEPER_NONE || !a->table.map)
		return sk_err_set(&c->err, -EOPNOTSUPP, "this agent has no "
				  "keeper: what it holds in memory ends with "
				  "it; stop it, so that it is flushed, and "
				  "start another one");
	if (a->stopping)
		return sk_err_set(&c->err, -ESHUTDOWN, "the agent is stopping");
	if (in->table_version != TABLE_VERSION ||
	    in->record_bytes != sizeof(struct table_record))
		return sk_err_set(&c->err, -EPROTO, "this agent's table of "
				  "slots is of version %u, with records of %zu "
				  "bytes; the other one reads version %u, of "
				  "%u: stop this one, which flushes what it "
				  "holds, and start the other",
				  TABLE_VERSION, sizeof(struct table_record),
				  in->table_version, in->record_bytes);
	return 0;
}

/* ---- what is handed over ---- */

static int await_socket(struct handover *h, short events)
{
	const struct sk_os *os = h->call->agent->os;
	struct pollfd p = { .fd = h->call->session->source.fd,
			    .events = events };
	int r = os->poll(os, &p, 1, h->until_ns);

	return r < 0 ? r : 0;
}

static int send_one(struct handover *h, const char *name, int fd)
{
	const struct sk_os *os = h->call->agent->os;
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER,
			      .version = (uint16_t)h->call->session->version,
			      .seq = h->call->in->seq };
	int r;

	if (h->counting) {
		h->left++;
		return 0;
	}
	msg.body.kept.left = --h->left;
	(void)snprintf(msg.body.kept.name, sizeof(msg.body.kept.name), "%s",
		       name);
	do {
		r = sk_channel_send(os, h->call->session->source.fd, &msg,
				    &fd, 1);
		if (r == -EAGAIN && await_socket(h, POLLOUT) < 0)
			return -ETIMEDOUT;
	} while (r == -EAGAIN);
	return r;
}

static int send_slot(struct handover *h, const struct sk_cat_slot *slot)
{
	const struct memory *m = slot->memory;
	char name[KEPT_NAME];
	int r = 0;

	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (m->slots[kind].fd < 0 || m->record == TABLE_NONE)
			continue;
		record_name(m->serial, kind, name, sizeof(name));
		r = send_one(h, name, m->slots[kind].fd);
	}
	return r;
}

/* One in which nothing is sealed, and that is no copy, holds nothing. */
static int send_device(struct handover *h, const struct device_slot *d)
{
	const bool holds = d->sealed || device_copied_slot(d);
	const int fds[2] = { d->fd, d->data };
	char name[KEPT_NAME];
	int r = 0;

	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (!holds || d->record == TABLE_NONE)
			continue;
		record_name(d->serial, kind, name, sizeof(name));
		r = send_one(h, name, fds[kind]);
	}
	return r;
}

static int send_all(struct handover *h)
{
	struct agent *a = h->call->agent;
	struct device_slot *d;
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;
	struct sk_cat_run *run;
	struct sk_cat_job *job;
	int r;

	r = send_one(h, KEPT_LISTENER, a->endpoint.sock);
	if (r == 0)
		r = send_one(h, KEPT_LOCK, a->endpoint.lock);
	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
	sk_link_each(slot, &state->slots, link)
		r = r < 0 ? r : send_slot(h, slot);
	sk_link_each(d, &a->device_slots, link)
		r = r < 0 ? r : send_device(h, d);
	return r < 0 ? r : send_one(h, KEPT_TABLE, a->table.fd);
}

/* It has all, and can read it. */
static int await_commit(struct handover *h)
{
	const struct sk_os *os = h->call->agent->os;
	int fds[SK_MSG_FDS], n = 0, r;
	struct sk_msg msg;

	do {
		r = await_socket(h, POLLIN);
		if (r == 0)
			r = sk_channel_recv(os, h->call->session->source.fd,
					    &msg, fds, &n);
	} while (r == -EAGAIN);
	while (r == 0 && n)
		sk_close_fd(fds[--n]);
	if (r == 0 && (msg.type != SK_MSG_TAKEOVER ||
		       msg.body.takeover.flags != SK_TAKEOVER_COMMIT))
		r = -EPROTO;
	return r;
}

static int hand_over(struct handover *h)
{
	int r;

	h->counting = true;
	(void)send_all(h);
	h->counting = false;
	r = send_all(h);
	return r < 0 ? r : await_commit(h);
}

/* What they have leased is another agent's to give away from here on, and this
 * process may take long to end, as where a disk holds it: they see it now. */
static void hang_up_others(const struct call *c)
{
	struct agent *a = c->agent;
	/* Those that are marked have not been closed. */
	struct sk_link *const lists[] = { &a->sessions, &a->closing,
					  &a->lingering };
	struct session *s;

	for (size_t i = 0; i < SK_ARRAY_SIZE(lists); i++)
		sk_link_each(s, lists[i], link)
			if (s != c->session)
				(void)a->os->shutdown(a->os, s->source.fd,
						      SHUT_RDWR);
}

/* As by a signal, but that the keeper begins no other one. */
static void end_here(struct call *c)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER,
			      .version = (uint16_t)c->session->version,
			      .seq = c->in->seq };
	struct agent *a = c->agent;

	log_info(a, "another agent has taken over");
	keeper_stopping(a->os, &a->keeper);
	hang_up_others(c);
	(void)sk_channel_send(a->os, c->session->source.fd, &msg, NULL, 0);
	_exit(0);
}

int call_takeover(struct call *c)
{
	struct handover h = { .call = c };
	int r = check(c);

	if (r < 0)
		return r;
	h.until_ns = agent_now(c->agent) + BOUND_NS;
	r = hand_over(&h);
	if (r == 0)
		end_here(c);
	log_warning(c->agent, "another agent asked for this one's place, and "
		    "did not take it: %s", strerror(-r));
	/* Answers have gone out already. */
	session_close(c->session, NULL);
	return CALL_LATER;
}
