/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent that is stopped while it looks what of a job may go from the disk,
 * where ranks of the job restore at another agent: that is no error of
 * anybody's, and nothing is said of it. Stopped at each listing of a directory
 * that it makes meanwhile.
 */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/whole.h"
#include "store/store.h"

#define JOB "ending"
#define NOTICE_MS 100		/* an agent that is told to stop has begun */
#define LOOK_MS 300		/* one that will list has begun to */

struct scene {
	struct whole w;
	struct rank r;
	struct sk_store *elsewhere;	/* at which ranks restore */
	int arrived[2], go[2];		/* of the listing that is held */
};

static void hold(void *ctx)
{
	const struct scene *s = ctx;
	char c = 0;

	CHECK(write(s->arrived[1], "", 1) == 1, "write");
	CHECK(read(s->go[0], &c, 1) == 1, "read");
}

static void begin(struct scene *s)
{
	struct sk_err err;
	int is_volatile;

	CHECK(!pipe(s->arrived) && !pipe(s->go), "pipe");
	whole_init(&s->w);
	whole_start(&s->w);
	CHECK(s->w.serves, "it did not start: %s", whole_log(&s->w));
	CHECK_STATUS(rank_open(&s->r, &s->w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .keep_last = 1 }), 0, &s->r.msg);
	rank_snapshot(&s->r, 1);
	CHECK_STATUS(rank_wait(&s->r, 1, 3, WAIT_MS), 0, &s->r.msg);
	CHECK(sk_store_open(sk_os_linux(), s->w.rig.store, 3600, &s->elsewhere,
			    &is_volatile, &err) == 0, "%s", err.text);
	CHECK(sk_store_restoring(s->elsewhere, JOB, &err) == 0, "%s",
	      err.text);
}

static void end(struct scene *s)
{
	sk_store_close(s->elsewhere);
	whole_remove(&s->w);
	for (int i = 0; i < 2; i++)
		CHECK(!close(s->arrived[i]) && !close(s->go[i]), "close");
}

/* Stopped at the @nth listing from a durable step on; false: there are no so
 * many. */
static bool stop_at(struct scene *s, uint64_t nth)
{
	struct pollfd arrived = { .fd = s->arrived[0], .events = POLLIN };
	struct sk_fault_os *fault = s->w.fault;
	bool held;

	sk_fault_os_meddle(fault, SK_FAULT_GETDENTS,
			   sk_fault_os_calls(fault, SK_FAULT_GETDENTS) + nth,
			   hold, s);
	rank_snapshot(&s->r, 2);
	rank_send_wait(&s->r, 2, 3, WAIT_MS);
	held = poll(&arrived, 1, LOOK_MS) == 1;
	CHECK(kill(s->w.rig.agent, SIGTERM) == 0, "kill");
	(void)poll(NULL, 0, held ? NOTICE_MS : 0);
	CHECK(write(s->go[1], "", 1) == 1, "go");
	CHECK(whole_wait(&s->w) == 0, "exit status: %s", whole_log(&s->w));
	return held;
}

int main(void)
{
	bool held = true;

	for (uint64_t nth = 1; held; nth++) {
		struct scene s;

		begin(&s);
		held = stop_at(&s, nth);
		CHECK(!strstr(whole_log(&s.w), "error: "), "listing %d: %s",
		      (int)nth, whole_log(&s.w));
		CHECK(held || nth > 2, "it lists nothing");
		rank_close(&s.r);
		end(&s);
	}
	return 0;
}
