/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Degraded states: each is told of while it is, memory's snapshots go on in
 * it, and it ends by itself when its cause does.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"
#include "support/files.h"

#define SECOND UINT64_C(1000000000)
#define MORE "more"

/* It has been looked at since: time passes while we ask. */
static bool becomes(struct whole *w, int sock, const char *name, bool on)
{
	sk_fault_os_advance(w->fault, SECOND);
	return is_degraded(sock, name) == on;
}

#define AWAIT_STATE(w, sock, name, on)					\
	AWAIT(becomes(w, sock, name, on), "%s %s: %s", name,		\
	      on ? "is not told" : "stays", whole_log(w))

static bool becomes_durable(struct whole *w, int sock, int64_t step)
{
	sk_fault_os_advance(w->fault, SECOND);
	return snapshot_flags(sock, "degraded", step) & SK_SNAP_DURABLE;
}

static void start(struct whole *w, struct rank *r,
		  const struct rank_options *o)
{
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
	CHECK_STATUS(rank_open(r, &w->rig, o), 0, &r->msg);
}

static void begin(struct whole *w, struct rank *r,
		  const struct rank_options *o)
{
	whole_init(w);
	start(w, r, o);
}

static void end(struct whole *w, struct rank *r)
{
	rank_close(r);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
}

/* The disk fails in one way or another. */
static void test_disk(const char *name, const enum sk_fault_op ops[2],
		      int error)
{
	const struct rank_options o = { .job = "degraded", .world = 1,
					.slots = 3 };
	struct whole w;
	struct rank r;

	fprintf(stderr, "%s, operation %d\n", name, ops[0]);
	begin(&w, &r, &o);
	CHECK(!is_degraded(r.sock, name), "%s without a reason", name);
	for (int i = 0; i < 2; i++)
		sk_fault_os_fail(w.fault, ops[i], 1, SK_FAULT_ALWAYS, error);
	rank_snapshot(&r, 1);
	AWAIT_STATE(&w, r.sock, name, true);
	/* Memory goes on, and nothing is said that is not so. */
	rank_snapshot(&r, 2);
	CHECK(snapshot_flags(r.sock, "degraded", 2) & SK_SNAP_COMPLETE,
	      "memory stands still");
	CHECK(!becomes_durable(&w, r.sock, 2), "durable on no disk");
	CHECK(is_degraded(r.sock, name), "%s is forgotten", name);
	sk_fault_os_forget(w.fault);
	AWAIT(becomes_durable(&w, r.sock, 2), "%s", whole_log(&w));
	AWAIT_STATE(&w, r.sock, name, false);
	CHECK(strstr(whole_log(&w), name), "the log does not tell of %s",
	      name);
	end(&w, &r);
}

static void test_disks(void)
{
	static const enum sk_fault_op room[] = { SK_FAULT_FALLOCATE,
						 SK_FAULT_FALLOCATE };
	static const enum sk_fault_op writes[] = { SK_FAULT_PWRITE,
						   SK_FAULT_URING_WRITE };
	static const enum sk_fault_op syncs[] = { SK_FAULT_FSYNC,
						  SK_FAULT_URING_FSYNC };

	test_disk("store-full", room, ENOSPC);
	test_disk("store-full", writes, EDQUOT);
	test_disk("store-error", writes, EIO);
	test_disk("store-error", syncs, EIO);
}

/* Shared with the agent's process. */
static uint64_t *files_left;

static int count_files(const struct sk_os *os, int fd, struct statfs *ret)
{
	int r = sk_os_linux()->fstatfs(os, fd, ret);

	ret->f_files = 1000;
	ret->f_ffree = __atomic_load_n(files_left, __ATOMIC_RELAXED);
	return r;
}

/* Each look that is begun has the time to end, as has each try. */
static bool durable_within(struct whole *w, int sock, int seconds)
{
	for (int i = 0; i < seconds; i++) {
		sk_fault_os_advance(w->fault, SECOND);
		for (int k = 0; k < 20; k++)
			if (snapshot_flags(sock, "degraded", 1) &
			    SK_SNAP_DURABLE)
				return true;
	}
	return false;
}

static bool has_failed(struct whole *w, int sock, int times)
{
	sk_fault_os_advance(w->fault, SECOND);
	return stat_value(sock, "shardkeep_flush_errors_total") >= times;
}

/* There is room for bytes and for no file. When some can be made again it is
 * not waited for until the next try, a minute later. */
static void test_files(void)
{
	struct whole w;
	struct rank r;

	files_left = mmap(NULL, sizeof(*files_left), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(files_left != MAP_FAILED, "mmap");
	*files_left = 1;
	whole_init(&w);
	w.fault->os.fstatfs = count_files;
	start(&w, &r, &(struct rank_options){ .job = "degraded", .world = 1 });
	sk_fault_os_fail(w.fault, SK_FAULT_MKDIRAT, 1, SK_FAULT_ALWAYS,
			 ENOSPC);
	rank_snapshot(&r, 1);
	AWAIT_STATE(&w, r.sock, "store-full", true);
	AWAIT(has_failed(&w, r.sock, 8), "%s", whole_log(&w));
	sk_fault_os_forget(w.fault);
	__atomic_store_n(files_left, 1000, __ATOMIC_RELAXED);
	CHECK(durable_within(&w, r.sock, 40), "not tried: %s", whole_log(&w));
	AWAIT_STATE(&w, r.sock, "store-full", false);
	end(&w, &r);
	CHECK(munmap(files_left, sizeof(*files_left)) == 0, "munmap");
}

/* A file stands in the store's place: it cannot be had, or made. */
static void test_gone(void)
{
	const struct rank_options o = { .job = "degraded", .world = 1 };
	char aside[128];
	struct whole w;
	struct rank r;
	int fd;

	begin(&w, &r, &o);
	snprintf(aside, sizeof(aside), "%s.aside", w.rig.store);
	CHECK(rename(w.rig.store, aside) == 0, "rename");
	fd = open(w.rig.store, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && close(fd) == 0, "a file");
	AWAIT_STATE(&w, r.sock, "store-gone", true);
	rank_snapshot(&r, 1);
	CHECK(snapshot_flags(r.sock, "degraded", 1) & SK_SNAP_COMPLETE,
	      "memory stands still");
	CHECK(unlink(w.rig.store) == 0 && rename(aside, w.rig.store) == 0,
	      "it comes back");
	AWAIT_STATE(&w, r.sock, "store-gone", false);
	AWAIT(becomes_durable(&w, r.sock, 1), "%s", whole_log(&w));
	end(&w, &r);
}

static bool has_room(struct whole *w, int sock)
{
	sk_fault_os_advance(w->fault, SECOND);
	return stat_value(sock, "shardkeep_store_size_bytes") > 0;
}

static void hang(void *ctx)
{
	char c;

	/* Until the test lets go of it. */
	(void)!read(*(int *)ctx, &c, 1);
}

static void hang_next(struct whole *w, enum sk_fault_op op, int *hold)
{
	sk_fault_os_meddle(w->fault, op, sk_fault_os_calls(w->fault, op) + 1,
			   hang, hold);
}

/* Until then a store may take as long as it likes. */
static void begin_patient(struct whole *w, struct rank *r)
{
	const struct rank_options o = { .job = "degraded", .world = 1 };

	whole_init(w);
	w->options.hangs_s = 30;
	start(w, r, &o);
}

/* A look at the store does not come back: nobody waits for it. */
static void test_hangs(void)
{
	const struct rank_options o = { .job = "degraded", .world = 1 };
	struct whole w;
	struct rank r;
	int hold[2];

	CHECK(pipe(hold) == 0, "pipe");
	begin_patient(&w, &r);
	AWAIT(has_room(&w, r.sock), "its room is not known");
	hang_next(&w, SK_FAULT_FSTATFS, &hold[0]);
	AWAIT_STATE(&w, r.sock, "store-hangs", true);
	/* How it was is not how it is. */
	CHECK(stat_value(r.sock, "shardkeep_store_size_bytes") == 0 &&
	      stat_value(r.sock, "shardkeep_store_free_bytes") == 0,
	      "a store that hangs is said to have room");
	rank_snapshot(&r, 1);
	CHECK(snapshot_flags(r.sock, "degraded", 1) & SK_SNAP_COMPLETE,
	      "memory stands still");
	CHECK(write(hold[1], "", 1) == 1, "it answers");
	AWAIT_STATE(&w, r.sock, "store-hangs", false);
	AWAIT(has_room(&w, r.sock), "its room is forgotten");
	end(&w, &r);
	/* One that never does does not hold up the end. */
	whole_init(&w);
	w.options.hangs_s = 30;
	w.hangs = true;
	start(&w, &r, &o);
	hang_next(&w, SK_FAULT_FSTATFS, &hold[0]);
	AWAIT_STATE(&w, r.sock, "store-hangs", true);
	end(&w, &r);
	close(hold[0]);
	close(hold[1]);
}

/* It answers who reads, and nobody who writes: a filesystem that is frozen. */
static void test_writes_hang(void)
{
	struct whole w;
	struct rank r;
	int hold[2];

	CHECK(pipe(hold) == 0, "pipe");
	begin_patient(&w, &r);
	hang_next(&w, SK_FAULT_FREMOVEXATTR, &hold[0]);
	AWAIT_STATE(&w, r.sock, "store-hangs", true);
	CHECK(write(hold[1], "", 1) == 1, "it answers");
	AWAIT_STATE(&w, r.sock, "store-hangs", false);
	end(&w, &r);
	close(hold[0]);
	close(hold[1]);
}

/* Who waits for a look is told, and who comes later too: what memory has is
 * there all the same, and a job that it knows goes on. */
static void test_serves_meanwhile(void)
{
	const struct rank_options o = { .job = "degraded", .world = 1 };
	struct rank_options other = { .job = "other", .world = 1 };
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = "degraded", .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };
	int hold[2][2], fds[SK_MSG_FDS], n = 0, sock;
	struct whole w;
	struct rank r, next;
	char path[128];

	CHECK(pipe(hold[0]) == 0 && pipe(hold[1]) == 0, "pipe");
	begin_patient(&w, &r);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	sock = rig_connect(&w.rig);
	/* It is another directory to the next look. */
	(void)snprintf(path, sizeof(path), "%s/degraded/x", w.rig.store);
	hang_next(&w, SK_FAULT_GETDENTS, &hold[0][0]);
	CHECK(mkdir(path, 0700) == 0, "mkdir");
	rig_send(sock, &msg);
	hang_next(&w, SK_FAULT_FREMOVEXATTR, &hold[1][0]);
	AWAIT_STATE(&w, r.sock, "store-hangs", true);
	CHECK_STATUS(rig_reply(sock, &msg, fds, &n), 0, &msg);
	CHECK(msg.body.list_reply.n == 1 && msg.body.list_reply.unreadable,
	      "%u and %u", (unsigned)msg.body.list_reply.n,
	      (unsigned)msg.body.list_reply.unreadable);
	while (n)
		close(fds[--n]);
	rank_close(&r);
	CHECK_STATUS(rank_open(&next, &w.rig, &o), 0, &next.msg);
	CHECK(next.run == 2, "run %d", (int)next.run);
	rank_snapshot(&next, 2);
	CHECK(snapshot_flags(sock, "degraded", 2) & SK_SNAP_COMPLETE,
	      "memory stands still");
	CHECK_STATUS(rank_open(&r, &w.rig, &other), -EIO, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "store-hangs"), "%s", rig_why(&r.msg));
	close(r.sock);
	CHECK(write(hold[0][1], "", 1) == 1 && write(hold[1][1], "", 1) == 1,
	      "it answers");
	AWAIT_STATE(&w, next.sock, "store-hangs", false);
	CHECK_STATUS(rank_open(&r, &w.rig, &other), 0, &r.msg);
	rank_close(&r);
	close(sock);
	end(&w, &next);
	for (int i = 0; i < 4; i++)
		close(hold[i / 2][i % 2]);
}

/* Nothing says that it is mounted so: after an error of the disk. */
static void test_writes_refused(void)
{
	const struct rank_options o = { .job = "degraded", .world = 1 };
	struct whole w;
	struct rank r;

	whole_init(&w);
	sk_fault_os_fail(w.fault, SK_FAULT_FREMOVEXATTR, 1, SK_FAULT_ALWAYS,
			 EROFS);
	start(&w, &r, &o);
	AWAIT_STATE(&w, r.sock, "store-read-only", true);
	sk_fault_os_forget(w.fault);
	AWAIT_STATE(&w, r.sock, "store-read-only", false);
	end(&w, &r);
}

static void enter_and_hang(void *ctx)
{
	const int *ends = ctx;
	char c = 0;

	(void)!write(ends[1], &c, 1);
	(void)!read(ends[2], &c, 1);
}

static bool has_entered(struct whole *w, int end)
{
	char c;

	sk_fault_os_advance(w->fault, SECOND);
	return read(end, &c, 1) == 1;
}

static bool looks_again(struct whole *w, uint64_t looks)
{
	sk_fault_os_advance(w->fault, SECOND);
	return sk_fault_os_calls(w->fault, SK_FAULT_FSTATFS) > looks;
}

/* The file is there before the agent knows what came of the flush. */
static bool has_flushed(struct whole *w, int sock)
{
	sk_fault_os_advance(w->fault, SECOND);
	return stat_value(sock, "shardkeep_bytes_flushed_total") > 0;
}

/* A look ends after a flush that began later, and has found it gone. */
static void test_outdated(void)
{
	const struct rank_options o = { .job = "degraded", .world = 1 };
	struct whole w;
	struct rank r;
	uint64_t looks;
	int ends[4];

	CHECK(pipe2(ends, O_NONBLOCK) == 0 && pipe(ends + 2) == 0, "pipe");
	begin(&w, &r, &o);
	AWAIT(has_room(&w, r.sock), "its room is not known");
	looks = sk_fault_os_calls(w.fault, SK_FAULT_FSTATFS);
	sk_fault_os_meddle(w.fault, SK_FAULT_FSTATFS, looks + 1,
			   enter_and_hang, ends);
	w.fault->rules[w.fault->rule_count - 1].error = EIO;
	AWAIT(has_entered(&w, ends[0]), "nobody looks");
	sk_fault_os_advance(w.fault, SECOND);
	rank_snapshot(&r, 1);
	AWAIT(has_flushed(&w, r.sock), "%s", whole_log(&w));
	looks = sk_fault_os_calls(w.fault, SK_FAULT_FSTATFS);
	CHECK(write(ends[3], "", 1) == 1, "it answers");
	AWAIT(looks_again(&w, looks), "nobody looks again");
	CHECK(!strstr(whole_log(&w), "store-gone"), "%s", whole_log(&w));
	end(&w, &r);
	for (int i = 0; i < 4; i++)
		close(ends[i]);
}

static bool has_step(const struct whole *w, int step)
{
	char path[200];

	(void)snprintf(path, sizeof(path), "%s/degraded/step-%012d",
		       w->rig.store, step);
	return access(path, F_OK) == 0;
}

/* Its disk has no room for the newest until an older one is deleted, and that
 * is due only once a flush that was under way has ended. */
static void test_full_at_stop(void)
{
	const struct rank_options o = { .job = "degraded", .world = 1,
					.slots = 3, .keep_last = 1 };
	struct whole w;
	struct rank r;
	uint64_t calls;
	int ends[4];

	CHECK(pipe2(ends, O_NONBLOCK) == 0 && pipe(ends + 2) == 0, "pipe");
	whole_init(&w);
	w.options.level = LOG_LEVEL_INFO;
	start(&w, &r, &o);
	rank_snapshot(&r, 1);
	AWAIT(becomes_durable(&w, r.sock, 1), "%s", whole_log(&w));
	calls = sk_fault_os_calls(w.fault, SK_FAULT_FALLOCATE);
	sk_fault_os_meddle(w.fault, SK_FAULT_FALLOCATE, calls + 1,
			   enter_and_hang, ends);
	sk_fault_os_fail(w.fault, SK_FAULT_FALLOCATE, calls + 2,
			 SK_FAULT_ALWAYS, ENOSPC);
	rank_snapshot(&r, 2);
	AWAIT(has_entered(&w, ends[0]), "it is not flushed");
	rank_snapshot(&r, 3);
	rank_close(&r);
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	AWAIT(strstr(whole_log(&w), "stopping"), "%s", whole_log(&w));
	CHECK(write(ends[3], "", 1) == 1, "there is room for that one");
	AWAIT(!has_step(&w, 1), "the older one stays: %s", whole_log(&w));
	sk_fault_os_forget(w.fault);
	CHECK(whole_wait(&w) == 0, "exit status: %s", whole_log(&w));
	CHECK(has_step(&w, 3), "the newest is lost");
	whole_remove(&w);
	for (int i = 0; i < 4; i++)
		close(ends[i]);
}

/* Ranks that do not fit are refused until there is room. */
static void test_budget(void)
{
	/* 4 KiB a row; the budget is 64 MiB. */
	struct rank_options o = { .job = "degraded", .world = 1,
				  .rows = 6000 };
	struct rank_options more = { .job = MORE, .world = 1, .rows = 6000 };
	struct rank r, other;
	struct sk_msg msg;
	struct whole w;
	int sock;

	begin(&w, &r, &o);
	CHECK_STATUS(rank_open(&other, &w.rig, &more), -ENOMEM, &other.msg);
	rank_close(&other);
	CHECK(is_degraded(r.sock, "memory-budget"), "%s", whole_log(&w));
	rank_snapshot(&r, 1);
	AWAIT(becomes_durable(&w, r.sock, 1), "%s", whole_log(&w));
	/* In order: what this process might still write to is its own. */
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	rank_close(&r);
	sock = rig_connect(&w.rig);
	AWAIT(stat_value(sock, "shardkeep_ranks") == 0, "it leaves");
	AWAIT(manage(sock, SK_MSG_EVICT, "degraded", 1, SK_EVICT_FORCE,
		     &msg) == 0, "%s", rig_why(&msg));
	/* Its free slots wait for its successor for two minutes. */
	AWAIT_STATE(&w, sock, "memory-budget", false);
	CHECK_STATUS(rank_open(&other, &w.rig, &more), 0, &other.msg);
	close(sock);
	end(&w, &other);
}

static void prepare(struct rank *r, const char *job)
{
	struct sk_msg msg = { .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .step = -1 }, .timeout_ms = WAIT_MS } };

	strcpy(msg.body.prepare.id.job, job);
	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

/* The system gives no huge pages: so it is until the slots are given back, and
 * it is said once. */
static void test_pages(void)
{
	const struct rank_options o = { .job = "degraded", .world = 1,
					.rows = 2048 };
	const char *said;
	struct whole w;
	struct rank r;
	int sock;

	whole_init(&w);
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	/* Making the two slots takes three calls each. */
	sk_fault_os_fail(w.fault, SK_FAULT_MADVISE,
			 sk_fault_os_calls(w.fault, SK_FAULT_MADVISE) + 7,
			 SK_FAULT_ALWAYS, EINVAL);
	CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
	prepare(&r, "degraded");
	CHECK(sk_fault_os_hits(w.fault) > 0, "no huge page was refused");
	CHECK(is_degraded(r.sock, "small-pages"), "it is forgotten");
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	rank_close(&r);
	sock = rig_connect(&w.rig);
	AWAIT_STATE(&w, sock, "small-pages", false);
	close(sock);
	said = strstr(whole_log(&w), "degraded: small-pages");
	CHECK(said && !strstr(strstr(said, "\n"), " degraded: small-pages"),
	      "not once: %s", whole_log(&w));
	CHECK(!strstr(whole_log(&w), ": \n"), "a line says nothing: %s",
	      whole_log(&w));
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&w) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
}

/* Pages that cannot be had are told of, and training goes on: its rank may
 * fault them in itself. */
static void test_no_pages(void)
{
	struct whole w;
	struct rank r;

	whole_init(&w);
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	/* Behind those that make the slots. */
	sk_fault_os_fail(w.fault, SK_FAULT_MADVISE,
			 sk_fault_os_calls(w.fault, SK_FAULT_MADVISE) + 7,
			 SK_FAULT_ALWAYS, ENOMEM);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "degraded", .world = 1, .rows = 2048 }), 0, &r.msg);
	AWAIT(strstr(whole_log(&w), "cannot fault in bytes 0 to"),
	      "it says nothing: %s", whole_log(&w));
	rank_snapshot(&r, 1);
	rank_close(&r);
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&w) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
}

/* ---- how often it looks ---- */

/* In each of so many seconds, a look that is begun has the time to end. */
static uint64_t looks_in(struct whole *w, int sock, int seconds)
{
	uint64_t before = sk_fault_os_calls(w->fault, SK_FAULT_FSTATFS);

	for (int i = 0; i < seconds; i++) {
		sk_fault_os_advance(w->fault, SECOND);
		for (int k = 0; k < 20; k++)
			(void)is_degraded(sock, "store-volatile");
	}
	return sk_fault_os_calls(w->fault, SK_FAULT_FSTATFS) - before;
}

/* A store that a reboot loses is as it is: nothing is to be watched more
 * closely for it. */
static void test_volatile(void)
{
	char dir[] = "/dev/shm/shardkeep-degraded-XXXXXX", store[64];
	struct whole w;
	struct rank r;
	uint64_t n;

	whole_init(&w);
	CHECK(mkdtemp(dir), "mkdtemp: %s", strerror(errno));
	(void)snprintf(store, sizeof(store), "%s/store", dir);
	w.options.store = store;
	start(&w, &r, &(struct rank_options){ .job = "degraded", .world = 1 });
	CHECK(is_degraded(r.sock, "store-volatile"), "%s is volatile", dir);
	(void)looks_in(&w, r.sock, 20);
	n = looks_in(&w, r.sock, 60);
	CHECK(n <= 8, "%d looks in a minute", (int)n);
	end(&w, &r);
	CHECK(remove_tree(dir) == 0, "cannot remove %s", dir);
}

int main(void)
{
	test_disks();
	test_files();
	test_gone();
	test_hangs();
	test_writes_hang();
	test_serves_meanwhile();
	test_writes_refused();
	test_outdated();
	test_full_at_stop();
	test_budget();
	test_pages();
	test_no_pages();
	test_volatile();
	return 0;
}
