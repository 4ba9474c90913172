/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>

/* Signals belong to the program's own threads; faults to who makes them. */
static void block_signals(sigset_t *ret_old)
{
	sigset_t set;

	sigfillset(&set);
	sigdelset(&set, SIGSEGV);
	sigdelset(&set, SIGBUS);
	sigdelset(&set, SIGFPE);
	sigdelset(&set, SIGILL);
	pthread_sigmask(SIG_SETMASK, &set, ret_old);
}

int sk_thread_start(pthread_t *ret_thread, void *(*run)(void *arg), void *arg)
{
	sigset_t old;
	int r;

	block_signals(&old);
	r = pthread_create(ret_thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}
