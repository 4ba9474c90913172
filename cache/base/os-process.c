/* SPDX-License-Identifier: Apache-2.0 */
/* The real system: processes, their limits, and what they load. */
#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os-private.h"

int sk_linux_fork(const struct sk_os *os)
{
	(void)os;
	return sk_os_result(fork());
}

/* What others opened without O_CLOEXEC would live as long as the program. */
static int leave_files(posix_spawn_file_actions_t *actions, int keep_fd)
{
	int r = 0, first = SK_SPAWN_FD;

	/* Onto itself it is kept open, too. */
	if (keep_fd >= 0)
		r = posix_spawn_file_actions_adddup2(actions, keep_fd,
						     first++);
	return r ? r : posix_spawn_file_actions_addclosefrom_np(actions,
								first);
}

/* As where nothing was ignored or blocked. */
static int leave_signals(posix_spawnattr_t *attr)
{
	sigset_t all, none;
	int r;

	(void)sigfillset(&all);
	(void)sigemptyset(&none);
	r = posix_spawnattr_setsigdefault(attr, &all);
	if (r == 0)
		r = posix_spawnattr_setsigmask(attr, &none);
	return r ? r : posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGDEF |
						      POSIX_SPAWN_SETSIGMASK);
}

int sk_linux_spawn(const struct sk_os *os, const char *program,
		   char *const argv[], int keep_fd)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	pid_t pid = -1;
	int r;

	(void)os;
	r = posix_spawn_file_actions_init(&actions);
	if (r)
		return -r;
	r = posix_spawnattr_init(&attr);
	if (r == 0) {
		r = leave_files(&actions, keep_fd);
		if (r == 0)
			r = leave_signals(&attr);
		if (r == 0)
			r = posix_spawnp(&pid, program, &actions, &attr, argv,
					 environ);
		(void)posix_spawnattr_destroy(&attr);
	}
	(void)posix_spawn_file_actions_destroy(&actions);
	return r ? -r : pid;
}

int sk_linux_waitpid(const struct sk_os *os, pid_t pid, int *ret_status)
{
	int status = 0, r;

	(void)os;
	do {
		r = waitpid(pid, &status, 0);
	} while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	*ret_status = status;
	return r;
}

int sk_linux_kill(const struct sk_os *os, pid_t pid, int signal)
{
	(void)os;
	return sk_os_result(kill(pid, signal));
}

int sk_linux_pidfd_open(const struct sk_os *os, pid_t pid)
{
	(void)os;
	return sk_os_new_fd((int)syscall(SYS_pidfd_open, pid, 0));
}

int sk_linux_alarm(const struct sk_os *os, unsigned seconds)
{
	(void)os;
	return (int)alarm(seconds);
}

int sk_linux_setsid(const struct sk_os *os)
{
	(void)os;
	return sk_os_result(setsid());
}

int sk_linux_setpriority(const struct sk_os *os, int which, id_t who,
			 int nice)
{
	(void)os;
	/* The C library's first parameter is an enum of its own. */
	return sk_os_result((int)syscall(SYS_setpriority, which, who, nice));
}

int sk_linux_getrlimit(const struct sk_os *os, int which,
		       struct rlimit *ret_limit)
{
	(void)os;
	return sk_os_result(getrlimit(which, ret_limit));
}

int sk_linux_setrlimit(const struct sk_os *os, int which,
		       const struct rlimit *limit)
{
	(void)os;
	return sk_os_result(setrlimit(which, limit));
}

int sk_linux_dlopen(const struct sk_os *os, const char *file, int flags,
		    void **ret_library)
{
	void *library;

	(void)os;
	library = dlopen(file, flags);
	if (!library)
		return -ENOENT;
	*ret_library = library;
	return 0;
}

int sk_linux_dlsym(const struct sk_os *os, void *library, const char *name,
		   void **ret_symbol)
{
	void *symbol;

	(void)os;
	symbol = dlsym(library, name);
	if (!symbol)
		return -ENOENT;
	*ret_symbol = symbol;
	return 0;
}
