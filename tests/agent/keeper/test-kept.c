/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors under names: what a list of them says, and that one costs the
 * same beside however many. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/kept.h"

#define MOST 64

static int new_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	cr_assert_geq(fd, 0);
	return fd;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void name_slot(char name[KEPT_NAME], unsigned i)
{
	(void)snprintf(name, KEPT_NAME, "slot-%u", i);
}

Test(kept, a_name_is_one_descriptors)
{
	const struct sk_os *os = sk_os_linux();
	struct kept kept = { 0 };
	int a = new_fd(), b = new_fd();

	cr_assert_eq(kept_add(os, &kept, "x", a), 0);
	cr_assert_eq(kept_add(os, &kept, "x", b), 0);
	cr_assert_not(is_open(a));
	cr_assert_eq(kept.n, 1);
	cr_assert_eq(kept_take(&kept, "y"), -1);
	cr_assert_eq(kept_take(&kept, "x"), b);
	cr_assert_eq(kept_take(&kept, "x"), -1);
	/* Its place is another's. */
	cr_assert_eq(kept_add(os, &kept, "y", b), 0);
	cr_assert_eq(kept.n, 1);
	cr_assert_eq(kept_add(os, &kept, "", new_fd()), -EINVAL);
	kept_clear(os, &kept);
	cr_assert_not(is_open(b));
	cr_assert_eq(kept.n, 0);
}

Test(kept, it_says_what_a_plain_array_does)
{
	const struct sk_os *os = sk_os_linux();
	int fds[MOST], n_open = 0, dropped;
	struct kept kept = { 0 };
	uint64_t seed = 5;
	char name[KEPT_NAME];

	for (int i = 0; i < MOST; i++)
		fds[i] = -1;
	for (int i = 0; i < 5000; i++) {
		unsigned at;

		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963u;
		at = (seed >> 33) % MOST;
		name_slot(name, at);
		if ((seed >> 60) < 9) {
			n_open += fds[at] < 0;
			fds[at] = new_fd();
			cr_assert_eq(kept_add(os, &kept, name, fds[at]), 0);
		} else {
			cr_assert_eq(kept_take(&kept, name), fds[at]);
			n_open -= fds[at] >= 0;
			if (fds[at] >= 0)
				close(fds[at]);
			fds[at] = -1;
		}
	}
	cr_assert_leq(kept.n, MOST);
	dropped = (int)kept_drop(os, &kept, "slot-1");
	dropped += (int)kept_drop(os, &kept, "slot-");
	cr_assert_eq(dropped, n_open);
	for (int i = 0; i < MOST; i++)
		cr_assert(fds[i] < 0 || !is_open(fds[i]));
	kept_clear(os, &kept);
}

/* Names that were compared, for each that came and went. */
static uint64_t visits_of(unsigned n)
{
	const struct sk_os *os = sk_os_linux();
	struct kept kept = { 0 };
	char name[KEPT_NAME];
	uint64_t visits;

	for (unsigned i = 0; i < n; i++) {
		name_slot(name, i);
		cr_assert_eq(kept_add(os, &kept, name, new_fd()), 0);
	}
	for (unsigned i = 0; i < n; i++) {
		name_slot(name, i);
		close(kept_take(&kept, name));
		cr_assert_eq(kept_add(os, &kept, name, new_fd()), 0);
	}
	cr_assert_eq(kept.n, n);
	visits = kept.visits;
	kept_clear(os, &kept);
	return visits;
}

Test(kept, one_costs_the_same_beside_many)
{
	uint64_t few = visits_of(50), many = visits_of(800);

	cr_assert(few >= 50 && many <= 16 * few, "%lu, %lu", few, many);
}

/* As a service manager hands them over: the name that is too long for ours is
 * none, and its descriptor is closed; its neighbours have theirs. */
static int take_listed(void)
{
	const struct sk_os *os = sk_os_linux();
	struct kept kept = { 0 };
	char names[2 * KEPT_NAME], pid[16];
	int fds[4], at;

	/* As many as one too many for a name. */
	at = snprintf(names, sizeof(names), "a:%0*d:c", KEPT_NAME, 0);
	(void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
	(void)setenv("LISTEN_FDS", "4", 1);
	(void)setenv("LISTEN_PID", pid, 1);
	(void)setenv("LISTEN_FDNAMES", names, 1);
	for (int fd = 3; fd < 7; fd++)
		if (dup2(STDIN_FILENO, fd) != fd)
			return 1;
	if (at >= (int)sizeof(names) || kept_from_environment(os, &kept) < 0)
		return 2;
	for (int i = 0; i < 4; i++)
		fds[i] = fcntl(3 + i, F_GETFD);
	if (fds[0] != FD_CLOEXEC || fds[2] != FD_CLOEXEC)
		return 3;
	/* Of one too long, and of none at all. */
	if (fds[1] >= 0 || fds[3] >= 0 || kept.n != 2)
		return 4;
	if (kept_take(&kept, "a") != 3 || kept_take(&kept, "c") != 5)
		return 5;
	if (getenv("LISTEN_FDS") || getenv("LISTEN_FDNAMES"))
		return 6;
	kept_clear(os, &kept);
	return 0;
}

Test(kept, they_come_under_the_names_that_are_listed)
{
	int status;
	pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (!pid)
		_exit(take_listed());
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%#x",
		  status);
}
