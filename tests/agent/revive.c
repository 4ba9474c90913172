/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent that takes up what outlived another, with each allocation failed,
 * and each call of the system: it loses what it cannot take up, and says so,
 * or ends and another one takes it up; none is killed by it, and what is told
 * to be there is there.
 *
 * $SK_EVERY: only every so many.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/outlive.h"
#include "base/util.h"
#include "fault-alloc.h"

#define STEPS 2
#define ROUNDS_MOST 3000

/* Shared with the agents. */
struct lives {
	uint64_t first, times;	/* allocations of the second that fail */
	uint64_t hits;		/* that did */
	unsigned begun, ended;
};

static void begins(void *ctx)
{
	struct lives *l = ctx;

	/* The first one's are not counted: it is killed, maybe in one. */
	if (l->begun++ == 1)
		sk_fault_alloc_fail(l->first, l->times);
}

static void has_ended(void *ctx)
{
	struct lives *l = ctx;

	l->ended++;
}

/* Two steps are sealed, and the agent is killed. */
static void outlive(struct scene *s, struct lives *l, struct rank *r)
{
	l->begun = l->ended = 0;
	sk_fault_os_forget(s->fault);
	begin(s);
	story(s, r, STEPS);
	CHECK(stat_value(r->sock, "shardkeep_snapshots") == STEPS, "steps");
}

/* One connection may meet what fails. */
static int connect_to(const struct scene *s)
{
	struct sk_msg msg;
	int sock;

	AWAIT((sock = rig_try_connect(&s->rig, &msg)) >= 0, "nobody answers");
	return sock;
}

/* Of what was met without memory it is told a second later. */
static void let_decide(int sock)
{
	for (int64_t step = 1; step <= STEPS; step++)
		AWAIT(!snapshot_flags(sock, OUTLIVE_JOB, step) ||
		      snapshot_flags(sock, OUTLIVE_JOB, step) &
		      SK_SNAP_COMPLETE, "step %d is undecided", (int)step);
}

/* What it has taken up is there, and the rest it has told of. */
static void check_told(struct scene *s, int sock, const struct rank *r)
{
	double taken, lost;
	unsigned n = 0;

	let_decide(sock);
	for (int64_t step = 1; step <= STEPS; step++) {
		if (!(snapshot_flags(sock, OUTLIVE_JOB, step) &
		      SK_SNAP_COMPLETE))
			continue;
		check_step(s, r, step);
		n++;
	}
	/* Who lists has waited until all is read. */
	taken = stat_value(sock, "shardkeep_images_revived_total");
	lost = stat_value(sock, "shardkeep_images_not_revived_total");
	CHECK(n == taken && (n + lost == STEPS || !n), "%u are there; %.0f "
	      "outlived it, %.0f did not", n, taken, lost);
}

/* What was faulted in is so still: nobody waits for it. */
static void test_whole(struct scene *s, struct lives *l)
{
	struct rank r;
	pid_t first;
	int sock;

	outlive(s, l, &r);
	first = serving(s);
	CHECK(kill(first, SIGKILL) == 0, "kill");
	AWAIT(serving(s) > 0 && serving(s) != first, "nobody serves");
	sock = connect_to(s);
	check_told(s, sock, &r);
	CHECK(stat_value(sock, "shardkeep_images_revived_total") == STEPS,
	      "they are lost");
	close(sock);
	open_rank(s, &r);
	r.msg = (struct sk_msg){ .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .job = OUTLIVE_JOB, .run = r.run },
		.timeout_ms = WAIT_MS } };
	CHECK_STATUS(rig_call(r.sock, &r.msg, NULL, 0, NULL, NULL), 0, &r.msg);
	rank_close(&r);
	end(s);
}

/* Until it is read what there was; that may fail as well. */
static void let_read(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = OUTLIVE_JOB, .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };
	int fds[SK_MSG_FDS], n = 0;

	(void)rig_call(sock, &msg, NULL, 0, fds, &n);
	while (n)
		close(fds[--n]);
}

/* How many of its calls failed. */
static uint64_t revive(struct scene *s, struct lives *l, struct rank *r)
{
	pid_t first = serving(s), now;
	uint64_t hits;
	int sock;

	CHECK(first > 0 && kill(first, SIGKILL) == 0, "kill");
	AWAIT((now = serving(s)) > 0 && now != first, "nobody serves");
	sock = connect_to(s);
	let_read(sock);
	close(sock);
	hits = sk_fault_os_hits(s->fault);
	sk_fault_os_forget(s->fault);
	/* Of memory it has by now what it needs. */
	l->hits = sk_fault_alloc_hits();
	sk_fault_alloc_next(0, 0);
	sock = connect_to(s);
	check_told(s, sock, r);
	close(sock);
	rank_close(r);
	/* Its end may still tell of what it met. */
	CHECK(kill(s->rig.agent, SIGTERM) == 0, "kill");
	CHECK(rig_wait(&s->rig) <= 1, "its end");
	CHECK(l->begun == l->ended + 1 && l->begun <= 3, "%u lives, %u ends",
	      l->begun, l->ended);
	rig_remove(&s->rig);
	return hits;
}

static void without_memory(struct scene *s, struct lives *l, uint64_t times,
			   uint64_t stride)
{
	uint64_t hits = 1;

	for (uint64_t n = 1; hits && n < ROUNDS_MOST; n += stride) {
		struct rank r;

		l->first = n;
		l->times = times;
		outlive(s, l, &r);
		(void)revive(s, l, &r);
		hits = l->hits;
	}
	CHECK(!hits, "there is no end");
	l->first = 0;
}

static void failing(struct scene *s, struct lives *l, enum sk_fault_op op,
		    int error, uint64_t stride)
{
	uint64_t hits = 1;

	for (uint64_t n = 1; hits && n < ROUNDS_MOST; n += stride) {
		struct rank r;

		outlive(s, l, &r);
		sk_fault_os_fail(s->fault, op,
				 sk_fault_os_calls(s->fault, op) + n, 1,
				 error);
		hits = revive(s, l, &r);
	}
	CHECK(!hits, "there is no end");
}

int main(void)
{
	static const struct {
		enum sk_fault_op op;
		int error;
	} calls[] = {
		{ SK_FAULT_MMAP, ENOMEM }, { SK_FAULT_PREAD, EIO },
		{ SK_FAULT_FSTAT, EIO }, { SK_FAULT_FCNTL, EMFILE },
		{ SK_FAULT_MEMFD_CREATE, EMFILE },
	};
	uint64_t stride = sk_fault_every();
	struct lives *l = mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct scene s = { .before = begins, .after = has_ended, .ctx = l,
			   .flush_every = 1u << 20 };

	s.fault = mmap(NULL, sizeof(*s.fault), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(l != MAP_FAILED && s.fault != MAP_FAILED, "mmap");
	sk_fault_os_init(s.fault, sk_os_linux());
	sk_fault_alloc_share();
	test_whole(&s, l);
	without_memory(&s, l, 1, stride);
	without_memory(&s, l, 20, 7 * stride);
	for (size_t i = 0; i < SK_ARRAY_SIZE(calls); i++)
		failing(&s, l, calls[i].op, calls[i].error, stride);
	return 0;
}
