/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent that has taken up a large job of one that was killed, and has not
 * read what its slots hold: it reads one image at a time, when the test lets
 * it. It serves meanwhile, and nobody is told of the job what is not so.
 */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/reading.h"
#include "keeper/table.h"

#define JOB "kept"
#define OTHER "other"
#define NOBODY 65534
#define LATER "later"	/* than that, by its name */
#define RANKS 4
#define STEPS 2
#define IMAGES (RANKS * STEPS)
#define TENSORS 400		/* a header of them is a long one */
#define MANY 1600
#define TURNS 30
#define NEVER (1u << 20)
#define SECOND UINT64_C(1000000000)

static void put(struct rank *r, const struct scene *s, int32_t rank,
		unsigned tensors)
{
	CHECK_STATUS(rank_open(r, &s->rig, &(struct rank_options){
		.job = JOB, .world = RANKS, .rank = rank, .rows = 1,
		.more = tensors, .flush_every = NEVER }), 0, &r->msg);
	for (int64_t step = 1; step <= STEPS; step++)
		rank_snapshot(r, step);
}

/* All of the job is in memory, and nothing of it on disk; its ranks live on
 * here. */
static pid_t begin_job(struct scene *s, struct rank ranks[RANKS],
		       unsigned tensors)
{
	reading_let(-1);
	begin(s);
	for (int32_t i = 0; i < RANKS; i++)
		put(&ranks[i], s, i, tensors);
	return serving(s);
}

/* The next agent serves, and has read nothing of it. */
static int begin_unread(struct scene *s, struct rank ranks[RANKS])
{
	pid_t first = begin_job(s, ranks, TENSORS);
	double used = stat_value(ranks[0].sock, "shardkeep_memory_used_bytes");
	int sock;

	reading_let(0);
	(void)reading_kill(s, first);
	sock = rig_connect(&s->rig);
	AWAIT(reading_waits(), "nothing is read");
	CHECK(stat_value(sock, "shardkeep_images_revived_total") == 0,
	      "it was read");
	CHECK(stat_value(sock, "shardkeep_memory_used_bytes") == used,
	      "others may have its memory");
	return sock;
}

static void close_all(struct rank ranks[RANKS])
{
	for (int i = 0; i < RANKS; i++)
		rank_close(&ranks[i]);
}

static void check_all(int sock)
{
	for (int64_t step = 1; step <= STEPS; step++)
		CHECK(snapshot_flags(sock, JOB, step) & SK_SNAP_COMPLETE,
		      "step %d is gone", (int)step);
	CHECK(stat_value(sock, "shardkeep_images_revived_total") == IMAGES &&
	      stat_value(sock, "shardkeep_images_not_revived_total") == 0,
	      "some are lost");
}

/* ---- what is counted ---- */

static unsigned long loop_reads(struct scene *s, unsigned tensors)
{
	struct rank ranks[RANKS];
	pid_t first = begin_job(s, ranks, tensors);
	unsigned long bytes;
	int sock;

	reading_count_loop();
	(void)reading_kill(s, first);
	sock = rig_connect(&s->rig);
	check_all(sock);
	bytes = reading_loop_bytes();
	close(sock);
	close_all(ranks);
	end(s);
	return bytes;
}

static void test_growth(struct scene *s)
{
	unsigned long few = loop_reads(s, TENSORS), many = loop_reads(s, MANY);

	CHECK(few == many, "its loop read %lu bytes for %d tensors, %lu for "
	      "%d", few, TENSORS, many, MANY);
}

/* ---- who waits ---- */

static void ask_list(int sock, const char *job)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };

	strcpy(msg.body.list.id.job, job);
	rig_send(sock, &msg);
}

static void ask_takeover(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER, .body.takeover = {
		.table_version = TABLE_VERSION,
		.record_bytes = sizeof(struct table_record) } };

	rig_send(sock, &msg);
}

static void ask_flush(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_FLUSH, .body.manage = {
		.id = { .job = JOB, .step = 1, .rank = -1 } } };

	rig_send(sock, &msg);
}

/* Its registration, as a child's status when it has been answered. */
static pid_t come_back(const struct scene *s, const struct rank *was)
{
	pid_t pid = fork();
	struct rank r;

	CHECK(pid >= 0, "fork");
	if (pid)
		return pid;
	CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
		.job = JOB, .world = RANKS, .rank = was->rank, .rows = 1,
		.more = TENSORS, .flush_every = NEVER, .run = was->run,
		.run_id = was->run_id }), 0, &r.msg);
	CHECK(r.run == was->run && r.run_id == was->run_id, "another run");
	check_all(r.sock);
	_exit(0);
}

/* One image after the other: each who asks for the job waits for all of
 * them. */
static void test_wait(struct scene *s)
{
	struct rank ranks[RANKS];
	int sock = begin_unread(s, ranks), asks[4];
	pid_t comes = come_back(s, &ranks[0]);

	for (int i = 0; i < 4; i++)
		asks[i] = rig_connect(&s->rig);
	ask_list(asks[0], JOB);
	ask_list(asks[1], "");
	ask_takeover(asks[2]);
	ask_flush(asks[3]);
	for (int n = 0; n < IMAGES; n++) {
		rig_turns(sock, TURNS);
		for (int i = 0; i < 4; i++)
			CHECK(!reading_is_answered(asks[i]), "%d images are read, and "
			      "%d is answered", n, i);
		CHECK(!child_has_ended(comes), "it is let in");
		/* Who no more wants that is forgotten. */
		if (n == IMAGES / 2)
			close(asks[2]);
		if (n == IMAGES / 2)
			asks[2] = rig_connect(&s->rig);
		reading_let(1);
		AWAIT(reading_is_done(), "it reads no more");
	}
	reading_let(-1);
	child_check(comes);
	for (int i = 0; i < 4; i++) {
		AWAIT(i == 2 || reading_is_answered(asks[i]), "no answer");
		close(asks[i]);
	}
	check_all(sock);
	close(sock);
	close_all(ranks);
	end(s);
}

/* ---- how long ---- */

/* Of the agents that come next. */
static void hold_clock(struct scene *s)
{
	sk_fault_os_clock(s->fault, 1000 * SECOND, 1700000000 * SECOND);
}

static int begin_unread_held(struct scene *s, struct rank ranks[RANKS])
{
	hold_clock(s);
	return begin_unread(s, ranks);
}

static void let_clock_go(struct scene *s)
{
	s->fault->virtual_clock = false;
}

static void ask(int sock, uint16_t type, uint32_t timeout_ms)
{
	struct sk_wire_id id = { .job = JOB, .step = 1, .world = RANKS };
	struct sk_msg msg = { .type = type };

	switch (type) {
	case SK_MSG_LIST:
		msg.body.list.id = id;
		msg.body.list.id.rank = -1;
		msg.body.list.what = SK_LIST_SNAPSHOTS;
		msg.body.list.wait_ms = timeout_ms;
		msg.body.list.flags = timeout_ms ? 0 : SK_LIST_KNOWN;
		break;
	case SK_MSG_WAIT:
		msg.body.wait.id = id;
		msg.body.wait.until = 2;
		msg.body.wait.timeout_ms = timeout_ms;
		break;
	case SK_MSG_PREPARE:
		msg.body.prepare.id = id;
		msg.body.prepare.timeout_ms = timeout_ms;
		break;
	case SK_MSG_GATHER:
		msg.body.gather.id = id;
		msg.body.gather.timeout_ms = timeout_ms;
		break;
	case SK_MSG_RETAIN:
		msg.body.retain.id = id;
		break;
	default:
		msg.body.manage.id = id;
	}
	rig_send(sock, &msg);
}

/* As a child; it says what it heard. */
static pid_t register_within(const struct scene *s, const struct rank *was)
{
	pid_t pid = fork();
	struct rank r;

	CHECK(pid >= 0, "fork");
	if (pid)
		return pid;
	CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
		.job = JOB, .world = RANKS, .rank = was->rank, .rows = 1,
		.more = TENSORS, .flush_every = NEVER, .run = was->run,
		.run_id = was->run_id }), -EAGAIN, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "is still being read"), "%s",
	      rig_why(&r.msg));
	_exit(0);
}

/* Reading goes on, or hangs: who waits hears so in the time that he has, or
 * before he takes the agent for dead; and none is answered before that. */
static void test_bounds(struct scene *s)
{
	static const struct {
		uint16_t type;
		uint32_t timeout_ms;	/* that it says; 0: none */
		unsigned after_s;
		int status;
	} asks[] = {
		{ SK_MSG_WAIT, 2000, 2, -ETIMEDOUT },
		{ SK_MSG_PREPARE, 3000, 3, -ETIMEDOUT },
		{ SK_MSG_GATHER, 4000, 4, -ETIMEDOUT },
		/* To look once, with the next turn of the clock. */
		{ SK_MSG_WAIT, 0, 1, -ETIMEDOUT },
		{ SK_MSG_PREPARE, 0, 1, -ETIMEDOUT },
		{ SK_MSG_GATHER, 0, 1, -ETIMEDOUT },
		{ SK_MSG_LIST, 2000, 2, 0 },
		{ SK_MSG_LIST, 0, 5, -EBUSY },
		{ SK_MSG_FLUSH, 0, 5, -EBUSY },
		{ SK_MSG_PIN, 0, 5, -EBUSY },
		{ SK_MSG_RETAIN, 0, 5, -EBUSY },
	};
	enum { N = sizeof(asks) / sizeof(asks[0]) };
	struct rank ranks[RANKS];
	int sock = begin_unread_held(s, ranks), socks[N];
	pid_t comes = register_within(s, &ranks[0]);
	struct sk_msg msg;

	for (int i = 0; i < N; i++) {
		socks[i] = rig_connect(&s->rig);
		ask(socks[i], asks[i].type, asks[i].timeout_ms);
	}
	rig_turns(sock, TURNS);
	for (unsigned now = 0; now <= 5; now++) {
		for (int i = 0; i < N; i++)
			CHECK(now >= asks[i].after_s ||
			      !reading_is_answered(socks[i]),
			      "%d is answered after %u s", i, now);
		for (int i = 0; i < N; i++) {
			if (now != asks[i].after_s)
				continue;
			AWAIT(reading_is_answered(socks[i]), "%d waits", i);
			CHECK_STATUS(rig_reply(socks[i], &msg, NULL, NULL),
				     asks[i].status, &msg);
			CHECK(msg.status < 0 ?
			      !!strstr(rig_why(&msg), "is still being read") :
			      msg.body.list_reply.looking &&
			      strstr(msg.body.list_reply.text,
				     "is still being read"), "%d says: %s", i,
			      rig_why(&msg));
		}
		sk_fault_os_advance(s->fault, SECOND);
	}
	child_check(comes);
	reading_let(-1);
	check_all(sock);
	for (int i = 0; i < N; i++)
		close(socks[i]);
	close(sock);
	close_all(ranks);
	end(s);
	let_clock_go(s);
}

/* That it waited counts for what it waits for then. */
static void test_one_time(struct scene *s)
{
	struct rank ranks[RANKS];
	int sock = begin_unread_held(s, ranks), asks = rig_connect(&s->rig);
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = { .job = JOB, .run = ranks[0].run,
			.run_id = ranks[0].run_id, .step = -1,
			.world = RANKS },
		.timeout_ms = 4000 } };

	rig_send(asks, &msg);
	rig_turns(sock, TURNS);
	sk_fault_os_advance(s->fault, 3 * SECOND);
	rig_turns(sock, TURNS);
	reading_let(-1);
	check_all(sock);
	rig_turns(sock, TURNS);
	CHECK(!reading_is_answered(asks), "it has a second yet");
	sk_fault_os_advance(s->fault, SECOND);
	AWAIT(reading_is_answered(asks), "it has four seconds more");
	CHECK_STATUS(rig_reply(asks, &msg, NULL, NULL), -ETIMEDOUT, &msg);
	close(asks);
	close(sock);
	close_all(ranks);
	end(s);
	let_clock_go(s);
}

/* Ranks have two minutes since the agent began to come back, however long it
 * has read: then their job goes to disk, as when the last one leaves. */
static void test_absent(struct scene *s)
{
	struct rank ranks[RANKS];
	int sock = begin_unread_held(s, ranks);

	sk_fault_os_advance(s->fault, 121 * SECOND);
	rig_turns(sock, TURNS);
	reading_let(-1);
	check_all(sock);
	/* Some of them may wait for that, and are let in first. */
	sk_fault_os_advance(s->fault, 11 * SECOND);
	AWAIT(snapshot_flags(sock, JOB, STEPS) & SK_SNAP_DURABLE,
	      "they are waited for anew");
	close(sock);
	close_all(ranks);
	end(s);
	let_clock_go(s);
}

/* Another job is served, by its own user too: it waits for an image at most. */
static void test_others(struct scene *s)
{
	struct rank ranks[RANKS], r;
	int sock = begin_unread(s, ranks);
	pid_t pid;

	CHECK(!snapshot_flags(sock, OTHER, 1), "there is none");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
			.job = OTHER, .world = 1 }), 0, &r.msg);
		rank_snapshot(&r, 1);
		CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
		CHECK(snapshot_flags(r.sock, OTHER, 1) & SK_SNAP_COMPLETE,
		      "it is not told of");
		_exit(0);
	}
	/* It may have begun with another since. */
	rig_turns(sock, TURNS);
	reading_let(2);
	child_check(pid);
	CHECK(stat_value(sock, "shardkeep_images_revived_total") == 0,
	      "all was read");
	reading_let(-1);
	check_all(sock);
	close(sock);
	close_all(ranks);
	end(s);
}

/* What is not read may have to go for what somebody wants, or may not: he is
 * not refused before that is known. */
static void test_room(struct scene *s)
{
	struct rank ranks[RANKS], r;
	int sock = begin_unread(s, ranks);
	pid_t pid = fork();

	CHECK(pid >= 0, "fork");
	if (!pid) {
		CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
			.job = OTHER, .world = 1, .rows = 8150 }), -ENOMEM,
			&r.msg);
		CHECK(strstr(rig_why(&r.msg), "held by: " JOB), "%s",
		      rig_why(&r.msg));
		_exit(0);
	}
	rig_turns(sock, TURNS);
	reading_let(IMAGES - 1);
	AWAIT(reading_is_done() && reading_waits(),
	      "it reads no more");
	rig_turns(sock, TURNS);
	CHECK(!child_has_ended(pid), "it is refused");
	reading_let(-1);
	child_check(pid);
	check_all(sock);
	close(sock);
	close_all(ranks);
	end(s);
}

/* Of two jobs that one is read first that somebody waits for: after the image
 * that is being read just then. */
static void test_asked_first(struct scene *s)
{
	struct rank ranks[RANKS], r;
	pid_t first = begin_job(s, ranks, TENSORS);
	int sock, asks;

	CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
		.job = LATER, .world = 1, .rows = 1, .more = TENSORS,
		.flush_every = NEVER }), 0, &r.msg);
	rank_snapshot(&r, 1);
	reading_let(0);
	(void)reading_kill(s, first);
	sock = rig_connect(&s->rig);
	asks = rig_connect(&s->rig);
	AWAIT(reading_waits(), "nothing is read");
	ask_list(asks, LATER);
	rig_turns(sock, TURNS);
	CHECK(!reading_is_answered(asks), "unread");
	reading_let(2);
	AWAIT(reading_is_answered(asks), "it waits for what it did not ask for");
	CHECK(stat_value(sock, "shardkeep_images_revived_total") == 1,
	      "others are read");
	reading_let(-1);
	for (int64_t step = 1; step <= STEPS; step++)
		CHECK(snapshot_flags(sock, JOB, step) & SK_SNAP_COMPLETE,
		      "step %d is gone", (int)step);
	close(asks);
	close(sock);
	rank_close(&r);
	close_all(ranks);
	end(s);
}

static void be_nobody(const struct scene *s)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER, .body.takeover = {
		.table_version = TABLE_VERSION,
		.record_bytes = sizeof(struct table_record) } };
	struct rank r;
	size_t n;
	int sock;

	CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 &&
	      setuid(NOBODY) == 0, "setuid");
	sock = rig_connect(&s->rig);
	free(list_snapshots(sock, "", &n));
	CHECK(n == 0, "he sees %zu", n);
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), -EPERM, &msg);
	free(list_snapshots(sock, JOB, &n));
	CHECK(n == 0, "he sees %zu", n);
	CHECK_STATUS(rank_open(&r, &s->rig, &(struct rank_options){
		.job = OTHER, .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK(snapshot_flags(r.sock, OTHER, 1) & SK_SNAP_COMPLETE, "not told");
	_exit(0);
}

/* Whoever sees nothing of it waits for nothing of it. */
static void test_strangers(struct scene *s)
{
	struct rank ranks[RANKS];
	pid_t pid;
	int sock;

	if (geteuid() != 0)
		return;
	sock = begin_unread(s, ranks);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid)
		be_nobody(s);
	child_check(pid);
	CHECK(stat_value(sock, "shardkeep_images_revived_total") == 0,
	      "it was read for him");
	reading_let(-1);
	check_all(sock);
	close(sock);
	close_all(ranks);
	end(s);
}

/* ---- what happens meanwhile ---- */

/* Killed once more, and once more, with some of it read. */
static void test_killed(struct scene *s)
{
	struct rank ranks[RANKS];
	int sock = begin_unread(s, ranks);
	pid_t now = serving(s);

	for (int i = 0; i < 3; i++) {
		reading_let(i * 2);
		AWAIT(reading_is_done(), "it reads no more");
		rig_turns(sock, TURNS);
		close(sock);
		now = reading_kill(s, now);
		sock = rig_connect(&s->rig);
	}
	reading_let(-1);
	check_all(sock);
	close(sock);
	close_all(ranks);
	end(s);
}

/* A stop waits for it, as it does for what is known; then all is on disk. */
static void test_stop(struct scene *s)
{
	struct rank ranks[RANKS];
	int sock = begin_unread(s, ranks), asks = rig_connect(&s->rig);
	pid_t now = serving(s);
	char path[256];

	ask_list(asks, JOB);
	CHECK(kill(now, SIGTERM) == 0, "kill");
	rig_turns(sock, TURNS);
	CHECK(kill(now, 0) == 0, "it ended");
	reading_let(-1);
	CHECK(rig_wait(&s->rig) == 0, "something was not durable");
	for (int i = 0; i < RANKS; i++) {
		(void)snprintf(path, sizeof(path), "%s/" JOB "/step-%012d/"
			       "rank-%05d-of-%05d.safetensors", s->rig.store,
			       STEPS, i, RANKS);
		CHECK(access(path, R_OK) == 0, "%s is lost", path);
	}
	close(asks);
	close(sock);
	close_all(ranks);
	rig_remove(&s->rig);
}

/* One that is told twice ends, and says that something was lost. */
static void test_stop_at_once(struct scene *s)
{
	struct rank ranks[RANKS];
	int sock = begin_unread(s, ranks);
	pid_t now = serving(s);

	CHECK(kill(now, SIGTERM) == 0, "kill");
	rig_turns(sock, TURNS);
	CHECK(kill(now, SIGTERM) == 0, "kill");
	reading_let(1);
	CHECK(rig_wait(&s->rig) == 1, "it says that all is durable");
	close(sock);
	close_all(ranks);
	rig_remove(&s->rig);
}

/* What a rank has written over since is lost, and nothing else. */
static void test_damaged(struct scene *s)
{
	struct rank ranks[RANKS];
	int sock = begin_unread(s, ranks);

	memset(ranks[2].maps[0][0] + READING_LONG, 'x', 64);
	reading_let(-1);
	CHECK(!(snapshot_flags(sock, JOB, 1) & SK_SNAP_COMPLETE) ||
	      !(snapshot_flags(sock, JOB, 2) & SK_SNAP_COMPLETE), "unseen");
	CHECK(stat_value(sock, "shardkeep_images_revived_total") ==
	      IMAGES - 1 &&
	      stat_value(sock, "shardkeep_images_not_revived_total") == 1,
	      "others are lost, or it is not");
	close(sock);
	close_all(ranks);
	end(s);
}

int main(void)
{
	struct scene s = { .flush_every = NEVER };

	reading_init(&s);
	test_growth(&s);
	test_wait(&s);
	test_bounds(&s);
	test_one_time(&s);
	test_absent(&s);
	test_others(&s);
	test_room(&s);
	test_asked_first(&s);
	test_strangers(&s);
	test_killed(&s);
	test_stop(&s);
	test_stop_at_once(&s);
	test_damaged(&s);
	return 0;
}
