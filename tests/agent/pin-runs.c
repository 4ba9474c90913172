/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins of steps that are not plainly the job's: ranks of them are missing, or
 * another run has been through the same step.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/whole.h"

#define JOB "runs"
#define STATE "pins-hold-slots"
#define SECOND UINT64_C(1000000000)
#define RARELY 1000		/* flush_every, of steps that are asked for */

static void start(struct whole *w)
{
	whole_init(w);
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
}

static void stop(struct whole *w)
{
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "%s", whole_log(w));
	whole_remove(w);
}

static void open_as(struct whole *w, struct rank *r, int32_t rank,
		    int32_t world, uint32_t slots)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = JOB, .rank = rank, .world = world, .rows = 1,
		.slots = slots, .flush_every = RARELY }), 0, &r->msg);
}

static int ask_of(int sock, enum sk_msg_type type, uint64_t run, int64_t step,
		  struct sk_msg *msg)
{
	*msg = (struct sk_msg){ .type = (uint16_t)type, .body.manage.id = {
		.job = JOB, .run = run, .step = step, .rank = -1 } };
	return rig_call(sock, msg, NULL, 0, NULL, NULL);
}

static void ask(int sock, enum sk_msg_type type, uint64_t run, int64_t step)
{
	struct sk_msg msg;

	CHECK_STATUS(ask_of(sock, type, run, step, &msg), 0, &msg);
}

static uint32_t flags_of(int sock, uint64_t run, int64_t step)
{
	struct sk_wire_snapshot *all;
	uint32_t flags = 0;
	size_t n;

	all = list_snapshots(sock, JOB, &n);
	for (size_t i = 0; i < n; i++) {
		if (all[i].id.run == run && all[i].id.step == step)
			flags = all[i].flags;
	}
	free(all);
	return flags;
}

static bool has(int sock, uint64_t run, int64_t step, uint32_t flags)
{
	return (flags_of(sock, run, step) & flags) == flags;
}

static bool stands(const struct whole *w, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/" JOB "/%s", w->rig.store,
		       name);
	return access(path, F_OK) == 0;
}

static bool becomes(struct whole *w, int sock, const char *name, bool on)
{
	sk_fault_os_advance(w->fault, SECOND);
	return is_degraded(sock, name) == on;
}

/* ---- ranks are missing ---- */

/* What will not be complete goes to no disk: nobody is told that it does, or
 * that a flush would help. */
static void test_ranks_are_missing(void)
{
	struct rank r[2];
	struct sk_msg msg;
	struct whole w;
	int sock;

	start(&w);
	sock = rig_connect(&w.rig);
	for (int i = 0; i < 2; i++)
		open_as(&w, &r[i], i, 2, 2);
	rank_snapshot(&r[0], 1);
	ask(sock, SK_MSG_PIN, 1, 1);
	CHECK(has(sock, 1, 1, SK_SNAP_PINNED | SK_SNAP_WANTED),
	      "its other half may come");
	rank_close(&r[1]);
	AWAIT(!has(sock, 1, 1, SK_SNAP_WANTED), "it is to be written, and "
	      "will not be");
	rank_snapshot(&r[0], 2);
	ask(sock, SK_MSG_PIN, 1, 2);
	CHECK(has(sock, 1, 2, SK_SNAP_PINNED) &&
	      !has(sock, 1, 2, SK_SNAP_WANTED), "it is to be written");
	CHECK(rank_slot(&r[0], 3, 0) == -EBUSY && strstr(rig_why(&r[0].msg),
	      "(steps 1, 2), which is not written: it will not be complete; "
	      "unpin step 1 (cachectl), skip"), "%s", rig_why(&r[0].msg));
	AWAIT(becomes(&w, sock, STATE, true), "%s", whole_log(&w));
	CHECK(strstr(rig_state(sock, STATE).why, "it will not be complete; "
		     "unpin step 1 (cachectl)"), "%s",
	      rig_state(sock, STATE).why);
	/* An operator's word does not have it written either. */
	CHECK_STATUS(ask_of(sock, SK_MSG_FLUSH, 1, 1, &msg), -ENOENT, &msg);
	CHECK(strstr(rig_why(&msg), "will not be complete, and is not written"),
	      "%s", rig_why(&msg));
	ask(sock, SK_MSG_UNPIN, 1, 1);
	AWAIT(becomes(&w, sock, STATE, false), "%s", whole_log(&w));
	rank_snapshot(&r[0], 3);
	rank_close(&r[0]);
	close(sock);
	stop(&w);
}

/* ---- another run ---- */

/* Of a pinned step another run's takes the place: the pin goes aside with it,
 * and each run's is its own. */
static void test_place_is_taken(void)
{
	struct whole w;
	struct rank r;
	int sock;

	start(&w);
	sock = rig_connect(&w.rig);
	open_as(&w, &r, 0, 1, 3);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	ask(sock, SK_MSG_PIN, 1, 1);
	AWAIT(has(sock, 1, 1, SK_SNAP_DURABLE) &&
	      stands(&w, "step-000000000001/.pinned"), "%s", whole_log(&w));
	rank_close(&r);
	open_as(&w, &r, 0, 1, 3);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	ask(sock, SK_MSG_PIN, 2, 1);
	AWAIT(has(sock, 2, 1, SK_SNAP_DURABLE) &&
	      stands(&w, "step-000000000001/.pinned"), "%s", whole_log(&w));
	AWAIT(has(sock, 1, 1, SK_SNAP_DISK | SK_SNAP_PINNED) &&
	      stands(&w, "step-000000000001.run-1/.pinned"), "%s",
	      whole_log(&w));
	ask(sock, SK_MSG_UNPIN, 1, 1);
	CHECK(!has(sock, 1, 1, SK_SNAP_PINNED) &&
	      !stands(&w, "step-000000000001.run-1/.pinned"), "run 1's");
	CHECK(has(sock, 2, 1, SK_SNAP_PINNED) &&
	      stands(&w, "step-000000000001/.pinned"), "run 2's");
	rank_close(&r);
	close(sock);
	stop(&w);
}

/* It goes no more, and that is no fault of the store's. */
static void test_place_was_taken(void)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;
	int sock;

	start(&w);
	sock = rig_connect(&w.rig);
	open_as(&w, &r, 0, 1, 3);
	rank_snapshot(&r, 1);
	rank_close(&r);
	AWAIT(has(sock, 1, 1, SK_SNAP_DURABLE), "%s", whole_log(&w));
	open_as(&w, &r, 0, 1, 3);
	rank_snapshot(&r, 1);
	ask(sock, SK_MSG_FLUSH, 2, 1);
	AWAIT(has(sock, 2, 1, SK_SNAP_DURABLE), "%s", whole_log(&w));
	/* Nothing kept what stood there, and what did is given up. */
	AWAIT((sk_fault_os_advance(w.fault, SECOND),
	       !has(sock, 1, 1, SK_SNAP_DISK)), "it stays");
	CHECK(has(sock, 1, 1, SK_SNAP_MEMORY), "memory has lost it");
	CHECK_STATUS(ask_of(sock, SK_MSG_PIN, 1, 1, &msg), 0, &msg);
	AWAIT(has(sock, 1, 1, SK_SNAP_FAILED), "%s", whole_log(&w));
	CHECK(has(sock, 1, 1, SK_SNAP_PINNED) &&
	      !has(sock, 1, 1, SK_SNAP_WANTED), "it goes there");
	CHECK(has(sock, 2, 1, SK_SNAP_DURABLE) &&
	      !has(sock, 2, 1, SK_SNAP_PINNED), "the other run's");
	CHECK(!becomes(&w, sock, "store-error", true) &&
	      !becomes(&w, sock, "store-full", true), "%s", whole_log(&w));
	/* Pinned again it is tried again, and refused as before. */
	ask(sock, SK_MSG_PIN, 1, 1);
	AWAIT(stat_value(sock, "shardkeep_flush_errors_total") == 2, "%s",
	      whole_log(&w));
	ask(sock, SK_MSG_UNPIN, 1, 1);
	CHECK(!has(sock, 1, 1, SK_SNAP_PINNED), "it is pinned");
	rank_close(&r);
	close(sock);
	stop(&w);
}

/* ---- it is not pinned ---- */

/* An unpin that fails leaves it as it was: pinned if it was, and not if it was
 * not. */
static void test_unpin_fails(bool pinned)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;
	int sock;

	start(&w);
	sock = rig_connect(&w.rig);
	open_as(&w, &r, 0, 1, 3);
	rank_snapshot(&r, 1);
	ask(sock, SK_MSG_FLUSH, 1, 1);
	AWAIT(has(sock, 1, 1, SK_SNAP_DURABLE), "%s", whole_log(&w));
	if (pinned)
		ask(sock, SK_MSG_PIN, 1, 1);
	AWAIT(rig_is_quiet(sock), "it is not quiet");
	sk_fault_os_fail(w.fault, SK_FAULT_UNLINKAT, 1, SK_FAULT_ALWAYS,
			 EROFS);
	CHECK_STATUS(ask_of(sock, SK_MSG_UNPIN, 1, 1, &msg), -EROFS, &msg);
	sk_fault_os_forget(w.fault);
	CHECK(has(sock, 1, 1, SK_SNAP_PINNED) == pinned &&
	      stands(&w, "step-000000000001/.pinned") == pinned,
	      "it has become another");
	ask(sock, SK_MSG_UNPIN, 1, 1);
	CHECK(!has(sock, 1, 1, SK_SNAP_PINNED) &&
	      !stands(&w, "step-000000000001/.pinned"), "it is pinned");
	rank_close(&r);
	close(sock);
	stop(&w);
}

int main(void)
{
	test_unpin_fails(true);
	test_unpin_fails(false);
	test_ranks_are_missing();
	test_place_is_taken();
	test_place_was_taken();
	return 0;
}
