/* SPDX-License-Identifier: Apache-2.0 */
/* The agent, the ranks, their barriers and marks. */
#include "bench.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("shardkeep-bench: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
}

static void exec_agent(struct bench *b, int ready)
{
	char fd[16];

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)snprintf(fd, sizeof(fd), "%d", ready);
	execlp(b->o.agent, b->o.agent, "--socket", b->socket, "--store",
	       b->store, "--memory", "80%", "--log-level",
	       b->log_level ? b->log_level : "warning", "--ready-fd", fd, NULL);
	fprintf(stderr, "shardkeep-bench: cannot run %s: %s\n", b->o.agent,
		strerror(errno));
	_exit(127);
}

int agent_start(struct bench *b)
{
	int ready[2], r;
	char c;
	ssize_t n;

	if (pipe(ready) < 0)
		return -errno;
	b->agent = fork();
	if (b->agent < 0) {
		r = -errno;
		close(ready[0]);
		close(ready[1]);
		return r;
	}
	if (!b->agent) {
		close(ready[0]);
		exec_agent(b, ready[1]);
	}
	close(ready[1]);
	n = read(ready[0], &c, 1);
	close(ready[0]);
	if (n == 1)
		return 0;
	note("the agent did not start");
	return -EIO;
}

int agent_stop(struct bench *b)
{
	int status = 0;

	if (b->agent <= 0)
		return 0;
	kill(b->agent, SIGTERM);
	while (waitpid(b->agent, &status, 0) < 0 && errno == EINTR)
		;
	b->agent = 0;
	return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EIO;
}

int fail(struct bench *b, int rank, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(b->shared->why[rank], sizeof(b->shared->why[rank]), fmt,
		  ap);
	va_end(ap);
	b->shared->failed[rank] = 1;
	fprintf(stderr, "shardkeep-bench: rank %d: %s\n", rank,
		b->shared->why[rank]);
	/* The others wait at barriers and nothing can go on: the measuring
	 * process ends, its children with it, and main() cleans up. */
	kill(getppid(), SIGTERM);
	return -EIO;
}

void meet(struct bench *b)
{
	pthread_barrier_wait(&b->shared->all);
}

void mark_start(struct bench *b, int rank)
{
	b->shared->mark[rank].start = now_ns();
}

void mark_end(struct bench *b, int rank)
{
	b->shared->mark[rank].end = now_ns();
}

double marked(struct bench *b, int ranks)
{
	uint64_t first = UINT64_MAX, last = 0;

	for (int r = 0; r < ranks; r++) {
		if (b->shared->mark[r].start < first)
			first = b->shared->mark[r].start;
		if (b->shared->mark[r].end > last)
			last = b->shared->mark[r].end;
	}
	return last > first ? (double)(last - first) : 0;
}

static void start_barrier(struct bench *b, int n)
{
	pthread_barrierattr_t attr;

	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&b->shared->all, &attr, (unsigned)n);
	pthread_barrierattr_destroy(&attr);
}

int run_ranks(struct bench *b, int ranks,
	      int (*body)(struct bench *b, int rank),
	      void (*lead)(struct bench *b, int ranks))
{
	pid_t pids[BENCH_PROCESSES_MAX];
	int failed = 0;

	start_barrier(b, ranks + 1);
	for (int r = 0; r < ranks; r++) {
		pids[r] = fork();
		if (pids[r] < 0)
			return -errno;
		if (!pids[r]) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(body(b, r) < 0);
		}
	}
	lead(b, ranks);
	for (int r = 0; r < ranks; r++) {
		int status = 1;

		while (waitpid(pids[r], &status, 0) < 0 && errno == EINTR)
			;
		failed |= status;
	}
	pthread_barrier_destroy(&b->shared->all);
	return failed ? -EIO : 0;
}
