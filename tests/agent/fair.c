/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that asks for much, over many connections, and one that asks for
 * little and comes last. The agent stands still until both have asked, and what
 * it answers in which order is noted where it sends: no time is taken.
 */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/whole.h"

#define CONNECTIONS 16
#define EACH 16
#define ALL (CONNECTIONS * EACH)
#define MINE 60000u		/* the number of the one request */
#define SOON 48			/* answers; then it has waited for them */
#define NOT_FLUSHED 1000u

/* ---- the order of answers ---- */

struct order {
	atomic_uint n;
	uint32_t seq[4 * ALL];
};
static struct order *order;

static ssize_t (*send_on)(const struct sk_os *os, int fd,
			  const struct msghdr *h, int flags);

static ssize_t note(const struct sk_os *os, int fd, const struct msghdr *h,
		    int flags)
{
	const struct sk_msg *msg = h->msg_iov->iov_base;

	/* Before whoever gets it goes on. */
	order->seq[atomic_fetch_add(&order->n, 1) % (4 * ALL)] = msg->seq;
	return send_on(os, fd, h, flags);
}

static unsigned answers_before_mine(void)
{
	for (unsigned i = 0; i < atomic_load(&order->n); i++)
		if (order->seq[i] == MINE)
			return i;
	CHECK(false, "it was not answered");
	return 0;
}

/* Where the agent stops, and what it waits for. */
struct pause {
	int arrived[2], go[2];
};
static struct pause held;

static void start(struct whole *w)
{
	CHECK(!pipe(held.arrived) && !pipe(held.go), "pipe");
	order = mmap(NULL, sizeof(*order), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(order != MAP_FAILED, "mmap");
	whole_init(w);
	send_on = w->fault->os.sendmsg;
	w->fault->os.sendmsg = note;
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
}

/* ---- who asks for much ---- */

struct crowd {
	pid_t pid;
	int said[2], go[2];
	bool settles;		/* it has been heard before it says so */
};

static void say_and_wait(const struct crowd *c)
{
	char byte = 0;

	CHECK(write(c->said[1], &byte, 1) == 1 && read(c->go[0], &byte, 1) == 1,
	      "a pipe");
}

static void hear(const struct crowd *c)
{
	char byte;

	CHECK(read(c->said[0], &byte, 1) == 1, "the crowd ended");
}

static void go(const struct crowd *c)
{
	CHECK(write(c->go[1], "", 1) == 1, "a pipe");
}

/* Of one connection, messages are heard in order. */
static void be_heard(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_STATUS };

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

static void be_crowd(const struct rig *rig, const struct crowd *c,
		     void (*make)(struct sk_msg *msg, int i), int want)
{
	int socks[CONNECTIONS];

	for (int i = 0; i < CONNECTIONS; i++)
		socks[i] = rig_connect(rig);
	say_and_wait(c);
	for (int i = 0; i < ALL; i++) {
		struct sk_msg msg = { .seq = (uint32_t)i };

		make(&msg, i);
		CHECK(sk_channel_send(sk_os_linux(), socks[i % CONNECTIONS],
				      &msg, NULL, 0) == 0, "send %d", i);
	}
	for (int i = 0; i < CONNECTIONS && c->settles; i++)
		be_heard(socks[i]);
	say_and_wait(c);
	for (int i = 0; i < ALL; i++) {
		struct sk_msg msg;
		int status = rig_reply(socks[i % CONNECTIONS], &msg, NULL,
				       NULL);

		CHECK_STATUS(status, want, &msg);
	}
	_exit(0);
}

/* They are connected when this returns. */
static void crowd_begin(struct crowd *c, const struct rig *rig,
			void (*make)(struct sk_msg *msg, int i), int want)
{
	CHECK(pipe(c->said) == 0 && pipe(c->go) == 0, "pipe");
	c->pid = fork();
	CHECK(c->pid >= 0, "fork");
	if (!c->pid) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		be_crowd(rig, c, make, want);
	}
	hear(c);
}

static void crowd_ask(const struct crowd *c)
{
	go(c);
	hear(c);
}

/* Each was answered, as wanted. */
static void crowd_end(const struct crowd *c)
{
	int status;

	CHECK(waitpid(c->pid, &status, 0) == c->pid && status == 0,
	      "the crowd: %#x", (unsigned)status);
	for (int i = 0; i < 2; i++) {
		close(c->said[i]);
		close(c->go[i]);
	}
}

static void freeze(const struct whole *w)
{
	rig_freeze(&w->rig);
	atomic_store(&order->n, 0);
}

static void thaw(const struct whole *w)
{
	rig_thaw(&w->rig);
}

/* ---- questions ---- */

static void make_status(struct sk_msg *msg, int i)
{
	(void)i;
	msg->type = SK_MSG_STATUS;
}

static void make_wait(struct sk_msg *msg, const char *job, int64_t step,
		      uint32_t until)
{
	struct sk_wire_wait *w = &msg->body.wait;

	msg->type = SK_MSG_WAIT;
	strcpy(w->id.job, job);
	w->id.step = step;
	w->until = until;
	w->timeout_ms = WAIT_MS;
}

/* For each of them the store is looked at. */
static void make_look(struct sk_msg *msg, int i)
{
	make_wait(msg, "busy", 1000 + i, 2);
}

static void make_pin(struct sk_msg *msg, int i)
{
	msg->type = i & CONNECTIONS ? SK_MSG_UNPIN : SK_MSG_PIN;
	strcpy(msg->body.manage.id.job, "other");
	msg->body.manage.id.step = 1;
	msg->body.manage.id.rank = -1;
}

static void make_complete(struct sk_msg *msg, int i)
{
	(void)i;
	make_wait(msg, "busy", 1, 2);
}

static void make_durable(struct sk_msg *msg, int i)
{
	(void)i;
	make_wait(msg, "busy", 1, 3);
}

/* One request, after all of the crowd's, and yet soon. */
static void test_soon(struct whole *w,
		      void (*make)(struct sk_msg *msg, int i), int theirs,
		      struct sk_msg mine, int want)
{
	int sock = rig_connect(&w->rig), status;
	struct crowd c = { .settles = false };

	crowd_begin(&c, &w->rig, make, theirs);
	freeze(w);
	crowd_ask(&c);
	mine.seq = MINE;
	CHECK(sk_channel_send(sk_os_linux(), sock, &mine, NULL, 0) == 0,
	      "send");
	thaw(w);
	status = rig_reply(sock, &mine, NULL, NULL);
	CHECK_STATUS(status, want, &mine);
	go(&c);
	crowd_end(&c);
	CHECK(answers_before_mine() < SOON, "%u of %d came first",
	      answers_before_mine(), ALL);
	close(sock);
}

static void test_messages(struct whole *w)
{
	struct sk_msg mine = { 0 };

	make_status(&mine, 0);
	test_soon(w, make_status, 0, mine, 0);
}

static void test_looks(struct whole *w)
{
	struct sk_msg mine = { 0 };

	make_wait(&mine, "other", 1000, 2);
	test_soon(w, make_look, -ENOENT, mine, -ENOENT);
}

/* ---- many changes of the store ---- */

static void hold(void *ctx)
{
	const struct pause *p = ctx;
	char c;

	CHECK(write(p->arrived[1], "", 1) == 1 &&
	      read(p->go[0], &c, 1) == 1, "a pipe");
}

static void make_durable_step(struct rank *r)
{
	rank_snapshot(r, 1);
	CHECK_STATUS(manage(r->sock, SK_MSG_FLUSH, r->job, 1, 0, &r->msg), 0,
		     &r->msg);
	CHECK_STATUS(rank_wait(r, 1, 3, WAIT_MS), 0, &r->msg);
}

/* The agent stands still in the first change of the store that follows. */
static void hold_changes(struct whole *w)
{
	sk_fault_os_forget(w->fault);
	sk_fault_os_meddle(w->fault, SK_FAULT_FSYNC, 1, hold, &held);
}

static void await_held(void)
{
	char byte;

	CHECK(read(held.arrived[0], &byte, 1) == 1, "nobody pins");
}

static void let_go(void)
{
	CHECK(write(held.go[1], "", 1) == 1, "a pipe");
}

/* The store is being changed, and all of the crowd's changes wait for that, when
 * somebody wants it looked at. */
static void test_changes(struct whole *w, struct rank *r)
{
	struct crowd c = { .settles = true };
	struct sk_msg mine = { .seq = MINE };
	int sock = rig_connect(&w->rig);

	make_durable_step(r);
	crowd_begin(&c, &w->rig, make_pin, 0);
	hold_changes(w);
	crowd_ask(&c);
	await_held();
	atomic_store(&order->n, 0);
	make_wait(&mine, "other", 1000, 2);
	CHECK(sk_channel_send(sk_os_linux(), sock, &mine, NULL, 0) == 0,
	      "send");
	be_heard(rig_connect(&w->rig));
	let_go();
	CHECK_STATUS(rig_reply(sock, &mine, NULL, NULL), -ENOENT, &mine);
	go(&c);
	crowd_end(&c);
	CHECK(answers_before_mine() < SOON, "%u of %d changes came first",
	      answers_before_mine(), ALL);
	close(sock);
}

/* As many looks as a crowd wants, one after the other: calls that it took. */
static uint64_t look_often(struct whole *w, int sock)
{
	uint64_t calls = sk_fault_os_calls(w->fault, SK_FAULT_ANY);

	for (int i = 0; i < ALL; i++) {
		struct sk_msg msg = { 0 };

		make_wait(&msg, "other", 2000 + i, 2);
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL),
			     -ENOENT, &msg);
	}
	return sk_fault_os_calls(w->fault, SK_FAULT_ANY) - calls;
}

/* Whoever wanted looks is killed before any of them began. */
static void test_given_up(struct whole *w)
{
	struct sk_msg pin = { 0 };
	struct crowd c = { .settles = true };
	int sock = rig_connect(&w->rig), status;
	double clients = stat_value(sock, "shardkeep_clients");
	uint64_t before, calls;

	before = look_often(w, sock);
	crowd_begin(&c, &w->rig, make_look, -ENOENT);
	hold_changes(w);
	make_pin(&pin, 0);
	CHECK(sk_channel_send(sk_os_linux(), sock, &pin, NULL, 0) == 0,
	      "send");
	await_held();
	crowd_ask(&c);
	CHECK(kill(c.pid, SIGKILL) == 0 &&
	      waitpid(c.pid, &status, 0) == c.pid, "kill");
	status = rig_connect(&w->rig);
	AWAIT(stat_value(status, "shardkeep_clients") <= clients + 1,
	      "the crowd is still there");
	let_go();
	CHECK_STATUS(rig_reply(sock, &pin, NULL, NULL), 0, &pin);
	calls = look_often(w, sock);
	CHECK(calls < before + before / 8, "%llu calls, %llu before",
	      (unsigned long long)calls, (unsigned long long)before);
	close(status);
	close(sock);
}

/* ---- many that wait ---- */

static void rank_begin(struct rank *r, const struct whole *w, const char *job,
		       int32_t rank, int32_t world)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = job, .rank = rank, .world = world, .rows = 1,
		.run = rank ? r[-1].run : 0,
		.run_id = rank ? r[-1].run_id : 0,
		.flush_every = NOT_FLUSHED }), 0, &r->msg);
}

/* All of them hear of what they wait for, and what others do meanwhile is
 * served. */
static void test_crowd_waits(struct whole *w, struct rank *ranks)
{
	struct crowd c = { .settles = false };

	rank_snapshot(&ranks[0], 1);
	crowd_begin(&c, &w->rig, make_complete, 0);
	crowd_ask(&c);
	CHECK_STATUS(rank_wait(&ranks[0], 1, 1, WAIT_MS), 0, &ranks[0].msg);
	rank_snapshot(&ranks[1], 1);
	go(&c);
	crowd_end(&c);
}

/* Those who wait when the agent is to end are told what came of it. */
static void test_crowd_at_the_end(struct whole *w, struct rank *ranks)
{
	/* What is asked later than that may find nobody. */
	struct crowd c = { .settles = true };

	crowd_begin(&c, &w->rig, make_durable, 0);
	crowd_ask(&c);
	go(&c);
	for (int i = 0; i < 2; i++)
		CHECK_STATUS(rank_wait(&ranks[i], 1, 2, WAIT_MS), 0,
			     &ranks[i].msg);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	/* By no clock, by which its time to flush could be over. */
	CHECK(rig_wait(&w->rig) == 0, "%s", whole_log(w));
	crowd_end(&c);
}

int main(void)
{
	struct rank ranks[2], other;
	struct whole w;

	start(&w);
	rank_begin(&ranks[0], &w, "busy", 0, 2);
	rank_begin(&ranks[1], &w, "busy", 1, 2);
	rank_begin(&other, &w, "other", 0, 1);
	test_messages(&w);
	test_looks(&w);
	test_changes(&w, &other);
	test_given_up(&w);
	test_crowd_waits(&w, ranks);
	test_crowd_at_the_end(&w, ranks);
	rank_close(&ranks[0]);
	rank_close(&ranks[1]);
	rank_close(&other);
	whole_remove(&w);
	return 0;
}
