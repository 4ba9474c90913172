/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: messages in, replies out. */
#include "session/session.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>

#include "agent.h"
#include "session/flight.h"
#include "session/reply.h"
#include "session/request.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define MESSAGES_LEFT 16	/* of one that is gone, that are heard */
#define ACCEPTED_A_TURN 8	/* then it is the others' turn */
#define REFUSED_NS UINT64_C(60000000000)	/* between two lines of it */
#define MAX_UNHEARD 256u	/* connections of a process: more are refused */
#define GONE (EPOLLHUP | EPOLLERR | EPOLLRDHUP)
#define NOBODY ((uid_t)~0)	/* whose connection it is not known */
#define MAX_PENDING 1024u	/* of a user, not closed yet */

/* ---- messages ---- */

void session_protocol_error(struct session *s, const char *why)
{
	s->agent->counts.protocol_errors++;
	session_close(s, why);
}

/* What a client has sent and nobody keeps. */
static void close_foreign(struct session *s, const int *fds, int n)
{
	struct closer *closer = s->agent->closer;

	for (int i = 0; i < n; i++)
		closer_close(closer, s->uid, fds[i]);
	if (n && closer_pending(closer, s->uid) > MAX_PENDING)
		session_protocol_error(s, "it sent too many descriptors that "
				       "take long to close");
}

static void count_heard(struct session *s)
{
	if (s->heard)
		return;
	s->heard = true;
	s->chore.party->unheard--;
}

/* One message. Whether there may be another. */
static bool receive(struct session *s)
{
	const struct sk_os *os = s->agent->os;
	int fds[SK_CHANNEL_FDS], n_fds, r;
	struct sk_msg msg;

	if (s->closing || !sk_link_empty(&s->replies))
		return false;
	r = sk_channel_recv_all(os, s->source.fd, &msg, fds, &n_fds);
	if (r == -EAGAIN)
		return false;
	count_heard(s);
	if (r == -EPROTO)
		session_protocol_error(s, "it sent a malformed message");
	else if (r < 0)
		session_close(s, NULL);
	else
		s->agent->dispatch(s, &msg, fds, n_fds);
	close_foreign(s, fds, n_fds);
	return r >= 0;
}

/* What it sent and waits for, or that it went, is served when it is its
 * process's turn. Said once: what is left over then is kept in mind here. */
static void session_ready(struct source *source, uint32_t events)
{
	struct session *s = sk_link_object(source, struct session, source);

	if (s->closing)
		return;
	s->events |= events;
	if (sk_link_empty(&s->chore.link))
		loop_queue(&s->agent->loop, &s->chore);
}

static void serve(struct chore *chore)
{
	struct session *s = sk_link_object(chore, struct session, chore);
	uint32_t events = s->events;

	s->events = 0;
	/* What waits for one that went is let go by that. */
	if (events & (EPOLLOUT | GONE))
		replies_send(s);
	/* What it sent before it went is still heard. */
	if (events & (EPOLLIN | GONE) && receive(s) && !s->closing) {
		s->events |= events & ~(uint32_t)EPOLLOUT;
		if (sk_link_empty(&s->chore.link))
			loop_queue(&s->agent->loop, &s->chore);
		return;
	}
	if (!s->closing && events & GONE)
		session_close(s, NULL);
}

/* Children that inherited the socket must not keep a dead rank alive. */
static void peer_ready(struct source *source, uint32_t events)
{
	struct session *s = sk_link_object(source, struct session, peer);

	(void)events;
	s->gone = true;
	if (s->closing) {
		(void)loop_watch(&s->agent->loop, &s->peer, 0);
		agent_changed(s->agent);
		return;
	}
	replies_send(s);
	for (int i = 0; i < MESSAGES_LEFT && receive(s); i++)
		;
	if (!s->closing)
		session_close(s, NULL);
}

/* ---- birth and death ---- */

/* Where it cannot be had, the socket alone says that the peer is gone. */
static void watch_peer(struct session *s)
{
	const struct sk_os *os = s->agent->os;
	int fd = -1;
	socklen_t size = sizeof(fd);

	s->peer = (struct source){ .ready = peer_ready, .fd = -1 };
	if (os->getsockopt(os, s->source.fd, SOL_SOCKET, SO_PEERPIDFD, &fd,
			   &size) < 0)
		fd = s->pid > 0 ? os->pidfd_open(os, s->pid) : -1;
	s->gone = fd == -ESRCH;
	if (fd < 0)
		return;
	(void)os->fcntl(os, fd, F_SETFD, FD_CLOEXEC);
	s->peer.fd = fd;
	if (loop_watch(&s->agent->loop, &s->peer, EPOLLIN) < 0)
		s->peer.fd = sk_close_fd(fd);
}

static unsigned connections_of(const struct agent *a, uid_t uid)
{
	struct session *s;
	unsigned n = 0;

	sk_link_each(s, &a->sessions, link)
		n += s->uid == uid;
	return n;
}

/* Its party has not more connections than it can have served. */
static int join(struct session *s)
{
	struct turns *turns = &s->agent->loop.chores;
	struct party *party;
	int r;

	r = turns_join(turns, s->uid, s->pid, &party);
	if (r < 0)
		return r;
	if (party->unheard >= MAX_UNHEARD) {
		turns_leave(turns, party);
		return -EMFILE;
	}
	party->unheard++;
	s->chore = (struct chore){ .run = serve, .party = party,
				   .brief = true };
	s->asking = (struct chore){ .run = requests_ask_crowd, .party = party,
				    .brief = true };
	sk_link_init(&s->chore.link);
	sk_link_init(&s->asking.link);
	sk_link_init(&s->crowd);
	sk_link_init(&s->crowded);
	return 0;
}

static void leave(struct session *s)
{
	sk_link_remove(&s->chore.link);
	sk_link_remove(&s->asking.link);
	sk_link_remove(&s->crowded);
	count_heard(s);
	turns_leave(&s->agent->loop.chores, s->chore.party);
}

static int session_watch(struct session *s)
{
	int r = join(s);

	if (r < 0)
		return r;
	r = loop_watch(&s->agent->loop, &s->source,
		       EPOLLIN | EPOLLRDHUP | EPOLLET);
	if (r < 0)
		leave(s);
	return r;
}

/* Its hello is mostly there by then. Whoever is not told is hung up on. */
static void say_full(struct agent *a, uid_t uid, int sock)
{
	int fds[SK_CHANNEL_FDS], n_fds;
	struct sk_err err = { "" };
	struct sk_msg msg;
	int r = sk_channel_recv_all(a->os, sock, &msg, fds, &n_fds);

	for (int i = 0; i < n_fds; i++)
		closer_close(a->closer, uid, fds[i]);
	if (r < 0 || msg.type != SK_MSG_HELLO)
		return;
	(void)sk_err_set(&err, -EMFILE, "the agent has no descriptor left for "
			 "another connection: %u are open, and there may be "
			 "%u; raise its limit of open files (ulimit -n, "
			 "LimitNOFILE=)", a->n_sessions, a->max_sessions);
	msg = (struct sk_msg){ .type = SK_MSG_HELLO, .version = msg.version,
			       .seq = msg.seq, .status = -EMFILE };
	memcpy(msg.body.text, err.text, sizeof(err.text));
	(void)sk_channel_send(a->os, sock, &msg, NULL, 0);
}

static int session_new(struct agent *a, int fd, const struct ucred *who)
{
	struct session *s;
	int r;

	/* No user takes all: the others can still connect. */
	if (a->n_sessions >= a->max_sessions ||
	    (who->uid != a->uid && who->uid != 0 &&
	     connections_of(a, who->uid) >= a->max_sessions / 2)) {
		say_full(a, who->uid, fd);
		return -EMFILE;
	}
	if (closer_pending(a->closer, who->uid) > MAX_PENDING)
		return -EMFILE;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->agent = a;
	s->id = ++a->next_session;
	s->uid = who->uid;
	s->pid = who->pid;
	s->source = (struct source){ .ready = session_ready, .fd = fd };
	sk_link_init(&s->link);
	sk_link_init(&s->requests);
	replies_init(s);
	sk_link_init(&s->states);
	sk_link_init(&s->leases);
	if (flight_begin(s) < 0) {
		free(s);
		return -ENOMEM;
	}
	r = session_watch(s);
	if (r < 0) {
		s->source.fd = -1;	/* the caller's still */
		flight_end(s);
		free(s);
		return r;
	}
	watch_peer(s);
	sk_link_insert(&a->sessions, &s->link);
	a->n_sessions++;
	a->counts.connections++;
	return 0;
}

/* By how many there are, and not of each: who is refused comes again. */
static void count_refused(struct agent *a)
{
	uint64_t now = agent_now(a);

	a->counts.refused_clients++;
	if (a->n_sessions < a->max_sessions / 2 ||
	    (a->refused_ns && now - a->refused_ns < REFUSED_NS))
		return;
	a->refused_ns = now;
	log_warning(a, "a connection is refused: %u are open, and there may be "
		    "%u, half of them another user's, by the limit of open "
		    "files; raise it (ulimit -n, LimitNOFILE=)", a->n_sessions,
		    a->max_sessions);
}

/* No descriptor is left: the one in reserve takes the caller and lets it go,
 * or it would wake us for ever. */
static void refuse_one(struct agent *a)
{
	int fd;

	if (a->spare_fd < 0)
		return;
	a->spare_fd = sk_close_fd(a->spare_fd);
	fd = a->os->accept(a->os, a->listener.fd, SOCK_NONBLOCK);
	if (fd >= 0)
		say_full(a, NOBODY, fd);
	closer_close(a->closer, NOBODY, fd);
	a->spare_fd = a->os->openat(a->os, AT_FDCWD, "/dev/null", O_RDONLY, 0);
	count_refused(a);
}

void session_accept(struct agent *a)
{
	const struct sk_os *os = a->os;

	for (int i = 0; i < ACCEPTED_A_TURN; i++) {
		struct ucred who = { .uid = (uid_t)-1 };
		socklen_t size = sizeof(who);
		int fd;

		fd = os->accept(os, a->listener.fd, SOCK_NONBLOCK);
		if (fd == -EMFILE || fd == -ENFILE)
			refuse_one(a);
		if (fd < 0)
			return;
		if (os->getsockopt(os, fd, SOL_SOCKET, SO_PEERCRED, &who,
				   &size) < 0 ||
		    session_new(a, fd, &who) < 0) {
			count_refused(a);
			closer_close(a->closer, who.uid, fd);
		}
	}
}

void session_close(struct session *s, const char *why)
{
	struct agent *a = s->agent;

	if (s->closing)
		return;
	s->closing = true;
	if (why)
		log_warning(a, "connection of pid %d, uid %u closed: %s",
			    (int)s->pid, (unsigned)s->uid, why);
	sk_link_remove(&s->link);
	sk_link_remove(&s->chore.link);
	if (!s->held || a->quit) {
		sk_link_insert(&a->closing, &s->link);
		return;
	}
	sk_link_insert(&a->lingering, &s->link);
	/* That it has gone is told once. */
	(void)loop_watch(&a->loop, &s->source, 0);
	if (s->gone)
		(void)loop_watch(&a->loop, &s->peer, 0);
}

bool session_is_gone(const struct session *s)
{
	return s->gone || (s->closing && s->peer.fd < 0);
}

bool session_is_ending(const struct session *s)
{
	return s->closing || s->gone || s->events & (EPOLLHUP | EPOLLRDHUP);
}

void session_hold(struct session *s)
{
	assert(!s->closing);
	s->held++;
}

void session_unhold(struct session *s)
{
	assert(s->held);
	if (--s->held || !s->closing)
		return;
	sk_link_remove(&s->link);
	sk_link_insert(&s->agent->closing, &s->link);
}

void session_free(struct session *s)
{
	struct agent *a = s->agent;

	assert(s->closing && !s->n_requests && !s->n_leases &&
	       sk_link_empty(&s->states));
	/* A socket that is still watched would name us until it is closed. */
	if (loop_watch(&a->loop, &s->source, 0) < 0)
		s->source.fd = sk_close_fd(s->source.fd);
	(void)loop_watch(&a->loop, &s->peer, 0);
	replies_drop(s);
	flight_end(s);
	leave(s);
	s->peer.fd = sk_close_fd(s->peer.fd);
	sk_link_remove(&s->link);
	assert(a->n_sessions);
	a->n_sessions--;
	free(s);
}
