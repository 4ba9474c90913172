/* SPDX-License-Identifier: Apache-2.0 */
#include "items.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOUND_S 60	/* of one item */
#define LACKS 77	/* an item's status */

unsigned item_seconds(unsigned otherwise)
{
	const char *said = getenv("SK_ITEM_SECONDS");
	int seconds = said ? atoi(said) : 0;

	return seconds > 0 ? (unsigned)seconds : otherwise;
}

void item_is(unsigned expected, unsigned got, const char *call, int line)
{
	if (expected == got)
		return;
	fprintf(stderr, "%d: %s is %u, not %u\n", line, call, got, expected);
	_exit(1);
}

void item_check(bool what, const char *text, int line)
{
	if (what)
		return;
	fprintf(stderr, "%d: not so: %s\n", line, text);
	_exit(1);
}

void item_lacks(const char *why)
{
	printf("%s\n", why);
	fflush(stdout);
	_exit(LACKS);
}

static bool passes(const struct item *item, bool *ret_lacks)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		(void)prctl(PR_SET_DUMPABLE, 0);
		(void)signal(SIGABRT, SIG_DFL);
		(void)alarm(item_seconds(BOUND_S));
		item->run();
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return false;
	*ret_lacks = item->kind != ITEM_MISUSE && WIFEXITED(status) &&
		     WEXITSTATUS(status) == LACKS;
	if (item->kind == ITEM_MISUSE)
		return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
	return !status || *ret_lacks;
}

int items_run(const struct item *items, size_t n, bool simulated)
{
	int failed = 0;

	for (size_t i = 0; i < n; i++) {
		bool asked = items[i].kind == ITEM_ANY || simulated;
		bool lacks = !asked;
		bool passed = !asked || passes(&items[i], &lacks);

		/* That has all that there is. */
		if (asked && lacks && simulated)
			passed = lacks = false;

		failed += !passed;
		printf("%s: %s\n", lacks ? "left out" : passed ? "ok" : "FAIL",
		       items[i].name);
		fflush(stdout);
	}
	return failed;
}
