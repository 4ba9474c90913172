/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Degraded states of several jobs: what one could do says nothing of another,
 * each is told of as long as it is so, whose it is, and nobody else's is named.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"

#define SECOND UINT64_C(1000000000)
#define NOBODY 65534
#define LOOKS 4096	/* bytes that a pipe takes */

static bool is_on(struct whole *w, int sock, const char *name)
{
	sk_fault_os_advance(w->fault, SECOND);
	return is_degraded(sock, name);
}

static bool is_durable(struct whole *w, int sock, const char *job,
		       int64_t step)
{
	sk_fault_os_advance(w->fault, SECOND);
	return snapshot_flags(sock, job, step) & SK_SNAP_DURABLE;
}

static bool has_failed(struct whole *w, int sock, double times)
{
	sk_fault_os_advance(w->fault, SECOND);
	return stat_value(sock, "shardkeep_flush_errors_total") >= times;
}

static unsigned times_said(const struct whole *w, const char *what)
{
	const char *at = whole_log(w);
	unsigned n = 0;

	for (; (at = strstr(at, what)); at++)
		n++;
	return n;
}

/* Little by little: no flush is to be slow. */
static bool has_said(struct whole *w, int sock, const char *what)
{
	sk_fault_os_advance(w->fault, SECOND / 100);
	(void)is_degraded(sock, "store-error");
	return times_said(w, what);
}

static void start(struct whole *w)
{
	whole_init(w);
	w->options.level = LOG_LEVEL_INFO;
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
}

static void open_rank(struct whole *w, struct rank *r, const char *job,
		      int64_t rows)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = job, .world = 1, .slots = 3, .rows = rows }), 0,
		&r->msg);
}

static void end(struct whole *w)
{
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
}

/* A file stands where the job's directory is to be. */
static void block(const struct whole *w, const char *job, char path[200])
{
	int fd;

	(void)snprintf(path, 200, "%s/%s", w->rig.store, job);
	fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && close(fd) == 0, "%s: %s", path, strerror(errno));
}

/* ---- the store ---- */

static void check_stands(struct whole *w, int sock, const char *name,
			 const char *whose)
{
	struct rig_state s = rig_state(sock, name);

	CHECK(s.on, "%s is forgotten: %s", name, whole_log(w));
	CHECK(strstr(s.why, whose), "of %s it says: %s", whose, s.why);
}

/* Others' flushes are done, before and after it is tried again. */
static void succeed_beside(struct whole *w, struct rank *good,
			   const char *name, const char *whose)
{
	double failed = stat_value(good->sock, "shardkeep_flush_errors_total");
	char over[64];

	for (int64_t step = 1; step <= 4; step++) {
		rank_snapshot(good, step);
		AWAIT(is_durable(w, good->sock, good->job, step), "%s",
		      whole_log(w));
		check_stands(w, good->sock, name, whose);
	}
	AWAIT(has_failed(w, good->sock, failed + 1), "%s", whole_log(w));
	check_stands(w, good->sock, name, whose);
	(void)snprintf(over, sizeof(over), "no longer degraded: %s", name);
	CHECK(!times_said(w, over), "%s", whole_log(w));
}

static void test_error_of_one(void)
{
	struct rank bad, good;
	struct whole w;
	char path[200];

	start(&w);
	open_rank(&w, &bad, "bad", 0);
	open_rank(&w, &good, "good", 0);
	block(&w, "bad", path);
	rank_snapshot(&bad, 1);
	AWAIT(is_on(&w, bad.sock, "store-error"), "%s", whole_log(&w));
	succeed_beside(&w, &good, "store-error", "step 1 of job \"bad\"");
	CHECK(unlink(path) == 0, "unlink");
	AWAIT(!is_on(&w, bad.sock, "store-error"), "%s", whole_log(&w));
	CHECK(snapshot_flags(bad.sock, "bad", 1) & SK_SNAP_DURABLE,
	      "nothing proves it");
	CHECK(times_said(&w, " degraded: store-error") == 2, "%s",
	      whole_log(&w));
	rank_close(&bad);
	rank_close(&good);
	end(&w);
}

static bool tells(struct whole *w, int sock, const char *whose)
{
	sk_fault_os_advance(w->fault, SECOND);
	return strstr(rig_state(sock, "store-error").why, whose);
}

/* Two at once: it is over with the last of them. */
static void test_error_of_two(void)
{
	char paths[2][200];
	struct rank bad[2];
	struct whole w;

	start(&w);
	open_rank(&w, &bad[0], "first", 0);
	open_rank(&w, &bad[1], "second", 0);
	for (int i = 0; i < 2; i++) {
		block(&w, bad[i].job, paths[i]);
		rank_snapshot(&bad[i], 1);
		AWAIT(tells(&w, bad[i].sock, i ? "job \"first\"; so it is with "
			    "1 more job: " : "job \"first\": "), "%s",
		      whole_log(&w));
	}
	CHECK(unlink(paths[0]) == 0, "unlink");
	AWAIT(is_durable(&w, bad[0].sock, "first", 1), "%s", whole_log(&w));
	AWAIT(tells(&w, bad[0].sock, "job \"second\": "), "%s",
	      whole_log(&w));
	CHECK(!times_said(&w, "no longer degraded: store-error"), "%s",
	      whole_log(&w));
	CHECK(unlink(paths[1]) == 0, "unlink");
	AWAIT(!is_on(&w, bad[0].sock, "store-error"), "%s", whole_log(&w));
	for (int i = 0; i < 2; i++)
		rank_close(&bad[i]);
	end(&w);
}

/* One step of the job's cannot be written, and the next one can. */
static void test_error_of_step(void)
{
	char path[232], job[200];
	struct whole w;
	struct rank r;
	int fd;

	start(&w);
	open_rank(&w, &r, "steps", 0);
	rank_snapshot(&r, 1);
	AWAIT(is_durable(&w, r.sock, "steps", 1), "%s", whole_log(&w));
	(void)snprintf(job, sizeof(job), "%s/steps", w.rig.store);
	(void)snprintf(path, sizeof(path), "%s/step-000000000002", job);
	fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && close(fd) == 0, "%s: %s", path, strerror(errno));
	rank_snapshot(&r, 2);
	AWAIT(is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	rank_snapshot(&r, 3);
	AWAIT(is_durable(&w, r.sock, "steps", 3), "%s", whole_log(&w));
	check_stands(&w, r.sock, "store-error", "step 2 of job \"steps\"");
	CHECK(!times_said(&w, "no longer degraded: store-error"), "%s",
	      whole_log(&w));
	CHECK(unlink(path) == 0, "unlink");
	AWAIT(!is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	rank_close(&r);
	end(&w);
}

static void open_rarely(struct whole *w, struct rank *r)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = "rare", .world = 1, .slots = 3, .flush_every = 4 }), 0,
		&r->msg);
}

/* What failed has let its memory go, and the job's next flush is not due yet:
 * nothing has shown that it would do better. */
static void test_superseded(void)
{
	struct whole w;
	struct rank r;
	char path[200];

	start(&w);
	open_rarely(&w, &r);
	block(&w, "rare", path);
	for (int64_t step = 1; step <= 4; step++)
		rank_snapshot(&r, step);
	/* While it is being tried it has its slot: not again before the clock
	 * goes on. */
	AWAIT(is_degraded(r.sock, "store-error"), "%s", whole_log(&w));
	for (int64_t step = 5; step <= 7; step++)
		rank_snapshot(&r, step);
	CHECK(!snapshot_flags(r.sock, "rare", 4), "it is there");
	for (int i = 0; i < 10; i++)
		CHECK(is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	CHECK(unlink(path) == 0, "unlink");
	rank_snapshot(&r, 8);
	AWAIT(!is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	rank_close(&r);
	end(&w);
}

/* Somebody has evicted what failed: nothing of the job's is to be written, and
 * so nothing is wrong before it is tried again. */
static void test_evicted(void)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;
	char path[200];

	start(&w);
	open_rarely(&w, &r);
	block(&w, "rare", path);
	for (int64_t step = 1; step <= 5; step++)
		rank_snapshot(&r, step);
	AWAIT(is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	/* It may be tried just now. */
	AWAIT(manage(r.sock, SK_MSG_EVICT, "rare", 4, SK_EVICT_FORCE, &msg) ==
	      0, "%s", rig_why(&msg));
	CHECK(!is_degraded(r.sock, "store-error"), "%s", whole_log(&w));
	for (int64_t step = 6; step <= 8; step++)
		rank_snapshot(&r, step);
	AWAIT(is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	check_stands(&w, r.sock, "store-error", "step 8 of job \"rare\"");
	/* Of another step than that nothing follows. */
	AWAIT(manage(r.sock, SK_MSG_EVICT, "rare", 6, SK_EVICT_FORCE, &msg) ==
	      0, "%s", rig_why(&msg));
	check_stands(&w, r.sock, "store-error", "step 8 of job \"rare\"");
	CHECK(unlink(path) == 0, "unlink");
	AWAIT(!is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	rank_close(&r);
	end(&w);
}

/* A directory that is another user's, to be given a job's name. */
static void make_theirs(const struct whole *w, char dir[160])
{
	char owner[200];
	FILE *f;

	(void)snprintf(dir, 160, "%s.another", w->rig.store);
	(void)snprintf(owner, sizeof(owner), "%s/.owner", dir);
	CHECK(mkdir(dir, 0700) == 0, "%s: %s", dir, strerror(errno));
	f = fopen(owner, "we");
	CHECK(f && fputs("12345\n", f) >= 0 && fclose(f) == 0, "%s: %s",
	      owner, strerror(errno));
}

/* At once, for it may be looked at just now: the file at @path gives way to the
 * directory. */
static void give_away(const char *dir, const char *path)
{
	CHECK(renameat2(AT_FDCWD, dir, AT_FDCWD, path, RENAME_EXCHANGE) == 0,
	      "%s: %s", path, strerror(errno));
	CHECK(unlink(dir) == 0, "%s: %s", dir, strerror(errno));
}

/* What is to stay of another user's job is not said by this one. */
static void check_unsaid(const char *path)
{
	char file[220];

	(void)snprintf(file, sizeof(file), "%s/.retain", path);
	CHECK(access(file, F_OK) < 0 && errno == ENOENT, "%s is there", file);
}

static void check_says_nothing(const struct rank *r, const char *path)
{
	struct sk_msg msg = { .type = SK_MSG_RETAIN, .body.retain = {
		.flags = SK_RETAIN_SET, .retention.keep_last = 1 } };

	(void)snprintf(msg.body.retain.id.job, sizeof(msg.body.retain.id.job),
		       "%s", r->job);
	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), -EACCES,
		     &msg);
	CHECK(strstr(rig_why(&msg), "of another user"), "%s", rig_why(&msg));
	check_unsaid(path);
}

/* The store has come to be well, and the name is another user's by then: what
 * failed is tried no more, and that is not the store's fault. */
static void test_lost(void)
{
	struct whole w;
	struct rank r;
	char path[200], theirs[160];

	start(&w);
	open_rarely(&w, &r);
	block(&w, "rare", path);
	make_theirs(&w, theirs);
	for (int64_t step = 1; step <= 4; step++)
		rank_snapshot(&r, step);
	AWAIT(is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	give_away(theirs, path);
	AWAIT(has_said(&w, r.sock, "of another user"), "%s", whole_log(&w));
	/* By one look: more time would have the store hang, and be mended. */
	sk_fault_os_advance(w.fault, 3 * SECOND);
	AWAIT(!is_degraded(r.sock, "store-error"), "%s", whole_log(&w));
	CHECK(!(snapshot_flags(r.sock, "rare", 4) & SK_SNAP_WANTED),
	      "it is tried");
	check_says_nothing(&r, path);
	rank_close(&r);
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	/* It is lost, and that is told. */
	CHECK(whole_wait(&w) == 1, "exit status: %s", whole_log(&w));
	whole_remove(&w);
}

static int keeps[2];		/* a pipe: a byte for each time that it may */

/* Who sees what is to stay of jobs waits until it may. */
static int open_late(const struct sk_os *os, int dirfd, const char *path,
		     int flags, mode_t mode)
{
	char name[16] = "", c;

	(void)os;
	(void)pthread_getname_np(pthread_self(), name, sizeof(name));
	if (strncmp(name, "sk-keep", 7) == 0)
		(void)!read(keeps[0], &c, 1);
	return sk_os_linux()->openat(sk_os_linux(), dirfd, path, flags, mode);
}

/* Nor by what its ranks said of theirs, which has the name in memory alone. */
static void test_kept(void)
{
	char path[200], theirs[160];
	struct whole w;
	struct rank r;

	CHECK(pipe2(keeps, O_CLOEXEC) == 0, "pipe");
	whole_init(&w);
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	/* What dead agents have left was looked for. */
	w.fault->os.openat = open_late;
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "kept", .world = 1, .keep_last = 1 }), 0, &r.msg);
	block(&w, "kept", path);
	make_theirs(&w, theirs);
	give_away(theirs, path);
	/* As many as it may look. */
	for (int i = 0; i < LOOKS; i++)
		CHECK(write(keeps[1], "", 1) == 1, "a pipe");
	for (int i = 0; i < 300; i++) {
		CHECK(!is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
		check_unsaid(path);
	}
	rank_close(&r);
	end(&w);
	for (int i = 0; i < 2; i++)
		close(keeps[i]);
}

/* Its ranks are gone, and what failed is given up: nothing is wrong with
 * anybody any more. */
static void test_given_up(void)
{
	struct rank bad, good;
	struct sk_msg msg;
	struct whole w;
	char path[200];

	start(&w);
	open_rank(&w, &bad, "bad", 0);
	open_rank(&w, &good, "good", 0);
	block(&w, "bad", path);
	rank_snapshot(&bad, 1);
	AWAIT(is_on(&w, bad.sock, "store-error"), "%s", whole_log(&w));
	CHECK_STATUS(rank_unregister(&bad), 0, &bad.msg);
	rank_close(&bad);
	for (int i = 0; i < 5; i++)
		CHECK(is_on(&w, good.sock, "store-error"), "%s",
		      whole_log(&w));
	/* It may be tried just now. */
	AWAIT(manage(good.sock, SK_MSG_EVICT, "bad", 1, SK_EVICT_FORCE,
		     &msg) == 0, "%s", rig_why(&msg));
	AWAIT(!is_on(&w, good.sock, "store-error"), "%s", whole_log(&w));
	rank_close(&good);
	end(&w);
}

/* A large image finds no room, as by a quota of its owner's. */
static int allocate(const struct sk_os *os, int fd, int mode, uint64_t at,
		    uint64_t n)
{
	if (at + n > 1 << 20)
		return -EDQUOT;
	return sk_os_linux()->fallocate(os, fd, mode, at, n);
}

static void test_full_of_one(void)
{
	struct rank large, small;
	struct sk_msg msg;
	struct whole w;

	whole_init(&w);
	w.options.level = LOG_LEVEL_INFO;
	w.fault->os.fallocate = allocate;
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	open_rank(&w, &large, "large", 1000);
	open_rank(&w, &small, "small", 4);
	rank_snapshot(&large, 1);
	AWAIT(is_on(&w, large.sock, "store-full"), "%s", whole_log(&w));
	succeed_beside(&w, &small, "store-full", "step 1 of job \"large\" "
		       "needs 3.9 MiB");
	CHECK_STATUS(rank_unregister(&large), 0, &large.msg);
	rank_close(&large);
	AWAIT(manage(small.sock, SK_MSG_EVICT, "large", 1, SK_EVICT_FORCE,
		     &msg) == 0, "%s", rig_why(&msg));
	AWAIT(!is_on(&w, small.sock, "store-full"), "%s", whole_log(&w));
	rank_close(&small);
	end(&w);
}

/* Shared with the agent's process. */
static unsigned long *type_of_store;

static int tell_type(const struct sk_os *os, int fd, struct statfs *ret)
{
	int r = sk_os_linux()->fstatfs(os, fd, ret);

	ret->f_type = (__fsword_t)__atomic_load_n(type_of_store,
						  __ATOMIC_RELAXED);
	return r;
}

/* Another filesystem is mounted in its place: one in memory, and then one on a
 * disk. */
static void test_volatile(void)
{
	struct whole w;
	int sock;

	type_of_store = mmap(NULL, sizeof(*type_of_store),
			     PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(type_of_store != MAP_FAILED, "mmap");
	*type_of_store = EXT4_SUPER_MAGIC;
	whole_init(&w);
	w.fault->os.fstatfs = tell_type;
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	sock = rig_connect(&w.rig);
	CHECK(!is_degraded(sock, "store-volatile"), "%s", whole_log(&w));
	__atomic_store_n(type_of_store, TMPFS_MAGIC, __ATOMIC_RELAXED);
	AWAIT(is_on(&w, sock, "store-volatile"), "%s", whole_log(&w));
	CHECK(stat_value(sock, "shardkeep_store") == 2, "the figure is old");
	__atomic_store_n(type_of_store, EXT4_SUPER_MAGIC, __ATOMIC_RELAXED);
	AWAIT(!is_on(&w, sock, "store-volatile"), "%s", whole_log(&w));
	close(sock);
	end(&w);
	CHECK(munmap(type_of_store, sizeof(*type_of_store)) == 0, "munmap");
}

/* ---- memory; the budget is 64 MiB ---- */

static int open_with(struct whole *w, struct rank *r, const char *job,
		     uint32_t slots, int64_t mib)
{
	return rank_open(r, &w->rig, &(struct rank_options){
		.job = job, .world = 1, .slots = slots, .rows = mib * 256 });
}

/* Who follows the advice and comes with less is well. */
static void test_fewer_slots(void)
{
	struct whole w;
	struct rank r;

	start(&w);
	CHECK_STATUS(open_with(&w, &r, "one", 4, 20), -ENOMEM, &r.msg);
	CHECK(is_on(&w, r.sock, "memory-budget"), "%s", whole_log(&w));
	rank_close(&r);
	CHECK_STATUS(open_with(&w, &r, "one", 2, 20), 0, &r.msg);
	CHECK(!is_degraded(r.sock, "memory-budget"), "it stays, of nobody");
	rank_close(&r);
	end(&w);
}

/* One that lacks less comes after it, and gets it. */
static void test_less_beside(void)
{
	struct rank large, small, holder;
	struct whole w;

	start(&w);
	CHECK_STATUS(open_with(&w, &holder, "holder", 2, 20), 0, &holder.msg);
	CHECK_STATUS(open_with(&w, &large, "large", 2, 25), -ENOMEM,
		     &large.msg);
	CHECK_STATUS(open_with(&w, &small, "small", 2, 15), -ENOMEM,
		     &small.msg);
	CHECK_STATUS(rank_unregister(&holder), 0, &holder.msg);
	CHECK_STATUS(open_with(&w, &holder, "holder", 2, 10), 0, &holder.msg);
	/* 44 MiB are free, 50 were asked for. */
	for (int i = 0; i < 5; i++)
		CHECK(is_on(&w, holder.sock, "memory-budget"), "%s",
		      whole_log(&w));
	check_stands(&w, holder.sock, "memory-budget", "job \"large\"");
	/* It ends, and is not started anew. */
	rank_close(&large);
	rank_close(&small);
	for (int i = 0; i < 300; i++)
		CHECK(is_on(&w, holder.sock, "memory-budget"), "%s",
		      whole_log(&w));
	sk_fault_os_advance(w.fault, 600 * SECOND);
	AWAIT(!is_on(&w, holder.sock, "memory-budget"), "%s", whole_log(&w));
	rank_close(&holder);
	end(&w);
}

/* ---- other users ---- */

static void as_nobody(struct whole *w, const char *name, bool failing)
{
	struct rig_state s;
	struct rank r;
	int sock;

	CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 &&
	      setuid(NOBODY) == 0, "setuid");
	sock = rig_connect(&w->rig);
	s = rig_state(sock, name);
	CHECK(s.on && !strstr(s.why, "hidden"), "%s: %s", name, s.why);
	CHECK(strstr(s.why, "of another user"), "%s: %s", name, s.why);
	if (!failing)
		_exit(0);
	CHECK_STATUS(open_with(w, &r, "mine", 2, 100), -EDQUOT, &r.msg);
	/* Others' jobs take nothing of its share. */
	CHECK(strstr(rig_why(&r.msg), "held by: nobody"), "%s",
	      rig_why(&r.msg));
	s = rig_state(sock, name);
	CHECK(s.on && strstr(s.why, "mine"), "%s: %s", name, s.why);
	/* The budget has room, and its share has not. */
	for (int i = 0; i < 5; i++) {
		sk_fault_os_advance(w->fault, SECOND);
		s = rig_state(sock, name);
		CHECK(s.on && strstr(s.why, "mine"), "%s: %s", name, s.why);
	}
	_exit(0);
}

static void ask_as_nobody(struct whole *w, const char *name, bool failing)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0, "fork");
	if (!pid)
		as_nobody(w, name, failing);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "nobody failed");
}

static void test_names(void)
{
	struct rank r, large;
	struct whole w;
	char path[200];

	if (geteuid() != 0)
		return;
	whole_init(&w);
	w.options.user_memory = 16 << 20;
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	open_rank(&w, &r, "hidden", 0);
	block(&w, "hidden", path);
	rank_snapshot(&r, 1);
	AWAIT(is_on(&w, r.sock, "store-error"), "%s", whole_log(&w));
	ask_as_nobody(&w, "store-error", false);
	CHECK_STATUS(open_with(&w, &large, "hidden-too", 2, 40), -ENOMEM,
		     &large.msg);
	ask_as_nobody(&w, "memory-budget", true);
	check_stands(&w, r.sock, "memory-budget", "job \"hidden-too\"");
	CHECK(unlink(path) == 0, "unlink");
	rank_close(&large);
	rank_close(&r);
	end(&w);
}

/* What is pinned in memory alone, and not to be written. */
static void test_names_of_held(void)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;

	if (geteuid() != 0)
		return;
	start(&w);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = "hidden", .world = 1, .rows = 1,
		.flush_every = UINT32_MAX }), 0, &r.msg);
	for (int64_t step = 1; step < 3; step++) {
		rank_snapshot(&r, step);
		CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "hidden", step, 0,
				    &msg), 0, &msg);
	}
	AWAIT(is_on(&w, r.sock, "pins-hold-slots"), "%s", whole_log(&w));
	ask_as_nobody(&w, "pins-hold-slots", false);
	check_stands(&w, r.sock, "pins-hold-slots", "job \"hidden\"");
	rank_close(&r);
	end(&w);
}

int main(void)
{
	test_error_of_one();
	test_error_of_two();
	test_error_of_step();
	test_superseded();
	test_evicted();
	test_lost();
	test_kept();
	test_given_up();
	test_full_of_one();
	test_volatile();
	test_fewer_slots();
	test_less_beside();
	test_names();
	test_names_of_held();
	return 0;
}
