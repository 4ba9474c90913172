/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers that cannot be sent, and those that are waited for: how soon they are
 * tried again, and what the agent does meanwhile, which is next to nothing.
 */
#include <errno.h>
#include <signal.h>
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
#define ITEMS 8000
#define TURNS_MOST 200

/* What this test has of the agent's system, in memory that both share. */
struct world {
	const struct sk_os *os;		/* the table as it was */
	struct sk_fault_os *fault;
	uint64_t tries_ns[TRIES];	/* when it tried to send, in vain */
	unsigned n;
	bool sent;			/* at last */
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
		AWAIT(sk_fault_os_calls(w.fault, SK_FAULT_RECVMSG) >=
		      heard + CLIENTS, "it does not listen");
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

/* A list that waits until it is known whether a snapshot is complete, which
 * takes long with many tensors, is told then; and has the agent do nothing
 * meanwhile. */
static void test_list_waits(void)
{
	struct sk_wire_image *images;
	struct whole w;
	struct rank r;
	double turns;
	size_t n;
	int sock, slot;

	begin(&w);
	whole_start(&w);
	sock = rig_connect(&w.rig);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "told", .world = 1, .rows = 1, .more = ITEMS }), 0,
		&r.msg);
	for (int64_t step = 1; step <= 2; step++) {
		slot = rank_slot(&r, step, 0);
		CHECK(slot >= 0, "%s", rig_why(&r.msg));
		rank_fill(&r, slot, step);
		turns = stat_value(sock, "shardkeep_turns_total");
		CHECK_STATUS(rank_seal(&r, slot, step), 0, &r.msg);
		images = list_known(sock, "told", step, &n);
		CHECK(n == 1 && images[0].state != SK_IMAGE_FILLING,
		      "%zu images", n);
		free(images);
		turns = stat_value(sock, "shardkeep_turns_total") - turns;
		CHECK(turns < TURNS_MOST, "%.0f turns", turns);
		CHECK(snapshot_flags(sock, "told", step) & SK_SNAP_COMPLETE,
		      "step %d", (int)step);
	}
	rank_close(&r);
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
