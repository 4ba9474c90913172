/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that nobody does anything with, beside one that takes snapshots: what
 * the agent looks at is counted, with few of them and with many. And what such
 * a job waits for, of which nothing tells it, reaches it all the same while
 * another one goes on.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/whole.h"
#include "fault-alloc.h"

#define FEW 10
#define MANY 200
#define SNAPSHOTS 20
#define NEVER UINT32_MAX
#define MS UINT64_C(1000000)
#define ROUNDS_MOST 200
#define FAILS 6			/* allocations */

static void begin(struct whole *w)
{
	sk_fault_alloc_share();
	whole_init(w);
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
}

static void end(struct whole *w)
{
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
}

static void join(struct whole *w, struct rank *r, const char *job,
		 uint32_t flush_every)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = job, .world = 1, .rows = 1, .slots = 3,
		.flush_every = flush_every }), 0, &r->msg);
}

/* ---- what a snapshot costs beside them ---- */

/* Each has something in memory, and on disk, for its rank has gone. */
static void make_idle(struct whole *w, int n)
{
	char name[16];
	struct rank r;

	for (int i = 0; i < n; i++) {
		(void)snprintf(name, sizeof(name), "idle-%d", i);
		join(w, &r, name, NEVER);
		rank_snapshot(&r, 1);
		rank_close(&r);
	}
}

static double visits_of(struct rank *r, int64_t from, uint32_t until)
{
	struct rig_since since;

	AWAIT(rig_is_quiet(r->sock), "something goes on");
	since = rig_since(r->sock);
	for (int64_t step = from; step < from + SNAPSHOTS; step++) {
		rank_snapshot(r, step);
		CHECK_STATUS(rank_wait(r, step, until, WAIT_MS), 0, &r->msg);
	}
	AWAIT(rig_is_quiet(r->sock), "something goes on");
	return rig_visits(r->sock, since);
}

/* In memory; and on disk. */
static void count(int idle, double ret[2])
{
	struct rank busy, writes;
	struct whole w;

	begin(&w);
	make_idle(&w, idle);
	join(&w, &busy, "busy", NEVER);
	join(&w, &writes, "writes", 1);
	AWAIT(stat_value(busy.sock, "shardkeep_snapshots_durable_total") ==
	      idle, "the others are not written");
	rank_snapshot(&busy, 1);
	rank_snapshot(&writes, 1);
	CHECK_STATUS(rank_wait(&writes, 1, 3, WAIT_MS), 0, &writes.msg);
	ret[0] = visits_of(&busy, 2, 2);
	ret[1] = visits_of(&writes, 2, 3);
	rank_close(&busy);
	rank_close(&writes);
	end(&w);
}

static void test_idle_jobs_cost_nothing(void)
{
	double few[2], many[2];

	count(FEW, few);
	count(MANY, many);
	/* Requests and replies may meet in one turn, or not. But each of the
	 * others is not looked at with every second snapshot. */
	for (int i = 0; i < 2; i++)
		CHECK(few[i] > 0 && many[i] < few[i] + (MANY - FEW) *
					      SNAPSHOTS / 2,
		      "%d snapshots, until %d: %g visits beside %d jobs, %g "
		      "beside %d", SNAPSHOTS, 2 + i, few[i], FEW, many[i],
		      MANY);
}

/* ---- what jobs wait for without a word of it ---- */

static double durable(int sock)
{
	return stat_value(sock, "shardkeep_snapshots_durable_total");
}

/* Another job goes on, and time with it; asking for the snapshot itself might
 * be what it waits for. */
static double durable_beside(struct whole *w, struct rank *other,
			     int64_t *step)
{
	sk_fault_os_advance(w->fault, 300 * MS);
	rank_snapshot(other, ++*step);
	return durable(other->sock);
}

/* A disk that failed is there again: what could not be written is, once the
 * time has come, though nothing else happens to its job. */
static void test_retry_beside_others(void)
{
	struct rank r, later, other;
	int64_t step = 0;
	struct whole w;

	begin(&w);
	join(&w, &r, "failed", 1);
	join(&w, &later, "later", 1);
	join(&w, &other, "other", NEVER);
	sk_fault_os_fail(w.fault, SK_FAULT_RENAMEAT, 1, SK_FAULT_ALWAYS, EIO);
	rank_snapshot(&r, 1);
	AWAIT(stat_value(other.sock, "shardkeep_flush_errors_total") == 1,
	      "it does not fail");
	/* The time of this one comes after that of the first. */
	sk_fault_os_advance(w.fault, 500 * MS);
	rank_snapshot(&later, 1);
	AWAIT(stat_value(other.sock, "shardkeep_flush_errors_total") == 2,
	      "it does not fail");
	sk_fault_os_forget(w.fault);
	AWAIT(durable_beside(&w, &other, &step) == 2, "not written: %s",
	      whole_log(&w));
	rank_close(&r);
	rank_close(&later);
	rank_close(&other);
	end(&w);
}

/* Not with each of another job's, which are written; but when somebody asks. */
static void test_retry_waits_for_its_time(void)
{
	struct rank r, other;
	struct whole w;

	begin(&w);
	join(&w, &r, "failed", 1);
	join(&w, &other, "other", 1);
	sk_fault_os_fail(w.fault, SK_FAULT_RENAMEAT, 1, SK_FAULT_ALWAYS, EIO);
	rank_snapshot(&r, 1);
	AWAIT(stat_value(other.sock, "shardkeep_flush_errors_total") == 1,
	      "it does not fail");
	sk_fault_os_forget(w.fault);
	for (int64_t step = 1; step < 10; step++) {
		rank_snapshot(&other, step);
		CHECK_STATUS(rank_wait(&other, step, 3, WAIT_MS), 0,
			     &other.msg);
	}
	CHECK(!(snapshot_flags(other.sock, "failed", 1) & SK_SNAP_DURABLE),
	      "it is written before its time");
	/* Somebody asks for it. */
	CHECK_STATUS(manage(other.sock, SK_MSG_FLUSH, "failed", 1, 0,
			    &other.msg), 0, &other.msg);
	AWAIT(snapshot_flags(other.sock, "failed", 1) & SK_SNAP_DURABLE,
	      "it is not written: %s", whole_log(&w));
	rank_close(&r);
	rank_close(&other);
	end(&w);
}

/* Nobody who lists is told that it is not complete, because that is not known
 * yet: he would go on with an older one. */
static void check_listed(struct whole *w, const struct rank *r)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 }, .what = SK_LIST_SNAPSHOTS,
		.flags = SK_LIST_KNOWN, .limit = 1 } };
	int sock = rig_connect(&w->rig), fds[SK_MSG_FDS], n = 0;
	struct sk_wire_snapshot s;

	strcpy(msg.body.list.id.job, r->job);
	rig_send(sock, &msg);
	rig_turns(r->sock, 10);
	/* Then there is memory again. */
	sk_fault_os_advance(w->fault, 1000 * MS);
	CHECK_STATUS(rig_reply(sock, &msg, fds, &n), 0, &msg);
	CHECK(n == 1 && msg.body.list_reply.n == 1 &&
	      pread(fds[0], &s, sizeof(s), 0) == sizeof(s), "no list");
	CHECK(s.flags & SK_SNAP_COMPLETE, "%s is said not to be complete",
	      r->job);
	close(fds[0]);
	close(sock);
}

/* Sealed while the @nth allocation fails and some after it, in the same turn
 * too: what could not be told for want of memory is told later, though nothing
 * else happens to the job. Returns whether any failed. */
static bool seal_without(struct whole *w, struct rank *other, int64_t *step,
			 uint64_t nth)
{
	struct sk_msg msg = { .type = SK_MSG_STATUS };
	char name[32];
	struct rank r;
	bool sealed, hit;
	double before;
	int slot;

	(void)snprintf(name, sizeof(name), "short-%d", (int)nth);
	join(w, &r, name, 1);
	slot = rank_slot(&r, 1, 0);
	CHECK(slot >= 0, "no slot");
	rank_fill(&r, slot, 1);
	before = durable(r.sock);
	sk_fault_alloc_next(nth, FAILS);
	sealed = rank_seal(&r, slot, 1) == 0;
	(void)rig_call(r.sock, &msg, NULL, 0, NULL, NULL);
	hit = sk_fault_alloc_hits();
	sk_fault_alloc_next(0, 0);
	if (sealed)
		check_listed(w, &r);
	AWAIT(durable_beside(w, other, step) == before + sealed,
	      "%s is not written: %s", name, whole_log(w));
	rank_close(&r);
	return hit;
}

static void test_undecided_beside_others(void)
{
	struct rank other;
	int64_t step = 0;
	struct whole w;
	uint64_t n = 1;

	begin(&w);
	join(&w, &other, "other", NEVER);
	while (n < ROUNDS_MOST && seal_without(&w, &other, &step, n))
		n++;
	CHECK(n > FAILS, "nothing was failed");
	rank_close(&other);
	end(&w);
}

int main(void)
{
	test_idle_jobs_cost_nothing();
	test_retry_beside_others();
	test_retry_waits_for_its_time();
	test_undecided_beside_others();
	return 0;
}
