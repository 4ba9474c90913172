/* SPDX-License-Identifier: Apache-2.0 */
#include "session/reply.h"

#include <assert.h>
#include <string.h>

#include "agent.h"
#include "session/flight.h"
#include "session/session.h"
#include "wire/version.h"

#define RETRY_NS UINT64_C(10000000)
#define RETRY_MOST_NS UINT64_C(320000000)

struct reply {
	struct sk_link link;
	struct sk_msg msg;
	int fds[SK_MSG_FDS];
	int n_fds;
};

static void reply_free(struct session *s, struct reply *r)
{
	assert(s->n_replies);
	sk_link_remove(&r->link);
	s->n_replies--;
	while (r->n_fds)
		sk_close_fd(r->fds[--r->n_fds]);
	free(r);
}

/* Who does not read its replies is not listened to either. Room in the socket
 * says nothing of descriptors: for those it is tried from time to time. */
static void watch(struct session *s)
{
	struct agent *a = s->agent;
	uint32_t events = EPOLLRDHUP | EPOLLET;

	timer_clear(&a->loop.timers, &s->retry);
	if (sk_link_empty(&s->replies))
		events |= EPOLLIN;
	else if (!s->short_of_fds)
		events |= EPOLLOUT;
	else
		timer_set(&a->loop.timers, &s->retry, agent_now(a) +
			  s->retry_ns);
	if (loop_watch(&a->loop, &s->source, events) < 0)
		session_close(s, "its socket cannot be watched");
}

static void close_fds(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		sk_close_fd(fds[i]);
}

static void queue_reply(struct session *s, const struct sk_msg *msg,
			const int *fds, int n_fds)
{
	bool full = s->n_replies >= MAX_REPLIES;
	struct reply *r = full ? NULL : calloc(1, sizeof(*r));

	if (!r) {
		close_fds(fds, n_fds);
		session_close(s, full ? "it does not read its replies" :
					"no memory for its replies");
		return;
	}
	r->msg = *msg;
	if (n_fds)
		memcpy(r->fds, fds, (size_t)n_fds * sizeof(*fds));
	r->n_fds = n_fds;
	sk_link_insert(&s->replies, &r->link);
	s->n_replies++;
	watch(s);
}

/* The other side does not take it now, but may later. */
static bool is_full(int r)
{
	return r == -EAGAIN || r == -ENOBUFS || r == -ETOOMANYREFS;
}

/* The other side reads no more. What it sent before that is still heard. */
static bool is_deaf(int r)
{
	return r == -EPIPE || r == -ECONNRESET;
}

static int send_reply(struct session *s, struct sk_msg *msg, const int *fds,
		      int n_fds)
{
	int r = -ETOOMANYREFS;

	if (flight_may(s, n_fds))
		r = sk_channel_send(s->agent->os, s->source.fd, msg, fds,
				    n_fds);
	if (r == 0)
		flight_sent(s, n_fds);
	s->short_of_fds = is_full(r) && r != -EAGAIN;
	if (!s->short_of_fds)
		s->retry_ns = RETRY_NS;
	return r;
}

static void fill_head(struct session *s, struct sk_msg *msg, uint16_t type,
		      uint32_t seq, int status, const struct sk_err *err)
{
	msg->version = (uint16_t)s->version;
	msg->type = type;
	msg->seq = seq;
	msg->status = status;
	if (status >= 0)
		return;
	assert(err);
	/* A slot's refusal has its sentence behind the time. */
	memcpy(type == SK_MSG_SLOT ? msg->body.slot_reply.text :
				     msg->body.text,
	       err->text, sizeof(err->text));
}

/* What the other side has no word for is refused instead. */
static int lower(const struct session *s, struct sk_msg *msg,
		 struct sk_err *err)
{
	if (msg->status < 0 || !s->greeted)
		return 0;
	return sk_wire_lower(sk_wire_changes, sk_wire_n_changes, s->version,
			     true, msg, err);
}

void session_reply(struct session *s, uint16_t type, uint32_t seq, int status,
		   struct sk_msg *msg, const int *fds, int n_fds,
		   const struct sk_err *err)
{
	struct sk_msg none = { 0 };
	struct sk_err why = { "" };
	int r;

	assert(n_fds >= 0 && n_fds <= SK_MSG_FDS);
	if (s->closing) {
		close_fds(fds, n_fds);
		return;
	}
	msg = msg ? msg : &none;
	fill_head(s, msg, type, seq, status, err);
	r = lower(s, msg, &why);
	if (r < 0) {
		close_fds(fds, n_fds);
		n_fds = 0;
		fill_head(s, msg, type, seq, r, &why);
	}
	/* Not past those that wait. */
	r = sk_link_empty(&s->replies) ? send_reply(s, msg, fds, n_fds) :
					 -EAGAIN;
	if (is_full(r)) {
		queue_reply(s, msg, fds, n_fds);
		return;
	}
	close_fds(fds, n_fds);
	if (r < 0 && !is_deaf(r))
		session_close(s, "its socket failed");
}

void replies_send(struct session *s)
{
	while (!s->closing && !sk_link_empty(&s->replies)) {
		struct reply *r = sk_link_object(s->replies.next,
						 struct reply, link);
		int e = send_reply(s, &r->msg, r->fds, r->n_fds);

		if (is_full(e))
			break;
		reply_free(s, r);
		if (e < 0 && !is_deaf(e))
			session_close(s, "its socket failed");
	}
	if (!s->closing)
		watch(s);
}

static void try_again(struct timer *timer)
{
	struct session *s = sk_link_object(timer, struct session, retry);

	if (s->retry_ns < RETRY_MOST_NS)
		s->retry_ns *= 2;
	replies_send(s);
}

void replies_init(struct session *s)
{
	sk_link_init(&s->replies);
	s->retry.fire = try_again;
	s->retry_ns = RETRY_NS;
}

void replies_drop(struct session *s)
{
	timer_clear(&s->agent->loop.timers, &s->retry);
	while (!sk_link_empty(&s->replies))
		reply_free(s, sk_link_object(s->replies.next, struct reply,
					     link));
}
