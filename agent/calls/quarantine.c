/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/quarantine.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include "agent.h"
#include "base/size.h"
#include "calls/device.h"
#include "memory/memory.h"
#include "session/rights.h"
#include "session/session.h"

#define PATIENCE_NS UINT64_C(5000000000)	/* then the log has it */
#define HEIRS_NS UINT64_C(30000000000)	/* then a GPU has done it all */

struct quarantine {
	struct sk_link link;		/* in agent->quarantines */
	struct agent *agent;
	struct source peer;		/* the process's pidfd, or the socket
					 * that its heirs have */
	struct timer patience;
	pid_t pid;			/* 0: of heirs */
	bool over;			/* freed when the turn ends */
};

static void peer_ready(struct source *source, uint32_t events)
{
	struct quarantine *q = sk_link_object(source, struct quarantine, peer);

	(void)events;
	(void)loop_watch(&q->agent->loop, &q->peer, 0);
	q->over = true;
}

static void say(struct timer *timer)
{
	struct quarantine *q = sk_link_object(timer, struct quarantine,
					      patience);
	char bytes[32];

	sk_size_format(sk_cat_detained(&q->agent->cat, q), bytes,
		       sizeof(bytes));
	log_warning(q->agent, "pid %d has closed its connection and not ended: "
		    "nobody else gets the %s that it may still write to",
		    (int)q->pid, bytes);
}

/* ---- beginning ---- */

/* The number may be another process's by now. */
static bool is_there(const struct quarantine *q)
{
	struct pollfd p = { q->peer.fd, POLLIN, 0 };
	const struct sk_os *os = q->agent->os;

	return !q->over && os->poll(os, &p, 1, 0) == -ETIMEDOUT;
}

/* One for each process, however many connections it leaves. */
static struct quarantine *find(const struct agent *a, const struct session *s)
{
	struct quarantine *q;

	sk_link_each(q, &a->quarantines, link)
		if (s->pid > 0 && q->pid == s->pid && is_there(q))
			return q;
	return NULL;
}

/* By the connection's pidfd, which is the quarantine's from then on. */
static struct quarantine *begin(struct agent *a, struct session *s)
{
	struct quarantine *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	(void)loop_watch(&a->loop, &s->peer, 0);
	q->agent = a;
	q->pid = s->pid;
	q->peer = (struct source){ .ready = peer_ready, .fd = s->peer.fd };
	q->patience.fire = say;
	if (loop_watch(&a->loop, &q->peer, EPOLLIN) < 0) {
		free(q);
		return NULL;
	}
	s->peer.fd = -1;
	timer_set(&a->loop.timers, &q->patience, agent_now(a) + PATIENCE_NS);
	sk_link_insert(&a->quarantines, &q->link);
	return q;
}

/* For ever: nobody tells when it might be over. */
static void keep_from_others(struct sk_cat_state *state)
{
	struct sk_cat_slot *slot;

	sk_link_each(slot, &state->slots, link) {
		struct memory *m = slot->memory;

		m->stray = true;
	}
}

/* ---- heirs ---- */

static void heirs_time_over(struct timer *timer)
{
	struct quarantine *q = sk_link_object(timer, struct quarantine,
					      patience);

	q->over = true;
	agent_changed(q->agent);
}

/* Whether anybody has the other end of the connection still. */
static bool has_heirs(const struct agent *a, const struct session *s)
{
	struct pollfd p = { s->source.fd, POLLRDHUP, 0 };

	return s->source.fd >= 0 &&
	       a->os->poll(a->os, &p, 1, 0) == -ETIMEDOUT;
}

/* By a descriptor of its own: the connection's own has its ways to end. */
static struct quarantine *begin_heirs(struct agent *a, const struct session *s)
{
	struct quarantine *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->agent = a;
	q->peer = (struct source){
		.ready = peer_ready,
		.fd = a->os->fcntl(a->os, s->source.fd, F_DUPFD_CLOEXEC, 3) };
	q->patience.fire = heirs_time_over;
	if (q->peer.fd < 0 ||
	    loop_watch(&a->loop, &q->peer, EPOLLRDHUP) < 0) {
		q->peer.fd = sk_close_fd(q->peer.fd);
		free(q);
		return NULL;
	}
	timer_set(&a->loop.timers, &q->patience, agent_now(a) + HEIRS_NS);
	sk_link_insert(&a->quarantines, &q->link);
	return q;
}

static bool is_written_to(const struct session *s)
{
	const struct sk_cat_state *state;

	sk_link_each(state, &s->states, owned)
		if (state->on_devices)
			return true;
	return false;
}

/* What stands on the GPU alone is brought out as ever: that is read there, and
 * the same is written. */
static void detain_for_heirs(struct agent *a, struct session *s)
{
	struct sk_cat_state *state;
	struct quarantine *q;
	bool any = false;

	if (!is_written_to(s) || !has_heirs(a, s))
		return;
	q = begin_heirs(a, s);
	if (!q)
		return;
	sk_link_each(state, &s->states, owned)
		if (state->on_devices)
			any |= sk_cat_filling_detain(state, q);
	q->over = !any;
	a->counts.quarantines += any;
}

void quarantine_begin(struct agent *a, struct session *s)
{
	struct quarantine *q = NULL;
	struct sk_cat_state *state;

	if (a->quit || sk_link_empty(&s->states))
		return;
	if (s->gone) {
		detain_for_heirs(a, s);
		return;
	}
	q = find(a, s);
	if (!q && s->peer.fd >= 0)
		q = begin(a, s);
	a->counts.quarantines += q != NULL;
	sk_link_each(state, &s->states, owned) {
		a->cat.visits++;
		if (!q) {
			keep_from_others(state);
			continue;
		}
		sk_cat_state_detain(state, q);
		device_slots_detain(a, state, q);
	}
}

/* ---- the end ---- */

static void end(struct quarantine *q)
{
	struct agent *a = q->agent;

	(void)loop_watch(&a->loop, &q->peer, 0);
	timer_clear(&a->loop.timers, &q->patience);
	sk_cat_detain_end(&a->cat, q);
	device_slots_let_go(a, q);
	sk_link_remove(&q->link);
	q->peer.fd = sk_close_fd(q->peer.fd);
	free(q);
	agent_changed(a);
}

void quarantine_forgive(struct agent *a, const struct session *s)
{
	struct quarantine *q = find(a, s);

	if (q)
		q->over = true;
	quarantine_tidy(a);
}

void quarantine_tidy(struct agent *a)
{
	struct quarantine *q;

	sk_link_each(q, &a->quarantines, link)
		if (q->over)
			end(q);
}

void quarantine_close(struct agent *a)
{
	while (!sk_link_empty(&a->quarantines))
		end(sk_link_object(a->quarantines.next, struct quarantine,
				   link));
}
