/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins, many and of several agents: what stays known and listed beside them,
 * what they cost who flushes, and what one agent hears of another's.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/whole.h"

#define JOB "pins"
#define SLOTS 3
#define KNOWN SK_LIST_KNOWN_MOST
#define SECOND UINT64_C(1000000000)

static void begin(struct whole *w)
{
	struct timespec now;

	whole_init(w);
	/* What is written is an hour old, and so known by its times. */
	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_clock(w->fault, 1, ((uint64_t)now.tv_sec + 3600) * SECOND);
}

static void start(struct whole *w, struct rank *r, uint32_t keep_last)
{
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 1, .slots = SLOTS,
		.keep_last = keep_last }), 0, &r->msg);
}

static void stop(struct whole *w, struct rank *r)
{
	rank_close(r);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "%s", whole_log(w));
}

static void take(struct rank *r, int64_t step)
{
	rank_snapshot(r, step);
	CHECK_STATUS(rank_wait(r, step, 3, WAIT_MS), 0, &r->msg);
}

/* The same where that waits for deletions, which take their time. */
static void take_in_time(struct whole *w, struct rank *r, int64_t step)
{
	struct pollfd p = { .fd = r->sock, .events = POLLIN };

	rank_snapshot(r, step);
	rank_send_wait(r, step, 3, WAIT_MS);
	AWAIT((sk_fault_os_advance(w->fault, SECOND / 100),
	       poll(&p, 1, 1) == 1), "step %" PRId64 " is not durable", step);
	CHECK_STATUS(rig_reply(r->sock, &r->msg, NULL, NULL), 0, &r->msg);
}

static void pin(int sock, enum sk_msg_type type, int64_t step)
{
	struct sk_msg msg;

	CHECK_STATUS(manage(sock, type, JOB, step, 0, &msg), 0, &msg);
}

static bool is_pinned(int sock, int64_t step)
{
	return snapshot_flags(sock, JOB, step) & SK_SNAP_PINNED;
}

static double known(struct whole *w, int sock, uint64_t later_ns)
{
	sk_fault_os_advance(w->fault, later_ns);
	return stat_value(sock, "shardkeep_snapshots");
}

/* ---- more than are known of a job ---- */

static bool knows(int sock, int64_t step)
{
	size_t n;

	free(list_known(sock, JOB, step, &n));
	return n > 0;
}

/* Of the newest it is as if nothing was pinned, and what is older and is not
 * goes, whatever is pinned between. */
static void test_newest_are_known(unsigned pins, unsigned more)
{
	unsigned all = pins + more, n;
	struct whole w;
	struct rank r;
	int sock;

	begin(&w);
	start(&w, &r, UINT32_MAX);
	sock = rig_connect(&w.rig);
	for (n = 1; n <= all; n++) {
		take(&r, n);
		/* Memory has no more of it. */
		if (n > SLOTS && n - SLOTS <= pins)
			pin(sock, SK_MSG_PIN, n - SLOTS);
	}
	AWAIT(known(&w, sock, 60 * SECOND) <= pins + KNOWN,
	      "%g are known of %u", known(&w, sock, 0), all);
	for (n = all; n > all - KNOWN; n--)
		CHECK(knows(sock, n), "step %u is not known", n);
	AWAIT((known(&w, sock, SECOND), !knows(sock, pins + 1)), "step %u is",
	      pins + 1);
	for (n = 1; n <= pins; n++)
		CHECK(is_pinned(sock, n), "step %u", n);
	close(sock);
	stop(&w, &r);
	whole_remove(&w);
}

/* ---- after a restart ---- */

static void path_of(const struct whole *w, int64_t step, const char *name,
		    char path[256])
{
	(void)snprintf(path, 256, "%s/" JOB "/step-%012" PRId64 "/%s",
		       w->rig.store, step, name);
}

static bool is_there(const struct whole *w, int64_t step)
{
	char path[256];

	path_of(w, step, "", path);
	return access(path, F_OK) == 0;
}

static void unpin_by_hand(const struct whole *w, int64_t step)
{
	char path[256];

	path_of(w, step, ".pinned", path);
	CHECK(unlink(path) == 0, "it is not pinned on disk");
}

/* How many files it opens for a flush, beside so many pins that it has not
 * looked at. */
static uint64_t opens_of_a_flush(unsigned pins)
{
	uint64_t at = 0;
	struct whole w;
	struct rank r;

	begin(&w);
	start(&w, &r, UINT32_MAX);
	for (unsigned n = 1; n <= pins; n++)
		take(&r, n);
	for (unsigned n = 1; n <= pins; n++)
		pin(r.sock, SK_MSG_PIN, n);
	stop(&w, &r);
	start(&w, &r, 1);
	for (unsigned n = pins + 1; n <= pins + 20; n++) {
		/* The first ones meet them. */
		if (n == pins + 6)
			at = sk_fault_os_calls(w.fault, SK_FAULT_OPENAT);
		take_in_time(&w, &r, n);
		/* It rests between one and the next. */
		for (unsigned i = 0; i < 2 * pins; i++)
			(void)known(&w, r.sock, SECOND / 100);
		AWAIT((known(&w, r.sock, SECOND), rig_is_quiet(r.sock)),
		      "it is not quiet");
	}
	at = (sk_fault_os_calls(w.fault, SK_FAULT_OPENAT) - at) / 15;
	unpin_by_hand(&w, 5);
	for (unsigned n = pins + 21; is_there(&w, 5); n++) {
		CHECK(n < pins + 200, "what is pinned no more stays");
		take_in_time(&w, &r, n);
		/* Who was in the way of one look is waited for. */
		(void)known(&w, r.sock, SECOND);
	}
	for (unsigned n = 1; n <= pins; n++)
		CHECK(n == 5 || is_pinned(r.sock, n), "step %u", n);
	stop(&w, &r);
	whole_remove(&w);
	return at;
}

static void test_pins_cost_a_flush_nothing(void)
{
	uint64_t few = opens_of_a_flush(20), many = opens_of_a_flush(120);

	CHECK(many < few + 100, "%" PRIu64 " opens beside 20 pins, %" PRIu64
	      " beside 120", few, many);
}

/* ---- what another agent does ---- */

static void test_another_unpins(void)
{
	struct whole w, other;
	struct sk_msg msg;
	struct rank r;
	int sock;

	begin(&w);
	start(&w, &r, 4);
	take(&r, 1);
	take(&r, 2);
	begin(&other);
	memcpy(other.rig.store, w.rig.store, sizeof(other.rig.store));
	whole_start(&other);
	CHECK(other.serves, "%s", whole_log(&other));
	sock = rig_connect(&other.rig);
	pin(sock, SK_MSG_PIN, 1);
	AWAIT(is_pinned(r.sock, 1), "it does not hear that it is pinned");
	pin(sock, SK_MSG_UNPIN, 1);
	AWAIT(!is_pinned(r.sock, 1), "it does not hear that it is not");
	pin(r.sock, SK_MSG_PIN, 1);
	AWAIT(is_pinned(sock, 1), "the other does not hear it");
	pin(sock, SK_MSG_UNPIN, 1);
	AWAIT(!is_pinned(r.sock, 1), "it holds on to its own");
	/* Of what is gone there memory here has a part. */
	pin(sock, SK_MSG_PIN, 1);
	AWAIT(is_pinned(r.sock, 1), "it does not hear that it is pinned");
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, JOB, 1, SK_EVICT_DISK |
			    SK_EVICT_FORCE, &msg), 0, &msg);
	AWAIT(!(snapshot_flags(r.sock, JOB, 1) & SK_SNAP_DISK), "it is there");
	CHECK(snapshot_flags(r.sock, JOB, 1) & SK_SNAP_MEMORY, "not here");
	CHECK(!is_pinned(r.sock, 1), "what the pin was of is gone");
	close(sock);
	CHECK(kill(other.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&other) == 0, "%s", whole_log(&other));
	whole_remove(&other);
	stop(&w, &r);
	whole_remove(&w);
}

/* ---- memory ---- */

/* The next step gets the memory of what is pinned on disk, where there is no
 * other; of what memory alone has: pin-memory.c. */
static void test_next_step_gets_memory(void)
{
	struct rank_options o = { .job = JOB, .world = 1, .rows = 1,
				  .slots = 2, .keep_last = 1 };
	struct whole w;
	struct rank r;

	begin(&w);
	whole_start(&w);
	CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
	for (int64_t step = 1; step <= 5; step++) {
		take(&r, step);
		pin(r.sock, SK_MSG_PIN, step);
	}
	for (int64_t step = 1; step <= 5; step++)
		CHECK(is_pinned(r.sock, step) && is_there(&w, step),
		      "step %" PRId64, step);
	CHECK(!(snapshot_flags(r.sock, JOB, 3) & SK_SNAP_MEMORY) &&
	      snapshot_flags(r.sock, JOB, 4) & SK_SNAP_MEMORY, "the oldest");
	stop(&w, &r);
	whole_remove(&w);
}

int main(void)
{
	test_next_step_gets_memory();
	test_newest_are_known(70, 100);
	/* The sanitizers see nothing in many that is not in some. */
	if (sk_fault_every() == 1)
		test_newest_are_known(300, 100);
	test_pins_cost_a_flush_nothing();
	test_another_unpins();
	return 0;
}
