/* SPDX-License-Identifier: Apache-2.0 */
/* Which process it was, and whether it has ended. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"

static pid_t begin(const char *name)
{
	int ready[2];
	pid_t pid;
	char byte;

	cr_assert(pipe(ready) == 0);
	pid = fork();
	cr_assert(pid >= 0);
	if (!pid) {
		(void)prctl(PR_SET_NAME, name);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)!write(ready[1], "", 1);
		for (;;)
			pause();
	}
	cr_assert(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void finish(pid_t pid, bool reaped)
{
	siginfo_t info;

	cr_assert(kill(pid, SIGKILL) == 0);
	cr_assert(waitid(P_PID, (id_t)pid, &info,
			 WEXITED | (reaped ? 0 : WNOWAIT)) == 0);
}

Test(process, that_lives_is_not_gone)
{
	static const char *const names[] = { "rank", "a b", "x) R 1 (y",
					     ") ) )", "\xff\n" };
	const struct sk_os *os = sk_os_linux();

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		pid_t pid = begin(names[i]);
		struct sk_process p, again;

		sk_process_of(os, pid, &p);
		sk_process_of(os, pid, &again);
		cr_assert(p.born > 0 && p.pid == pid && p.space, "%s",
			  names[i]);
		cr_assert(memcmp(&p, &again, sizeof(p)) == 0);
		cr_assert(!sk_process_gone(os, &p));
		finish(pid, true);
		cr_assert(sk_process_gone(os, &p));
	}
}

Test(process, has_a_parent)
{
	const struct sk_os *os = sk_os_linux();
	pid_t pid = begin("x) R 1 (y");

	cr_assert(sk_process_parent(os, pid) == getpid());
	cr_assert(sk_process_parent(os, getpid()) == getppid());
	finish(pid, true);
	cr_assert(sk_process_parent(os, pid) == 0);
	cr_assert(sk_process_parent(os, -1) == 0);
}

Test(process, that_nobody_waits_for_is_gone)
{
	const struct sk_os *os = sk_os_linux();
	pid_t pid = begin("rank");
	struct sk_process p;

	sk_process_of(os, pid, &p);
	finish(pid, false);
	cr_assert(sk_process_gone(os, &p));
	finish(pid, true);
}

Test(process, whose_number_another_one_has_is_gone)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_process p;

	sk_process_of(os, getpid(), &p);
	cr_assert(!sk_process_gone(os, &p));
	p.born++;
	cr_assert(sk_process_gone(os, &p));
}

Test(process, that_is_not_known_is_never_gone)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_process p, none = { 0 };
	pid_t pid = begin("rank");

	cr_assert(!sk_process_gone(os, &none));
	sk_process_of(os, 0, &p);
	cr_assert(memcmp(&p, &none, sizeof(p)) == 0);
	sk_process_of(os, -1, &p);
	cr_assert(memcmp(&p, &none, sizeof(p)) == 0);
	sk_process_of(os, pid, &p);
	finish(pid, true);
	p.space++;
	cr_assert(!sk_process_gone(os, &p), "it is another namespace's");
	sk_process_of(os, pid, &p);
	cr_assert(memcmp(&p, &none, sizeof(p)) == 0);
}

/* Where /proc hides what others do, a process may be there all the same. */
static int hidden(const struct sk_os *os, int dirfd, const char *path,
		  int flags, mode_t mode)
{
	if (strncmp(path, "/proc/", 6) == 0)
		return -ENOENT;
	return sk_os_linux()->openat(os, dirfd, path, flags, mode);
}

Test(process, that_cannot_be_seen_is_not_gone)
{
	struct sk_os os = *sk_os_linux();
	struct sk_process p;

	sk_process_of(&os, getpid(), &p);
	os.openat = hidden;
	cr_assert(!sk_process_gone(&os, &p));
}
