/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for the disk where that is full: as long as what need not stay is
 * being deleted nobody is told that it failed, for the next try may not. Where
 * nothing is to be deleted, or that was not enough, the wait ends with it.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/whole.h"
#include "store/store.h"

#define JOB "room"
#define MS UINT64_C(1000000)
#define STEPS 4

struct scene {
	struct whole w;
	struct rank r;		/* its steps 1 to 4 are durable, and stay */
};

static void begin(struct scene *s)
{
	whole_init(&s->w);
	whole_start(&s->w);
	CHECK(s->w.serves, "it did not start: %s", whole_log(&s->w));
	CHECK_STATUS(rank_open(&s->r, &s->w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .keep_last = 9 }), 0, &s->r.msg);
	for (int64_t step = 1; step <= STEPS; step++) {
		rank_snapshot(&s->r, step);
		CHECK_STATUS(rank_wait(&s->r, step, 3, WAIT_MS), 0,
			     &s->r.msg);
	}
}

static void end(struct scene *s)
{
	sk_fault_os_forget(s->w.fault);
	rank_close(&s->r);
	CHECK(kill(s->w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&s->w) == 0, "exit status: %s", whole_log(&s->w));
	whole_remove(&s->w);
}

/* On the store, as by another node: the agent looks when it next has to. */
static void keep_last(const struct scene *s, uint32_t n)
{
	const struct sk_retention keep = { .keep_last = n };
	struct sk_store *store;
	struct sk_err err;
	int is_volatile;

	CHECK(sk_store_open(sk_os_linux(), s->w.rig.store, 3600, &store,
			    &is_volatile, &err) == 0, "%s", err.text);
	CHECK(sk_store_set_retention(store, JOB, SK_RETENTION_OPERATOR, &keep,
				     &err) == 0, "%s", err.text);
	sk_store_close(store);
}

/* So many tries find no room from here on. */
static void fill(struct scene *s, uint64_t times)
{
	struct sk_fault_os *fault = s->w.fault;

	sk_fault_os_fail(fault, SK_FAULT_FALLOCATE,
			 sk_fault_os_calls(fault, SK_FAULT_FALLOCATE) + 1,
			 times, ENOSPC);
}

/* It waits for the disk before there is anything to be written: so a first try
 * that fails is this wait's, and not one before it. */
static void snapshot_and_wait(struct rank *r, int64_t step)
{
	int slot = rank_slot(r, step, 0);

	CHECK(slot >= 0, "no slot: %d %s", slot, rig_why(&r->msg));
	rank_fill(r, slot, step);
	rank_send_wait(r, step, 3, WAIT_MS);
	CHECK_STATUS(rank_seal(r, slot, step), 0, &r->msg);
}

/* The next step's wait for the disk, while time passes. */
static int wait_next(struct scene *s)
{
	struct pollfd p = { .fd = s->r.sock, .events = POLLIN };

	snapshot_and_wait(&s->r, STEPS + 1);
	while (poll(&p, 1, 5) == 0)
		sk_fault_os_advance(s->w.fault, 20 * MS);
	return rig_reply(s->r.sock, &s->r.msg, NULL, NULL);
}

static bool is_there(const struct scene *s, int step)
{
	char path[200];

	(void)snprintf(path, sizeof(path), "%s/" JOB "/step-%012d",
		       s->w.rig.store, step);
	return access(path, F_OK) == 0;
}

static void test_made(void)
{
	struct scene s;

	begin(&s);
	keep_last(&s, 1);
	fill(&s, 1);
	CHECK_STATUS(wait_next(&s), 0, &s.r.msg);
	CHECK(sk_fault_os_hits(s.w.fault) == 1 && !is_there(&s, 1),
	      "there was room: %s", whole_log(&s.w));
	end(&s);
}

/* What is to go waits while its ranks restore, and is looked for within a
 * second of that: they may have trained a step by then. */
static void test_due(void)
{
	const struct rank_options o = { .job = JOB, .world = 1,
					.keep_last = 1 };
	struct scene s;

	begin(&s);
	CHECK_STATUS(rank_again(&s.r, &o), 0, &s.r.msg);
	rank_close(&s.r);
	CHECK_STATUS(rank_open(&s.r, &s.w.rig, &o), 0, &s.r.msg);
	CHECK(is_there(&s, 1), "it went while its ranks restored");
	fill(&s, 1);
	CHECK_STATUS(wait_next(&s), 0, &s.r.msg);
	CHECK(sk_fault_os_hits(s.w.fault) == 1 && !is_there(&s, 1),
	      "there was room: %s", whole_log(&s.w));
	end(&s);
}

static void test_not_enough(void)
{
	struct scene s;

	begin(&s);
	keep_last(&s, 2);
	fill(&s, SK_FAULT_ALWAYS);
	CHECK_STATUS(wait_next(&s), -EIO, &s.r.msg);
	CHECK(!is_there(&s, 2) && is_there(&s, 3) && is_there(&s, 4),
	      "what was to stay, and no more: %s", whole_log(&s.w));
	end(&s);
}

static void test_nothing_goes(void)
{
	struct scene s;

	begin(&s);
	fill(&s, 1);
	CHECK_STATUS(wait_next(&s), -EIO, &s.r.msg);
	CHECK(is_there(&s, 1), "it was to stay");
	end(&s);
}

/* ---- who waits for something else ---- */

/* So often that job's flush has been tried, and failed. */
static unsigned tries_of(const struct scene *s, const char *job)
{
	char words[80];
	const char *at = whole_log(&s->w);
	unsigned n = 0;

	(void)snprintf(words, sizeof(words), "job \"%s\" run 1 step 1 could "
		       "not be flushed", job);
	while ((at = strstr(at, words))) {
		at += strlen(words);
		n++;
	}
	return n;
}

/* A job that fails for another reason is tried when its time has come, however
 * much is deleted of others. */
static void test_room_is_not_all(void)
{
	char path[200];
	struct scene s;
	struct rank r;

	begin(&s);
	(void)snprintf(path, sizeof(path), "%s/broken", s.w.rig.store);
	CHECK(mknod(path, S_IFREG | 0600, 0) == 0, "%s", path);
	CHECK_STATUS(rank_open(&r, &s.w.rig, &(struct rank_options){
		.job = "broken", .world = 1 }), 0, &r.msg);
	snapshot_and_wait(&r, 1);
	CHECK_STATUS(rig_reply(r.sock, &r.msg, NULL, NULL), -EIO, &r.msg);
	keep_last(&s, 1);
	for (int64_t step = STEPS + 1; step <= 20 || is_there(&s, 20); step++) {
		struct pollfd p = { .fd = s.r.sock, .events = POLLIN };

		CHECK(step < STEPS + 100, "nothing goes");
		rank_snapshot(&s.r, step);
		rank_send_wait(&s.r, step, 3, WAIT_MS);
		while (poll(&p, 1, 1) == 0)
			sk_fault_os_advance(s.w.fault, MS / 10);
		CHECK_STATUS(rig_reply(s.r.sock, &s.r.msg, NULL, NULL), 0,
			     &s.r.msg);
	}
	CHECK(tries_of(&s, "broken") == 1, "%u tries: %s",
	      tries_of(&s, "broken"), whole_log(&s.w));
	CHECK(unlink(path) == 0, "%s", path);
	rank_close(&r);
	end(&s);
}

int main(void)
{
	test_room_is_not_all();
	test_made();
	test_due();
	test_not_enough();
	test_nothing_goes();
	return 0;
}
