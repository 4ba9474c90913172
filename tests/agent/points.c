/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every point at which an agent with a keeper can be killed: before each of
 * its calls of the system, from its birth over a job's snapshots and their
 * flushes to its end, and again while it takes up what outlived the one
 * before. After each, what a rank was told is so. The same of an agent that
 * takes another one's place, from its first call to when it serves.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/outlive.h"
#include "keeper/parent.h"
#include "server.h"
#include "support/fault-os.h"
#include "support/files.h"
#include "takeover.h"

#define STEPS 3
#define POINTS_MOST 5000

/* ---- enumeration ---- */

/* Nobody is killed any more. True: somebody was. */
static bool disarm(struct scene *s)
{
	struct sk_msg msg;
	int sock;

	__atomic_store_n(&s->fault->rule_count, 0, __ATOMIC_SEQ_CST);
	/* Who was just about to has been met by the second answer. */
	for (int i = 0; i < 2; i++) {
		sock = rig_try_connect(&s->rig, &msg);
		if (sock >= 0)
			close(sock);
	}
	await_death(s->fault);
	return sk_fault_os_hits(s->fault);
}

/* Killed before its @nth call. True: there was one. */
static bool killed_at(struct scene *s, uint64_t nth)
{
	struct rank r;
	bool hit;

	sk_fault_os_forget(s->fault);
	sk_fault_os_meddle(s->fault, SK_FAULT_ANY, nth, die, NULL);
	begin(s);
	story(s, &r, STEPS);
	hit = disarm(s);
	check_step(s, &r, STEPS);
	rank_close(&r);
	end(s);
	return hit;
}

/* Killed when all is sealed, and again before the @nth call after that. */
static bool killed_twice(struct scene *s, uint64_t nth)
{
	struct sk_msg msg;
	struct rank r;
	int sock;
	bool hit;

	sk_fault_os_forget(s->fault);
	begin(s);
	story(s, &r, STEPS);
	sock = rig_try_connect(&s->rig, &msg);
	CHECK(sock >= 0, "connect");
	close(sock);
	sk_fault_os_meddle(s->fault, SK_FAULT_ANY,
			   sk_fault_os_calls(s->fault, SK_FAULT_ANY) + nth,
			   die, NULL);
	(void)kill((pid_t)msg.body.hello_reply.pid, SIGKILL);
	open_rank(s, &r);
	hit = disarm(s);
	check_step(s, &r, STEPS);
	rank_close(&r);
	end(s);
	return hit;
}

/* ---- another agent in its place ---- */

/* As shardkeepd --takeover, in whichever process that becomes. */
static int take_place(struct scene *s)
{
	const struct sk_os *os = &s->over->os;
	struct standby standby = STANDBY_NULL;
	struct sk_err err = { "" };
	struct log log;
	struct parent p = { .os = os, .log = &log, .ready_fd = -1,
			    .standby = &standby, .was_ready = true };
	struct birth birth;
	struct endpoint e;
	int r;

	/* Nobody's child any more where this test is killed. */
	s->options.idle_exit_s = 30;
	log_open(&log, sk_os_linux(), LOG_LEVEL_ERROR);
	r = takeover(os, NULL, s->rig.socket, &p.kept, &standby, &err);
	if (r == 0)
		r = parent_run(&p);
	if (r != PARENT_CHILD)
		return r != 0;
	birth = (struct birth){ .keeper = p.keeper, .kept = p.kept,
				.standby = STANDBY_NULL };
	r = endpoint_adopt(os, s->rig.socket,
			   kept_take(&birth.kept, KEPT_LOCK),
			   kept_take(&birth.kept, KEPT_LISTENER), &e, &err);
	return r || agent_run(os, &s->options, &e, &birth);
}

static void end_whoever_serves(struct scene *s)
{
	CHECK(kill(serving(s), SIGTERM) == 0, "kill");
	/* All that this began are our children, once nobody else's. */
	while (waitpid(-1, NULL, 0) > 0)
		continue;
	CHECK(errno == ECHILD, "waitpid: %s", strerror(errno));
	s->rig.agent = 0;
	rig_remove(&s->rig);
}

/* Whoever takes the place, a standby, a keeper or an agent by then, is killed
 * before the @nth call that they make. True: there was one. */
static bool killed_over(struct scene *s, uint64_t nth)
{
	pid_t taker, before;
	struct rank r;
	bool hit;

	sk_fault_os_forget(s->fault);
	sk_fault_os_forget(s->over);
	sk_fault_os_meddle(s->over, SK_FAULT_ANY, nth, die, NULL);
	begin(s);
	story(s, &r, STEPS);
	before = serving(s);
	taker = fork();
	CHECK(taker >= 0, "fork");
	if (!taker)
		_exit(take_place(s));
	AWAIT(sk_fault_os_hits(s->over) ||
	      (serving(s) > 0 && serving(s) != before), "it hangs");
	__atomic_store_n(&s->over->rule_count, 0, __ATOMIC_SEQ_CST);
	await_death(s->over);
	AWAIT(serving(s) > 0, "nobody serves");
	hit = sk_fault_os_hits(s->over);
	check_step(s, &r, STEPS);
	rank_close(&r);
	end_whoever_serves(s);
	return hit;
}

static void enumerate(struct scene *s, const char *what, uint64_t stride,
		      bool (*point)(struct scene *s, uint64_t nth))
{
	uint64_t n = 1, tried = 0, missed = 0;

	/* Threads take turns differently: the end is where several in a row
	 * are beyond it. */
	for (; missed < 3 && n < POINTS_MOST; n += stride, tried++)
		missed = point(s, n) ? 0 : missed + 1;
	CHECK(n < POINTS_MOST, "%s does not end", what);
	printf("%s: %llu of %llu points\n", what, (unsigned long long)tried,
	       (unsigned long long)n);
}

/* ---- who does not come back ---- */

static double used(int sock)
{
	return stat_value(sock, "shardkeep_memory_used_bytes");
}

static void pass(struct scene *s, int sock, uint64_t seconds)
{
	sk_fault_os_advance(s->fault, seconds * UINT64_C(1000000000));
	for (int i = 0; i < 30; i++)
		(void)used(sock);
}

/* A rank is awaited for two minutes: then its free slot is given back, and
 * what it sealed stays. */
static void test_away(struct scene *s)
{
	struct rank r = { .sock = -1 };
	struct sk_msg msg;
	double before;
	int sock;

	sk_fault_os_forget(s->fault);
	sk_fault_os_clock(s->fault, UINT64_C(1000000000000),
			  UINT64_C(1700000000000000000));
	begin(s);
	open_rank(s, &r);
	take(s, &r, 1);
	sock = rig_try_connect(&s->rig, &msg);
	CHECK(sock >= 0, "connect");
	before = used(sock);
	close(sock);
	CHECK(kill((pid_t)msg.body.hello_reply.pid, SIGKILL) == 0, "kill");
	/* Gone with its agent: nobody sees it go. */
	AWAIT((sock = rig_try_connect(&s->rig, &msg)) >= 0, "connect");
	/* It is awaited from when it is known. */
	CHECK(snapshot_flags(sock, OUTLIVE_JOB, 1), "step 1");
	rank_close(&r);
	pass(s, sock, 119);
	CHECK(used(sock) == before, "too early");
	pass(s, sock, 2);
	AWAIT(used(sock) == before / 2, "it is kept");
	CHECK(snapshot_flags(sock, OUTLIVE_JOB, 1) & SK_SNAP_RESIDENT, "step 1");
	close(sock);
	end(s);
}

/* ---- who has sealed nothing ---- */

static void enter(struct scene *s, struct rank *r, int32_t rank, uint64_t run,
		  uint64_t id)
{
	const struct rank_options o = { .job = OUTLIVE_JOB, .rank = rank,
					.world = 2, .run = run, .run_id = id };

	*r = (struct rank){ .sock = -1 };
	CHECK_STATUS(rank_open(r, &s->rig, &o), 0, &r->msg);
}

/* One rank was told the run's number, the other one had no time to ask: they
 * are of one run. Once a rank is gone, who comes is of the next. */
static void test_told(struct scene *s)
{
	struct rank told, late, back, next;
	pid_t first;

	sk_fault_os_forget(s->fault);
	begin(s);
	enter(s, &told, 0, 0, 0);
	first = serving(s);
	CHECK(first > 0 && kill(first, SIGKILL) == 0, "kill");
	AWAIT(serving(s) > 0 && serving(s) != first, "nobody serves");
	enter(s, &late, 1, 0, 0);
	CHECK(late.run == told.run && late.run_id == told.run_id,
	      "strangers: run %d and %d", (int)late.run, (int)told.run);
	enter(s, &back, 0, told.run, told.run_id);
	rank_close(&told);
	rank_close(&back);
	AWAIT(stat_value(late.sock, "shardkeep_rank_deaths_total") == 1,
	      "its end is not seen");
	first = serving(s);
	CHECK(first > 0 && kill(first, SIGKILL) == 0, "kill");
	AWAIT(serving(s) > 0 && serving(s) != first, "nobody serves");
	rank_close(&late);
	enter(s, &next, 0, 0, 0);
	CHECK(next.run_id != told.run_id, "of a run that has ended");
	rank_close(&next);
	end(s);
}

int main(int argc, char **argv)
{
	uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	struct scene s = { 0 };

	CHECK(stride, "a stride of 1 or more");
	s.fault = mmap(NULL, 2 * sizeof(*s.fault), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(s.fault != MAP_FAILED, "mmap");
	s.over = s.fault + 1;
	sk_fault_os_init(s.fault, sk_os_linux());
	sk_fault_os_init(s.over, sk_os_linux());
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl");
	enumerate(&s, "a life", stride, killed_at);
	enumerate(&s, "what outlived it", stride, killed_twice);
	enumerate(&s, "its place", stride, killed_over);
	test_away(&s);
	test_told(&s);
	return 0;
}
