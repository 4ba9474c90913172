/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is told to end more than once by one who means it once goes on flushing:
 * by a signal to the agent and its keeper, by cachectl stop asked again, both.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/rig.h"

#define STEP 3

enum how {
	BOTH_INT,		/* as by ^C, and by killall */
	BOTH,
	BOTH_AGENT_FIRST,
	ASKED_TWICE,
	ASKED_AND_SIGNAL,
	N_HOW,
};

/* What it is told second it may have ended before, on a slow machine. */
static void tell(const struct rig *rig, int sock, pid_t agent, enum how how)
{
	bool agent_first = how == BOTH_AGENT_FIRST;
	int sig = how == BOTH_INT ? SIGINT : SIGTERM;
	struct sk_msg msg = { .type = SK_MSG_STOP };

	if (how == ASKED_TWICE || how == ASKED_AND_SIGNAL) {
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0,
			     &msg);
		msg = (struct sk_msg){ .type = SK_MSG_STOP };
		if (how == ASKED_TWICE)
			(void)rig_call(sock, &msg, NULL, 0, NULL, NULL);
		else
			(void)kill(agent, SIGTERM);
		return;
	}
	CHECK(kill(agent_first ? agent : rig->agent, sig) == 0, "kill");
	(void)kill(agent_first ? rig->agent : agent, sig);
}

/* It takes some time to write, so that all of it is heard meanwhile. */
static void test(const char *program, enum how how)
{
	struct rank_options o = { .job = "told", .flush_every = 1000000,
				  .world = 1, .rows = 256 };
	struct sk_msg msg;
	struct rank r;
	struct rig rig;
	char path[256];
	pid_t agent;
	int sock;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--store", rig.store, "--flush-rate",
		  "4M", NULL);
	sock = rig_try_connect(&rig, &msg);
	CHECK(sock >= 0, "connect");
	agent = (pid_t)msg.body.hello_reply.pid;
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	rank_snapshot(&r, STEP);
	tell(&rig, sock, agent, how);
	CHECK(rig_wait(&rig) == 0, "%d: exit status", how);
	(void)snprintf(path, sizeof(path), "%s/told/step-%012d/"
		       "rank-00000-of-00001.safetensors", rig.store, STEP);
	CHECK(access(path, F_OK) == 0, "%d: it is lost", how);
	close(sock);
	rank_close(&r);
	rig_remove(&rig);
}

/* Who means it says it twice. */
static void test_at_once(const char *program)
{
	struct rank_options o = { .job = "told", .flush_every = 1000000,
				  .world = 1, .rows = 4096 };
	struct rank r;
	struct rig rig;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--store", rig.store, "--flush-rate",
		  "1M", NULL);
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	rank_snapshot(&r, STEP);
	CHECK(kill(rig.agent, SIGTERM) == 0, "kill");
	AWAIT(rank_slot(&r, STEP + 1, 0) == -ESHUTDOWN, "it does not stop");
	CHECK(kill(rig.agent, SIGTERM) == 0, "kill");
	CHECK(rig_wait(&rig) == 1, "it is not lost");
	rank_close(&r);
	rig_remove(&rig);
}

int main(int argc, char **argv)
{
	const char *program = argc > 1 ? argv[1] : NULL;

	for (enum how how = 0; how < N_HOW; how++)
		test(program, how);
	test_at_once(program);
	return 0;
}
