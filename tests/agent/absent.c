/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that ended while their agent was away: what the job would restart from
 * goes to disk at the next one, at once, and not of a job whose ranks may come
 * back.
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define STEP 3

/* What a process does before it ends, if it does. */
enum end {
	KILLED_BEFORE,		/* the agent, and not waited for */
	KILLED_AFTER,
};

struct process {
	pid_t pid;
	int go[2];
};

static void be_rank(const struct rig *rig, const struct rank_options *o,
		    const struct process *p, int said)
{
	struct rank r;
	char byte;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK_STATUS(rank_open(&r, rig, o), 0, &r.msg);
	rank_snapshot(&r, STEP);
	CHECK(write(said, "", 1) == 1 && read(p->go[0], &byte, 1) == 1,
	      "a pipe");
	_exit(1);
}

static struct process begin(const struct rig *rig, struct rank_options o)
{
	struct process p;
	int said[2];
	char byte;

	/* By the job's end alone. */
	o.flush_every = 1000000;
	CHECK(pipe(p.go) == 0 && pipe(said) == 0, "pipe");
	p.pid = fork();
	CHECK(p.pid >= 0, "fork");
	if (!p.pid)
		be_rank(rig, &o, &p, said[1]);
	CHECK(read(said[0], &byte, 1) == 1, "it ended");
	close(said[0]);
	close(said[1]);
	return p;
}

static void await_end(pid_t pid)
{
	siginfo_t info;

	CHECK(kill(pid, SIGKILL) == 0 &&
	      waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0, "kill");
}

static void finish(struct process *p)
{
	(void)kill(p->pid, SIGKILL);
	CHECK(waitpid(p->pid, NULL, 0) == p->pid, "waitpid");
	close(p->go[0]);
	close(p->go[1]);
}

/* While it stands still no death is seen by it. */
static pid_t stop_agent(const struct rig *rig)
{
	struct sk_msg msg;
	int sock = rig_try_connect(rig, &msg);
	pid_t pid = (pid_t)msg.body.hello_reply.pid;

	CHECK(sock >= 0 && pid != rig->agent, "the keeper is another one");
	CHECK(kill(pid, SIGSTOP) == 0, "stop");
	close(sock);
	return pid;
}

static int connect_to_next(const struct rig *rig, pid_t before)
{
	struct sk_msg msg;
	int sock;

	AWAIT((sock = rig_try_connect(rig, &msg)) >= 0, "nobody serves");
	CHECK((pid_t)msg.body.hello_reply.pid != before, "it was killed");
	return sock;
}

static bool is_durable(int sock, const char *job)
{
	return snapshot_flags(sock, job, STEP) & SK_SNAP_DURABLE;
}

/* All jobs are looked at in one turn. */
static void test(const char *program, enum end how)
{
	struct process gone, half[2], lives;
	struct rig rig;
	pid_t agent;
	int sock;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--store", rig.store, "--idle-exit", "60",
		  NULL);
	half[0] = begin(&rig, (struct rank_options){ .job = "half",
						     .world = 2 });
	half[1] = begin(&rig, (struct rank_options){ .job = "half",
						     .world = 2, .rank = 1 });
	lives = begin(&rig, (struct rank_options){ .job = "lives",
						   .world = 1 });
	gone = begin(&rig, (struct rank_options){ .job = "gone",
						  .world = 1 });
	agent = stop_agent(&rig);
	if (how == KILLED_BEFORE) {
		await_end(half[0].pid);
		await_end(gone.pid);
	}
	CHECK(kill(agent, SIGKILL) == 0, "kill");
	sock = connect_to_next(&rig, agent);
	if (how == KILLED_AFTER) {
		CHECK(!is_durable(sock, "gone"), "nobody has ended");
		await_end(half[0].pid);
		await_end(gone.pid);
	}
	AWAIT(is_durable(sock, "gone"), "it is in memory alone");
	CHECK(!is_durable(sock, "half") && !is_durable(sock, "lives"),
	      "of ranks that may come back");
	await_end(half[1].pid);
	AWAIT(is_durable(sock, "half"), "both have ended");
	CHECK(!is_durable(sock, "lives"), "it lives");
	close(sock);
	finish(&half[0]);
	finish(&half[1]);
	finish(&lives);
	finish(&gone);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

/* ---- a run of which nothing is in memory ---- */

static void be_nobody_yet(const struct rig *rig, int said)
{
	struct rank_options o = { .job = "fresh", .world = 2 };
	struct rank r;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	CHECK(write(said, "", 1) == 1, "a pipe");
	for (;;)
		pause();
}

/* It ends with the agent: who comes next is of another life, though none saw
 * the end of the first; of one whose ranks live it is the same. */
static void test_run(const char *program, bool ends)
{
	struct rank_options o = { .job = "fresh", .world = 2, .rank = 1 };
	struct rank r;
	struct rig rig;
	pid_t agent, pid;
	int said[2];
	char byte;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--idle-exit", "60", NULL);
	CHECK(pipe(said) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid)
		be_nobody_yet(&rig, said[1]);
	CHECK(read(said[0], &byte, 1) == 1, "it ended");
	agent = stop_agent(&rig);
	if (ends)
		await_end(pid);
	CHECK(kill(agent, SIGKILL) == 0, "kill");
	close(connect_to_next(&rig, agent));
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	CHECK(r.run == (ends ? 2 : 1), "run %d", (int)r.run);
	rank_close(&r);
	(void)kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid, "waitpid");
	close(said[0]);
	close(said[1]);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

int main(int argc, char **argv)
{
	const char *program = argc > 1 ? argv[1] : NULL;

	test(program, KILLED_BEFORE);
	test(program, KILLED_AFTER);
	test_run(program, true);
	test_run(program, false);
	return 0;
}
