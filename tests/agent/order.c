/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose flush is next: jobs take turns, and each user's do with those of
 * others. The disk stands still at each file until the test has looked.
 */
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"

#define OTHER 65533		/* a user */

/* The flusher says so at 1, and goes on by what it reads at 2. */
static int ends[4];

static void gate(void *ctx)
{
	char c = 0;

	(void)ctx;
	CHECK(write(ends[1], &c, 1) == 1 && read(ends[2], &c, 1) == 1,
	      "gate");
}

static void stop_next(struct whole *w)
{
	sk_fault_os_meddle(w->fault, SK_FAULT_FALLOCATE, sk_fault_os_calls(
			   w->fault, SK_FAULT_FALLOCATE) + 1, gate, NULL);
}

static void await_flush(void)
{
	char c;

	CHECK(read(ends[0], &c, 1) == 1, "nobody flushes");
}

/* The one that stands goes on, and the next one stands. */
static void next(struct whole *w)
{
	sk_fault_os_forget(w->fault);
	stop_next(w);
	CHECK(write(ends[3], "", 1) == 1, "go");
	await_flush();
}

static void begin(struct whole *w)
{
	CHECK(pipe(ends) == 0 && pipe(ends + 2) == 0, "pipe");
	whole_init(w);
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
}

static void end(struct whole *w)
{
	sk_fault_os_forget(w->fault);
	CHECK(write(ends[3], "", 1) == 1, "go");
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
	for (int i = 0; i < 4; i++)
		close(ends[i]);
}

static void check_flushing(int sock, const char *job, int64_t step)
{
	CHECK(snapshot_flags(sock, job, step) & SK_SNAP_FLUSHING,
	      "step %d of %s is not", (int)step, job);
}

static void join(struct whole *w, struct rank *r, const char *job)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = job, .world = 1, .slots = 4 }), 0, &r->msg);
}

/* A while after the one before. */
static void take(struct whole *w, struct rank *r, int64_t step)
{
	sk_fault_os_advance(w->fault, 1000000);
	rank_snapshot(r, step);
}

/* Three steps of one job, then the first of another. */
static void test_jobs(void)
{
	struct rank much, little;
	struct whole w;

	begin(&w);
	join(&w, &much, "much");
	join(&w, &little, "little");
	stop_next(&w);
	for (int64_t step = 1; step < 4; step++)
		take(&w, &much, step);
	take(&w, &little, 1);
	await_flush();
	check_flushing(much.sock, "much", 1);
	next(&w);
	check_flushing(little.sock, "little", 1);
	next(&w);
	check_flushing(much.sock, "much", 2);
	next(&w);
	check_flushing(much.sock, "much", 3);
	rank_close(&little);
	rank_close(&much);
	end(&w);
}

/* Who waits is not passed by job after job that comes meanwhile. */
static void test_newcomers(void)
{
	static const char *const jobs[] = { "first", "second", "third" };
	struct rank waits, r[3];
	struct whole w;

	begin(&w);
	join(&w, &waits, "waits");
	stop_next(&w);
	take(&w, &waits, 1);
	await_flush();
	check_flushing(waits.sock, "waits", 1);
	take(&w, &waits, 2);
	for (int i = 0; i < 3; i++) {
		join(&w, &r[i], jobs[i]);
		take(&w, &r[i], 1);
		next(&w);
		if (i == 1)
			check_flushing(waits.sock, "waits", 2);
		else
			check_flushing(r[i / 2].sock, jobs[i / 2], 1);
	}
	next(&w);
	check_flushing(r[2].sock, "third", 1);
	for (int i = 0; i < 3; i++)
		rank_close(&r[i]);
	rank_close(&waits);
	end(&w);
}

/* Another user's rank takes its first snapshot, and says so. */
static void be_other(struct whole *w, int ready, int go)
{
	struct rank r;
	char c;

	CHECK(setgroups(0, NULL) == 0 && setgid(OTHER) == 0 &&
	      setuid(OTHER) == 0, "setuid");
	join(w, &r, "theirs");
	take(w, &r, 1);
	CHECK(write(ready, "", 1) == 1 && read(go, &c, 1) == 1, "go");
	check_flushing(r.sock, "theirs", 1);
	CHECK(write(ready, "", 1) == 1 && read(go, &c, 1) == 1, "end");
	_exit(0);
}

/* Of one user each of three jobs has something to write, then comes another
 * user's. */
static void test_users(void)
{
	static const char *const jobs[] = { "a", "b", "c" };
	int ready[2], go[2], status;
	struct rank r[3];
	struct whole w;
	pid_t other;
	char c;

	begin(&w);
	CHECK(pipe(ready) == 0 && pipe(go) == 0, "pipe");
	stop_next(&w);
	for (int i = 0; i < 3; i++) {
		join(&w, &r[i], jobs[i]);
		take(&w, &r[i], 1);
	}
	await_flush();
	check_flushing(r[0].sock, "a", 1);
	other = fork();
	CHECK(other >= 0, "fork");
	if (!other)
		be_other(&w, ready[1], go[0]);
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1, "ready");
	next(&w);
	CHECK(write(go[1], "", 1) == 1 && read(ready[0], &c, 1) == 1,
	      "another is next");
	next(&w);
	check_flushing(r[1].sock, "b", 1);
	next(&w);
	check_flushing(r[2].sock, "c", 1);
	CHECK(write(go[1], "", 1) == 1, "end");
	CHECK(waitpid(other, &status, 0) == other && !status, "status %#x",
	      status);
	for (int i = 0; i < 3; i++)
		rank_close(&r[i]);
	end(&w);
	close(ready[0]);
	close(go[0]);
	close(go[1]);
}

int main(void)
{
	test_jobs();
	test_newcomers();
	if (geteuid() == 0)	/* who may be somebody else */
		test_users();
	return 0;
}
