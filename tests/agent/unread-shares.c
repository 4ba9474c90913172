/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an agent has taken up and not read yet, beside budgets and other users:
 * it is charged as it will be, to whom it belongs, and nobody is refused for
 * it, or has it make room, before it is known what of it may go.
 */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/reading.h"
#include "base/size.h"

#define JOB "kept"
#define NOBODY 65534
#define SOMEBODY 65533		/* beside him */
#define STEPS 4
#define TENSORS 400		/* a header of them is a long one */
#define TURNS 30
#define CONNECTIONS "shardkeep_connections_total"
#define NEVER (1u << 20)
#define SHARE (1u << 20)	/* of memory, of one user */

/* A child that does not outlive the test. */
static void become(uid_t uid)
{
	CHECK(!uid || (setgroups(0, NULL) == 0 && setgid(uid) == 0 &&
		       setuid(uid) == 0), "setuid");
	CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
}

/* What the next agents give each user: shared with them. */
struct shares {
	uint64_t memory, layouts;
};
static struct shares *share;

static void give_shares(void *ctx)
{
	struct options *o = ctx;

	o->user_memory = share->memory;
	o->user_layouts = share->layouts;
}

/* A job of one rank has two steps here. It is in a process of its own, which
 * lives until it is killed. */
static pid_t keep_job(struct scene *s, uid_t uid, int64_t rows)
{
	int ready[2];
	pid_t pid;
	char c;

	CHECK(pipe(ready) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		struct rank r;

		become(uid);
		CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
			.job = JOB, .world = 1, .rows = rows, .more = TENSORS,
			.slots = STEPS, .flush_every = NEVER }), 0, &r.msg);
		for (int64_t step = 1; step <= STEPS; step++)
			rank_snapshot(&r, step);
		CHECK(write(ready[1], "", 1) == 1, "write");
		for (;;)
			(void)pause();
	}
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1, "it keeps nothing");
	close(ready[0]);
	return pid;
}

static void end_keeping(pid_t pid)
{
	int status;

	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid,
	      "kill");
}

/* A job of that user, of two slots of so many KiB, comes in and leaves, as a
 * child. */
static pid_t enter_as(const struct scene *s, uid_t uid, const char *job,
		      int64_t kib, int status, const char *says)
{
	pid_t pid = fork();
	struct rank r;

	CHECK(pid >= 0, "fork");
	if (pid)
		return pid;
	become(uid);
	CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
		.job = job, .world = 1, .rows = kib / 4,
		.flush_every = NEVER }), status, &r.msg);
	CHECK(status == 0 || strstr(rig_why(&r.msg), says), "%s",
	      rig_why(&r.msg));
	if (status == 0)
		CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	_exit(0);
}

/* The next agent serves, and has read nothing of what this one has. */
static int restart(struct scene *s)
{
	int sock = rig_connect(&s->rig);
	double used = stat_value(sock, "shardkeep_memory_used_bytes");

	close(sock);
	reading_let(0);
	(void)reading_kill(s, serving(s));
	sock = rig_connect(&s->rig);
	AWAIT(reading_waits(), "nothing is read");
	CHECK(stat_value(sock, "shardkeep_memory_used_bytes") == used,
	      "what is not read is charged to nobody");
	return sock;
}

/* 0: as much as there is. */
static void begin_with(struct scene *s, uint64_t memory, uint64_t layouts)
{
	share->memory = memory;
	share->layouts = layouts;
	reading_let(-1);
	begin(s);
}

/* ---- shares ---- */

/* Who has room beside it is let in, whoever it is, and its own user after the
 * image that is read just then. */
static void let_in(struct scene *s, int sock, int may_read)
{
	double had = stat_value(sock, CONNECTIONS);
	pid_t pid = enter_as(s, NOBODY, "small", 32, 0, "");

	AWAIT(stat_value(sock, CONNECTIONS) > had, "it does not come");
	rig_turns(sock, TURNS);
	reading_let(may_read);
	child_check(pid);
	child_check(enter_as(s, SOMEBODY, "all", 480, 0, ""));
	child_check(enter_as(s, SOMEBODY, "more", 600, -EDQUOT,
			     "one user may take"));
	child_check(enter_as(s, 0, "large", 4096, 0, ""));
}

static void test_shares(struct scene *s)
{
	char left[80], bytes[SK_SIZE_TEXT];
	pid_t keeps, waits[2];
	double used;
	int sock;

	begin_with(s, SHARE, 0);
	keeps = keep_job(s, NOBODY, 1);
	sock = restart(s);
	used = stat_value(sock, "shardkeep_memory_used_bytes");
	let_in(s, sock, STEPS / 2);
	/* His share has no room, and for root the budget has none. */
	(void)sk_size_format(SHARE - (uint64_t)used, bytes, sizeof(bytes));
	(void)snprintf(left, sizeof(left), "one user may take only %s can be "
		       "had", bytes);
	waits[0] = enter_as(s, NOBODY, "more", 480, -EDQUOT, left);
	waits[1] = enter_as(s, 0, "huge", 40960, -ENOMEM,
			    "another user's job");
	rig_turns(sock, TURNS);
	for (int i = 0; i < 2; i++)
		CHECK(!child_has_ended(waits[i]), "%d is refused", i);
	reading_let(-1);
	for (int i = 0; i < 2; i++)
		child_check(waits[i]);
	AWAIT(stat_value(sock, "shardkeep_images_revived_total") == STEPS,
	      "a part of it is gone");
	CHECK(stat_value(sock, "shardkeep_memory_used_bytes") == used,
	      "it is charged otherwise once it is read");
	let_in(s, sock, -1);
	close(sock);
	end_keeping(keeps);
	end(s);
}

/* How much of it his descriptions take is known when his job is read; that of
 * others is theirs. */
static void test_descriptions(struct scene *s)
{
	pid_t keeps, waits;
	int sock;

	begin_with(s, SHARE, SHARE);
	keeps = keep_job(s, NOBODY, 1);
	sock = restart(s);
	child_check(enter_as(s, SOMEBODY, "small", 32, 0, ""));
	waits = enter_as(s, NOBODY, "small", 32, 0, "");
	rig_turns(sock, TURNS);
	CHECK(!child_has_ended(waits), "nobody knows yet");
	reading_let(-1);
	child_check(waits);
	close(sock);
	end_keeping(keeps);
	end(s);
}

static pid_t come_back(struct scene *s)
{
	pid_t pid = fork();
	struct rank r;

	CHECK(pid >= 0, "fork");
	if (pid)
		return pid;
	become(NOBODY);
	CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 1, .more = TENSORS,
		.slots = STEPS, .flush_every = NEVER }), -EDQUOT, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "asked for the slots that it had"),
	      "%s", rig_why(&r.msg));
	for (int64_t step = 1; step <= STEPS; step++)
		CHECK(snapshot_flags(r.sock, JOB, step) & SK_SNAP_COMPLETE,
		      "step %d went", (int)step);
	_exit(0);
}

/* The next agent gives each user less than what his job has: that stays, and he
 * has no more, nor the slots that he had, and hears so. */
static void test_over_quota(struct scene *s)
{
	pid_t keeps;
	int sock;

	begin_with(s, SHARE, 0);
	keeps = keep_job(s, NOBODY, 1);
	end_keeping(keeps);
	share->memory = 64 << 10;
	sock = restart(s);
	reading_let(-1);
	child_check(come_back(s));
	child_check(enter_as(s, NOBODY, "more", 32, -EDQUOT,
			     "the share of 64.0 KiB"));
	close(sock);
	end(s);
}

/* ---- two of them ---- */

/* It says what became of it, and stays until it is killed. */
static pid_t stay(struct scene *s, uid_t uid, const char *job, int64_t kib,
		  int *ret_says)
{
	int ends[2];
	pid_t pid;

	CHECK(pipe(ends) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		struct rank r;
		int status;

		become(uid);
		status = rank_open(&r, &s->rig, &(struct rank_options){
			.job = job, .world = 1, .rows = kib / 4,
			.flush_every = NEVER });
		CHECK(write(ends[1], &status, sizeof(status)) ==
		      sizeof(status), "write");
		for (;;)
			(void)pause();
	}
	close(ends[1]);
	*ret_says = ends[0];
	return pid;
}

/* Two of a user wait, and his share has room for one of them beside what is
 * not read: he has it, the other is refused, and what there is stays. */
static void test_two_wait(struct scene *s)
{
	int says[2], status[2], sock;
	pid_t keeps, pids[2];

	begin_with(s, SHARE, SHARE);
	keeps = keep_job(s, NOBODY, 1);
	sock = restart(s);
	for (int i = 0; i < 2; i++)
		pids[i] = stay(s, NOBODY, i ? "second" : "first", 160,
			       &says[i]);
	rig_turns(sock, TURNS);
	CHECK(stat_value(sock, "shardkeep_ranks") == 0, "one is let in");
	reading_let(-1);
	for (int i = 0; i < 2; i++)
		CHECK(read(says[i], &status[i], sizeof(status[i])) ==
		      sizeof(status[i]), "no answer");
	CHECK((status[0] == 0 && status[1] == -EDQUOT) ||
	      (status[1] == 0 && status[0] == -EDQUOT), "%d and %d",
	      status[0], status[1]);
	CHECK(stat_value(sock, "shardkeep_ranks") == 1, "who is it?");
	for (int64_t step = 1; step <= STEPS; step++)
		CHECK(snapshot_flags(sock, JOB, step) & SK_SNAP_COMPLETE,
		      "step %d went for it", (int)step);
	for (int i = 0; i < 2; i++) {
		end_keeping(pids[i]);
		close(says[i]);
	}
	close(sock);
	end_keeping(keeps);
	end(s);
}

int main(void)
{
	struct scene s = { .flush_every = NEVER, .before = give_shares,
			   .ctx = &s.options };

	/* Of other users. */
	if (geteuid() != 0)
		return 77;
	share = mmap(NULL, sizeof(*share), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(share != MAP_FAILED, "mmap");
	reading_init(&s);
	test_shares(&s);
	test_descriptions(&s);
	test_over_quota(&s);
	test_two_wait(&s);
	return 0;
}
