/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers that cannot be sent, and those that are waited for: how soon they are
 * tried again, and what the agent does meanwhile, which is next to nothing.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"

#define MS UINT64_C(1000000)
#define TRIES 14
#define SOON_NS (320 * MS)	/* between two of them, at most */
#define FDS 512			/* of the agent */
#define CLIENTS 63		/* all of an eighth of those, but one */
#define ITEMS 800		/* too many to be told at once */
#define TURNS "shardkeep_turns_total"
#define STATS 100
#define JOBS 20
#define PATIENCE_S 6		/* more than a list waits */

/* What this test has of the agent's system, in memory that both share. */
struct world {
	const struct sk_os *os;		/* the table as it was */
	struct sk_fault_os *fault;
	uint64_t tries_ns[TRIES];	/* when it tried to send, in vain */
	unsigned n;
	bool sent;			/* at last */
	bool quiet;			/* only who seals wakes the agent */
	bool loud;			/* who tells wakes it, too */
};

static struct world *world;

static void begin(struct whole *w)
{
	whole_init(w);
	w->options.store = NULL;
	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(world != MAP_FAILED, "mmap");
	*world = (struct world){ .os = sk_os_linux(), .fault = w->fault };
}

static void end(struct whole *w)
{
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
	munmap(world, sizeof(*world));
}

static void ask(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };

	rig_send(sock, &msg);
}

/* ---- sent again ---- */

static ssize_t refuse_to_send(const struct sk_os *os, int fd,
			      const struct msghdr *msg, int flags)
{
	(void)os;
	if (msg->msg_controllen && world->n < TRIES) {
		world->tries_ns[world->n++] = world->fault->now;
		return -ETOOMANYREFS;
	}
	world->sent |= msg->msg_controllen > 0;
	return world->os->sendmsg(world->os, fd, msg, flags);
}

/* Where the agent has nothing to do before it tries again, it is that late
 * already. */
static int pass(const struct sk_os *os, int epoll, struct epoll_event *ret,
		int room, uint64_t until_ns)
{
	bool passes = world->n && !world->sent;
	uint64_t real_ns = world->os->now_ns(world->os);
	int r = world->os->epoll_wait(world->os, epoll, ret, room,
				      passes ? real_ns : real_ns + MS);

	(void)os;
	if (r == -ETIMEDOUT && passes && until_ns != SK_FOREVER &&
	    until_ns > world->fault->now)
		world->fault->now = until_ns;
	return r;
}

/* What a client is not sent for want of descriptors it has a moment after there
 * are some, and the agent does not try all the time. */
static void test_sent_soon(void)
{
	struct sk_msg msg;
	struct whole w;
	uint64_t last = 0;
	int sock;

	begin(&w);
	w.fault->os.sendmsg = refuse_to_send;
	w.fault->os.epoll_wait = pass;
	whole_start(&w);
	sock = rig_connect(&w.rig);
	ask(sock);
	CHECK_STATUS(rig_reply(sock, &msg, NULL, NULL), 0, &msg);
	CHECK(world->n == TRIES, "%u tries", world->n);
	for (int i = 1; i < TRIES; i++) {
		uint64_t wait = world->tries_ns[i] - world->tries_ns[i - 1];

		CHECK(wait >= last && wait >= MS && wait <= SOON_NS,
		      "try %d after %llu ns", i + 1,
		      (unsigned long long)wait);
		last = wait;
	}
	CHECK(last == SOON_NS, "the last after %llu ns",
	      (unsigned long long)last);
	close(sock);
	end(&w);
}

/* ---- what others have not read ---- */

static int few_fds(const struct sk_os *os, int which, struct rlimit *ret)
{
	int r = world->os->getrlimit(world->os, which, ret);

	(void)os;
	if (which == RLIMIT_NOFILE)
		ret->rlim_cur = ret->rlim_max = FDS;
	return r;
}

/* Who is sent no more, for too much is unread, does not have the agent ask the
 * system of all connections each time. */
static void test_looks_are_few(void)
{
	uint64_t asked, heard;
	struct whole w;
	int socks[CLIENTS];

	begin(&w);
	w.fault->os.getrlimit = few_fds;
	whole_start(&w);
	for (int i = 0; i < CLIENTS; i++)
		socks[i] = rig_connect(&w.rig);
	asked = sk_fault_os_calls(w.fault, SK_FAULT_GETSOCKOPT);
	for (int k = 0; k < 2; k++) {
		heard = sk_fault_os_calls(w.fault, SK_FAULT_RECVMSG);
		for (int i = 0; i < CLIENTS; i++)
			ask(socks[i]);
		/* Who is answered is listened to again. */
		AWAIT(sk_fault_os_calls(w.fault, SK_FAULT_RECVMSG) >=
		      heard + (k ? 1 : 2) * CLIENTS, "it does not listen");
	}
	asked = sk_fault_os_calls(w.fault, SK_FAULT_GETSOCKOPT) - asked;
	CHECK(asked >= CLIENTS / 2, "nobody is asked: %d", (int)asked);
	CHECK(asked <= 3 * CLIENTS, "%d questions for %d clients",
	      (int)asked, CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		close(socks[i]);
	end(&w);
}

/* ---- what is not told yet ---- */

/* Whoever tells whether a snapshot is complete does not wake the agent: it
 * hears when somebody else does. For a while nobody does who works in the
 * background of its own accord, as who looks for rot. */
static ssize_t tell_late(const struct sk_os *os, int fd, const void *buf,
			 size_t size)
{
	char name[16] = "";

	(void)os;
	(void)pthread_getname_np(pthread_self(), name, sizeof(name));
	if ((!world->loud && strncmp(name, "sk-tell", 7) == 0) ||
	    (world->quiet && strncmp(name, "sk-", 3) == 0 &&
	     strncmp(name, "sk-seal", 7) != 0))
		return -EAGAIN;
	return world->os->write(world->os, fd, buf, size);
}

static void send_list(int sock, const char *job)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = 1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS, .flags = SK_LIST_KNOWN } };

	(void)snprintf(msg.body.list.id.job, sizeof(msg.body.list.id.job),
		       "%s", job);
	rig_send(sock, &msg);
}

static struct sk_wire_snapshot take_list(int sock, struct sk_msg *ret)
{
	struct sk_wire_snapshot s = { 0 };
	int fds[SK_MSG_FDS], n = 0;

	CHECK_STATUS(rig_reply(sock, ret, fds, &n), 0, ret);
	CHECK(n == 1 && pread(fds[0], &s, sizeof(s), 0) == sizeof(s) &&
	      s.id.step == 1, "it is not listed");
	close(fds[0]);
	return s;
}

/* All that goes on in the background is over: its slots are there. */
static void prepare(struct rank *r, const char *job)
{
	r->msg = (struct sk_msg){ .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .step = -1 }, .timeout_ms = WAIT_MS } };
	(void)snprintf(r->msg.body.prepare.id.job,
		       sizeof(r->msg.body.prepare.id.job), "%s", job);
	CHECK_STATUS(rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL), 0,
		     &r->msg);
}

static bool has_reply(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Whether a list of what was just sealed waits; it is quiet from then on. */
static bool waits(struct rank *r, int sock, int lister, const char *job)
{
	double turns;

	prepare(r, job);
	world->quiet = true;
	rank_snapshot(r, 1);
	send_list(lister, job);
	turns = stat_value(sock, TURNS);
	for (int i = 0; i < STATS; i++)
		(void)stat_value(sock, TURNS);
	turns = stat_value(sock, TURNS) - turns;
	CHECK(turns <= 2 * STATS, "%.0f turns for %d questions", turns, STATS);
	return !has_reply(lister);
}

/* A job whose snapshot is listed and waits: now and then one is told in the
 * very turn in which it was sealed. None has the layout of another, of which
 * all would be known. */
static void open_one_that_waits(struct whole *w, struct rank *r, char *job,
				int sock, int lister)
{
	struct sk_msg msg;

	for (int i = 0; i < JOBS; i++) {
		(void)snprintf(job, SK_JOB_MAX, "told-%d", i);
		CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
			.job = job, .world = 1, .rows = 1,
			.more = ITEMS + i }), 0, &r->msg);
		if (waits(r, sock, lister, job))
			return;
		world->quiet = false;
		(void)take_list(lister, &msg);
		rank_close(r);
	}
	CHECK(false, "all are told at once");
}

/* A list waits until it is told whether a snapshot is complete, and the agent
 * has nothing to do for it meanwhile. In the end it says what is not known. */
static void test_list_waits(void)
{
	struct sk_msg msg = { 0 };
	struct rank r, other;
	struct whole w;
	char job[SK_JOB_MAX];
	int sock, lister;

	begin(&w);
	w.fault->os.write = tell_late;
	whole_start(&w);
	sock = rig_connect(&w.rig);
	lister = rig_connect(&w.rig);
	open_one_that_waits(&w, &r, job, sock, lister);
	sk_fault_os_advance(w.fault, PATIENCE_S * 1000 * MS);
	(void)take_list(lister, &msg);
	CHECK(msg.body.list_reply.unreadable == 1 &&
	      strstr(msg.body.list_reply.text, "still being told"),
	      "%u: %s", msg.body.list_reply.unreadable,
	      msg.body.list_reply.text);
	send_list(lister, job);
	/* What is done for another one wakes it, if it is told by then. */
	world->loud = true;
	world->quiet = false;
	CHECK_STATUS(rank_open(&other, &w.rig, &(struct rank_options){
		.job = "other", .world = 1, .rows = 1 }), 0, &other.msg);
	CHECK(take_list(lister, &msg).flags & SK_SNAP_COMPLETE,
	      "it is not complete");
	CHECK(msg.body.list_reply.unreadable == 0, "%s",
	      msg.body.list_reply.text);
	rank_close(&other);
	rank_close(&r);
	close(lister);
	close(sock);
	end(&w);
}

int main(void)
{
	test_sent_soon();
	test_looks_are_few();
	test_list_waits();
	return 0;
}
