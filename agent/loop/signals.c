/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/signals.h"

#include <errno.h>
#include <signal.h>

int signals_open(const struct sk_os *os)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	/* Blocked first, it is heard; ignored, it ends no child. */
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGHUP, SIG_IGN);
	/* Whoever starts us may ignore how children end; we do not. */
	(void)signal(SIGCHLD, SIG_DFL);
	return os->signalfd(os, &set);
}
