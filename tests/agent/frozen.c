/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that is read, and takes no writes: an agent that begins then serves
 * what memory has, from the agent before it, and a rank that comes back is not
 * kept for as long as it would wait; when it takes them again all is as it was.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent/outlive.h"

#define SECOND UINT64_C(1000000000)
#define HANGS_S 800u		/* and a sixth of it where somebody waits */

/* Shared with all agents. */
static atomic_bool *frozen;
static const struct sk_os *real;

/* Names in the store are in directories that are open: others are elsewhere. */
static void wait_to_write(int dirfd)
{
	while (dirfd != AT_FDCWD && atomic_load(frozen))
		usleep(1000);
}

static int open_frozen(const struct sk_os *os, int dirfd, const char *path,
		       int flags, mode_t mode)
{
	(void)os;
	if (flags & O_CREAT)
		wait_to_write(dirfd);
	return real->openat(real, dirfd, path, flags, mode);
}

static int unlink_frozen(const struct sk_os *os, int dirfd, const char *path,
			 int flags)
{
	(void)os;
	wait_to_write(dirfd);
	return real->unlinkat(real, dirfd, path, flags);
}

static int rename_frozen(const struct sk_os *os, int olddir, const char *old,
			 int newdir, const char *name, unsigned flags)
{
	(void)os;
	wait_to_write(newdir);
	return real->renameat(real, olddir, old, newdir, name, flags);
}

static int mkdir_frozen(const struct sk_os *os, int dirfd, const char *path,
			mode_t mode)
{
	(void)os;
	wait_to_write(dirfd);
	return real->mkdirat(real, dirfd, path, mode);
}

static int remove_frozen(const struct sk_os *os, int fd, const char *name)
{
	(void)os;
	wait_to_write(fd);
	return real->fremovexattr(real, fd, name);
}

static void init(struct scene *s)
{
	real = sk_os_linux();
	frozen = mmap(NULL, sizeof(*frozen), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	s->fault = mmap(NULL, sizeof(*s->fault), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(frozen != MAP_FAILED && s->fault != MAP_FAILED, "mmap");
	sk_fault_os_init(s->fault, real);
	s->fault->os.openat = open_frozen;
	s->fault->os.unlinkat = unlink_frozen;
	s->fault->os.renameat = rename_frozen;
	s->fault->os.mkdirat = mkdir_frozen;
	s->fault->os.fremovexattr = remove_frozen;
}

/* ---- time ---- */

/* The agents' clock goes on by itself, fifty times as fast as ours. */
static pid_t start_clock(struct scene *s)
{
	pid_t pid;

	sk_fault_os_clock(s->fault, 1000 * SECOND, 1700000000 * SECOND);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		sk_fault_os_advance(s->fault, SECOND / 10);
		usleep(2000);
	}
}

static uint64_t now(const struct scene *s)
{
	return s->fault->os.now_ns(&s->fault->os) / SECOND;
}

/* ---- what is served ---- */

/* One that its keeper has begun while nothing can be written. */
static void begin_frozen(struct scene *s)
{
	struct rank r = { .sock = -1 };
	pid_t pid, next;

	begin(s);
	open_rank(s, &r);
	take(s, &r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	pid = serving(s);
	atomic_store(frozen, true);
	CHECK(pid > 0 && kill(pid, SIGKILL) == 0, "kill");
	AWAIT((next = serving(s)) > 0 && next != pid, "nobody serves");
	rank_close(&r);
}

static void end_thawed(struct scene *s)
{
	struct rank r = { .sock = -1 };
	int sock = rig_connect(&s->rig);

	open_rank(s, &r);
	take(s, &r, 2);
	atomic_store(frozen, false);
	CHECK_STATUS(rank_wait(&r, 2, 3, WAIT_MS), 0, &r.msg);
	AWAIT(!is_degraded(sock, "store-hangs"), "it hangs");
	CHECK(snapshot_flags(sock, OUTLIVE_JOB, 2) & SK_SNAP_DURABLE, "disk");
	rank_close(&r);
	close(sock);
	end(s);
}

/* What the disk could tell beside is waited for, and not for long. */
static void test_memory_serves(struct scene *s)
{
	const struct rank_options restores = { .job = OUTLIVE_JOB,
					       .world = 1 };
	struct rank r = { .sock = -1 };
	uint64_t began;
	int sock;

	begin_frozen(s);
	sock = rig_connect(&s->rig);
	open_rank(s, &r);
	began = now(s);
	/* Other agents are to be told before the disk is looked at. */
	CHECK_STATUS(rank_again(&r, &restores), 0, &r.msg);
	CHECK(now(s) - began < HANGS_S * 9 / 10, "it was kept waiting for %d s",
	      (int)(now(s) - began));
	CHECK(is_degraded(sock, "store-hangs"), "it does not hang");
	CHECK(snapshot_flags(sock, OUTLIVE_JOB, 1) & SK_SNAP_RESIDENT,
	      "memory is lost");
	rank_close(&r);
	close(sock);
	end_thawed(s);
}

int main(void)
{
	struct scene s = { .flush_every = 1, .hangs_s = HANGS_S };
	pid_t clock;

	init(&s);
	clock = start_clock(&s);
	test_memory_serves(&s);
	CHECK(kill(clock, SIGKILL) == 0, "kill");
	return 0;
}
