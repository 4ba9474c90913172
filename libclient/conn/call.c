/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and their replies, on a connection that is there. */
#include "conn/private.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "conn/memfd.h"
#include "wire/channel.h"
#include "wire/version.h"

static int lost(struct sk_conn *conn, int r, const struct sk_msg *msg,
		struct sk_err *err)
{
	assert(r < 0);
	sk_conn_hang_up(conn);
	if (r == -ETIMEDOUT)
		return sk_err_set(err, r, "the agent did not answer the "
				  "request \"%s\" in time",
				  sk_msg_type_name(msg->type));
	return sk_err_set(err, -ECONNRESET, "the connection to the agent was "
			  "lost at the request \"%s\": %s",
			  sk_msg_type_name(msg->type), strerror(-r));
}

static int send_until(struct sk_conn *conn, struct sk_msg *msg,
		      const int *fds, int n_fds, uint64_t until_ns)
{
	struct pollfd p = { .fd = conn->sock, .events = POLLOUT };
	int r;

	assert(n_fds >= 0 && n_fds <= SK_MSG_FDS);
	for (;;) {
		r = sk_channel_send(conn->os, conn->sock, msg, fds, n_fds);
		if (r != -EAGAIN)
			return r;
		r = conn->os->poll(conn->os, &p, 1, until_ns);
		if (r < 0)
			return r;
	}
}

static int recv_until(struct sk_conn *conn, struct sk_msg *ret_msg, int *got,
		      int *n_got, uint64_t until_ns)
{
	int r;

	assert(conn->sock >= 0);
	do {
		r = sk_channel_wait(conn->os, conn->sock, until_ns);
		if (r >= 0)
			r = sk_channel_recv(conn->os, conn->sock, ret_msg,
					    got, n_got);
	} while (r == -EAGAIN);
	return r;
}

/* Whether it is of the version that both speak is not known at a HELLO. */
static bool answers(const struct sk_conn *conn, const struct sk_msg *msg,
		    const struct sk_msg *reply)
{
	return reply->seq == msg->seq && reply->type == msg->type &&
	       (msg->type == SK_MSG_HELLO ||
		(reply->version == conn->version &&
		 !sk_wire_check(sk_wire_changes, sk_wire_n_changes,
				conn->version, true, reply, NULL)));
}

/* Numbers it, in the agent's words. */
static int prepare(struct sk_conn *conn, struct sk_msg *msg,
		   struct sk_err *err)
{
	int r;

	msg->version = (uint16_t)conn->version;
	r = sk_wire_lower(sk_wire_changes, sk_wire_n_changes, conn->version,
			  false, msg, err);
	if (r >= 0)
		msg->seq = ++conn->seq;
	return r < 0 ? r : 0;
}

/* Only what it brought is lost: the connection is as good as ever. */
static int no_descriptors(const struct sk_msg *msg, struct sk_err *err)
{
	return sk_err_errno(err, -EMFILE, "cannot take the descriptors that "
			    "the reply to \"%s\" brings",
			    sk_msg_type_name(msg->type));
}

static int hear(struct sk_conn *conn, struct sk_msg *msg, int *got,
		int *n_got, uint64_t until_ns, struct sk_err *err)
{
	struct sk_msg reply = { 0 };
	int r;

	if (conn->sock < 0)
		return sk_err_set(err, -ECONNRESET,
				  "there is no connection to the agent");
	r = recv_until(conn, &reply, got, n_got, until_ns);
	if (r >= 0 && !answers(conn, msg, &reply))
		r = -EPROTO;
	if (r == -EMFILE && reply.seq == msg->seq)
		return no_descriptors(msg, err);
	if (r < 0)
		return lost(conn, r, msg, err);
	*msg = reply;
	return 0;
}

/* The reply to what was asked ahead comes before any other. */
static void settle(struct sk_conn *conn, uint64_t until_ns)
{
	struct sk_conn_ahead *a = conn->ahead;
	int got[SK_MSG_FDS], n = 0;

	conn->ahead = NULL;
	if (!a)
		return;
	a->r = hear(conn, &a->msg, got, &n, until_ns, &a->err);
	sk_close_fds(conn->os, got, n);
}

/* With the lock held, as the next. */
static int ask(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
	       int n_fds, uint64_t until_ns, struct sk_err *err)
{
	int r;

	settle(conn, until_ns);
	if (conn->sock < 0)
		return sk_err_set(err, -ECONNRESET,
				  "there is no connection to the agent");
	r = prepare(conn, msg, err);
	if (r < 0)
		return r;
	r = send_until(conn, msg, fds, n_fds, until_ns);
	return r < 0 ? lost(conn, r, msg, err) : 0;
}

static int exchange(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		    int n_fds, int *got, int *n_got, uint64_t until_ns,
		    struct sk_err *err)
{
	int r = ask(conn, msg, fds, n_fds, until_ns, err);

	return r < 0 ? r : hear(conn, msg, got, n_got, until_ns, err);
}

static int status_of(const struct sk_msg *msg, struct sk_err *err)
{
	const char *text = msg->type == SK_MSG_SLOT ?
			   msg->body.slot_reply.text : msg->body.text;

	if (msg->status >= 0)
		return 0;
	return sk_err_set(err, msg->status, "%.*s", SK_ERR_MAX - 1, text);
}

/* What was held at another connection is not held here. */
static int check_generation(const struct sk_conn *conn, uint64_t generation,
			    struct sk_err *err)
{
	return conn->generation == generation ? 0 :
	       sk_err_set(err, -ECONNRESET, "the connection to the agent was "
			  "lost, and what it held with it");
}

int sk_conn_call_fds_in(struct sk_conn *conn, uint64_t generation,
			struct sk_msg *msg, const int *fds, int n_fds,
			int *ret_fds, int *ret_n_fds, uint64_t until_ns,
			struct sk_err *err)
{
	int r;

	*ret_n_fds = 0;
	(void)pthread_mutex_lock(&conn->lock);
	r = check_generation(conn, generation, err);
	if (r >= 0)
		r = exchange(conn, msg, fds, n_fds, ret_fds, ret_n_fds,
			     until_ns, err);
	(void)pthread_mutex_unlock(&conn->lock);
	return r < 0 ? r : status_of(msg, err);
}

int sk_conn_call_in(struct sk_conn *conn, uint64_t generation,
		    struct sk_msg *msg, uint64_t until_ns,
		    struct sk_err *err)
{
	int got[SK_MSG_FDS], n, r;

	r = sk_conn_call_fds_in(conn, generation, msg, NULL, 0, got, &n,
				until_ns, err);
	sk_close_fds(conn->os, got, n);
	return r;
}

/* What came of it, and what it brought. */
static int take(struct sk_conn *conn, int r, const struct sk_msg *msg,
		int *got, int n, int *ret_fds, int *ret_n_fds,
		struct sk_err *err)
{
	if (r >= 0)
		r = status_of(msg, err);
	if (r < 0 || !ret_fds) {
		sk_close_fds(conn->os, got, n);
		return r;
	}
	memcpy(ret_fds, got, (size_t)n * sizeof(*got));
	*ret_n_fds = n;
	return 0;
}

int sk_conn_ask(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		int n_fds, uint64_t until_ns, struct sk_err *err)
{
	int r;

	(void)pthread_mutex_lock(&conn->lock);
	r = ask(conn, msg, fds, n_fds, until_ns, err);
	(void)pthread_mutex_unlock(&conn->lock);
	return r;
}

int sk_conn_hear(struct sk_conn *conn, struct sk_msg *msg, int *ret_fds,
		 int *ret_n_fds, uint64_t until_ns, struct sk_err *err)
{
	int got[SK_MSG_FDS], n = 0, r;

	(void)pthread_mutex_lock(&conn->lock);
	r = hear(conn, msg, got, &n, until_ns, err);
	(void)pthread_mutex_unlock(&conn->lock);
	return take(conn, r, msg, got, n, ret_fds, ret_n_fds, err);
}

int sk_conn_call(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fds, int *ret_n_fds, uint64_t until_ns,
		 struct sk_err *err)
{
	int got[SK_MSG_FDS], n = 0, r;

	assert(!ret_fds == !ret_n_fds);
	(void)pthread_mutex_lock(&conn->lock);
	r = exchange(conn, msg, fds, n_fds, got, &n, until_ns, err);
	(void)pthread_mutex_unlock(&conn->lock);
	return take(conn, r, msg, got, n, ret_fds, ret_n_fds, err);
}

/* ---- ahead ---- */

int sk_conn_ask_ahead(struct sk_conn *conn, uint64_t generation,
		      struct sk_conn_ahead *ahead, uint64_t until_ns,
		      struct sk_err *err)
{
	int r;

	(void)pthread_mutex_lock(&conn->lock);
	r = conn->ahead ? -EBUSY : check_generation(conn, generation, err);
	if (r >= 0)
		r = ask(conn, &ahead->msg, NULL, 0, until_ns, err);
	if (r >= 0)
		conn->ahead = ahead;
	(void)pthread_mutex_unlock(&conn->lock);
	return r;
}

int sk_conn_hear_ahead(struct sk_conn *conn, struct sk_conn_ahead *ahead,
		       uint64_t until_ns, struct sk_err *err)
{
	(void)pthread_mutex_lock(&conn->lock);
	if (conn->ahead == ahead)
		settle(conn, until_ns);
	(void)pthread_mutex_unlock(&conn->lock);
	if (ahead->r >= 0)
		return status_of(&ahead->msg, err);
	if (err)
		*err = ahead->err;
	return ahead->r;
}

/* ---- several at once ---- */

/* With the lock held; how many were sent, all or none of them by what the
 * agent's version has words for. */
static int send_all(struct sk_conn *conn, struct sk_conn_request *asks, int n,
		    uint64_t until_ns, struct sk_err *err)
{
	int r = 0;

	for (int i = 0; i < n && r >= 0; i++)
		r = prepare(conn, &asks[i].msg, err);
	if (r < 0)
		return r;
	for (int i = 0; i < n; i++) {
		r = send_until(conn, &asks[i].msg, NULL, 0, until_ns);
		if (r < 0)
			return lost(conn, r, &asks[i].msg, err);
	}
	return 0;
}

static struct sk_conn_request *find_asked(struct sk_conn_request *asks, int n,
				      uint32_t seq)
{
	for (int i = 0; i < n; i++)
		if (!asks[i].answered && asks[i].msg.seq == seq)
			return &asks[i];
	return NULL;
}

/* The next reply, to whichever of them it is. */
static int hear_one(struct sk_conn *conn, struct sk_conn_request *asks, int n,
		    uint64_t until_ns)
{
	int got[SK_MSG_FDS], n_got = 0, r;
	struct sk_msg reply = { 0 };
	struct sk_conn_request *ask;

	r = recv_until(conn, &reply, got, &n_got, until_ns);
	ask = r >= 0 || r == -EMFILE ? find_asked(asks, n, reply.seq) : NULL;
	if (ask && (r == -EMFILE || answers(conn, &ask->msg, &reply))) {
		ask->answered = true;
		ask->r = r;
		if (r >= 0) {
			ask->msg = reply;
			memcpy(ask->fds, got, (size_t)n_got * sizeof(*got));
			ask->n_fds = n_got;
			return 0;
		}
		r = 0;
	}
	sk_close_fds(conn->os, got, n_got);
	return r < 0 || ask ? r : -EPROTO;
}

static int exchange_all(struct sk_conn *conn, struct sk_conn_request *asks,
			int n, uint64_t until_ns, struct sk_err *err)
{
	int r;

	settle(conn, until_ns);
	if (conn->sock < 0)
		return sk_err_set(err, -ECONNRESET,
				  "there is no connection to the agent");
	r = send_all(conn, asks, n, until_ns, err);
	for (int i = 0; i < n && r >= 0; i++) {
		r = hear_one(conn, asks, n, until_ns);
		if (r < 0)
			r = lost(conn, r, &asks[0].msg, err);
	}
	return r;
}

int sk_conn_call_all(struct sk_conn *conn, struct sk_conn_request *asks, int n,
		     uint64_t until_ns, struct sk_err *err)
{
	int r;

	assert(n <= SK_CONN_AT_ONCE);
	for (int i = 0; i < n; i++) {
		asks[i].answered = false;
		asks[i].n_fds = 0;
	}
	(void)pthread_mutex_lock(&conn->lock);
	r = exchange_all(conn, asks, n, until_ns, err);
	(void)pthread_mutex_unlock(&conn->lock);
	for (int i = 0; i < n; i++) {
		struct sk_conn_request *a = &asks[i];

		if (r >= 0 && a->r >= 0)
			a->r = status_of(&a->msg, &a->err);
		else if (r >= 0)
			(void)no_descriptors(&a->msg, &a->err);
		if (r < 0 || a->r < 0) {
			sk_close_fds(conn->os, a->fds, a->n_fds);
			a->n_fds = 0;
		}
	}
	return r;
}
