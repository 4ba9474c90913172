/* SPDX-License-Identifier: Apache-2.0 */
#include "support/agent.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGS_MOST 32

static void run_agent(const char *const *args, int ready)
{
	const char *all[ARGS_MOST + 3] = { NULL };
	char fd[16];
	int n = 0;

	while (args[n] && n < ARGS_MOST) {
		all[n] = args[n];
		n++;
	}
	(void)snprintf(fd, sizeof(fd), "%d", ready);
	all[n++] = "--ready-fd";
	all[n] = fd;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)unsetenv("SHARDKEEP_STORE");
	(void)unsetenv("SHARDKEEP_MEMORY");
	(void)execv(all[0], (char **)all);
	fprintf(stderr, "cannot run %s: %s\n", all[0], strerror(errno));
	_exit(127);
}

pid_t agent_start(const char *const *args)
{
	bool serves;
	int ready[2];
	pid_t agent;
	char c;

	if (pipe(ready) < 0)
		return -1;
	agent = fork();
	if (!agent) {
		close(ready[0]);
		run_agent(args, ready[1]);
	}
	close(ready[1]);
	serves = agent > 0 && read(ready[0], &c, 1) == 1;
	close(ready[0]);
	if (agent > 0 && !serves) {
		(void)kill(agent, SIGKILL);
		(void)waitpid(agent, NULL, 0);
	}
	return serves ? agent : -1;
}

pid_t agent_of_keeper(pid_t keeper)
{
	char path[64];
	int pid = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children",
		       (int)keeper, (int)keeper);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &pid) != 1)
		pid = 0;
	if (f)
		(void)fclose(f);
	return pid;
}
