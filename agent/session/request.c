/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are answered later: when a thing happens, or never did. */
#include "session/request.h"

#include <assert.h>
#include <string.h>

#include "agent.h"

#define MS_NS UINT64_C(1000000)
/* Of a process, that are asked at the turn's end, of which all others wait for
 * the end. */
#define FEW 16u

/* Nobody has it any more but its object. */
static void unlink_request(struct request *q)
{
	timer_clear(&q->agent->loop.timers, &q->timer);
	sk_link_remove(&q->queue);
	if (!q->session)
		return;
	assert(q->session->n_requests);
	sk_link_remove(&q->link);
	q->session->n_requests--;
	q->session->chore.party->pending--;
	q->session = NULL;
}

static void finish(struct request *q, int status, const struct sk_err *err)
{
	if (q->kind->answer)
		q->kind->answer(q, status, err);
	else
		request_answer(q, status, NULL, NULL, 0, err);
}

static void time_is_over(struct timer *timer)
{
	struct request *q = sk_link_object(timer, struct request, timer);
	struct sk_err err = { "" };
	int r = -EAGAIN;

	if (q->busy)	/* bounded by what has it */
		return;
	/* A crowd is asked later: it may be gone on with by then. */
	sk_link_remove(&q->queue);
	q->over = true;
	/* Its kind may say better what is missing. */
	if (q->kind->outcome)
		r = q->kind->outcome(q, &err);
	if (r == -EAGAIN) {
		r = -ETIMEDOUT;
		if (!err.text[0])
			(void)sk_err_set(&err, r, "the %s did not happen in "
					 "time",
					 sk_msg_type_name(q->msg.type));
	}
	finish(q, r, &err);
}

int request_init(struct request *q, const struct request_kind *kind,
		 struct session *s, const struct sk_msg *msg,
		 uint32_t timeout_ms, struct sk_err *err)
{
	struct agent *a = s->agent;

	assert(kind->release && !s->closing);
	if (s->n_requests >= MAX_REQUESTS)
		return sk_err_set(err, -EBUSY, "%u requests of this "
				  "connection wait already", s->n_requests);
	if (timeout_ms > SK_WAIT_MAX_MS)
		timeout_ms = SK_WAIT_MAX_MS;
	*q = (struct request){ .kind = kind, .session = s, .agent = a,
			       .msg = *msg, .timer.fire = time_is_over };
	sk_link_init(&q->link);
	sk_link_init(&q->queue);
	if (timeout_ms)
		timer_set(&a->loop.timers, &q->timer, agent_now(a) +
			  timeout_ms * MS_NS);
	s->n_requests++;
	s->chore.party->pending++;
	sk_link_insert(&s->requests, &q->link);
	return 0;
}

static void ask_crowd(struct session *s)
{
	if (sk_link_empty(&s->asking.link))
		loop_queue(&s->agent->loop, &s->asking);
}

static void join_crowd(struct request *q)
{
	struct session *s = q->session;

	sk_link_insert(&s->crowd, &q->queue);
	if (sk_link_empty(&s->crowded))
		sk_link_insert(&s->agent->crowds, &s->crowded);
	ask_crowd(s);
}

void request_await_change(struct request *q)
{
	assert(q->kind->outcome && sk_link_empty(&q->queue));
	if (q->session->chore.party->pending > FEW) {
		join_crowd(q);
		return;
	}
	sk_link_insert(&q->agent->waiting, &q->queue);
	agent_changed(q->agent);
}

void request_await_change_for(struct request *q, uint32_t timeout_ms)
{
	struct agent *a = q->agent;

	timer_set(&a->loop.timers, &q->timer,
		  agent_now(a) + timeout_ms * MS_NS);
	request_await_change(q);
}

void request_answer(struct request *q, int status, struct sk_msg *msg,
		    const int *fds, int n_fds, const struct sk_err *err)
{
	struct session *s = q->session;

	assert(!q->busy);
	unlink_request(q);
	if (s)
		session_reply(s, q->msg.type, q->msg.seq, status, msg, fds,
			      n_fds, err);
	for (int i = 0; i < n_fds && !s; i++)
		sk_close_fd(fds[i]);
	/* Last, for the sentence may be the object's. */
	q->kind->release(q);
}

void request_leave(struct request *q, int status, struct sk_msg *msg,
		   const struct sk_err *err)
{
	struct session *s = q->session;

	assert(q->busy && s);
	unlink_request(q);
	session_reply(s, q->msg.type, q->msg.seq, status, msg, NULL, 0, err);
}

void request_again_with(struct request *q, int *fds, int n_fds)
{
	struct session *s = q->session;
	struct sk_msg msg = q->msg;

	assert(!q->busy && s);
	unlink_request(q);
	q->kind->release(q);
	if (!s->closing)
		s->agent->dispatch(s, &msg, fds, n_fds);
}

void request_again(struct request *q)
{
	request_again_with(q, NULL, 0);
}

void requests_abandon(struct session *s)
{
	while (!sk_link_empty(&s->requests)) {
		struct request *q = sk_link_object(s->requests.next,
						   struct request, link);

		unlink_request(q);
		if (q->busy && q->kind->take_back)
			q->busy = !q->kind->take_back(q);
		/* A worker still owns a busy one; its answer is dropped. */
		if (!q->busy)
			q->kind->release(q);
	}
	assert(!s->n_requests);
}

/* All of a list. */
static void ask(struct sk_link *list)
{
	struct sk_link round;

	/* Off the list one by one: those that come to it meanwhile, and those
	 * that go back to it, have their turn at the next change. */
	sk_link_init(&round);
	sk_link_insert(list, &round);
	sk_link_remove(list);
	while (!sk_link_empty(&round)) {
		struct request *q = sk_link_object(round.next, struct request,
						   queue);
		struct sk_err err = { "" };
		int r;

		assert(!q->busy && q->session);
		sk_link_remove(&q->queue);
		r = q->kind->outcome(q, &err);
		if (r == -EAGAIN)
			sk_link_insert(list, &q->queue);
		else
			finish(q, r, &err);
	}
}

void requests_ask_crowd(struct chore *chore)
{
	struct session *s = sk_link_object(chore, struct session, asking);

	ask(&s->crowd);
	if (sk_link_empty(&s->crowd))
		sk_link_remove(&s->crowded);
}

void requests_answer_due(struct agent *a)
{
	struct session *s;

	ask(&a->waiting);
	sk_link_each(s, &a->crowds, crowded)
		ask_crowd(s);
}

void requests_answer_crowds(struct agent *a)
{
	struct session *s;

	sk_link_each(s, &a->crowds, crowded)
		requests_ask_crowd(&s->asking);
}
