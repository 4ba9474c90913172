/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are answered later: when a thing happens, or never did. */
#include <string.h>

#include "agent.h"

static void request_free(struct request *q)
{
	timer_clear(&q->agent->timers, &q->timer);
	sk_link_remove(&q->link);
	sk_link_remove(&q->queue);
	if (q->session)
		q->session->n_requests--;
	free(q);
}

static void time_is_over(struct timer *timer)
{
	struct request *q = sk_link_object(timer, struct request, timer);
	struct sk_err err = { "" };
	int r = -EAGAIN;

	if (q->busy)	/* bounded by what has it */
		return;
	/* The thing may say better what is missing. */
	if (q->look)
		r = q->look(q, &err);
	if (r == -EAGAIN) {
		r = -ETIMEDOUT;
		if (!err.text[0])
			sk_err_set(&err, r, "the %s did not happen in time",
				   sk_msg_type_name(q->msg.type));
	}
	if (q->drop)
		q->drop(q);
	request_answer(q, r, NULL, NULL, 0, &err);
}

struct request *request_new(struct call *c, uint32_t timeout_ms)
{
	struct session *s = c->session;
	struct request *q;

	if (s->n_requests >= MAX_REQUESTS) {
		sk_err_set(&c->err, -EBUSY, "%u requests of this connection "
			   "wait already", s->n_requests);
		return NULL;
	}
	if (timeout_ms > SK_WAIT_MAX_MS)
		timeout_ms = SK_WAIT_MAX_MS;
	q = calloc(1, sizeof(*q));
	if (!q) {
		sk_err_set(&c->err, -ENOMEM, "no memory for a request");
		return NULL;
	}
	q->session = s;
	q->agent = c->agent;
	q->msg = *c->in;
	q->timer.fire = time_is_over;
	sk_link_init(&q->link);
	sk_link_init(&q->queue);
	if (timeout_ms &&
	    timer_set(&c->agent->timers, &q->timer, agent_now(c->agent) +
		      (uint64_t)timeout_ms * 1000000) < 0) {
		free(q);
		sk_err_set(&c->err, -ENOMEM, "no memory for a timer");
		return NULL;
	}
	s->n_requests++;
	sk_link_insert(&s->requests, &q->link);
	return q;
}

void request_answer(struct request *q, int status, struct sk_msg *msg,
		    const int *fds, int n_fds, const struct sk_err *err)
{
	struct session *s = q->session;
	uint16_t type = q->msg.type;
	uint32_t seq = q->msg.seq;

	request_free(q);
	if (s) {
		session_reply(s, type, seq, status, msg, fds, n_fds, err);
		return;
	}
	for (int i = 0; i < n_fds; i++)
		sk_close_fd(fds[i]);
}

void request_orphan(struct request *q)
{
	sk_link_remove(&q->link);
	q->session->n_requests--;
	q->session = NULL;
	/* Who has it in hand answers, into the void. */
	if (q->busy)
		return;
	if (q->drop)
		q->drop(q);
	request_free(q);
}

void requests_look(struct agent *a)
{
	struct sk_err err;
	struct request *q;

	sk_link_each(q, &a->waiting, queue) {
		int r;

		err.text[0] = 0;
		r = q->look(q, &err);
		if (r != -EAGAIN)
			request_answer(q, r, NULL, NULL, 0, &err);
	}
}
