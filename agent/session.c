/* SPDX-License-Identifier: Apache-2.0 */
#include "agent.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define BATCH 32	/* messages of one client before others have a turn */

bool session_may(const struct agent *a, const struct session *s, uid_t uid)
{
	(void)a;
	return s->uid == 0 || s->uid == uid;
}

static int peer(struct session *s)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	if (getsockopt(s->sock, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
		return -errno;
	s->uid = cred.uid;
	s->pid = cred.pid;
	return 0;
}

void session_accept(struct agent *a)
{
	int sock = accept4(a->listen_fd, NULL, NULL,
			   SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP };
	struct session *s;

	if (sock < 0)
		return;
	s = a->n_sessions < SESSIONS_MAX ? calloc(1, sizeof(*s)) : NULL;
	if (!s) {
		a->count.refused++;
		sk_close_fd(sock);
		return;
	}
	s->sock = sock;
	e.data.ptr = s;
	if (peer(s) < 0 ||
	    epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, sock, &e) < 0) {
		sk_close_fd(sock);
		free(s);
		return;
	}
	s->next = a->sessions;
	a->sessions = s;
	a->n_sessions++;
	a->count.connections++;
}

/* Freed by session_reap(): events of the same round may still name it. */
void session_close(struct agent *a, struct session *s)
{
	if (s->gone)
		return;
	s->gone = true;
	(void)epoll_ctl(a->epoll_fd, EPOLL_CTL_DEL, s->sock, NULL);
	sk_close_fd(s->sock);
	waits_drop(a, s);
	while (s->n_leases)
		(void)query_close(a, s, s->leases[s->n_leases - 1]->id);
	free(s->leases);
	s->leases = NULL;
	for (struct state *st = a->states; st; st = st->next)
		if (st->session == s)
			state_leave(a, st, false);
}

void session_reap(struct agent *a)
{
	struct session **at = &a->sessions;

	while (*at) {
		struct session *s = *at;

		if (!s->gone) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		free(s);
		a->n_sessions--;
	}
}

void session_reply(struct agent *a, struct session *s, struct sk_msg *msg,
		   int status, const struct sk_err *err, const int *fds,
		   int n_fds)
{
	if (s->gone)
		return;
	msg->status = status;
	if (status < 0 && msg->type == SK_MSG_SLOT) {
		memcpy(msg->body.slot_reply.text, err ? err->text : "",
		       err ? SK_ERR_MAX : 1);
	} else if (status < 0) {
		memset(msg->body.raw, 0, sizeof(msg->body.raw));
		if (err)
			memcpy(msg->body.text, err->text, SK_ERR_MAX);
	}
	/* Whoever does not read its replies loses the connection: nothing is
	 * kept for it, and nobody else waits. */
	if (sk_wire_send(s->sock, msg, fds, n_fds) < 0)
		session_close(a, s);
}

void session_serve(struct agent *a, struct session *s)
{
	for (int i = 0; i < BATCH && !s->gone; i++) {
		struct sk_msg msg;
		int fds[SK_MSG_FDS], n = 0;
		int r = sk_wire_recv(s->sock, &msg, fds, &n, -1);

		if (r == -EAGAIN)
			return;
		if (r == -EPROTO) {
			a->count.protocol_errors++;
			say(a, 1, "process %d of user %u sent what is no "
			    "message, disconnected", s->pid, s->uid);
		}
		if (r < 0) {
			session_close(a, s);
			return;
		}
		serve(a, s, &msg, fds, n);
		while (n)
			sk_close_fd(fds[--n]);
	}
}
