/* SPDX-License-Identifier: Apache-2.0 */
#include "takeover.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/util.h"
#include "keeper/parent.h"
#include "keeper/table.h"
#include "rehearse.h"
#include "wire/channel.h"
#include "wire/version.h"

#define BOUND_NS UINT64_C(10000000000)
#define END_NS UINT64_C(2000000000)	/* for it to be no more */
#define SPARE_FDS 64		/* what an agent opens before it serves */
#define AGAIN_NS UINT64_C(1500000000)	/* one that was killed is back by */
/* Or by then, where its keeper waits between two of them, parent.c. */
#define KEEPER_NS UINT64_C(8000000000)

struct talk {
	const struct sk_os *os;
	int sock;
	int process;		/* the other agent; -1: not known */
	int keeper;		/* and its parent; the same */
	uint64_t until_ns;
	uint32_t seq;
	unsigned version;	/* of the wire, that both speak */
};

static void close_talk(struct talk *t)
{
	sk_close_fd(t->sock);
	sk_close_fd(t->process);
	sk_close_fd(t->keeper);
}

static int dial(struct talk *t, const char *path, struct sk_err *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int r;

	(void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	t->sock = t->os->socket(t->os, AF_UNIX, SOCK_SEQPACKET, 0);
	if (t->sock < 0)
		return sk_err_errno(err, t->sock, "cannot make a socket");
	r = t->os->connect(t->os, t->sock, (struct sockaddr *)&addr,
			   sizeof(addr));
	if (r == -ECONNREFUSED)
		r = -ENOENT;
	return r < 0 ? sk_err_errno(err, r, "no agent at %s to take over from; "
				    "start without --takeover", path) : 0;
}

static int receive(const struct talk *t, struct sk_msg *ret, int *fds, int *n)
{
	int r;

	do {
		r = sk_channel_wait(t->os, t->sock, t->until_ns);
		if (r == 0)
			r = sk_channel_recv(t->os, t->sock, ret, fds, n);
	} while (r == -EAGAIN);
	return r;
}

static int ask(struct talk *t, struct sk_msg *msg)
{
	msg->seq = ++t->seq;
	msg->version = (uint16_t)t->version;
	return sk_channel_send(t->os, t->sock, msg, NULL, 0);
}

static int refused(const struct sk_msg *msg, struct sk_err *err)
{
	return sk_err_set(err, msg->status, "%.*s", SK_ERR_MAX - 1,
			  msg->body.text);
}

/* A word and its answer, of which no descriptor is wanted. */
static int exchange(struct talk *t, struct sk_msg *msg)
{
	int fds[SK_MSG_FDS], n = 0, r = ask(t, msg);

	if (r == 0)
		r = receive(t, msg, fds, &n);
	while (r == 0 && n)
		sk_close_fd(fds[--n]);
	return r;
}

static int say_hello(struct talk *t, struct sk_err *err)
{
	struct sk_msg msg = sk_wire_hello(t->version);
	int r = exchange(t, &msg);
	pid_t pid;

	if (r < 0)
		return sk_err_errno(err, r, "the running agent does not "
				    "answer as this one would");
	if (msg.status < 0)
		return refused(&msg, err);
	r = sk_wire_greeted(&msg, err);
	if (r < 0)
		return r;
	t->version = (unsigned)r;
	pid = (pid_t)msg.body.hello_reply.pid;
	t->process = t->os->pidfd_open(t->os, pid);
	pid = sk_process_parent(t->os, pid);
	if (pid > 0)
		t->keeper = t->os->pidfd_open(t->os, pid);
	return 0;
}

static bool hung_up(int r)
{
	return r == -ECONNRESET || r == -EPIPE;
}

static int reach(struct talk *t, const char *path, struct sk_err *err)
{
	unsigned version = SK_WIRE_VERSION;
	int r;

	do {
		sk_close_fd(t->sock);
		t->version = version;
		r = dial(t, path, err);
		if (r == 0)
			r = say_hello(t, err);
		version = sk_wire_greet_next(version);
	} while (hung_up(r) && version);
	return r;
}

/* ---- what it hands over ---- */

static int take_one(const struct talk *t, struct kept *ret, uint32_t *ret_left,
		    struct sk_err *err)
{
	int fds[SK_MSG_FDS], n = 0, r;
	struct sk_msg msg;

	r = receive(t, &msg, fds, &n);
	if (r < 0)
		return sk_err_errno(err, r, "the running agent did not hand "
				    "all over");
	if (msg.status < 0)
		r = refused(&msg, err);
	else if (msg.type != SK_MSG_TAKEOVER || n != 1 ||
		 !memchr(msg.body.kept.name, 0, sizeof(msg.body.kept.name)))
		r = sk_err_set(err, -EPROTO, "the running agent answered with "
			       "something else");
	if (r < 0) {
		while (n)
			sk_close_fd(fds[--n]);
		return r;
	}
	*ret_left = msg.body.kept.left;
	r = kept_add(t->os, ret, msg.body.kept.name, fds[0]);
	return r < 0 ? sk_err_errno(err, r, "cannot take what is handed "
				    "over") : 0;
}

static int take_all(struct talk *t, struct kept *ret, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER, .body.takeover = {
		.table_version = TABLE_VERSION,
		.record_bytes = sizeof(struct table_record) } };
	uint32_t left = 1;
	int r = ask(t, &msg);

	if (r < 0)
		return sk_err_errno(err, r, "cannot ask the running agent");
	while (r == 0 && left)
		r = take_one(t, ret, &left, err);
	return r;
}

/* It was tried without what is taken. */
static int check_room(const struct talk *t, const struct kept *kept,
		      struct sk_err *err)
{
	int last = t->sock, fd;

	for (size_t i = 0; i < kept->n; i++)
		if (kept->v[i].fd > last)
			last = kept->v[i].fd;
	fd = t->os->fcntl(t->os, t->sock, F_DUPFD_CLOEXEC, last + SPARE_FDS);
	if (fd < 0)
		return sk_err_set(err, -EMFILE, "what the running agent has "
				  "leaves no room: raise the limit of open "
				  "files (ulimit -n)");
	sk_close_fd(fd);
	return 0;
}

/* It is the last moment at which nothing has happened. */
static int check_table(const struct talk *t, struct kept *kept,
		       struct sk_err *err)
{
	int fd = kept_take(kept, KEPT_TABLE), r;

	if (fd < 0)
		return sk_err_set(err, -EPROTO, "the running agent handed no "
				  "table of slots over");
	r = table_check(t->os, fd, err);
	if (r < 0) {
		(void)t->os->close(t->os, fd);
		return r;
	}
	r = kept_add(t->os, kept, KEPT_TABLE, fd);
	return r < 0 ? sk_err_errno(err, r, "cannot keep the table") : 0;
}

/* Whoever may begin another one: its parent when it was asked. */
static bool keeper_lives(const struct talk *t)
{
	struct pollfd p = { .fd = t->keeper, .events = POLLIN };

	return t->keeper >= 0 && t->os->poll(t->os, &p, 1, 0) == -ETIMEDOUT;
}

/* Killed when it was told, it may have ended, or its keeper begins another one,
 * after some seconds if that has happened often, which listens where it did. */
static bool is_back(struct talk *t, const char *path)
{
	uint64_t until = t->os->now_ns(t->os) + KEEPER_NS;
	bool back;

	do {
		struct talk other = { .os = t->os, .sock = -1, .process = -1,
				      .keeper = -1,
				      .until_ns = t->os->now_ns(t->os) +
						  AGAIN_NS };
		struct sk_err err;

		back = reach(&other, path, &err) == 0;
		close_talk(&other);
	} while (!back && keeper_lives(t) && t->os->now_ns(t->os) < until);
	return back;
}

/* Until the system has closed what it had: the store tells the dead by their
 * locks. */
static void await_end(struct talk *t)
{
	struct pollfd p = { .fd = t->process, .events = POLLIN };

	if (t->process >= 0)
		(void)t->os->poll(t->os, &p, 1,
				  t->os->now_ns(t->os) + END_NS);
}

/* Told that we have all, it answers or ends. As long as it does neither, as one
 * that is stopped, all of it is its own: its clients rely on what it has leased
 * to them, and it goes on where it left off. */
static int await_answer(struct talk *t, struct sk_msg *ret, int *fds, int *n)
{
	int r = receive(t, ret, fds, n);

	if (r != -ETIMEDOUT)
		return r;
	fprintf(stderr, "shardkeepd: the running agent has handed all over and "
		"neither answers nor ends; is it stopped? waiting for it\n");
	t->until_ns = SK_FOREVER;
	return receive(t, ret, fds, n);
}

static int commit(struct talk *t, const char *path, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER,
			      .body.takeover.flags = SK_TAKEOVER_COMMIT };
	int fds[SK_MSG_FDS], n = 0, r = ask(t, &msg);

	if (r == 0)
		r = await_answer(t, &msg, fds, &n);
	while (r == 0 && n)
		sk_close_fd(fds[--n]);
	if (r == 0 || !is_back(t, path))
		return 0;
	return sk_err_set(err, -EAGAIN, "the running agent was killed when it "
			  "was to hand over, and is back; try again");
}

/* In the standby it returns when the taker is dead, who may have said that it
 * has all, or not: it is said again. */
static int stand_by(struct talk *t, struct standby *ret, struct sk_err *err)
{
	int r = standby_begin(t->os, ret);

	if (r < 0)
		return sk_err_errno(err, r, "cannot begin a second process "
				    "for what is taken over");
	if (r == STANDBY_TAKES)
		t->until_ns = t->os->now_ns(t->os) + BOUND_NS;
	return 0;
}

/* That what can be known to fail does before anything is handed over. */
static int try_first(struct talk *t, const struct options *o, const char *path,
		     struct sk_err *err)
{
	int r = o ? rehearse(t->os, o, path, err) : 0;

	t->until_ns = t->os->now_ns(t->os) + BOUND_NS;
	return r;
}

int takeover(const struct sk_os *os, const struct options *o, const char *path,
	     struct kept *ret, struct standby *ret_standby, struct sk_err *err)
{
	struct talk t = { .os = os, .sock = -1, .process = -1, .keeper = -1,
			  .until_ns = os->now_ns(os) + BOUND_NS };
	int r;

	/* As its keeper does, for as many as may be handed over. */
	parent_raise_limit(os);
	r = reach(&t, path, err);
	if (r == 0)
		r = try_first(&t, o, path, err);
	if (r == 0)
		r = take_all(&t, ret, err);
	if (r == 0)
		r = check_room(&t, ret, err);
	if (r == 0)
		r = check_table(&t, ret, err);
	if (r == 0)
		r = stand_by(&t, ret_standby, err);
	if (r == 0)
		r = commit(&t, path, err);
	if (r == 0)
		await_end(&t);
	close_talk(&t);
	if (r < 0) {
		standby_dismiss(os, ret_standby);
		kept_clear(os, ret);
	}
	return r;
}

/* ---- one that is about to end ---- */

static int ask_status(struct talk *t, uint32_t *ret_stopping)
{
	struct sk_msg msg = { .type = SK_MSG_STATUS };
	int r = exchange(t, &msg);

	if (r < 0)
		return r;
	*ret_stopping = msg.status < 0 ? 0 : msg.body.status_reply.stopping;
	return 0;
}

enum other_state other_look(const struct sk_os *os, const char *path,
			    int *ret_process)
{
	struct talk t = { .os = os, .sock = -1, .process = -1, .keeper = -1,
			  .until_ns = os->now_ns(os) + END_NS };
	uint32_t stopping = 0;
	struct sk_err err;
	int r = reach(&t, path, &err);

	if (r == 0)
		r = ask_status(&t, &stopping);
	sk_close_fd(t.sock);
	sk_close_fd(t.keeper);
	*ret_process = t.process;
	if (hung_up(r) || r == -ENOENT)
		return OTHER_GONE;
	return r == 0 && stopping ? OTHER_STOPPING : OTHER_SERVES;
}
