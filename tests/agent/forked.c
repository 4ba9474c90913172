/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/forked.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "server.h"

static void serve(struct rig *rig, struct sk_fault_os *fault, int ready,
		  const char *option)
{
	char fd[16];
	char *argv[] = { (char *)rig->program, (char *)"--socket", rig->socket,
			 (char *)"--store", rig->store, (char *)"--memory",
			 (char *)"64M", (char *)"--log-level",
			 (char *)"error", (char *)"--ready-fd", fd,
			 (char *)option, NULL };
	int argc = (int)SK_ARRAY_SIZE(argv) - (option ? 1 : 2);
	struct endpoint endpoint;
	struct options o = { 0 };
	struct sk_err err;

	snprintf(fd, sizeof(fd), "%d", ready);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	unsetenv("SHARDKEEP_STORE");
	unsetenv("SHARDKEEP_MEMORY");
	if (options_parse(argc, argv, &o) ||
	    endpoint_open(&fault->os, o.socket, &endpoint, &err))
		_exit(99);
	o.hangs_s = NEVER_HANGS_S;
	_exit(agent_run(&fault->os, &o, &endpoint, NULL));
}

void forked_start(struct rig *rig, struct sk_fault_os *fault,
		  const char *option)
{
	int ready[2];
	char c;

	sk_fault_os_init(fault, sk_os_linux());
	CHECK(pipe(ready) == 0, "pipe");
	rig->agent = fork();
	CHECK(rig->agent >= 0, "fork");
	if (!rig->agent) {
		close(ready[0]);
		serve(rig, fault, ready[1], option);
	}
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1, "the agent did not start");
	close(ready[0]);
}
