/* SPDX-License-Identifier: Apache-2.0 */
#include "attack.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "state.h"
#include "wire/channel.h"

#define CONNECTIONS 64		/* of each */
#define TENSORS 1000
#define BYTES (1u << 20)	/* of the states that they have */

/* ---- connections ---- */

static int dial(const struct bench *b, int flags)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);

	if (sock < 0)
		return -errno;
	(void)snprintf(a.sun_path, sizeof(a.sun_path), "%.100s", b->socket);
	return connect(sock, (struct sockaddr *)&a, sizeof(a)) < 0 ?
	       sk_close_fd(sock) : sock;
}

static int say(int sock, struct sk_msg *msg)
{
	return sk_channel_send(sk_os_linux(), sock, msg, NULL, 0);
}

static int greet(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_HELLO,
			      .body.hello.version = SK_WIRE_VERSION };

	return say(sock, &msg);
}

/* One that was let go, or never was one, is dialled anew. */
static void keep_up(const struct bench *b, struct pollfd *p)
{
	if (p->fd >= 0)
		return;
	p->fd = dial(b, SOCK_NONBLOCK);
	if (p->fd >= 0 && greet(p->fd) < 0)
		p->fd = sk_close_fd(p->fd);
}

/* All that it has been answered. */
static void hear(struct pollfd *p)
{
	int fds[SK_CHANNEL_FDS], n, r;
	struct sk_msg msg;

	do {
		r = sk_channel_recv(sk_os_linux(), p->fd, &msg, fds, &n);
		while (!r && n)
			sk_close_fd(fds[--n]);
	} while (!r);
	if (r != -EAGAIN)
		p->fd = sk_close_fd(p->fd);
}

/* As many as the socket takes, in turn. */
static void flood(struct pollfd *p, struct sk_msg *msgs, size_t n)
{
	int r = 0;

	for (size_t i = 0; !r; i++)
		r = say(p->fd, &msgs[i % n]);
	if (r != -EAGAIN)
		p->fd = sk_close_fd(p->fd);
}

/* The same questions on all connections, without end. */
static void ask(const struct bench *b, struct sk_msg *msgs, size_t n,
		bool listens)
{
	struct pollfd p[CONNECTIONS];

	for (int i = 0; i < CONNECTIONS; i++)
		p[i] = (struct pollfd){ .fd = -1, .events = POLLOUT };
	while (true) {
		for (int i = 0; i < CONNECTIONS; i++) {
			keep_up(b, &p[i]);
			if (p[i].fd >= 0 && listens)
				hear(&p[i]);
			if (p[i].fd >= 0)
				flood(&p[i], msgs, n);
			p[i].events = listens ? POLLIN | POLLOUT : POLLOUT;
		}
		(void)poll(p, CONNECTIONS, 100);
	}
}

/* ---- who only talks ---- */

static void run_connects(struct bench *b, int who)
{
	(void)who;
	while (true) {
		int sock = dial(b, 0);

		if (sock >= 0)
			(void)greet(sock);
		sk_close_fd(sock);
	}
}

static void run_garbage(struct bench *b, int who)
{
	uint32_t bytes[SK_MSG_BYTES / 4];

	srandom((unsigned)who);
	while (true) {
		int sock = dial(b, 0);
		char end;

		for (size_t i = 0; i < SK_ARRAY_SIZE(bytes); i++)
			bytes[i] = (uint32_t)random();
		(void)send(sock, bytes, sizeof(bytes), MSG_NOSIGNAL);
		(void)recv(sock, &end, 1, 0);
		sk_close_fd(sock);
	}
}

static void run_status(struct bench *b, int who)
{
	struct sk_msg msg = { .type = SK_MSG_STATUS };

	(void)who;
	ask(b, &msg, 1, true);
}

static void run_statistics(struct bench *b, int who)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };

	(void)who;
	ask(b, &msg, 1, true);
}

static void run_lists(struct bench *b, int who)
{
	struct sk_msg msg = { .type = SK_MSG_LIST };

	(void)who;
	msg.body.list.what = SK_LIST_IMAGES;
	msg.body.list.id.step = -1;
	msg.body.list.id.rank = -1;
	ask(b, &msg, 1, true);
}

static void run_deaf(struct bench *b, int who)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };

	(void)who;
	ask(b, &msg, 1, false);
}

/* ---- who is a job ---- */

static void name_job(char *name, size_t size, const char *what, int who)
{
	(void)snprintf(name, size, "attack-%s-%d", what, who);
}

static void run_registers(struct bench *b, int who)
{
	char job[64];

	name_job(job, sizeof(job), "register", who);
	while (true) {
		struct rank_state s;

		if (state_open(b, 0, 1, job, BYTES, TENSORS, CUT_NONE, &s))
			_exit(1);
		state_close(&s);
	}
}

static void run_snapshots(struct bench *b, int who)
{
	struct sk_snapshot_options o = { .flags = SK_SNAPSHOT_NO_FLUSH,
					 .wait_ms = 60000 };
	struct rank_state s;
	char job[64];

	name_job(job, sizeof(job), "snapshot", who);
	if (state_open(b, 0, 1, job, 1 << 16, 4, CUT_NONE, &s))
		_exit(1);
	for (int64_t step = 1;; step++)
		if (sk_snapshot(s.state, step, &o) || sk_fence(s.state))
			_exit(!!fail(b, 0, "a job beside it: %s", sk_error()));
}

/* A step, of a rank of so many. */
static void have_a_step(struct bench *b, int ranks, const char *job,
			enum sk_until until)
{
	struct rank_state s;

	if (state_open(b, 0, ranks, job, BYTES, TENSORS, CUT_NONE, &s))
		_exit(1);
	if (sk_snapshot(s.state, 1, NULL) ||
	    (until == SK_DURABLE && sk_flush(s.state, 1)) ||
	    sk_wait(s.state, 1, until, 60000))
		_exit(!!fail(b, 0, "a job beside it: %s", sk_error()));
}

/* For a rank that never comes, to complete its step, or for steps that nobody
 * has. */
static void wait_for(struct bench *b, int who, const char *what, int64_t step,
		     size_t steps)
{
	struct sk_msg msgs[64];
	char job[64];

	name_job(job, sizeof(job), what, who);
	have_a_step(b, 2, job, SK_SEALED);
	for (size_t i = 0; i < steps; i++) {
		struct sk_wire_wait *w = &msgs[i].body.wait;

		msgs[i] = (struct sk_msg){ .type = SK_MSG_WAIT };
		strcpy(w->id.job, job);
		w->id.step = step + (int64_t)i;
		w->id.world = 2;
		w->until = SK_COMPLETE;
		w->timeout_ms = 60000;
	}
	ask(b, msgs, steps, true);
}

static void run_waits(struct bench *b, int who)
{
	wait_for(b, who, "wait", 1, 1);
}

static void run_looks(struct bench *b, int who)
{
	wait_for(b, who, "look", 1000, 64);
}

static void run_pins(struct bench *b, int who)
{
	struct sk_msg msgs[2] = { { .type = SK_MSG_PIN },
				  { .type = SK_MSG_UNPIN } };

	name_job(msgs[0].body.manage.id.job, sizeof(msgs[0].body.manage.id.job),
		 "pin", who);
	msgs[0].body.manage.id.step = 1;
	msgs[1].body = msgs[0].body;
	have_a_step(b, 1, msgs[0].body.manage.id.job, SK_DURABLE);
	ask(b, msgs, SK_ARRAY_SIZE(msgs), true);
}

static void run_restores(struct bench *b, int who)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY };
	struct rank_state s;
	char job[64];

	name_job(job, sizeof(job), "restore", who);
	if (state_open(b, 0, 1, job, BYTES, TENSORS, CUT_NONE, &s))
		_exit(1);
	if (sk_snapshot(s.state, 1, NULL) ||
	    sk_wait(s.state, 1, SK_SEALED, 60000))
		_exit(!!fail(b, 0, "a job beside it: %s", sk_error()));
	while (!sk_restore(s.state, SK_LATEST, NULL, &o, NULL))
		;
	_exit(!!fail(b, 0, "a job beside it: %s", sk_error()));
}

static void run_nothing(struct bench *b, int who)
{
	volatile unsigned n = 0;

	(void)b;
	(void)who;
	while (true)
		n++;
}

/* ---- all of them ---- */

const struct attack attack_none = { "none", run_nothing };

static const struct attack attacks[] = {
	{ "connect, greet, hang up", run_connects },
	{ "garbage", run_garbage },
	{ "status, without end", run_status },
	{ "statistics, without end", run_statistics },
	{ "lists, without end", run_lists },
	{ "requests whose answers nobody reads", run_deaf },
	{ "states of 1,000 tensors, there and gone", run_registers },
	{ "snapshots of 64 KiB, one after the other", run_snapshots },
	{ "restores of 1,000 tensors", run_restores },
	{ "waits for a rank that never comes", run_waits },
	{ "waits for steps that are not there", run_looks },
	{ "pins of a durable step, on and off", run_pins },
};

const struct attack *attack_at(int i)
{
	return (size_t)i < SK_ARRAY_SIZE(attacks) ? &attacks[i] : NULL;
}

int attackers_start(struct bench *b, const struct attack *attack, int n,
		    struct attackers *ret)
{
	*ret = (struct attackers){ .n = 0 };
	while (ret->n < n) {
		pid_t pid = fork();

		if (pid < 0)
			return -errno;
		if (!pid) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			attack->run(b, ret->n);
		}
		ret->pids[ret->n++] = pid;
	}
	return 0;
}

void attackers_end(struct attackers *a)
{
	for (int i = 0; i < a->n; i++)
		(void)kill(a->pids[i], SIGKILL);
	for (int i = 0; i < a->n; i++)
		(void)waitpid(a->pids[i], NULL, 0);
	a->n = 0;
}
