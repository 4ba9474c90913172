/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a step is complete is told in the background, and the test holds
 * that: who lists hears so in the time that he has, and is not told of the
 * newest that it is not there; nor is a trainer, by the library.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/whole.h"
#include "shardkeep.h"

#define JOB "untold"
#define TURNS 30
#define SECOND UINT64_C(1000000000)
#define NEVER (1u << 20)
#define HEAVY 1000		/* tensors, of which is not told at once */

struct sk_cat_question;
void __real_sk_cat_question_run(struct sk_cat_question *question);
void __wrap_sk_cat_question_run(struct sk_cat_question *question);

/* Shared with the agent's process. */
struct hold {
	atomic_bool on, met;
};
static struct hold *hold;

void __wrap_sk_cat_question_run(struct sk_cat_question *question)
{
	while (atomic_load(&hold->on)) {
		atomic_store(&hold->met, true);
		usleep(1000);
	}
	__real_sk_cat_question_run(question);
}

static void open_rank(struct whole *w, struct rank *r, unsigned more)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 1, .flush_every = NEVER,
		.slots = 3, .more = more }), 0, &r->msg);
}

static void begin(struct whole *w, struct rank *r)
{
	atomic_store(&hold->on, false);
	atomic_store(&hold->met, false);
	whole_init(w);
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
	open_rank(w, r, 0);
	rank_snapshot(r, 1);
	/* The store has files that are looked at each time. */
	CHECK_STATUS(manage(r->sock, SK_MSG_FLUSH, JOB, 1, 0, &r->msg), 0,
		     &r->msg);
	CHECK_STATUS(rank_wait(r, 1, 3, WAIT_MS), 0, &r->msg);
	rank_close(r);
	/* Of so many it is not told at once. */
	open_rank(w, r, HEAVY);
	atomic_store(&hold->on, true);
	rank_snapshot(r, 2);
	AWAIT(atomic_load(&hold->met), "nobody asks what is complete");
}

static void end(struct whole *w, struct rank *r)
{
	atomic_store(&hold->on, false);
	rank_close(r);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "%s", whole_log(w));
	whole_remove(w);
}

/* ---- the agent ---- */

static int ask(const struct whole *w, uint32_t limit, uint32_t wait_ms)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = JOB, .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS, .limit = limit,
		.wait_ms = wait_ms } };
	int sock = rig_connect(&w->rig);

	rig_send(sock, &msg);
	return sock;
}

static bool is_answered(int sock)
{
	char c;

	return recv(sock, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

static void check_answer(int sock, bool unknown)
{
	int fds[SK_MSG_FDS], n = 0;
	struct sk_msg msg;

	CHECK_STATUS(rig_reply(sock, &msg, fds, &n), 0, &msg);
	CHECK(strstr(msg.body.list_reply.text, "it is still being told "
		     "whether step 2 of job \"" JOB "\" is complete"), "%s",
	      msg.body.list_reply.text);
	/* A list, with a gap; or that he may ask again. */
	CHECK(!msg.body.list_reply.looking == !unknown &&
	      n == !unknown && msg.body.list_reply.unreadable == !unknown,
	      "looking %u, %d lists, %u gaps", msg.body.list_reply.looking, n,
	      msg.body.list_reply.unreadable);
	while (n)
		close(fds[--n]);
	close(sock);
}

/* Who asks for some of the newest would go on with an older one; who asks for
 * all hears that there is a gap. Each in the time that he has, of which the
 * look at the store has its part, and of five seconds. */
static void test_in_time(void)
{
	static const struct {
		uint32_t limit, wait_ms;
		unsigned after_s;
		bool unknown;
	} asks[] = {
		{ 1, 1000, 2, true }, { 1, 60000, 5, true },
		{ 3, 2000, 4, true }, { 0, 1000, 2, false },
		{ 0, 60000, 5, false },
		/* Clients of before, who say no time. */
		{ 1, 0, 5, false }, { 0, 0, 5, false },
	};
	enum { N = sizeof(asks) / sizeof(asks[0]) };
	struct whole w;
	struct rank r;
	int socks[N];
	size_t n;

	begin(&w, &r);
	for (int i = 0; i < N; i++)
		socks[i] = ask(&w, asks[i].limit, asks[i].wait_ms);
	/* The looks are over: this one came after them, to the same user's. */
	free(list_snapshots(r.sock, "another", &n));
	AWAIT(rig_is_quiet(r.sock), "it is not quiet");
	for (unsigned now = 0; now <= 5; now++) {
		for (int i = 0; i < N; i++) {
			if (now < asks[i].after_s)
				CHECK(!is_answered(socks[i]), "%d is answered "
				      "after %u s", i, now);
			if (now != asks[i].after_s)
				continue;
			AWAIT(is_answered(socks[i]), "%d waits", i);
			check_answer(socks[i], asks[i].unknown);
		}
		sk_fault_os_advance(w.fault, SECOND);
		rig_turns(r.sock, TURNS);
	}
	end(&w, &r);
}

/* It was told before: then nothing is unknown. */
static void test_told(void)
{
	int fds[SK_MSG_FDS], n = 0, sock;
	struct sk_wire_snapshot s;
	struct sk_msg msg;
	struct whole w;
	struct rank r;

	begin(&w, &r);
	sock = ask(&w, 1, 60000);
	rig_turns(r.sock, TURNS);
	sk_fault_os_advance(w.fault, 4 * SECOND);
	rig_turns(r.sock, TURNS);
	CHECK(!is_answered(sock), "it has a second yet");
	atomic_store(&hold->on, false);
	CHECK_STATUS(rig_reply(sock, &msg, fds, &n), 0, &msg);
	CHECK(n == 1 && !msg.body.list_reply.looking &&
	      pread(fds[0], &s, sizeof(s), 0) == sizeof(s) &&
	      s.id.step == 2 && s.flags & SK_SNAP_COMPLETE, "no list");
	close(fds[0]);
	close(sock);
	end(&w, &r);
}

/* ---- the library ---- */

/* The handle's time is over before the agent's five seconds are. */
static void test_library(uint32_t timeout_ms)
{
	char *json = NULL;
	struct sk *sk = NULL;
	struct whole w;
	struct rank r;
	int status;

	begin(&w, &r);
	/* A client goes by the clock. */
	w.fault->virtual_clock = false;
	CHECK(sk_open(&(struct sk_options){ .socket = w.rig.socket,
		.timeout_ms = timeout_ms }, &sk) == 0, "%s", sk_error());
	status = sk_inspect(sk, JOB, SK_LATEST, 0, 0, &json);
	CHECK(status == -ETIMEDOUT && strstr(sk_error(), "still being told "
	      "whether step 2"), "%d: %s", status, sk_error());
	atomic_store(&hold->on, false);
	sk_close(sk);
	end(&w, &r);
}

int main(void)
{
	hold = mmap(NULL, sizeof(*hold), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(hold != MAP_FAILED, "mmap");
	test_told();
	test_in_time();
	test_library(1500);
	return 0;
}
