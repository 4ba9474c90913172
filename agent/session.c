/* SPDX-License-Identifier: Apache-2.0 */
/* One connection: messages in, replies out, and what ends with it. */
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "agent.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define MESSAGES_A_TURN 16	/* then it is the others' turn */

/* ---- who may ---- */

bool session_admin(const struct session *s)
{
	const struct agent *a = s->agent;

	return s->uid == 0 || s->uid == a->uid ||
	       (a->opts->admin_uid != (uid_t)-1 &&
		s->uid == a->opts->admin_uid);
}

bool session_sees(const struct session *s, const struct sk_cat_job *job)
{
	return job->uid == s->uid || session_admin(s);
}

struct sk_cat_job *session_job(const struct session *s, const char *name)
{
	struct sk_cat_job *job;

	job = sk_cat_job_find(&s->agent->cat, name, s->uid);
	if (job || !session_admin(s))
		return job;
	sk_link_each(job, &s->agent->cat.jobs, link) {
		if (strcmp(job->name, name) == 0)
			return job;
	}
	return NULL;
}

struct sk_cat_state *session_state(const struct session *s, uint64_t id)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_cat_job *job;

	if (!id)
		return NULL;
	sk_link_each(job, &s->agent->cat.jobs, link) {
		if (job->uid != s->uid)
			continue;
		sk_link_each(run, &job->runs, link)
		sk_link_each(state, &run->states, link) {
			if (state->id == id && state->owner == s)
				return state;
		}
	}
	return NULL;
}

/* ---- replies ---- */

struct reply {
	struct sk_link link;
	struct sk_msg msg;
	int fds[SK_MSG_FDS];
	int n_fds;
};

static void reply_free(struct session *s, struct reply *r)
{
	sk_link_remove(&r->link);
	s->n_replies--;
	while (r->n_fds)
		sk_close_fd(r->fds[--r->n_fds]);
	free(r);
}

static void watch(struct session *s)
{
	/* Who does not read its replies is not listened to either. */
	(void)agent_watch(s->agent, &s->source, sk_link_empty(&s->replies) ?
			  EPOLLIN | EPOLLRDHUP : EPOLLOUT | EPOLLRDHUP);
}

static void queue_reply(struct session *s, const struct sk_msg *msg,
			const int *fds, int n_fds)
{
	struct reply *r = s->n_replies < MAX_REPLIES ?
			  calloc(1, sizeof(*r)) : NULL;

	if (!r) {
		for (int i = 0; i < n_fds; i++)
			sk_close_fd(fds[i]);
		session_close(s, "it does not read its replies");
		return;
	}
	r->msg = *msg;
	memcpy(r->fds, fds, (size_t)n_fds * sizeof(*fds));
	r->n_fds = n_fds;
	sk_link_insert(&s->replies, &r->link);
	s->n_replies++;
	watch(s);
}

void session_reply(struct session *s, uint16_t type, uint32_t seq, int status,
		   struct sk_msg *msg, const int *fds, int n_fds,
		   const struct sk_err *err)
{
	struct sk_msg none = { 0 };
	int r = -EAGAIN, no_fds[SK_MSG_FDS] = { 0 };

	msg = msg ? msg : &none;
	msg->type = type;
	msg->seq = seq;
	msg->status = status;
	/* A slot's refusal has its sentence behind the time. */
	if (status < 0 && type == SK_MSG_SLOT)
		memcpy(msg->body.slot_reply.text, err->text,
		       sizeof(err->text));
	else if (status < 0)
		memcpy(msg->body.text, err->text, sizeof(err->text));
	fds = fds ? fds : no_fds;
	if (s->closed) {
		for (int i = 0; i < n_fds; i++)
			sk_close_fd(fds[i]);
		return;
	}
	if (sk_link_empty(&s->replies))
		r = sk_wire_send(s->source.fd, msg, fds, n_fds);
	if (r == -EAGAIN || r == -ENOBUFS || r == -ETOOMANYREFS) {
		msg->magic = SK_WIRE_MAGIC;
		queue_reply(s, msg, fds, n_fds);
		return;
	}
	for (int i = 0; i < n_fds; i++)
		sk_close_fd(fds[i]);
	if (r < 0)
		session_close(s, "its socket failed");
}

static void send_queued(struct session *s)
{
	while (!s->closed && !sk_link_empty(&s->replies)) {
		struct reply *r = sk_link_object(s->replies.next,
						 struct reply, link);
		int e = sk_wire_send(s->source.fd, &r->msg, r->fds, r->n_fds);

		if (e == -EAGAIN || e == -ENOBUFS || e == -ETOOMANYREFS)
			return;
		reply_free(s, r);
		if (e < 0)
			session_close(s, "its socket failed");
	}
	if (!s->closed)
		watch(s);
}

/* ---- calls ---- */

int call_job(struct call *c, const struct sk_wire_id *id,
	     struct sk_cat_job **ret_job)
{
	struct sk_cat_job *job;
	int r;

	r = sk_wire_check_id(id, &c->err);
	if (r < 0)
		return r;
	job = session_job(c->session, id->job);
	if (!job)
		return sk_err_set(&c->err, -ENOENT, "there is no job \"%s\"",
				  id->job);
	*ret_job = job;
	return 0;
}

static int call_hello(struct call *c)
{
	struct sk_wire_hello_reply *reply = &c->out.body.hello_reply;
	struct agent *a = c->agent;

	if (c->in->body.hello.version != SK_WIRE_VERSION)
		return sk_err_set(&c->err, -EPROTO, "the agent %s speaks "
				  "version %u of the protocol, the client %u; "
				  "upgrade the older one", AGENT_VERSION,
				  SK_WIRE_VERSION, c->in->body.hello.version);
	c->session->greeted = true;
	reply->instance = a->instance;
	reply->budget_bytes = a->cat.budget;
	/* How much others use is theirs, but that memory is short is not. */
	reply->used_bytes = a->cat.used;
	reply->pid = (uint32_t)getpid();
	reply->uid = a->uid;
	reply->has_store = !a->store ? 0 : a->store_volatile ? 2 : 1;
	memcpy(reply->version, AGENT_VERSION, sizeof(AGENT_VERSION));
	if (a->store)
		(void)strncat(reply->store, sk_store_path(a->store),
			      sizeof(reply->store) - 1);
	return 0;
}

static int (*const handlers[SK_MSG_TYPE_COUNT])(struct call *c) = {
	[SK_MSG_HELLO] = call_hello,
	[SK_MSG_REGISTER] = call_register,
	[SK_MSG_PREPARE] = call_wait,
	[SK_MSG_SLOT] = call_slot,
	[SK_MSG_SLOT_WAIT] = call_wait,
	[SK_MSG_SEAL] = call_seal,
	[SK_MSG_DISCARD] = call_discard,
	[SK_MSG_UNREGISTER] = call_unregister,
	[SK_MSG_WAIT] = call_wait,
	[SK_MSG_GATHER] = call_gather,
	[SK_MSG_LIST] = call_list,
	[SK_MSG_OPEN] = call_open,
	[SK_MSG_CLOSE] = call_close,
	[SK_MSG_REPORT_BAD] = call_report_bad,
	[SK_MSG_PIN] = call_manage,
	[SK_MSG_UNPIN] = call_manage,
	[SK_MSG_EVICT] = call_manage,
	[SK_MSG_FLUSH] = call_manage,
	[SK_MSG_STATS] = call_stats,
	[SK_MSG_STOP] = call_stop,
	[SK_MSG_MAP] = call_map,
};

static void protocol_error(struct session *s, const char *why)
{
	s->agent->counts.protocol_errors++;
	session_close(s, why);
}

static void answer(struct call *c, int r)
{
	if (r == CALL_LATER)
		return;
	session_reply(c->session, c->in->type, c->in->seq, r, &c->out,
		      c->out_fds, r < 0 ? 0 : c->n_out, &c->err);
}

static void dispatch(struct session *s, const struct sk_msg *in, int *fds,
		     int n_fds)
{
	struct call c = { .session = s, .agent = s->agent, .in = in,
			  .fds = fds, .n_fds = n_fds };

	if (in->type >= SK_MSG_TYPE_COUNT || !handlers[in->type]) {
		protocol_error(s, "it sent a message of no known type");
		return;
	}
	if (!s->greeted && in->type != SK_MSG_HELLO) {
		protocol_error(s, "it did not say hello");
		return;
	}
	log_debug(s->agent, "%s from pid %d", sk_msg_type_name(in->type),
		  (int)s->pid);
	answer(&c, handlers[in->type](&c));
}

static void receive(struct session *s)
{
	for (int i = 0; i < MESSAGES_A_TURN && !s->closed; i++) {
		int fds[SK_MSG_FDS] = { -1, -1, -1, -1 }, n_fds = 0, r;
		struct sk_msg msg;

		if (!sk_link_empty(&s->replies))
			return;
		r = sk_wire_recv(s->source.fd, &msg, fds, &n_fds, -1);
		if (r == -EAGAIN)
			return;
		if (r == -EPROTO)
			protocol_error(s, "it sent a malformed message");
		else if (r < 0)
			session_close(s, NULL);
		if (r < 0)
			return;
		dispatch(s, &msg, fds, n_fds);
		for (int k = 0; k < n_fds; k++)
			sk_close_fd(fds[k]);
	}
}

static void session_ready(struct source *source, uint32_t events)
{
	struct session *s = sk_link_object(source, struct session, source);

	if (s->closed)
		return;
	if (events & EPOLLOUT)
		send_queued(s);
	/* What it sent before it went is still heard. */
	if (events & EPOLLIN)
		receive(s);
	if (!s->closed && events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP) &&
	    !(events & EPOLLIN))
		session_close(s, NULL);
}

/* Children that inherited the socket must not keep a dead rank alive. */
static void peer_ready(struct source *source, uint32_t events)
{
	struct session *s = sk_link_object(source, struct session, peer);

	(void)events;
	if (s->closed)
		return;
	receive(s);
	if (!s->closed)
		session_close(s, NULL);
}

/* ---- birth and death ---- */

static void watch_peer(struct session *s)
{
	socklen_t size = sizeof(s->peer.fd);

	s->peer.fd = -1;
	if (getsockopt(s->source.fd, SOL_SOCKET, SO_PEERPIDFD, &s->peer.fd,
		       &size) < 0 && s->pid > 0)
		s->peer.fd = (int)syscall(SYS_pidfd_open, s->pid, 0);
	if (s->peer.fd < 0)
		return;
	(void)fcntl(s->peer.fd, F_SETFD, FD_CLOEXEC);
	s->peer.ready = peer_ready;
	if (agent_watch(s->agent, &s->peer, EPOLLIN) < 0)
		s->peer.fd = sk_close_fd(s->peer.fd);
}

static unsigned connections_of(const struct agent *a, uid_t uid)
{
	struct session *s;
	unsigned n = 0;

	sk_link_each(s, &a->sessions, link)
		n += s->uid == uid;
	return n;
}

static int session_new(struct agent *a, int fd, const struct ucred *who)
{
	struct session *s;

	/* No user takes all: the others can still connect. */
	if (a->n_sessions >= a->max_sessions ||
	    (who->uid != a->uid && who->uid != 0 &&
	     connections_of(a, who->uid) >= a->max_sessions / 2))
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
	sk_link_init(&s->replies);
	sk_link_init(&s->leases);
	if (agent_watch(a, &s->source, EPOLLIN | EPOLLRDHUP) < 0) {
		free(s);
		return -ENOMEM;
	}
	watch_peer(s);
	sk_link_insert(&a->sessions, &s->link);
	a->n_sessions++;
	a->counts.connections++;
	return 0;
}

/* No descriptor is left: the one in reserve takes the caller and lets it go,
 * or it would wake us for ever. */
static void refuse_one(struct agent *a)
{
	int fd;

	if (a->spare_fd < 0)
		return;
	a->spare_fd = sk_close_fd(a->spare_fd);
	fd = accept4(a->listener.fd, NULL, NULL, SOCK_CLOEXEC);
	sk_close_fd(fd);
	a->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	a->counts.refused_clients++;
}

void session_accept(struct agent *a)
{
	for (int i = 0; i < MESSAGES_A_TURN; i++) {
		struct ucred who = { .uid = (uid_t)-1 };
		socklen_t size = sizeof(who);
		int fd;

		fd = accept4(a->listener.fd, NULL, NULL,
			     SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE))
			refuse_one(a);
		if (fd < 0)
			return;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 ||
		    session_new(a, fd, &who) < 0) {
			a->counts.refused_clients++;
			close(fd);
		}
	}
}

static struct sk_cat_state *any_state(struct session *s)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_cat_job *job;

	sk_link_each(job, &s->agent->cat.jobs, link)
	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link) {
		if (state->owner == s)
			return state;
	}
	return NULL;
}

void session_close(struct session *s, const char *why)
{
	struct agent *a = s->agent;
	struct sk_cat_state *state;
	struct request *q;
	struct reply *r;
	struct lease *l;

	if (s->closed)
		return;
	s->closed = true;
	if (why)
		log_warning(a, "connection of pid %d, uid %u closed: %s",
			    (int)s->pid, (unsigned)s->uid, why);
	(void)agent_watch(a, &s->source, 0);
	(void)agent_watch(a, &s->peer, 0);
	sk_link_each(q, &s->requests, link)
		request_orphan(q);
	sk_link_each(r, &s->replies, link)
		reply_free(s, r);
	sk_link_each(l, &s->leases, link) {
		struct sk_cat_image *image;

		image = sk_cat_image_by_id(&a->cat, l->image);
		if (image)
			sk_cat_lease(image, -1);
		sk_link_remove(&l->link);
		free(l);
	}
	/* Ending one may change the lists that it stands in. */
	while ((state = any_state(s)))
		state_ended(a, state, "died");
	s->source.fd = sk_close_fd(s->source.fd);
	s->peer.fd = sk_close_fd(s->peer.fd);
	sk_link_remove(&s->link);
	a->n_sessions--;
	/* Events of this turn may still name it. */
	sk_link_insert(&a->buried, &s->link);
	agent_changed(a);
	agent_check_idle(a);
}
