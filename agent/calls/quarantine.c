/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/quarantine.h"

#include <errno.h>
#include <poll.h>

#include "agent.h"
#include "base/size.h"
#include "calls/device.h"
#include "memory/memory.h"
#include "session/rights.h"
#include "session/session.h"

#define PATIENCE_NS UINT64_C(5000000000)	/* then the log has it */

struct quarantine {
	struct sk_link link;		/* in agent->quarantines */
	struct agent *agent;
	struct source peer;		/* the process's pidfd */
	struct timer patience;
	pid_t pid;
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

void quarantine_begin(struct agent *a, struct session *s)
{
	struct quarantine *q = NULL;
	struct sk_cat_state *state;

	if (s->gone || a->quit || sk_link_empty(&s->states))
		return;
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
