/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins of what memory alone has: such a step is sent to disk, so that its pin
 * stands there and the job goes on; where it cannot be, who asks for a slot is
 * told, and it is a degraded state.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"

#define JOB "pinned"
#define STATE "pins-hold-slots"
#define SECOND UINT64_C(1000000000)
#define RARELY 1000		/* flush_every, of steps that are asked for */

/* ---- the agent, and its disk ---- */

/* Shared with the agent's process. */
struct disk {
	atomic_bool no_pins;	/* nothing gets the name of a pin */
	atomic_bool holds;	/* the next image waits, before its name */
	atomic_bool held;
	atomic_bool full;	/* no image gets its name */
	atomic_bool lingers;	/* the next step that is deleted waits, when
				 * its name is gone */
};
static struct disk *disk;
static int go_on[2];		/* a pipe: who is held reads */

static int rename_or_not(const struct sk_os *os, int olddir, const char *old,
			 int newdir, const char *name, unsigned flags)
{
	char c;
	int r;

	if (atomic_load(&disk->no_pins) && strcmp(name, ".pinned") == 0)
		return -ENOSPC;
	if (strstr(name, ".safetensors") &&
	    atomic_exchange(&disk->holds, false)) {
		atomic_store(&disk->held, true);
		CHECK(read(go_on[0], &c, 1) == 1, "read");
	}
	if (strstr(name, ".safetensors") && atomic_load(&disk->full))
		return -ENOSPC;
	r = sk_os_linux()->renameat(os, olddir, old, newdir, name, flags);
	if (strstr(name, ".deleted-") &&
	    atomic_exchange(&disk->lingers, false)) {
		atomic_store(&disk->held, true);
		CHECK(read(go_on[0], &c, 1) == 1, "read");
	}
	return r;
}

static void begin(struct whole *w)
{
	whole_init(w);
	*disk = (struct disk){ 0 };
	w->fault->os.renameat = rename_or_not;
}

static void start(struct whole *w)
{
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
		    int32_t world, uint32_t every)
{
	const struct rank_options o = { .job = JOB, .rank = rank, .rows = 1,
					.world = world, .flush_every = every };

	CHECK_STATUS(rank_open(r, &w->rig, &o), 0, &r->msg);
}

/* A job of one rank and two slots. */
static void open_one(struct whole *w, struct rank *r, uint32_t every)
{
	begin(w);
	start(w);
	open_as(w, r, 0, 1, every);
}

static void close_one(struct whole *w, struct rank *r)
{
	rank_close(r);
	stop(w);
}

static void ask(int sock, enum sk_msg_type type, int64_t step)
{
	struct sk_msg msg;

	CHECK_STATUS(manage(sock, type, JOB, step, 0, &msg), 0, &msg);
}

static bool has(int sock, int64_t step, uint32_t flags)
{
	return (snapshot_flags(sock, JOB, step) & flags) == flags;
}

static bool stands(const struct whole *w, int64_t step, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/" JOB "/step-%012" PRId64
		       "/%s", w->rig.store, step, name);
	return access(path, F_OK) == 0;
}

static bool is_pinned_there(const struct whole *w, int sock, int64_t step)
{
	return has(sock, step, SK_SNAP_DURABLE | SK_SNAP_PINNED) &&
	       stands(w, step, ".pinned");
}

#define AWAIT_ON_DISK(w, sock, step)					\
	AWAIT(is_pinned_there(w, sock, step), "step %d is not pinned on "	\
	      "disk: %s", (int)(step), whole_log(w))

/* It has been looked at since. */
static bool becomes(struct whole *w, int sock, const char *name, bool on)
{
	sk_fault_os_advance(w->fault, SECOND);
	return is_degraded(sock, name) == on;
}

#define AWAIT_STATE(w, sock, name, on)					\
	AWAIT(becomes(w, sock, name, on), "%s %s: %s", name,		\
	      on ? "is not told" : "stays", whole_log(w))

static bool passes(struct whole *w, bool so)
{
	sk_fault_os_advance(w->fault, SECOND);
	return so;
}

/* The next step has none, and is told why and what to do. */
static void is_refused(struct rank *r, int64_t step, const char *why,
		       const char *remedy)
{
	CHECK(rank_slot(r, step, 0) == -EBUSY && strstr(rig_why(&r->msg), why)
	      && strstr(rig_why(&r->msg), remedy), "%s", rig_why(&r->msg));
}

static void goes_on(struct rank *r, int64_t step)
{
	CHECK_STATUS(rank_await_slot(r), 0, &r->msg);
	rank_snapshot(r, step);
}

/* ---- it goes to disk ---- */

/* Whoever waits for a slot is heard as soon as the pin stands there. */
static void test_goes_to_disk(void)
{
	struct whole w;
	struct rank r;

	open_one(&w, &r, RARELY);
	for (int64_t step = 1; step <= 10; step++) {
		goes_on(&r, step);
		ask(r.sock, SK_MSG_PIN, step);
	}
	CHECK(!is_degraded(r.sock, STATE), "%s", whole_log(&w));
	for (int64_t step = 1; step <= 10; step++)
		AWAIT_ON_DISK(&w, r.sock, step);
	/* What need not go there does not. */
	goes_on(&r, 11);
	CHECK(!has(r.sock, 11, SK_SNAP_WANTED), "it is to be written");
	close_one(&w, &r);
}

/* Of what is on disk nothing is written once more. */
static void test_is_on_disk(void)
{
	double bytes;
	struct whole w;
	struct rank r;

	open_one(&w, &r, 1);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	bytes = stat_value(r.sock, "shardkeep_bytes_flushed_total");
	for (int i = 0; i < 3; i++)
		ask(r.sock, SK_MSG_PIN, 1);
	CHECK(is_pinned_there(&w, r.sock, 1), "%s", whole_log(&w));
	AWAIT(rig_is_quiet(r.sock), "it is not quiet");
	CHECK(stat_value(r.sock, "shardkeep_bytes_flushed_total") == bytes,
	      "it was written again");
	close_one(&w, &r);
}

/* The pin came before the others had sealed it: all of it goes. */
static void test_others_seal_later(void)
{
	struct rank r[2];
	struct whole w;

	begin(&w);
	start(&w);
	for (int i = 0; i < 2; i++)
		open_as(&w, &r[i], i, 2, RARELY);
	rank_snapshot(&r[0], 1);
	ask(r[0].sock, SK_MSG_PIN, 1);
	CHECK(!has(r[0].sock, 1, SK_SNAP_COMPLETE), "without its half");
	rank_snapshot(&r[1], 1);
	AWAIT_ON_DISK(&w, r[0].sock, 1);
	/* As when no rank has, and one fills it. */
	for (int64_t step = 2; step <= 4; step++) {
		for (int i = 0; i < 2; i++)
			goes_on(&r[i], step);
		ask(r[0].sock, SK_MSG_PIN, step);
	}
	for (int64_t step = 2; step <= 4; step++)
		AWAIT_ON_DISK(&w, r[0].sock, step);
	for (int i = 0; i < 2; i++)
		rank_close(&r[i]);
	stop(&w);
}

/* Nobody has sealed it yet. */
static void test_is_being_filled(void)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;
	int slot, sock;

	open_one(&w, &r, RARELY);
	sock = rig_connect(&w.rig);
	slot = rank_slot(&r, 1, 0);
	CHECK_STATUS(slot < 0 ? slot : 0, 0, &r.msg);
	rank_fill(&r, slot, 1);
	CHECK_STATUS(manage(sock, SK_MSG_PIN, JOB, 1, 0, &msg), 0, &msg);
	CHECK_STATUS(rank_seal(&r, slot, 1), 0, &r.msg);
	AWAIT_ON_DISK(&w, sock, 1);
	close(sock);
	close_one(&w, &r);
}

/* Each node has its part, and its agent writes that. */
static void test_of_several_nodes(void)
{
	struct whole w[2];
	struct rank r[2];

	for (int i = 0; i < 2; i++) {
		begin(&w[i]);
		if (i)
			memcpy(w[1].rig.store, w[0].rig.store,
			       sizeof(w[1].rig.store));
		start(&w[i]);
		open_as(&w[i], &r[i], i, 2, RARELY);
		/* One run, as ranks that have met say. */
		if (i && (r[1].run != r[0].run || r[1].run_id != r[0].run_id)) {
			rank_close(&r[1]);
			CHECK_STATUS(rank_open(&r[1], &w[1].rig,
				&(struct rank_options){ .job = JOB, .rank = 1,
				.world = 2, .rows = 1, .flush_every = RARELY,
				.run = r[0].run, .run_id = r[0].run_id }), 0,
				&r[1].msg);
		}
	}
	for (int64_t step = 1; step <= 4; step++)
		for (int i = 0; i < 2; i++) {
			goes_on(&r[i], step);
			ask(r[i].sock, SK_MSG_PIN, step);
		}
	for (int64_t step = 1; step <= 4; step++)
		AWAIT_ON_DISK(&w[0], r[0].sock, step);
	for (int i = 1; i >= 0; i--)
		close_one(&w[i], &r[i]);
}

/* One agent's pin is heard by the other with the next look, and its part is
 * written as well. */
static void test_another_pins(void)
{
	struct whole w[2];
	struct rank r[2];

	for (int i = 0; i < 2; i++) {
		begin(&w[i]);
		if (i)
			memcpy(w[1].rig.store, w[0].rig.store,
			       sizeof(w[1].rig.store));
		start(&w[i]);
		CHECK_STATUS(rank_open(&r[i], &w[i].rig,
			&(struct rank_options){ .job = JOB, .rank = i,
			.world = 2, .rows = 1, .flush_every = RARELY,
			.run = i ? r[0].run : 0,
			.run_id = i ? r[0].run_id : 0 }), 0, &r[i].msg);
	}
	for (int i = 0; i < 2; i++)
		rank_snapshot(&r[i], 1);
	ask(r[0].sock, SK_MSG_PIN, 1);
	AWAIT((has(r[0].sock, 1, SK_SNAP_DISK), stands(&w[0], 1, ".pinned")),
	      "%s", whole_log(&w[0]));
	AWAIT(has(r[1].sock, 1, SK_SNAP_DURABLE | SK_SNAP_PINNED), "%s",
	      whole_log(&w[1]));
	for (int i = 1; i >= 0; i--)
		close_one(&w[i], &r[i]);
}

/* ---- it cannot ---- */

/* The job has said so, or there is no store. An operator's word goes over the
 * job's. */
static void test_nothing_is_written(bool store)
{
	struct whole w;
	struct rank r;

	begin(&w);
	if (!store)
		w.options.store = NULL;
	start(&w);
	open_as(&w, &r, 0, 1, UINT32_MAX);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	CHECK(!becomes(&w, r.sock, STATE, true), "nothing is pinned");
	ask(r.sock, SK_MSG_PIN, 1);
	ask(r.sock, SK_MSG_PIN, 2);
	CHECK(!has(r.sock, 1, SK_SNAP_WANTED), "against the job's word");
	/* Before anybody asks for a slot, and where nobody is refused. */
	AWAIT_STATE(&w, r.sock, STATE, true);
	is_refused(&r, 3, "1 of the 2 slots of rank 0 of job \"" JOB "\" has "
		   "what is pinned in memory alone (step 1)", store ?
		   "unpin step 1 or flush it" : "give the agent a store");
	CHECK(strstr(whole_log(&w), "(step 1)"), "%s", whole_log(&w));
	if (store) {
		ask(r.sock, SK_MSG_FLUSH, 1);
		goes_on(&r, 3);
	} else {
		ask(r.sock, SK_MSG_UNPIN, 1);
		rank_snapshot(&r, 3);
	}
	/* The other one is the newest no more, and holds the next step. */
	is_refused(&r, 4, "(step 2)", "unpin step 2");
	ask(r.sock, SK_MSG_UNPIN, 2);
	AWAIT_STATE(&w, r.sock, STATE, false);
	rank_snapshot(&r, 4);
	close_one(&w, &r);
}

/* Of 4 slots 3 are named. */
static void test_many_are_named(void)
{
	struct whole w;
	struct rank r;

	begin(&w);
	start(&w);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 1, .slots = 4,
		.flush_every = UINT32_MAX }), 0, &r.msg);
	for (int64_t step = 1; step <= 4; step++) {
		rank_snapshot(&r, step);
		CHECK(!is_degraded(r.sock, STATE), "%s", whole_log(&w));
		ask(r.sock, SK_MSG_PIN, step);
	}
	is_refused(&r, 5, "3 of the 4 slots of rank 0 of job \"" JOB "\" have "
		   "what is pinned in memory alone (steps 1, 2, 3)",
		   "unpin step 1");
	AWAIT_STATE(&w, r.sock, STATE, true);
	/* It ends with the rank. */
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	AWAIT_STATE(&w, r.sock, STATE, false);
	close_one(&w, &r);
}

/* The store is full, and then it has room again. */
static void test_store_comes_back(void)
{
	struct whole w;
	struct rank r;

	open_one(&w, &r, RARELY);
	sk_fault_os_fail(w.fault, SK_FAULT_FALLOCATE, 1, SK_FAULT_ALWAYS,
			 ENOSPC);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT_STATE(&w, r.sock, STATE, true);
	CHECK(is_degraded(r.sock, "store-full"), "%s", whole_log(&w));
	is_refused(&r, 3, "(step 1), which is not written: ", "unpin step 1");
	sk_fault_os_forget(w.fault);
	AWAIT(passes(&w, is_pinned_there(&w, r.sock, 1)), "%s",
	      whole_log(&w));
	AWAIT_STATE(&w, r.sock, STATE, false);
	goes_on(&r, 3);
	close_one(&w, &r);
}

/* Whoever pins it again has it tried at once, and not when the time has come,
 * which stands here. */
static void test_pinned_again(void)
{
	struct whole w;
	struct rank r;

	open_one(&w, &r, RARELY);
	sk_fault_os_fail(w.fault, SK_FAULT_FALLOCATE, 1, SK_FAULT_ALWAYS,
			 EIO);
	rank_snapshot(&r, 1);
	ask(r.sock, SK_MSG_PIN, 1);
	/* Half a minute from the next one. */
	AWAIT(passes(&w, stat_value(r.sock, "shardkeep_flush_errors_total") >=
		     6), "%s", whole_log(&w));
	sk_fault_os_forget(w.fault);
	rig_turns(r.sock, 30);
	CHECK(!has(r.sock, 1, SK_SNAP_DURABLE), "it was tried before: %s",
	      whole_log(&w));
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT_ON_DISK(&w, r.sock, 1);
	close_one(&w, &r);
}

/* The step is there, and its pin could not be written. */
static void test_pin_is_written_later(void)
{
	struct whole w;
	struct rank r;

	open_one(&w, &r, RARELY);
	atomic_store(&disk->no_pins, true);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT(has(r.sock, 1, SK_SNAP_DURABLE), "%s", whole_log(&w));
	AWAIT_STATE(&w, r.sock, STATE, true);
	CHECK(!stands(&w, 1, ".pinned") && has(r.sock, 1, SK_SNAP_PIN_UNSTORED),
	      "it stands there");
	is_refused(&r, 3, "its pin cannot be written", "unpin step 1");
	atomic_store(&disk->no_pins, false);
	/* By itself: who lists looks at the store. */
	AWAIT(passes(&w, stands(&w, 1, ".pinned")), "%s", whole_log(&w));
	AWAIT_ON_DISK(&w, r.sock, 1);
	CHECK(!has(r.sock, 1, SK_SNAP_PIN_UNSTORED), "it does");
	AWAIT_STATE(&w, r.sock, STATE, false);
	goes_on(&r, 3);
	close_one(&w, &r);
}

/* Deleted with it; pinned anew it is another try, which is under way. */
static void test_failed_pin_is_forgotten(void)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;

	open_one(&w, &r, RARELY);
	atomic_store(&disk->no_pins, true);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT(has(r.sock, 1, SK_SNAP_DURABLE), "%s", whole_log(&w));
	AWAIT_STATE(&w, r.sock, STATE, true);
	/* Then the disk has a newer one as well. */
	ask(r.sock, SK_MSG_FLUSH, 2);
	AWAIT(has(r.sock, 2, SK_SNAP_DURABLE), "%s", whole_log(&w));
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, JOB, 1, SK_EVICT_DISK |
			    SK_EVICT_FORCE, &msg), 0, &msg);
	AWAIT_STATE(&w, r.sock, STATE, false);
	atomic_store(&disk->no_pins, false);
	atomic_store(&disk->holds, true);
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT(atomic_load(&disk->held), "it is not written");
	CHECK(rank_slot(&r, 3, SK_SLOT_WILL_WAIT) == -EBUSY &&
	      !strstr(rig_why(&r.msg), "cannot be written"), "%s",
	      rig_why(&r.msg));
	for (int i = 0; i < 5; i++)
		CHECK(!becomes(&w, r.sock, STATE, true), "%s", whole_log(&w));
	CHECK(write(go_on[1], "", 1) == 1, "write");
	AWAIT_ON_DISK(&w, r.sock, 1);
	goes_on(&r, 3);
	close_one(&w, &r);
}

/* ---- it is pinned no more ---- */

/* Before it could be written: it is not to be any more. */
static void test_unpinned_before(void)
{
	struct whole w;
	struct rank r;

	open_one(&w, &r, RARELY);
	sk_fault_os_fail(w.fault, SK_FAULT_FALLOCATE, 1, SK_FAULT_ALWAYS,
			 ENOSPC);
	rank_snapshot(&r, 1);
	ask(r.sock, SK_MSG_PIN, 1);
	CHECK(has(r.sock, 1, SK_SNAP_WANTED), "it is not to be");
	AWAIT_STATE(&w, r.sock, "store-full", true);
	ask(r.sock, SK_MSG_UNPIN, 1);
	CHECK(!has(r.sock, 1, SK_SNAP_WANTED), "it is to be");
	/* By one look: more time would have the store hang, and be mended. */
	sk_fault_os_advance(w.fault, 3 * SECOND);
	AWAIT(!is_degraded(r.sock, "store-full"), "it stays: %s",
	      whole_log(&w));
	/* What somebody else wants is. */
	ask(r.sock, SK_MSG_PIN, 1);
	ask(r.sock, SK_MSG_FLUSH, 1);
	ask(r.sock, SK_MSG_UNPIN, 1);
	CHECK(has(r.sock, 1, SK_SNAP_WANTED), "it is not to be");
	sk_fault_os_forget(w.fault);
	AWAIT(passes(&w, has(r.sock, 1, SK_SNAP_DURABLE)), "%s",
	      whole_log(&w));
	CHECK(!has(r.sock, 1, SK_SNAP_PINNED), "it is pinned");
	close_one(&w, &r);
}

/* While it is, and that fails, as it may have before: nobody wants it. */
static void test_unpinned_failing(bool before)
{
	struct whole w;
	struct rank r;
	double errors;

	open_one(&w, &r, RARELY);
	atomic_store(&disk->full, true);
	atomic_store(&disk->holds, !before);
	rank_snapshot(&r, 1);
	ask(r.sock, SK_MSG_PIN, 1);
	if (before) {
		AWAIT_STATE(&w, r.sock, "store-full", true);
		atomic_store(&disk->holds, true);
	}
	AWAIT(passes(&w, atomic_load(&disk->held)), "it is not written");
	errors = stat_value(r.sock, "shardkeep_flush_errors_total");
	ask(r.sock, SK_MSG_UNPIN, 1);
	/* A look that finds it under way. */
	sk_fault_os_advance(w.fault, 3 * SECOND);
	rig_turns(r.sock, 30);
	CHECK(write(go_on[1], "", 1) == 1, "write");
	AWAIT(stat_value(r.sock, "shardkeep_flush_errors_total") > errors,
	      "it did not fail");
	CHECK(!is_degraded(r.sock, "store-full"), "%s", whole_log(&w));
	atomic_store(&disk->full, false);
	goes_on(&r, 2);
	goes_on(&r, 3);
	close_one(&w, &r);
}

/* While it is: it is written, and not pinned. */
static void test_unpinned_meanwhile(void)
{
	struct whole w;
	struct rank r;

	open_one(&w, &r, RARELY);
	atomic_store(&disk->holds, true);
	rank_snapshot(&r, 1);
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT(atomic_load(&disk->held), "it is not written");
	CHECK(has(r.sock, 1, SK_SNAP_FLUSHING), "it is not being flushed");
	ask(r.sock, SK_MSG_UNPIN, 1);
	CHECK(write(go_on[1], "", 1) == 1, "write");
	AWAIT(has(r.sock, 1, SK_SNAP_DURABLE), "%s", whole_log(&w));
	AWAIT(rig_is_quiet(r.sock), "it is not quiet");
	CHECK(!stands(&w, 1, ".pinned") && !has(r.sock, 1, SK_SNAP_PINNED),
	      "it is pinned");
	goes_on(&r, 2);
	goes_on(&r, 3);
	close_one(&w, &r);
}

/* Deleted over its pin, here or by another agent, it is not written anew. */
static void test_deleted(bool by_another)
{
	struct whole w, other;
	struct sk_msg msg;
	struct rank r;
	int sock;

	open_one(&w, &r, RARELY);
	rank_snapshot(&r, 1);
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT_ON_DISK(&w, r.sock, 1);
	rank_snapshot(&r, 2);
	ask(r.sock, SK_MSG_PIN, 2);
	AWAIT_ON_DISK(&w, r.sock, 2);
	if (by_another) {
		begin(&other);
		memcpy(other.rig.store, w.rig.store, sizeof(w.rig.store));
		start(&other);
	}
	sock = rig_connect(by_another ? &other.rig : &w.rig);
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, JOB, 1, SK_EVICT_DISK |
			    SK_EVICT_FORCE, &msg), 0, &msg);
	AWAIT(!has(r.sock, 1, SK_SNAP_DISK), "it is there");
	AWAIT(rig_is_quiet(r.sock), "it is not quiet");
	CHECK(has(r.sock, 1, SK_SNAP_MEMORY), "memory has lost it");
	CHECK(!has(r.sock, 1, SK_SNAP_PINNED) && !has(r.sock, 1,
	      SK_SNAP_WANTED) && !stands(&w, 1, ""), "it is written anew");
	close(sock);
	if (by_another)
		stop(&other);
	rank_snapshot(&r, 3);
	close_one(&w, &r);
}

static void retain_last(int sock, uint32_t n)
{
	struct sk_msg msg = { .type = SK_MSG_RETAIN, .body.retain = {
		.id.job = JOB, .flags = SK_RETAIN_SET,
		.retention.keep_last = n } };

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

/* What is to stay has a step deleted, here or by another agent, and it is
 * pinned when its name is gone: then memory alone has it, and the pin holds. */
static void test_pinned_meanwhile(bool by_another)
{
	struct whole w, other;
	struct sk_msg msg;
	struct rank r;
	int sock;

	open_one(&w, &r, RARELY);
	for (int64_t step = 1; step <= 2; step++) {
		rank_snapshot(&r, step);
		ask(r.sock, SK_MSG_FLUSH, step);
		AWAIT(has(r.sock, step, SK_SNAP_DURABLE), "it is not durable");
	}
	if (by_another) {
		begin(&other);
		memcpy(other.rig.store, w.rig.store, sizeof(w.rig.store));
		start(&other);
	}
	sock = rig_connect(by_another ? &other.rig : &w.rig);
	CHECK(has(sock, 1, SK_SNAP_DISK), "it is not there");
	atomic_store(&disk->lingers, true);
	retain_last(sock, 1);
	AWAIT(passes(by_another ? &other : &w, atomic_load(&disk->held)),
	      "nothing is deleted: %s", whole_log(&w));
	AWAIT(!has(r.sock, 1, SK_SNAP_DISK), "it is known there");
	ask(r.sock, SK_MSG_PIN, 1);
	CHECK(write(go_on[1], "", 1) == 1, "write");
	AWAIT_ON_DISK(&w, r.sock, 1);
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, JOB, 1, SK_EVICT_MEMORY,
			    &msg), -EBUSY, &msg);
	close(sock);
	if (by_another)
		stop(&other);
	close_one(&w, &r);
}

/* ---- the last resort ---- */

/*
 * What is pinned on disk gives its memory before a flush that is under way is
 * waited for: a trainer that waits loses time, and the pin nothing. And what is
 * pinned in memory alone is waited for while it is being written.
 */
static void test_comes_before_waiting(void)
{
	struct whole w;
	struct rank r;
	int slot;

	begin(&w);
	start(&w);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 1, .slots = 3,
		.flush_every = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	ask(r.sock, SK_MSG_PIN, 1);
	AWAIT_ON_DISK(&w, r.sock, 1);
	atomic_store(&disk->holds, true);
	rank_snapshot(&r, 2);
	AWAIT(atomic_load(&disk->held), "it is not written");
	rank_snapshot(&r, 3);
	slot = rank_slot(&r, 4, SK_SLOT_WILL_WAIT);
	CHECK_STATUS(slot < 0 ? slot : 0, 0, &r.msg);
	CHECK(!has(r.sock, 1, SK_SNAP_MEMORY) && is_pinned_there(&w, r.sock,
	      1) && has(r.sock, 2, SK_SNAP_FLUSHING), "%s", whole_log(&w));
	rank_fill(&r, slot, 4);
	CHECK_STATUS(rank_seal(&r, slot, 4), 0, &r.msg);
	/* Step 2 is under way and pinned, 3 is to be, 4 is the newest. */
	ask(r.sock, SK_MSG_PIN, 2);
	ask(r.sock, SK_MSG_PIN, 3);
	CHECK(rank_slot(&r, 5, SK_SLOT_WILL_WAIT) == -EBUSY &&
	      !becomes(&w, r.sock, STATE, true), "%s", rig_why(&r.msg));
	CHECK(write(go_on[1], "", 1) == 1, "write");
	goes_on(&r, 5);
	CHECK(!has(r.sock, 2, SK_SNAP_MEMORY) && has(r.sock, 3,
	      SK_SNAP_MEMORY), "the oldest goes first");
	close_one(&w, &r);
}

/* ---- the next life ---- */

/* Its slots are of another size, and there is memory for them where what is
 * pinned on disk goes: for this job's, for no other one's, and not of what
 * memory alone has. */
static void test_next_life(bool on_disk)
{
	struct rank_options o = { .job = JOB, .world = 1, .rows = 1024,
				  .flush_every = on_disk ? 1 : UINT32_MAX };
	struct whole w;
	struct rank r;
	int sock;

	begin(&w);
	w.options.memory = 14u << 20;
	start(&w);
	CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
	rank_snapshot(&r, 1);
	ask(r.sock, SK_MSG_PIN, 1);
	if (on_disk)
		AWAIT_ON_DISK(&w, r.sock, 1);
	rank_snapshot(&r, 2);
	rank_close(&r);
	sock = rig_connect(&w.rig);
	AWAIT(has(sock, 2, SK_SNAP_DURABLE), "%s", whole_log(&w));
	o.rows = 1100;
	o.job = "other";
	CHECK_STATUS(rank_open(&r, &w.rig, &o), -ENOMEM, &r.msg);
	rank_close(&r);
	o.job = JOB;
	CHECK_STATUS(rank_open(&r, &w.rig, &o), on_disk ? 0 : -ENOMEM,
		     &r.msg);
	CHECK(has(sock, 1, SK_SNAP_MEMORY) != on_disk &&
	      has(sock, 2, SK_SNAP_MEMORY), "what has gone?");
	CHECK(!on_disk || is_pinned_there(&w, sock, 1), "it is not there");
	close(sock);
	close_one(&w, &r);
}

int main(void)
{
	disk = mmap(NULL, sizeof(*disk), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(disk != MAP_FAILED && pipe2(go_on, O_CLOEXEC) == 0, "mmap");
	test_goes_to_disk();
	test_is_on_disk();
	test_others_seal_later();
	test_is_being_filled();
	test_of_several_nodes();
	test_another_pins();
	test_nothing_is_written(true);
	test_nothing_is_written(false);
	test_many_are_named();
	test_store_comes_back();
	test_pinned_again();
	test_pin_is_written_later();
	test_failed_pin_is_forgotten();
	test_unpinned_before();
	test_unpinned_failing(false);
	test_unpinned_failing(true);
	test_unpinned_meanwhile();
	test_deleted(false);
	test_deleted(true);
	test_pinned_meanwhile(false);
	test_pinned_meanwhile(true);
	test_comes_before_waiting();
	test_next_life(true);
	test_next_life(false);
	return 0;
}
