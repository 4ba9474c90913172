/* SPDX-License-Identifier: Apache-2.0 */
#include "conn/conn.h"

#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/un.h>

#include "base/util.h"
#include "conn/private.h"
#include "wire/version.h"

#define MS_NS UINT64_C(1000000)
/* Between two tries to connect where the agent's backlog is full: at first, and
 * at most. */
#define RETRY_NS (MS_NS / 20)
#define RETRY_MOST_NS (2 * MS_NS)
/* Agents that may be killed at a hello before one is thought too old. */
#define REFUSED_TRIES 4
/* How long is waited for an agent that has as many connections as it may. */
#define FULL_NS (2000 * MS_NS)
#define FULL_PAUSE_NS (20 * MS_NS)
/* Longer than a keeper waits between two agents. */
#define PATIENCE_MS 6000u
#define LEAVE_MS 500u

uint32_t sk_left_ms(const struct sk_os *os, uint64_t until_ns)
{
	uint64_t now = os->now_ns(os), ms;

	if (until_ns <= now)
		return 0;
	ms = (until_ns - now + MS_NS - 1) / MS_NS;
	return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

/* ---- connecting ---- */

/* No event says when a full backlog has room again: it is tried. */
static int connect_until(const struct sk_os *os, int sock,
			 const struct sockaddr_un *a, uint64_t until_ns)
{
	uint64_t pause = RETRY_NS;

	assert(sock >= 0);
	for (;;) {
		int r = os->connect(os, sock, (const struct sockaddr *)a,
				    sizeof(*a));
		uint64_t now = os->now_ns(os);

		if (r != -EAGAIN)
			return r;
		if (now >= until_ns)
			return -ETIMEDOUT;
		(void)os->poll(os, NULL, 0, now + pause < until_ns ?
			       now + pause : until_ns);
		pause = pause < RETRY_MOST_NS ? 2 * pause : pause;
	}
}

/* One that is begun again by its keeper may take that long, and hangs not. */
static int explain_late(const char *path, uint32_t ms, struct sk_err *err)
{
	if (ms < PATIENCE_MS)
		return sk_err_set(err, -ETIMEDOUT, "the agent at %s has not "
				  "answered within %u ms: it is busy, begins "
				  "again, or is stopped", path, ms);
	return sk_err_set(err, -ETIMEDOUT, "the agent at %s does not answer: "
			  "it hangs, or is stopped", path);
}

static int dial(const struct sk_os *os, const char *path, uint64_t until_ns,
		struct sk_err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock, r;

	if (strlen(path) >= sizeof(a.sun_path))
		return sk_err_set(err, -ENAMETOOLONG, "the socket path \"%s\" "
				  "is longer than %zu bytes", path,
				  sizeof(a.sun_path) - 1);
	strcpy(a.sun_path, path);
	sock = os->socket(os, AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	if (sock < 0)
		return sk_err_errno(err, sock, "cannot make a socket");
	r = connect_until(os, sock, &a, until_ns);
	if (r == 0)
		return sock;
	(void)os->close(os, sock);
	if (r == -EACCES)
		return sk_err_errno(err, r, "the agent's socket %s, or a "
				    "directory above it, keeps this user out",
				    path);
	return sk_err_errno(err, r, "no agent answers at %s; start shardkeepd "
			    "--socket %s", path, path);
}

/* ---- whose agent it is ---- */

/* Root alone makes directories in /run: it has made this one for its owner. */
static bool is_system_agent(const struct sk_os *os, const char *path,
			    uid_t uid)
{
	static const char dir[] = "/run/shardkeep";
	struct stat st;

	return !strcmp(path, SK_SYSTEM_SOCKET) &&
	       os->fstatat(os, AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, &st) >= 0 &&
	       S_ISDIR(st.st_mode) && st.st_uid == uid;
}

static int check_peer(const struct sk_os *os, int sock, const char *path,
		      struct sk_err *err)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int r = os->getsockopt(os, sock, SOL_SOCKET, SO_PEERCRED, &peer,
			       &size);

	assert(sock >= 0);
	if (r < 0)
		return sk_err_errno(err, r, "cannot tell whose agent listens "
				    "at %s", path);
	if (peer.uid == geteuid() || !peer.uid ||
	    is_system_agent(os, path, peer.uid))
		return 0;
	return sk_err_set(err, -EACCES, "the agent at %s is run by user %u, "
			  "neither this user (%u) nor root", path, peer.uid,
			  geteuid());
}

void sk_conn_hang_up(struct sk_conn *conn)
{
	if (conn->sock >= 0)
		(void)conn->os->close(conn->os, conn->sock);
	conn->sock = -1;
	if (conn->ahead)
		conn->ahead->r = sk_err_set(&conn->ahead->err, -ECONNRESET,
					    "the connection to the agent was "
					    "lost");
	conn->ahead = NULL;
}

/* Greets in @version; -ECONNRESET where the agent hangs up on that. */
static int greet(struct sk_conn *conn, const char *path, bool any_user,
		 unsigned version, uint64_t until_ns, struct sk_err *err)
{
	struct sk_msg msg = sk_wire_hello(version);
	int r;

	conn->version = version;
	conn->sock = dial(conn->os, path, until_ns, err);
	if (conn->sock < 0)
		return conn->sock;
	r = any_user ? 0 : check_peer(conn->os, conn->sock, path, err);
	if (r >= 0)
		r = sk_conn_call(conn, &msg, NULL, 0, NULL, NULL, until_ns,
				 err);
	if (r >= 0)
		r = sk_wire_greeted(&msg, err);
	if (r < 0)
		return r;
	conn->version = (unsigned)r;
	conn->agent = msg.body.hello_reply;
	return 0;
}

/* From the newest down, until the agent does not hang up on @ret_version. */
static int greet_down(struct sk_conn *conn, const char *path, bool any_user,
		      uint64_t until_ns, unsigned *ret_version,
		      struct sk_err *err)
{
	unsigned next = SK_WIRE_VERSION;
	int r;

	do {
		*ret_version = next;
		r = greet(conn, path, any_user, next, until_ns, err);
		next = sk_wire_greet_next(next);
	} while (r == -ECONNRESET && next);
	return r;
}

/* An agent that is killed hangs up, too, and says nothing of versions by that:
 * who comes after it is greeted in the newest before anything else is believed,
 * and what is an end for the caller less easily. */
static int greet_each(struct sk_conn *conn, const char *path, bool any_user,
		      uint64_t until_ns, struct sk_err *err)
{
	struct sk_err why = { "" };
	unsigned version;
	int r, again;

	r = greet_down(conn, path, any_user, until_ns, &version, err);
	if (version == SK_WIRE_VERSION || (r < 0 && r != -EPROTO))
		return r;
	for (int tries = r < 0 ? REFUSED_TRIES : 1; tries; tries--) {
		sk_conn_hang_up(conn);
		again = greet(conn, path, any_user, SK_WIRE_VERSION, until_ns,
			      &why);
		if (again == -ECONNRESET)
			continue;
		if (again < 0)
			*err = why;
		return again;
	}
	sk_conn_hang_up(conn);
	return r < 0 ? r : greet(conn, path, any_user, version, until_ns, err);
}

/* Others may let go of a connection, as who has restored does. */
static int greet_in_turn(struct sk_conn *conn, const char *path, bool any_user,
			 uint64_t until_ns, struct sk_err *err)
{
	const struct sk_os *os = conn->os;
	uint64_t most = os->now_ns(os) + FULL_NS;
	int r;

	if (most > until_ns)
		most = until_ns;
	for (;;) {
		r = greet_each(conn, path, any_user, until_ns, err);
		if (r != -EMFILE || conn->sock < 0 || os->now_ns(os) >= most)
			return r;
		sk_conn_hang_up(conn);
		(void)os->poll(os, NULL, 0, os->now_ns(os) + FULL_PAUSE_NS);
	}
}

/* @known: a version that was found before; 0: none was. Another agent may be
 * there by now. */
static int open_conn(const struct sk_os *os, const char *path, bool any_user,
		     unsigned known, uint64_t until_ns,
		     struct sk_conn *ret_conn, struct sk_err *err)
{
	struct sk_conn conn = { .os = os, .sock = -1 };
	uint32_t ms = sk_left_ms(os, until_ns);
	int r = -EPROTO;

	(void)pthread_mutex_init(&conn.lock, NULL);
	if (known && known != SK_WIRE_VERSION)
		r = greet(&conn, path, any_user, known, until_ns, err);
	if (r == -EPROTO || r == -ECONNRESET || r == -EMFILE) {
		sk_conn_hang_up(&conn);
		r = greet_in_turn(&conn, path, any_user, until_ns, err);
	}
	if (r < 0) {
		sk_conn_close(&conn);
		return r == -ETIMEDOUT ? explain_late(path, ms, err) : r;
	}
	/* A mutex must not be copied once it was used. */
	ret_conn->os = os;
	ret_conn->sock = conn.sock;
	ret_conn->seq = conn.seq;
	ret_conn->version = conn.version;
	ret_conn->agent = conn.agent;
	ret_conn->ahead = NULL;
	ret_conn->user = geteuid();
	ret_conn->generation++;
	(void)pthread_mutex_destroy(&conn.lock);
	(void)pthread_mutex_init(&ret_conn->lock, NULL);
	return 0;
}

int sk_conn_open(const struct sk_os *os, const char *socket_path,
		 uint64_t until_ns, struct sk_conn *ret_conn,
		 struct sk_err *err)
{
	return open_conn(os, socket_path, false, 0, until_ns, ret_conn, err);
}

int sk_conn_open_any(const struct sk_os *os, const char *socket_path,
		     uint64_t until_ns, struct sk_conn *ret_conn,
		     struct sk_err *err)
{
	return open_conn(os, socket_path, true, 0, until_ns, ret_conn, err);
}

static int open_more(const struct sk_os *os, const struct sk_conn *handle,
		     const char *path, unsigned known, uint64_t until_ns,
		     struct sk_conn *ret_conn, struct sk_err *err)
{
	int r;

	if (handle->user != geteuid())
		return sk_err_set(err, -EACCES, "this handle was opened by "
				  "user %u, and the process is user %u now, "
				  "whose jobs are others; open one as that "
				  "user", handle->user, geteuid());
	r = open_conn(os, path, false, known, until_ns, ret_conn, err);
	if (r == -ENOENT || r == -ECONNREFUSED)
		return sk_err_prefix(err, -ECONNRESET, "the agent is gone");
	return r;
}

int sk_conn_open_more(const struct sk_os *os, struct sk_conn *handle,
		      const char *socket_path, uint64_t until_ns,
		      struct sk_conn *ret_conn, struct sk_err *err)
{
	unsigned known;

	(void)pthread_mutex_lock(&handle->lock);
	known = handle->version;
	(void)pthread_mutex_unlock(&handle->lock);
	return open_more(os, handle, socket_path, known, until_ns, ret_conn,
			 err);
}

/* An agent that ended since the last request is found out before the next one,
 * which would fail. Where another thread asks something, it will see. */
static void notice_end(struct sk_conn *conn)
{
	struct pollfd p = { .events = POLLRDHUP };

	if (pthread_mutex_trylock(&conn->lock))
		return;
	p.fd = conn->sock;
	if (conn->sock >= 0 && conn->os->poll(conn->os, &p, 1, 0) > 0)
		sk_conn_hang_up(conn);
	(void)pthread_mutex_unlock(&conn->lock);
}

int sk_conn_again(const char *socket_path, uint64_t until_ns,
		  struct sk_conn *conn, struct sk_err *err)
{
	struct sk_conn fresh = SK_CONN_NULL;
	int r;

	if (sk_conn_stands(conn))
		return 0;
	r = open_more(conn->os, conn, socket_path, 0, until_ns, &fresh, err);
	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&conn->lock);
	if (conn->sock < 0) {	/* else another thread was quicker */
		conn->sock = sk_take_fd(&fresh.sock);
		conn->seq = fresh.seq;
		conn->version = fresh.version;
		conn->agent = fresh.agent;
		conn->generation++;
	}
	(void)pthread_mutex_unlock(&conn->lock);
	sk_conn_close(&fresh);
	return 0;
}

bool sk_conn_stands(struct sk_conn *conn)
{
	notice_end(conn);
	return sk_conn_is_open(conn, NULL, NULL);
}

bool sk_conn_is_open(struct sk_conn *conn, uint64_t *ret_generation,
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

bool sk_conn_makes_device_slots(struct sk_conn *conn)
{
	bool makes;

	(void)pthread_mutex_lock(&conn->lock);
	makes = conn->sock >= 0 && conn->agent.has_devices;
	(void)pthread_mutex_unlock(&conn->lock);
	return makes;
}

bool sk_conn_agent_faults(struct sk_conn *conn)
{
	bool alone;

	(void)pthread_mutex_lock(&conn->lock);
	alone = conn->agent.flags & SK_HELLO_AGENT_FAULTS;
	(void)pthread_mutex_unlock(&conn->lock);
	return alone;
}

void sk_conn_leave(struct sk_conn *conn)
{
	const struct sk_os *os = conn->os;
	struct pollfd p = { .fd = conn->sock };

	/* It hangs up when it has heard that. */
	if (conn->sock >= 0 && os->shutdown(os, conn->sock, SHUT_WR) >= 0)
		(void)os->poll(os, &p, 1, sk_until_ms(os, LEAVE_MS));
}

void sk_conn_close(struct sk_conn *conn)
{
	if (!conn->os)
		return;
	sk_conn_hang_up(conn);
	(void)pthread_mutex_destroy(&conn->lock);
	conn->os = NULL;
}
