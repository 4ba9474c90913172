/* SPDX-License-Identifier: Apache-2.0 */
#include "session/flight.h"

#include <assert.h>
#include <linux/sock_diag.h>

#include "agent.h"
#include "session/session.h"

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

/* Of the limit, for one user: while less than half is in flight, and else. */
#define SHARE 4u
#define SHARE_CROWDED 16u
#define LOOK_NS UINT64_C(10000000)	/* between two looks at all sockets */
#define UNREAD_NS UINT64_C(1000000000)

/* All that one user has not read; there while the user has a connection. */
struct flight {
	struct sk_link link;		/* in agent->flights */
	uid_t uid;
	unsigned refs, n;
};

/* A connection that ended before all that it was sent was read. */
struct unread {
	struct sk_link link;		/* in agent->unread */
	struct flight *flight;
	int fd;
	unsigned n;
};

/* ---- the count ---- */

int flight_begin(struct session *s)
{
	struct agent *a = s->agent;
	struct flight *f;

	sk_link_each(f, &a->flights, link) {
		if (f->uid != s->uid)
			continue;
		f->refs++;
		s->flight = f;
		return 0;
	}
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->uid = s->uid;
	f->refs = 1;
	sk_link_init(&f->link);
	sk_link_insert(&a->flights, &f->link);
	s->flight = f;
	return 0;
}

static void unref(struct flight *f)
{
	assert(f->refs);
	if (--f->refs)
		return;
	assert(!f->n);
	sk_link_remove(&f->link);
	free(f);
}

/* Of which @n are less in flight. */
static void landed(struct agent *a, struct flight *f, unsigned *n)
{
	assert(f->n >= *n && a->in_flight >= *n);
	a->in_flight -= *n;
	f->n -= *n;
	*n = 0;
}

void flight_sent(struct session *s, int n)
{
	s->in_flight += (unsigned)n;
	s->flight->n += (unsigned)n;
	s->agent->in_flight += (unsigned)n;
}

/* ---- what was read ---- */

/* Whether something that was sent there is still to be read. Where the system
 * does not tell, nothing is held back. */
static bool has_unread(const struct sk_os *os, int fd)
{
	uint32_t mem[SK_MEMINFO_VARS] = { 0 };
	socklen_t size = sizeof(mem);

	return os->getsockopt(os, fd, SOL_SOCKET, SO_MEMINFO, mem,
			      &size) >= 0 && mem[SK_MEMINFO_WMEM_ALLOC];
}

static void forget(struct agent *a, struct unread *u)
{
	uid_t uid = u->flight->uid;

	landed(a, u->flight, &u->n);
	unref(u->flight);
	sk_link_remove(&u->link);
	closer_close(a->closer, uid, u->fd);
	free(u);
}

static void look(struct agent *a)
{
	struct session *s;
	struct unread *u;

	if (agent_now(a) - a->looked_ns < LOOK_NS)
		return;
	a->looked_ns = agent_now(a);
	sk_link_each(s, &a->sessions, link) {
		if (s->in_flight && !has_unread(a->os, s->source.fd))
			landed(a, s->flight, &s->in_flight);
	}
	sk_link_each(u, &a->unread, link) {
		if (!has_unread(a->os, u->fd))
			forget(a, u);
	}
}

/* Who reads has the other half of what who does not read is left. A user of
 * whom nothing is in flight may always send: no share is too small for one
 * reply. */
static bool fits(const struct session *s, unsigned n)
{
	const struct agent *a = s->agent;
	unsigned crowded = a->in_flight >= a->max_flight / 2;
	unsigned most = a->max_flight / (crowded ? SHARE_CROWDED : SHARE);

	most = s->in_flight ? most / 2 : most;
	return !s->flight->n || s->flight->n + n <= most;
}

bool flight_may(struct session *s, int n)
{
	struct agent *a = s->agent;

	assert(n >= 0);
	if (!n || !a->max_flight || fits(s, (unsigned)n))
		return true;
	if (s->in_flight && !has_unread(a->os, s->source.fd))
		landed(a, s->flight, &s->in_flight);
	look(a);
	return fits(s, (unsigned)n);
}

/* ---- the end ---- */

static void look_again(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, unread_timer);

	look(a);
	if (!sk_link_empty(&a->unread))
		timer_set(&a->loop.timers, timer, agent_now(a) + UNREAD_NS);
}

/* The connection's reference and count go over to what stays of it. */
static bool keep(struct session *s)
{
	struct agent *a = s->agent;
	struct unread *u;

	if (!s->in_flight || !a->max_flight ||
	    !has_unread(a->os, s->source.fd))
		return false;
	u = calloc(1, sizeof(*u));
	if (!u)
		return false;
	u->flight = s->flight;
	u->fd = sk_take_fd(&s->source.fd);
	u->n = s->in_flight;
	/* The other side hears of the end at once, after what it has still to
	 * read; only the count waits for that. */
	(void)a->os->shutdown(a->os, u->fd, SHUT_RDWR);
	sk_link_init(&u->link);
	sk_link_insert(&a->unread, &u->link);
	a->unread_timer.fire = look_again;
	timer_set(&a->loop.timers, &a->unread_timer,
		  agent_now(a) + UNREAD_NS);
	return true;
}

void flight_end(struct session *s)
{
	struct agent *a = s->agent;

	if (keep(s))
		return;
	landed(a, s->flight, &s->in_flight);
	unref(s->flight);
	/* Messages that nobody read may carry descriptors. */
	closer_close(a->closer, s->uid, sk_take_fd(&s->source.fd));
}

void flight_close(struct agent *a)
{
	while (!sk_link_empty(&a->unread))
		forget(a, sk_link_object(a->unread.next, struct unread, link));
	timer_clear(&a->loop.timers, &a->unread_timer);
	assert(sk_link_empty(&a->flights));
}
