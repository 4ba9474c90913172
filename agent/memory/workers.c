/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/workers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/util.h"
#include "wire/channel.h"
#include "worker/worker.h"

#define WORKERS_MAX 64u		/* GPUs of a node */
#define REST_NS UINT64_C(1000000000)	/* after one that failed */

/* The kernel ends it by itself before that, unless the driver holds it. */
#define STILL_NS ((WORKER_STILL_S + 5) * UINT64_C(1000000000))

struct worker_process {
	struct sk_link link;		/* in agent->workers */
	struct agent *agent;
	uint8_t uuid[16];
	bool exclusive;			/* the GPU takes one process at a
					 * time, as it was seen last */
	struct source source;		/* its socket; fd -1: none runs */
	struct sk_link children;	/* that have not ended yet */
	bool served;			/* the process has done an order */
	struct timer timer;		/* of the order that was sent, since
					 * it got further */
	struct sk_link orders;		/* the first may have been sent */
	struct order forsaken;		/* sent, and nobody's any more */
};

/* A process that was started: its end is waited for, whoever lets go of it
 * before. */
struct child {
	struct sk_link link;
	struct agent *agent;
	struct source end;		/* its pidfd */
	pid_t pid;
};

static void next_order(struct worker_process *w);

/* ---- processes ---- */

static void forget_child(struct child *c)
{
	(void)loop_watch(&c->agent->loop, &c->end, 0);
	c->end.fd = sk_close_fd(c->end.fd);
	sk_link_remove(&c->link);
	/* Other events of this turn may name it: it lives to its end. */
	sk_link_insert(&c->agent->ended, &c->link);
}

static void ended(struct source *source, uint32_t events)
{
	struct child *c = sk_link_object(source, struct child, end);
	int status;

	(void)events;
	if (c->end.fd < 0)
		return;
	(void)c->agent->os->waitpid(c->agent->os, c->pid, &status);
	forget_child(c);
}

void workers_tidy(struct agent *a)
{
	struct child *c;

	sk_link_each(c, &a->ended, link) {
		sk_link_remove(&c->link);
		free(c);
	}
}

/* Without memory or a descriptor it stays a name in the system's table, as
 * long as the agent lives. */
static void watch_child(struct worker_process *w, pid_t pid)
{
	const struct sk_os *os = w->agent->os;
	struct child *c = calloc(1, sizeof(*c));

	if (!c)
		return;
	*c = (struct child){ .agent = w->agent, .pid = pid,
			     .end = { .ready = ended,
				      .fd = os->pidfd_open(os, pid) } };
	sk_link_init(&c->link);
	if (c->end.fd < 0 ||
	    loop_watch(&w->agent->loop, &c->end, EPOLLIN) < 0) {
		c->end.fd = sk_close_fd(c->end.fd);
		free(c);
		return;
	}
	sk_link_insert(&w->children, &c->link);
}

/* A worker whose socket is closed ends by itself. */
static void let_go(struct worker_process *w)
{
	timer_clear(&w->agent->loop.timers, &w->timer);
	if (w->source.fd < 0)
		return;
	(void)loop_watch(&w->agent->loop, &w->source, 0);
	w->source.fd = sk_close_fd(w->source.fd);
}

/* A drain says nothing: it may have found the GPU free. */
static void note_mode(struct worker_process *w, const struct order *order,
		      int status, const struct sk_err *err)
{
	struct agent *a = w->agent;
	struct worker_process *other;

	if (status == -EUSERS) {
		w->exclusive = true;
		degraded_set(a, DEGRADED_GPU_EXCLUSIVE, err->text);
		return;
	}
	if (status < 0 || order->msg.type != SK_MSG_MAKE_DEVICE_SLOT)
		return;
	w->exclusive = false;
	sk_link_each(other, &a->workers, link)
		if (other->exclusive)
			return;
	degraded_clear(a, DEGRADED_GPU_EXCLUSIVE);
}

static void finish(struct worker_process *w, int status,
		   const struct sk_msg *answer, int *fd,
		   const struct sk_err *err)
{
	struct order *order = sk_link_object(w->orders.next, struct order,
					     link);

	timer_clear(&w->agent->loop.timers, &w->timer);
	if (status < 0)
		w->agent->worker_failed_ns = agent_now(w->agent);
	note_mode(w, order, status, err);
	sk_link_remove(&order->link);
	order->done(order, status, answer ? &answer->body.worker : NULL, fd,
		    err);
	agent_changed(w->agent);
}

static void fail_sent(struct worker_process *w, const char *why)
{
	struct order *order = sk_link_object(w->orders.next, struct order,
					     link);
	struct sk_err err = { "" };
	int none = -1;

	let_go(w);
	if (sk_link_empty(&w->orders) || !order->sent)
		return;
	/* It may have been about to end, for want of work. */
	if (!order->again) {
		order->again = true;
		order->sent = false;
		return;
	}
	log_warning(w->agent, "the worker of a GPU %s", why);
	(void)sk_err_set(&err, -EIO, "the agent's worker of a GPU %s", why);
	finish(w, -EIO, NULL, &none, &err);
}

static void time_over(struct timer *timer)
{
	struct worker_process *w = sk_link_object(timer,
						  struct worker_process,
						  timer);

	fail_sent(w, "did not answer in time");
	next_order(w);
}

static void await_answer(struct worker_process *w)
{
	w->timer.fire = time_over;
	timer_set(&w->agent->loop.timers, &w->timer,
		  agent_now(w->agent) + STILL_NS);
}

static void close_fds(struct worker_process *w, const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		if (fds[i] >= 0)
			(void)w->agent->os->close(w->agent->os, fds[i]);
}

/* Its context may have been broken since it did the last one, as where the GPU
 * was reset; one that begins has another. */
static bool may_try_again(const struct worker_process *w)
{
	const struct order *order = sk_link_object(w->orders.next,
						   struct order, link);

	return w->served && order->sent && !order->again;
}

static void answered(struct source *source, uint32_t events)
{
	struct worker_process *w = sk_link_object(source,
						  struct worker_process,
						  source);
	int fds[SK_MSG_FDS] = { -1, -1, -1, -1 }, n = 0, r;
	struct sk_err err = { "" };
	struct sk_msg msg;

	(void)events;
	if (w->source.fd < 0)
		return;
	r = sk_channel_recv(w->agent->os, w->source.fd, &msg, fds, &n);
	if (r == -EAGAIN)
		return;
	if (r < 0 || sk_link_empty(&w->orders)) {
		close_fds(w, fds, n);
		fail_sent(w, "ended before it answered");
		next_order(w);
		return;
	}
	if (msg.status == SK_WORKER_FURTHER) {
		close_fds(w, fds, n);
		await_answer(w);
		return;
	}
	if (msg.status == -EIO && may_try_again(w)) {
		close_fds(w, fds, n);
		fail_sent(w, "failed");
		next_order(w);
		return;
	}
	w->served = true;
	if (msg.status < 0) {
		msg.body.text[SK_ERR_MAX - 1] = '\0';
		(void)sk_err_set(&err, msg.status, "%s", msg.body.text);
		let_go(w);	/* it ends after an error */
	}
	finish(w, msg.status < 0 ? msg.status : 0, &msg, &fds[0], &err);
	close_fds(w, fds, n);
	next_order(w);
}

static int start(struct worker_process *w, struct sk_err *err)
{
	const struct sk_os *os = w->agent->os;
	char number[16];
	char *argv[] = { (char *)"shardkeepd", (char *)"--gpu-worker", number,
			 NULL };
	int fds[2], r;

	r = os->socketpair(os, AF_UNIX, SOCK_SEQPACKET, 0, fds);
	if (r < 0)
		return sk_err_errno(err, r, "cannot start a worker for a GPU");
	(void)snprintf(number, sizeof(number), "%d", SK_SPAWN_FD);
	r = os->spawn(os, "/proc/self/exe", argv, fds[1]);
	(void)os->close(os, fds[1]);
	if (r < 0) {
		(void)os->close(os, fds[0]);
		return sk_err_errno(err, r, "cannot start a worker for a GPU");
	}
	w->served = false;
	watch_child(w, r);
	w->source = (struct source){ .ready = answered, .fd = fds[0] };
	return loop_watch(&w->agent->loop, &w->source, EPOLLIN);
}

/* ---- orders ---- */

static void send_order(struct worker_process *w, struct order *order,
		       struct sk_err *err)
{
	struct agent *a = w->agent;
	int none = -1, r = 0;

	if (w->source.fd < 0)
		r = start(w, err);
	order->sent = true;
	if (r >= 0)
		r = sk_channel_send(a->os, w->source.fd, &order->msg,
				    order->fds, order->n_fds);
	if (r >= 0) {
		await_answer(w);
		return;
	}
	let_go(w);
	/* It had ended by itself, for want of work: another one is begun. */
	if (r == -EPIPE && !order->again) {
		order->again = true;
		order->sent = false;
		return;
	}
	if (!err->text[0])
		(void)sk_err_errno(err, r, "cannot give a worker its order");
	finish(w, r, NULL, &none, err);
}

static void next_order(struct worker_process *w)
{
	while (!sk_link_empty(&w->orders)) {
		struct order *order = sk_link_object(w->orders.next,
						     struct order, link);
		struct sk_err err = { "" };

		if (order->sent)
			return;
		send_order(w, order, &err);
	}
}

static bool is_idle(const struct worker_process *w)
{
	return w->source.fd < 0 && sk_link_empty(&w->orders) &&
	       sk_link_empty(&w->children);
}

static struct worker_process *new_worker(struct agent *a)
{
	struct worker_process *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->agent = a;
	w->source.fd = -1;
	sk_link_init(&w->orders);
	sk_link_init(&w->children);
	sk_link_insert(&a->workers, &w->link);
	return w;
}

/* Clients name the device, and may name any: there are as many as a node can
 * have. */
static struct worker_process *worker_of(struct agent *a, const uint8_t *uuid)
{
	struct worker_process *w, *idle = NULL;
	unsigned n = 0;

	sk_link_each(w, &a->workers, link) {
		if (!memcmp(w->uuid, uuid, sizeof(w->uuid)))
			return w;
		if (is_idle(w))
			idle = w;
		n++;
	}
	/* One that is idle knows something of its GPU. */
	w = n < WORKERS_MAX ? new_worker(a) : NULL;
	w = w ? w : idle;
	if (w) {
		memcpy(w->uuid, uuid, sizeof(w->uuid));
		w->exclusive = false;
	}
	return w;
}

bool workers_rest(const struct agent *a)
{
	return a->worker_failed_ns &&
	       agent_now(a) - a->worker_failed_ns < REST_NS;
}

/* From the turn's timers: done() must not be called before this returns. */
static void begin(struct timer *timer)
{
	next_order(sk_link_object(timer, struct worker_process, timer));
}

int order_submit(struct agent *a, struct order *order)
{
	struct worker_process *w = worker_of(a, order->msg.body.worker.uuid);
	bool idle;

	if (!w)
		return -ENOMEM;
	idle = sk_link_empty(&w->orders);
	if (order->msg.type == SK_MSG_DRAIN &&
	    w->orders.next == &w->forsaken.link) {
		sk_link_remove(&w->forsaken.link);
		let_go(w);
		idle = true;	/* the next has to be begun */
	}
	order->sent = order->again = false;
	sk_link_init(&order->link);
	sk_link_insert(&w->orders, &order->link);
	if (!idle)
		return 0;
	w->timer.fire = begin;
	timer_set(&a->loop.timers, &w->timer, agent_now(a));
	return 0;
}

static void discard(struct order *order, int status,
		    const struct sk_wire_worker *answer, int *fd,
		    const struct sk_err *err)
{
	(void)order;
	(void)status;
	(void)answer;
	(void)fd;	/* whoever calls closes it, and the memory is gone */
	(void)err;
}

static bool drains(const struct worker_process *w)
{
	struct order *order;

	sk_link_each(order, &w->orders, link)
		if (order->msg.type == SK_MSG_DRAIN)
			return true;
	return false;
}

/* A worker that makes memory goes on, for nobody: to begin takes it a second,
 * within which a rank may be registered anew, and ask again, several times. One
 * that hangs is ended in time; what is to be brought out waits for none. */
static void forsake(struct worker_process *w, struct order *order)
{
	w->forsaken = (struct order){ .done = discard, .sent = true,
				      .again = true };
	w->forsaken.msg.type = order->msg.type;
	sk_link_init(&w->forsaken.link);
	sk_link_insert(&order->link, &w->forsaken.link);
	sk_link_remove(&order->link);
}

void order_take_back(struct agent *a, struct order *order)
{
	struct worker_process *w;

	if (!order->done || sk_link_empty(&order->link))
		return;
	sk_link_each(w, &a->workers, link) {
		if (w->orders.next != &order->link)
			continue;
		if (order->sent && w->source.fd >= 0 && !drains(w) &&
		    order->msg.type == SK_MSG_MAKE_DEVICE_SLOT) {
			forsake(w, order);
			return;
		}
		/* What it has begun it must not end: it holds the memory. */
		sk_link_remove(&order->link);
		let_go(w);
		w->timer.fire = begin;
		timer_set(&a->loop.timers, &w->timer, agent_now(a));
		return;
	}
	sk_link_remove(&order->link);
}

void workers_close(struct agent *a)
{
	struct worker_process *w;
	struct child *c;

	sk_link_each(w, &a->workers, link) {
		struct sk_err err = { "" };

		(void)sk_err_set(&err, -ESHUTDOWN, "the agent is stopping");
		let_go(w);
		while (!sk_link_empty(&w->orders))
			finish(w, -ESHUTDOWN, NULL, &(int){ -1 }, &err);
		sk_link_each(c, &w->children, link)
			forget_child(c);
		sk_link_remove(&w->link);
		free(w);
	}
	workers_tidy(a);
}
