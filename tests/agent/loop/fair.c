/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes and closer: one user's work, or descriptor, that never ends keeps
 * nobody else waiting. What hangs here hangs on a pipe until it is let go.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/util.h"
#include "loop/closer.h"
#include "loop/lanes.h"

#define SLOW 1000u	/* users */
#define QUICK 1001u
#define MANY 50

#define CHECK(what) do {						\
	if (!(what)) {							\
		fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
		exit(1);						\
	}								\
} while (0)

static int hold[2];		/* a byte lets one who hangs go on */

static void wait_here(void)
{
	char byte;

	CHECK(read(hold[0], &byte, 1) == 1);
}

static void let_go(void)
{
	CHECK(write(hold[1], "x", 1) == 1);
}

/* ---- lanes ---- */

struct job {
	struct lane_work work;
	int *finished;		/* counts, and so orders them */
	int place;		/* 1: the first that finished; 0: not yet */
	bool hangs;
};

static void run(struct lane_work *work)
{
	if (sk_link_object(work, struct job, work)->hangs)
		wait_here();
}

static void finish(struct lane_work *work)
{
	struct job *j = sk_link_object(work, struct job, work);

	j->place = ++*j->finished;
}

static void submit_of(struct lanes *lanes, struct job *j, uid_t uid,
		      const char *name, int *n, bool hangs)
{
	*j = (struct job){ .work = { .run = run, .finish = finish },
			   .finished = n, .hangs = hangs };
	lanes_submit(lanes, uid, name, &j->work);
}

static void submit(struct lanes *lanes, struct job *j, uid_t uid, int *n,
		   bool hangs)
{
	submit_of(lanes, j, uid, "job", n, hangs);
}

static void test_lanes(void)
{
	const struct sk_os *os = sk_os_linux();
	struct job slow[MANY], quick[2];
	struct sk_err err = { "" };
	struct sk_pool *pool;
	struct lanes lanes;
	struct works works;
	int finished = 0;

	CHECK(works_open(&works, os) == 0);
	CHECK(sk_pool_new(2, -1, "test", &pool, &err) == 0);
	lanes_init(&lanes, &works, pool);
	for (int i = 0; i < MANY; i++)
		submit(&lanes, &slow[i], SLOW, &finished, true);
	submit(&lanes, &quick[0], QUICK, &finished, false);
	submit(&lanes, &quick[1], QUICK, &finished, false);
	/* The second quick one waits for the first alone. */
	while (finished < 2) {
		struct pollfd p = { .fd = works.wake, .events = POLLIN };

		CHECK(os->poll(os, &p, 1, SK_FOREVER) == 1);
		works_finish(&works);
	}
	CHECK(quick[0].place == 1 && quick[1].place == 2);
	for (int i = 0; i < MANY; i++)
		let_go();
	works_drain(&works);
	CHECK(finished == MANY + 2);
	/* Of one user in the order in which they came. */
	for (int i = 0; i < MANY; i++)
		CHECK(slow[i].place == i + 3);
	pool = sk_pool_free(pool);
	works_close(&works);
}

/* Of a user's jobs each waits for one piece of each other one: the large one
 * has all of its own there before the others come. */
static void test_jobs_of_a_user(void)
{
	struct job large[MANY], small[2], other;
	struct sk_err err = { "" };
	struct sk_pool *pool;
	struct lanes lanes;
	struct works works;
	int finished = 0;

	CHECK(works_open(&works, sk_os_linux()) == 0);
	CHECK(sk_pool_new(2, -1, "test", &pool, &err) == 0);
	lanes_init(&lanes, &works, pool);
	for (int i = 0; i < MANY; i++)
		submit_of(&lanes, &large[i], SLOW, "large", &finished, !i);
	for (int i = 0; i < 2; i++)
		submit_of(&lanes, &small[i], SLOW, "small", &finished, false);
	submit_of(&lanes, &other, SLOW, "other", &finished, false);
	let_go();
	works_drain(&works);
	CHECK(finished == MANY + 3);
	CHECK(large[0].place == 1 && small[0].place == 2 && other.place == 3);
	CHECK(large[1].place == 4 && small[1].place == 5);
	for (int i = 2; i < MANY; i++)
		CHECK(large[i].place == i + 4);
	pool = sk_pool_free(pool);
	works_close(&works);
}

/* ---- closer ---- */

static int slow_fd;		/* closing it hangs */

static int slow_close(const struct sk_os *os, int fd)
{
	if (fd == slow_fd)
		wait_here();
	return sk_os_linux()->close(os, fd);
}

/* Closed by the other side's end of file. */
static void check_closed(int fd)
{
	char byte;

	CHECK(read(fd, &byte, 1) == 0);
	close(fd);
}

static void test_closer(void)
{
	struct sk_os os = *sk_os_linux();
	int slow[2], after[2], quick[2];
	struct closer *c;

	os.close = slow_close;
	CHECK(!pipe(slow) && !pipe(after) && !pipe(quick));
	slow_fd = slow[1];
	CHECK(closer_new(&os, &c) == 0);
	closer_close(c, SLOW, slow[1]);
	closer_close(c, SLOW, after[1]);
	closer_close(c, SLOW, -1);
	closer_close(c, QUICK, quick[1]);
	check_closed(quick[0]);
	CHECK(closer_pending(c, SLOW) == 2);
	let_go();
	check_closed(slow[0]);
	check_closed(after[0]);
	c = closer_free(c);
	CHECK(!c && !closer_free(NULL));
}

int main(void)
{
	CHECK(!pipe(hold));
	test_lanes();
	test_jobs_of_a_user();
	test_closer();
	return 0;
}
