/* SPDX-License-Identifier: Apache-2.0 */
/* One connection to the agent. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "internal.h"

static int dial(const char *path, struct sk_err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock, r;

	if (strlen(path) >= sizeof(a.sun_path))
		return sk_err_set(err, -ENAMETOOLONG, "the socket path \"%s\" "
				  "is longer than %zu bytes", path,
				  sizeof(a.sun_path) - 1);
	strcpy(a.sun_path, path);
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return sk_err_errno(err, -errno, "cannot make a socket");
	if (connect(sock, (struct sockaddr *)&a, sizeof(a)) < 0) {
		r = -errno;
		sk_close_fd(sock);
		return sk_err_errno(err, r, "no agent answers at %s; start "
				    "shardkeepd --socket %s", path, path);
	}
	return sock;
}

int sk_conn_open(const char *socket_path, uint32_t timeout_ms,
		 struct sk_conn *ret_conn, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_HELLO,
			      .body.hello.version = SK_WIRE_VERSION };
	struct sk_conn conn = { .sock = dial(socket_path, err) };
	int r;

	if (conn.sock < 0)
		return conn.sock;
	(void)pthread_mutex_init(&conn.lock, NULL);
	r = sk_conn_call(&conn, &msg, NULL, 0, NULL, NULL, timeout_ms, err);
	if (r < 0) {
		sk_conn_close(&conn);
		return r;
	}
	/* A mutex must not be copied once it was used. */
	ret_conn->sock = conn.sock;
	ret_conn->seq = conn.seq;
	ret_conn->agent = msg.body.hello_reply;
	ret_conn->generation++;
	(void)pthread_mutex_destroy(&conn.lock);
	(void)pthread_mutex_init(&ret_conn->lock, NULL);
	return 0;
}

int sk_conn_again(const char *socket_path, uint32_t timeout_ms,
		  struct sk_conn *conn, struct sk_err *err)
{
	struct sk_conn fresh = { .sock = -1 };
	int r;

	if (sk_conn_look(conn, NULL, NULL))
		return 0;
	r = sk_conn_open(socket_path, timeout_ms, &fresh, err);
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&conn->lock);
	if (conn->sock < 0) {	/* else another thread was quicker */
		conn->sock = fresh.sock;
		conn->seq = fresh.seq;
		conn->agent = fresh.agent;
		conn->generation++;
		fresh.sock = -1;
	}
	(void)pthread_mutex_unlock(&conn->lock);
	sk_conn_close(&fresh);
	return 0;
}

bool sk_conn_look(struct sk_conn *conn, uint64_t *ret_generation,
		  uint64_t *ret_instance)
{
	bool alive;

	(void)pthread_mutex_lock(&conn->lock);
	alive = conn->sock >= 0;
	if (ret_generation)
		*ret_generation = conn->generation;
	if (ret_instance)
		*ret_instance = conn->agent.instance;
	(void)pthread_mutex_unlock(&conn->lock);
	return alive;
}

void sk_conn_close(struct sk_conn *conn)
{
	conn->sock = sk_close_fd(conn->sock);
	(void)pthread_mutex_destroy(&conn->lock);
}

static int lost(struct sk_conn *conn, int r, const struct sk_msg *msg,
		struct sk_err *err)
{
	conn->sock = sk_close_fd(conn->sock);
	if (r == -ETIMEDOUT)
		return sk_err_set(err, r, "the agent did not answer a %s "
				  "request in time",
				  sk_msg_type_name(msg->type));
	return sk_err_set(err, -ECONNRESET, "the connection to the agent was "
			  "lost at a %s request: %s",
			  sk_msg_type_name(msg->type), strerror(-r));
}

static int exchange(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		    int n_fds, int *got, int *n_got, uint32_t timeout_ms,
		    struct sk_err *err)
{
	struct sk_msg reply;
	int r;

	if (conn->sock < 0)
		return sk_err_set(err, -ECONNRESET,
				  "there is no connection to the agent");
	msg->seq = ++conn->seq;
	r = sk_wire_send(conn->sock, msg, fds, n_fds);
	if (r >= 0)
		r = sk_wire_recv(conn->sock, &reply, got, n_got,
				 (int)timeout_ms);
	if (r >= 0 && (reply.seq != msg->seq || reply.type != msg->type))
		r = -EPROTO;
	if (r < 0)
		return lost(conn, r, msg, err);
	*msg = reply;
	return 0;
}

static int status_of(const struct sk_msg *msg, struct sk_err *err)
{
	const char *text = msg->type == SK_MSG_SLOT ?
			   msg->body.slot_reply.text : msg->body.text;

	if (msg->status >= 0)
		return 0;
	return sk_err_set(err, msg->status, "%.*s", SK_ERR_MAX - 1, text);
}

int sk_conn_call_in(struct sk_conn *conn, uint64_t generation,
		    struct sk_msg *msg, uint32_t timeout_ms,
		    struct sk_err *err)
{
	int got[SK_MSG_FDS], n = 0, r;

	(void)pthread_mutex_lock(&conn->lock);
	r = conn->generation == generation ?
	    exchange(conn, msg, NULL, 0, got, &n, timeout_ms, err) :
	    sk_err_set(err, -ECONNRESET, "the connection to the agent was "
		       "lost, and what it held with it");
	(void)pthread_mutex_unlock(&conn->lock);
	while (n)
		sk_close_fd(got[--n]);
	return r < 0 ? r : status_of(msg, err);
}

int sk_conn_call(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fds, int *ret_n_fds, uint32_t timeout_ms,
		 struct sk_err *err)
{
	int got[SK_MSG_FDS], n = 0, r;

	(void)pthread_mutex_lock(&conn->lock);
	r = exchange(conn, msg, fds, n_fds, got, &n, timeout_ms, err);
	(void)pthread_mutex_unlock(&conn->lock);
	if (r >= 0)
		r = status_of(msg, err);
	if (r < 0 || !ret_fds) {
		while (n)
			sk_close_fd(got[--n]);
		return r;
	}
	memcpy(ret_fds, got, (size_t)n * sizeof(*got));
	*ret_n_fds = n;
	return 0;
}
