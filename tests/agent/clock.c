/* SPDX-License-Identifier: Apache-2.0 */
/* What takes the agent hours, on a clock that the test moves. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/whole.h"

#define SECOND UINT64_C(1000000000)
#define TURNS 30

/* Turns of the agent: it has seen the clock and what follows. */
static void let_turn(int sock)
{
	rig_turns(sock, TURNS);
}

static void pass(struct whole *w, int sock, uint64_t seconds)
{
	sk_fault_os_advance(w->fault, seconds * SECOND);
	let_turn(sock);
}

static void test_idle_exit(void)
{
	struct whole w;
	uint64_t left;
	int sock;

	whole_init(&w);
	w.options.idle_exit_s = 3600;
	whole_start(&w);
	sock = rig_connect(&w.rig);
	/* Somebody is connected. */
	pass(&w, sock, 4000);
	close(sock);
	sock = rig_connect(&w.rig);
	close(sock);
	/* Begins anew with the last one who left. */
	sk_fault_os_advance(w.fault, 3500 * SECOND);
	sock = rig_connect(&w.rig);
	CHECK(!whole_ended(&w), "too early");
	close(sock);
	left = w.fault->now;
	whole_pass(&w, 60 * SECOND);
	CHECK(w.fault->now - left >= 3600 * SECOND, "too early");
	CHECK(whole_wait(&w) == 0, "idle exit: %s", whole_log(&w));
	whole_remove(&w);
}

static void test_left_slots(void)
{
	struct rank r, next;
	struct whole w;
	int sock;

	whole_init(&w);
	whole_start(&w);
	sock = rig_connect(&w.rig);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "gone", .world = 1 }), 0, &r.msg);
	rank_close(&r);
	let_turn(sock);
	CHECK(stat_value(sock, "shardkeep_memory_used_bytes") > 0,
	      "its slots stay for a restart");
	/* A rank comes: what others left goes 120 s later. */
	CHECK_STATUS(rank_open(&next, &w.rig, &(struct rank_options){
		.job = "next", .world = 1 }), 0, &next.msg);
	pass(&w, sock, 119);
	CHECK(stat_value(sock, "shardkeep_memory_used_bytes") >
	      (double)next.msg.body.reg_reply.slot_bytes, "too early");
	pass(&w, sock, 2);
	AWAIT(stat_value(sock, "shardkeep_jobs") == 1, "they are kept");
	rank_close(&next);
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status");
	whole_remove(&w);
}

static bool answered(const struct rank *r)
{
	struct pollfd p = { .fd = r->sock, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void test_request_timeout(void)
{
	struct whole w;
	struct rank r;
	int sock;

	whole_init(&w);
	whole_start(&w);
	sock = rig_connect(&w.rig);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "late", .world = 1 }), 0, &r.msg);
	CHECK(rank_slot(&r, 1, 0) >= 0, "slot");
	rank_send_wait(&r, 1, 2, 3600000);
	let_turn(sock);
	pass(&w, sock, 3599);
	CHECK(!answered(&r), "too early");
	pass(&w, sock, 2);
	CHECK_STATUS(rig_reply(r.sock, &r.msg, NULL, NULL), -ETIMEDOUT,
		     &r.msg);
	rank_close(&r);
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status");
	whole_remove(&w);
}

static void await_errors(int sock, double n)
{
	AWAIT(stat_value(sock, "shardkeep_flush_errors_total") >= n,
	      "%g failures expected", n);
	CHECK(stat_value(sock, "shardkeep_flush_errors_total") == n,
	      "%g failures expected", n);
}

/* 1 s after the first failure, 2 s after the second, 4 s, ... */
static void test_flush_retry(void)
{
	struct whole w;
	struct rank r;
	int sock;

	whole_init(&w);
	sk_fault_os_fail(w.fault, SK_FAULT_RENAMEAT, 1, SK_FAULT_ALWAYS, EIO);
	whole_start(&w);
	sock = rig_connect(&w.rig);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "retry", .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	for (int n = 1; n < 7; n++) {
		uint64_t wait_s = UINT64_C(1) << (n - 1);

		await_errors(sock, n);
		sk_fault_os_advance(w.fault, wait_s * SECOND - SECOND / 2);
		let_turn(sock);
		await_errors(sock, n);
		sk_fault_os_advance(w.fault, SECOND);
	}
	rank_close(&r);
	close(sock);
	/* The last tries, and then it says what is lost. */
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&w) == 1, "exit status");
	CHECK(strstr(whole_log(&w), "is lost"), "it does not say so");
	whole_remove(&w);
}

/* Durable steps, one after the other. */
static void go(struct rank *r, int64_t first, int64_t last)
{
	for (int64_t step = first; step <= last; step++) {
		CHECK_STATUS(rank_await_slot(r), 0, &r->msg);
		rank_snapshot(r, step);
		CHECK_STATUS(rank_wait(r, step, 3, WAIT_MS), 0, &r->msg);
	}
}

static unsigned count_steps(const struct whole *w, int64_t last)
{
	char path[256];
	unsigned n = 0;

	for (int64_t step = 1; step <= last; step++) {
		snprintf(path, sizeof(path), "%s/held/step-%012lld",
			 w->rig.store, (long long)step);
		n += access(path, F_OK) == 0;
	}
	return n;
}

/* What takes the agent no time here is not to seem to: it rests by that. */
static void pass_slowly(struct whole *w, int sock, uint64_t seconds)
{
	for (uint64_t i = 0; i < seconds; i += 10)
		pass(w, sock, 10);
}


static bool are_left(struct whole *w, int sock, int64_t last, unsigned n)
{
	sk_fault_os_advance(w->fault, SECOND);
	let_turn(sock);
	return count_steps(w, last) == n;
}

/* Whatever is due of any job begins. */
static void write_another(struct whole *w, int sock, int64_t step)
{
	struct rank r;

	CHECK_STATUS(rank_open(&r, &w->rig, &(struct rank_options){
		.job = "other", .world = 1, .rows = 1 }), 0, &r.msg);
	go(&r, step, step);
	rank_close(&r);
	let_turn(sock);
}

/* A rank that came to restore, and neither gets slots nor goes: that somebody
 * may want what need not stay does not fill the disk for good. */
static void test_restoring_for_good(void)
{
	struct rank_options o = { .job = "held", .world = 1, .rows = 1,
				  .slots = 3 };
	struct rank r;
	struct whole w;
	int sock;

	whole_init(&w);
	whole_start(&w);
	sock = rig_connect(&w.rig);
	for (int64_t life = 0; life < 2; life++) {
		int64_t last = 4 * (life + 1);

		o.keep_last = 2;
		CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
		go(&r, last - 3, last);
		AWAIT(are_left(&w, sock, last, 2), "two are to stay");
		pass_slowly(&w, sock, 200);
		o.keep_last = 1;
		CHECK_STATUS(rank_again(&r, &o), 0, &r.msg);
		pass_slowly(&w, sock, 580);
		write_another(&w, sock, 100 * life + 1);
		CHECK(are_left(&w, sock, last, 2), "too early");
		pass_slowly(&w, sock, 30);
		for (int i = 0; i < 20 && !are_left(&w, sock, last, 1); i++)
			write_another(&w, sock, 100 * life + 2 + i);
		AWAIT(are_left(&w, sock, last, 1), "nothing goes any more");
		rank_close(&r);
	}
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status");
	whole_remove(&w);
}

/* What is sealed after a look that found nothing left is looked for as well,
 * though no other snapshot follows. */
static void seal_late(struct whole *w, struct rank *r, int sock, int64_t step)
{
	int slot;

	CHECK_STATUS(rank_await_slot(r), 0, &r->msg);
	slot = rank_slot(r, step, 0);
	CHECK(slot >= 0, "%s", rig_why(&r->msg));
	for (int i = 0; i < 3; i++)
		pass(w, sock, 31);
	rank_fill(r, slot, step);
	CHECK_STATUS(rank_seal(r, slot, step), 0, &r->msg);
	for (int i = 0; i < 3; i++)
		pass(w, sock, 31);
	AWAIT(snapshot_flags(sock, r->job, step) & SK_SNAP_DURABLE, "late");
}

/* Snapshots a second, an hour long: twice a minute one goes to disk, the first
 * and the last do, and so does one that somebody waits for. */
static void test_cadence(void)
{
	double bytes;
	struct whole w;
	struct rank r;
	int64_t step;
	int sock;

	whole_init(&w);
	w.options.flush_interval_s = 30;
	whole_start(&w);
	sock = rig_connect(&w.rig);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "loop", .world = 1, .rows = 1, .by_cadence = true }), 0,
		&r.msg);
	bytes = (double)r.layouts[0]->image_bytes;
	for (step = 1; step <= 1200; step++) {
		CHECK_STATUS(rank_await_slot(&r), 0, &r.msg);
		rank_snapshot(&r, step);
		sk_fault_os_advance(w.fault, SECOND);
	}
	AWAIT(stat_value(sock, "shardkeep_snapshots_to_flush") == 0, "a flush");
	CHECK(stat_value(sock, "shardkeep_bytes_flushed_total") >=
	      1200 / 60 * bytes, "%g flushes", stat_value(sock,
	      "shardkeep_bytes_flushed_total") / bytes);
	CHECK(stat_value(sock, "shardkeep_bytes_flushed_total") <=
	      (1200 / 30 + 8) * bytes, "%g flushes", stat_value(sock,
	      "shardkeep_bytes_flushed_total") / bytes);
	/* The trainer stands still. */
	pass(&w, sock, 31);
	pass(&w, sock, 31);
	pass(&w, sock, 31);
	AWAIT(snapshot_flags(sock, "loop", 1200) & SK_SNAP_DURABLE, "the last");
	for (step = 1201; step <= 1203; step++) {
		CHECK_STATUS(rank_await_slot(&r), 0, &r.msg);
		rank_snapshot(&r, step);
		CHECK_STATUS(rank_wait(&r, step, 3, WAIT_MS), 0, &r.msg);
	}
	seal_late(&w, &r, sock, step);
	rank_close(&r);
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status");
	whole_remove(&w);
}

/* A bit falls over on disk, and later one in memory: both are found without a
 * reader, and what memory has is written anew. */
static void test_scrub(void)
{
	struct whole w;
	struct rank r;
	char path[256];
	int sock, fd;

	whole_init(&w);
	w.options.scrub_rate = UINT64_C(1) << 30;
	whole_start(&w);
	sock = rig_connect(&w.rig);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "rot", .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	pass(&w, sock, 601);
	AWAIT((pass(&w, sock, 1),
	       stat_value(sock, "shardkeep_images_scrubbed_total") == 2),
	      "memory and disk");
	CHECK(stat_value(sock, "shardkeep_scrub_bad_checksums_total") == 0,
	      "all is well");
	snprintf(path, sizeof(path), "%s/rot/step-000000000001/"
		 "rank-00000-of-00001.safetensors", w.rig.store);
	fd = open(path, O_WRONLY);
	CHECK(fd >= 0 && pwrite(fd, "x", 1, (off_t)
	      r.layouts[0]->header_bytes + 12345) == 1, "write");
	close(fd);
	(void)snapshot_flags(sock, "rot", 1);
	pass(&w, sock, 601);
	AWAIT((pass(&w, sock, 1),
	       stat_value(sock, "shardkeep_scrub_bad_checksums_total") == 1),
	      "the disk");
	AWAIT(snapshot_flags(sock, "rot", 1) & SK_SNAP_DURABLE, "anew");
	r.maps[0][0][r.layouts[0]->header_bytes + 54321] ^= 1;
	pass(&w, sock, 601);
	AWAIT((pass(&w, sock, 1),
	       stat_value(sock, "shardkeep_scrub_bad_checksums_total") == 2),
	      "memory");
	rank_close(&r);
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status");
	whole_remove(&w);
}

int main(void)
{
	test_idle_exit();
	test_left_slots();
	test_request_timeout();
	test_flush_retry();
	test_restoring_for_good();
	test_cadence();
	test_scrub();
	return 0;
}
