/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/reading.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
	atomic_ulong loop;	/* bytes that its loop has read */
	atomic_uint waits;	/* others that want to read a long header */
	atomic_int may;		/* how many of those may; negative: all */
};
static struct shared *shared;

static ssize_t (*read_on)(const struct sk_os *os, int fd, void *buf,
			  size_t bytes, uint64_t at);

static void wait_for_leave(void)
{
	int may;

	atomic_fetch_add(&shared->waits, 1);
	while ((may = atomic_load(&shared->may)) >= 0)
		if (!may)
			usleep(1000);
		else if (atomic_compare_exchange_strong(&shared->may, &may,
							may - 1))
			break;
	atomic_fetch_sub(&shared->waits, 1);
}

static ssize_t note(const struct sk_os *os, int fd, void *buf, size_t bytes,
		    uint64_t at)
{
	if (gettid() == getpid())
		atomic_fetch_add(&shared->loop, bytes);
	else if (bytes > READING_LONG)
		wait_for_leave();
	return read_on(os, fd, buf, bytes, at);
}

void reading_init(struct scene *s)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	s->fault = mmap(NULL, sizeof(*s->fault), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED && s->fault != MAP_FAILED, "mmap");
	sk_fault_os_init(s->fault, sk_os_linux());
	read_on = s->fault->os.pread;
	s->fault->os.pread = note;
}

void reading_let(int n)
{
	atomic_store(&shared->may, n);
}

bool reading_waits(void)
{
	return atomic_load(&shared->waits);
}

bool reading_is_done(void)
{
	return atomic_load(&shared->may) == 0;
}

void reading_count_loop(void)
{
	atomic_store(&shared->loop, 0);
}

unsigned long reading_loop_bytes(void)
{
	return atomic_load(&shared->loop);
}

pid_t reading_kill(const struct scene *s, pid_t pid)
{
	pid_t now;

	CHECK(pid > 0 && kill(pid, SIGKILL) == 0, "kill");
	atomic_store(&shared->waits, 0);
	AWAIT((now = serving(s)) > 0 && now != pid, "nobody serves");
	return now;
}

bool reading_is_answered(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

bool child_has_ended(pid_t pid)
{
	int status;

	return waitpid(pid, &status, WNOHANG) != 0;
}

void child_check(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
}
