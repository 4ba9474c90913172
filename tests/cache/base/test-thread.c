/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <signal.h>

#include "base/thread.h"

static void *tell_mask(void *arg)
{
	cr_assert(!pthread_sigmask(SIG_SETMASK, NULL, arg));
	return NULL;
}

Test(thread, takes_no_signal_of_the_program)
{
	static const int theirs[] = { SIGTERM, SIGINT, SIGUSR1, SIGALRM,
				      SIGCHLD, SIGPROF };
	static const int own[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
	sigset_t before, after, mask;
	pthread_t thread;

	sigemptyset(&before);
	sigaddset(&before, SIGHUP);
	cr_assert(!pthread_sigmask(SIG_SETMASK, &before, NULL));
	cr_assert(!sk_thread_start(&thread, tell_mask, &mask));
	cr_assert(!pthread_join(thread, NULL));
	for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++)
		cr_assert(sigismember(&mask, theirs[i]), "%d", theirs[i]);
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		cr_assert(!sigismember(&mask, own[i]), "%d", own[i]);
	/* The caller's own is as it was. */
	cr_assert(!pthread_sigmask(SIG_SETMASK, NULL, &after));
	cr_assert(sigismember(&after, SIGHUP));
	cr_assert(!sigismember(&after, SIGTERM));
}
