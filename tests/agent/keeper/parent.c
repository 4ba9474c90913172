/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper over many lives of an agent that each end as this test says: when
 * the next one begins, what it is given, and when there is none. The clock and
 * the waits between two lives are the test's: nothing sleeps.
 */
#include "keeper/parent.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define LIVES_MOST 24
#define MS UINT64_C(1000000)
#define SLOT "slot-1-0"

#define CHECK(cond, ...)						\
	do {								\
		if (cond)						\
			break;						\
		fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
		fprintf(stderr, "  " __VA_ARGS__);			\
		fputc('\n', stderr);					\
		_exit(1);						\
	} while (0)

/* How one is, and ends. */
struct life {
	bool ready, stopping, gives;	/* what it tells: gives SLOT to keep */
	uint64_t lasts_ns;
	int signal;		/* that kills it; 0: it ends by itself */
	int status;		/* with this */
};

/* Of all processes. */
struct world {
	struct sk_os os;
	const struct life *lives;
	uint64_t now_ns;
	uint64_t paused_ns[LIVES_MOST];	/* after each */
	bool has_slot[LIVES_MOST];	/* it was given what is kept */
	unsigned n;			/* that have begun */
	pid_t keeper;
	bool dies_with_standby, taken;
};

/* ---- the system ---- */

static uint64_t now_ns(const struct sk_os *os)
{
	return ((struct world *)os->ctx)->now_ns;
}

/* A wait that has an end is a pause, and over at once. */
static int poll_or_pass(const struct sk_os *os, struct pollfd *fds, nfds_t n,
			uint64_t until_ns)
{
	struct world *w = os->ctx;

	if (until_ns == SK_FOREVER)
		return sk_os_linux()->poll(sk_os_linux(), fds, n, until_ns);
	w->paused_ns[w->n - 1] += until_ns - w->now_ns;
	w->now_ns = until_ns;
	return -ETIMEDOUT;
}

/* The keeper's only message is to its standby. */
static ssize_t send_or_die(const struct sk_os *os, int fd,
			   const struct msghdr *msg, int flags)
{
	const struct world *w = os->ctx;

	if (w->dies_with_standby && getpid() == w->keeper)
		(void)kill(getpid(), SIGKILL);
	return sk_os_linux()->sendmsg(sk_os_linux(), fd, msg, flags);
}

static struct world *new_world(const struct life *lives)
{
	struct world *w = mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(w != MAP_FAILED, "mmap");
	*w = (struct world){ .os = *sk_os_linux(), .lives = lives,
			     .now_ns = 1000000 * MS };
	w->os.ctx = w;
	w->os.now_ns = now_ns;
	w->os.poll = poll_or_pass;
	w->os.sendmsg = send_or_die;
	return w;
}

/* ---- lives ---- */

static void live(struct world *w, struct parent *p)
{
	const unsigned i = p->lives - 1;
	const struct life *l = &w->lives[i];
	int fd;

	CHECK(i < LIVES_MOST, "there is no end of them");
	w->n = i + 1;
	fd = kept_take(&p->kept, SLOT);
	w->has_slot[i] = fd >= 0;
	sk_close_fd(fd);
	if (l->gives) {
		fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		CHECK(keeper_give(&w->os, &p->keeper, SLOT, fd), "give");
	}
	if (l->ready)
		keeper_ready(&w->os, &p->keeper);
	if (l->stopping)
		keeper_stopping(&w->os, &p->keeper);
	w->now_ns += l->lasts_ns;
	/* Sanitizers would take some for their own. */
	if (l->signal)
		(void)signal(l->signal, SIG_DFL);
	if (l->signal)
		(void)kill(getpid(), l->signal);
	_exit(l->status);
}

/* In a process that becomes the keeper. */
static void be_keeper(struct world *w, struct standby *standby)
{
	/* What it says is not what is looked at. */
	struct log log;
	struct parent p = { .os = &w->os, .log = &log, .ready_fd = -1,
			    .standby = standby };
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC), r;

	CHECK(null >= 0 && dup2(null, STDERR_FILENO) >= 0, "null");
	log_open(&log, &w->os, LOG_LEVEL_ERROR);
	w->keeper = getpid();
	if (standby && standby_begin(&w->os, standby) == STANDBY_TAKES) {
		w->taken = true;
		_exit(0);
	}
	r = parent_run(&p);
	if (r == PARENT_CHILD)
		live(w, &p);
	_exit(r);
}

static int status_of(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) :
				   128 + WTERMSIG(status);
}

static int run(struct world *w)
{
	pid_t pid = fork();

	CHECK(pid >= 0, "fork");
	if (!pid)
		be_keeper(w, NULL);
	return status_of(pid);
}

/* ---- tests ---- */

/* An agent that dies as soon as it serves is followed at once a few times, then
 * after pauses, each twice as long; one that has lived a while ends that. */
static void test_pauses(void)
{
	static const struct life quick = { .ready = true, .signal = SIGKILL };
	struct life lives[LIVES_MOST];
	struct world *w;
	uint64_t pause;

	for (int i = 0; i < LIVES_MOST; i++)
		lives[i] = quick;
	lives[0].lasts_ns = 1000 * MS;
	lives[14].lasts_ns = 1000 * MS;
	lives[16] = (struct life){ .ready = true };
	w = new_world(lives);
	CHECK(run(w) == 0, "its agent ended in order");
	CHECK(w->n == 17, "%u lives", w->n);
	for (int i = 0; i < 10; i++)
		CHECK(!w->paused_ns[i], "after life %d it waits", i + 1);
	pause = w->paused_ns[10];
	CHECK(pause && pause <= 100 * MS, "a pause of %llu ns",
	      (unsigned long long)pause);
	for (int i = 11; i < 14; i++)
		CHECK(w->paused_ns[i] == 2 * w->paused_ns[i - 1],
		      "after life %d: %llu ns", i + 1,
		      (unsigned long long)w->paused_ns[i]);
	for (int i = 14; i < 17; i++)
		CHECK(!w->paused_ns[i], "after life %d it waits", i + 1);
	munmap(w, sizeof(*w));
}

/* Three that are killed before they serve, one after the other, are the fault
 * of what they are given: it is let go. That one before them had served is no
 * matter. */
static void test_three_in_a_row(void)
{
	static const struct life lives[] = {
		{ .ready = true, .gives = true, .signal = SIGKILL },
		{ .signal = SIGKILL }, { .signal = SIGBUS },
		/* One that serves between them begins the count anew. */
		{ .ready = true, .signal = SIGKILL },
		{ .signal = SIGKILL }, { .signal = SIGKILL },
		{ .signal = SIGSEGV },
		{ .ready = true },
	};
	static const bool has_slot[] = { false, true, true, true, true, true,
					 true, false };
	struct world *w = new_world(lives);

	CHECK(run(w) == 0, "the last ended in order");
	CHECK(w->n == SK_ARRAY_SIZE(lives), "%u lives", w->n);
	for (unsigned i = 0; i < w->n; i++)
		CHECK(w->has_slot[i] == has_slot[i], "life %u is given %d",
		      i + 1, w->has_slot[i]);
	munmap(w, sizeof(*w));
}

/* One that cannot begin again is tried again, for what is kept is of worth. */
static void test_cannot_begin_again(void)
{
	static const struct life lives[] = {
		{ .ready = true, .gives = true, .signal = SIGKILL },
		{ .status = 1 }, { .status = 1 }, { .status = 1 },
		{ .status = 1 }, { .ready = true },
	};
	struct world *w = new_world(lives);

	CHECK(run(w) == 0, "the last ended in order");
	CHECK(w->n == SK_ARRAY_SIZE(lives), "%u lives", w->n);
	CHECK(w->has_slot[5], "what was kept is gone");
	munmap(w, sizeof(*w));
}

/* And none follows one that never served, that ends in order, or that had said
 * it would. */
static void test_the_last(void)
{
	static const struct life lives[][2] = {
		{ { .status = 3 } },
		{ { .ready = true, .status = 3 } },
		{ { .ready = true, .stopping = true, .signal = SIGKILL } },
	};
	static const int status[] = { 3, 3, 1 };

	for (int i = 0; i < 3; i++) {
		struct world *w = new_world(lives[i]);
		int r = run(w);

		CHECK(r == status[i], "%d: status %d", i, r);
		CHECK(w->n == 1, "%d: %u lives", i, w->n);
		munmap(w, sizeof(*w));
	}
}

/* The keeper is killed before it has told its standby that it is not needed:
 * the agent, which has all, tells it, and nobody takes anything when the agent
 * ends. */
static void test_standby(void)
{
	static const struct life lives[] = { { .ready = true } };

	for (int dies = 0; dies < 2; dies++) {
		struct world *w = new_world(lives);
		struct standby standby = STANDBY_NULL;
		pid_t pid;

		w->dies_with_standby = dies;
		pid = fork();
		CHECK(pid >= 0, "fork");
		if (!pid)
			be_keeper(w, &standby);
		CHECK(status_of(pid) == (dies ? 128 + SIGKILL : 0), "status");
		/* Its agent and its standby are ours by now. */
		while (waitpid(-1, NULL, 0) > 0)
			continue;
		CHECK(w->n == 1, "%u lives", w->n);
		CHECK(!w->taken, "%d: a standby takes what an agent had", dies);
		munmap(w, sizeof(*w));
	}
}

int main(void)
{
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl");
	test_pauses();
	test_three_in_a_row();
	test_cannot_begin_again();
	test_the_last();
	test_standby();
	return 0;
}
