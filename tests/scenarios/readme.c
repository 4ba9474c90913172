/* SPDX-License-Identifier: Apache-2.0 */
/*
 * README's loop as it is printed there, by the eight ranks that it has:
 * trained, ended, begun again; killed in the middle and begun again.
 * Argument: path of shardkeepd.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shardkeep.h"
#include "support/agent.h"
#include "support/files.h"

#define RANKS 8
/* A rank's part of 4096 x 4096 over 2 x 4 ranks. */
#define MINE ((size_t)2048 * 1024)

static char dir[64], socket_path[128];

/* What the text takes for granted. */
static int32_t rank;
static int64_t last;
static uint16_t wq[MINE];
static unsigned char rng[32];

/* Each step adds one: the parameters tell how many steps they have seen. */
static int64_t trained, kill_at = -1;

static void give_up(const char *why)
{
	fprintf(stderr, "rank %d: %s\n", rank, why);
	_exit(1);
}

static void forward(void)
{
}

static void backward(void)
{
	if (trained == kill_at)
		raise(SIGKILL);
}

static void optimizer_step(void)
{
	for (size_t i = 0; i < MINE; i++)
		wq[i]++;
	trained++;
}

static void train(void)
{
#include "readme-loop.inc"
}

static void check(int64_t steps)
{
	for (size_t i = 0; i < MINE; i++)
		if (wq[i] != last)
			give_up("the parameters missed a step, or saw one "
				"twice");
	if (steps >= 0 && trained != steps)
		give_up("steps were trained that had been before");
}

/* All ranks up to step @to; @steps: how many each has to train, -1 any. */
static void run(int64_t to, int64_t steps, int64_t kill_after)
{
	pid_t pids[RANKS];
	int status;

	for (rank = 0; rank < RANKS; rank++) {
		pids[rank] = fork();
		if (pids[rank])
			continue;
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		last = to;
		kill_at = kill_after;
		train();
		check(steps);
		_exit(0);
	}
	for (int i = 0; i < RANKS; i++) {
		if (waitpid(pids[i], &status, 0) != pids[i] ||
		    status != (kill_after < 0 ? 0 : SIGKILL)) {
			fprintf(stderr, "rank %d ended with %#x\n", i, status);
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	pid_t agent;

	if (argc != 2)
		return 2;
	(void)snprintf(dir, sizeof(dir), "/tmp/shardkeep-readme-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	(void)snprintf(socket_path, sizeof(socket_path), "%s/agent.sock", dir);
	(void)setenv("SHARDKEEP_SOCKET", socket_path, 1);
	agent = agent_start((const char *const[]){
		argv[1], "--socket", socket_path, "--memory", "256M",
		"--log-level", "error", NULL });
	if (agent < 0)
		return 1;
	run(14, 14, -1);
	run(14, 0, -1);		/* it was at its end */
	run(17, 3, -1);		/* the last one was not lost */
	run(40, -1, 16);	/* dies after 16 more */
	run(40, -1, -1);
	kill(agent, SIGTERM);
	(void)waitpid(agent, NULL, 0);
	(void)remove_tree(dir);
	return 0;
}
