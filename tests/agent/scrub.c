/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over what is kept, of images of several pieces: each place is read
 * once a round, what goes before its turn is passed over, an error is no
 * verdict, and an end in the midst of one leaves nothing. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"
#include "fault-alloc.h"

#define SECOND UINT64_C(1000000000)
#define JOB "scrub"
#define PIECE (UINT64_C(1) << 20)	/* one a second */
#define PIECES 3
#define ROUND 601
#define READ "shardkeep_images_scrubbed_total"
#define BAD "shardkeep_scrub_bad_checksums_total"

struct scene {
	struct whole w;
	struct rank r;		/* of two slots: steps 1 and 2, durable */
	int sock;
};

static void begin(struct scene *s)
{
	sk_fault_alloc_share();
	whole_init(&s->w);
	s->w.options.scrub_rate = PIECE;
	whole_start(&s->w);
	CHECK(s->w.serves, "it did not start: %s", whole_log(&s->w));
	s->sock = rig_connect(&s->w.rig);
	CHECK_STATUS(rank_open(&s->r, &s->w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = PIECES * PIECE / 4096 - 8 }),
		0, &s->r.msg);
	for (int64_t step = 1; step <= 2; step++) {
		rank_snapshot(&s->r, step);
		CHECK_STATUS(rank_wait(&s->r, step, 3, WAIT_MS), 0,
			     &s->r.msg);
	}
}

/* Its end gives all back: whole.c looks. */
static void end(struct scene *s)
{
	rank_close(&s->r);
	close(s->sock);
	CHECK(kill(s->w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&s->w) == 0, "exit status: %s", whole_log(&s->w));
	whole_remove(&s->w);
}

static void pass(struct scene *s, uint64_t seconds)
{
	sk_fault_os_advance(s->w.fault, seconds * SECOND);
	rig_turns(s->sock, 3);
}

static double passed(struct scene *s)
{
	pass(s, 1);
	return stat_value(s->sock, READ);
}

/* Time enough to begin, and none for a second piece, however often. */
static uint64_t begun(struct scene *s, enum sk_fault_op op)
{
	sk_fault_os_advance(s->w.fault, 1000);
	pass(s, 0);
	return sk_fault_os_calls(s->w.fault, op);
}

/* Each place once: what is read later is the next round's. */
static void test_once_each(void)
{
	struct scene s;
	int slot;

	begin(&s);
	pass(&s, ROUND);
	/* The oldest one's slot is another step's before its turn. */
	slot = rank_slot(&s.r, 3, 0);
	CHECK(slot >= 0, "slot: %s", rig_why(&s.r.msg));
	AWAIT(passed(&s) == 3, "%.0f of 3", stat_value(s.sock, READ));
	for (int i = 0; i < 5 * PIECES; i++)
		(void)passed(&s);
	CHECK(stat_value(s.sock, READ) == 3, "%.0f are read, of 3",
	      stat_value(s.sock, READ));
	pass(&s, ROUND);
	AWAIT(passed(&s) == 6, "%.0f of 6", stat_value(s.sock, READ));
	CHECK(stat_value(s.sock, BAD) == 0, "all is well");
	end(&s);
}

/* At its end it has read one piece of some. */
static void test_end_within(void)
{
	struct scene s;
	uint64_t before;

	begin(&s);
	before = sk_fault_os_calls(s.w.fault, SK_FAULT_PREAD);
	pass(&s, ROUND);
	AWAIT(begun(&s, SK_FAULT_PREAD) > before, "nothing is read");
	pass(&s, 0);
	CHECK(stat_value(s.sock, READ) == 0, "one is read by now");
	end(&s);
}

static void one_round(struct scene *s)
{
	pass(s, ROUND);
	for (int i = 0; i < 6 * PIECES; i++)
		pass(s, 1);
}

static void check_well(struct scene *s, const char *what)
{
	double n;

	sk_fault_alloc_next(0, 0);
	sk_fault_os_forget(s->w.fault);
	CHECK(stat_value(s->sock, BAD) == 0, "%s: a verdict", what);
	n = stat_value(s->sock, READ);
	one_round(s);
	/* What was late of the one before counts too. */
	AWAIT(passed(s) >= n + 4, "%s: the next round", what);
	for (int64_t step = 1; step <= 2; step++)
		CHECK(snapshot_flags(s->sock, JOB, step) & SK_SNAP_DURABLE,
		      "%s: step %d", what, (int)step);
}

static void test_faults(void)
{
	static const struct {
		enum sk_fault_op op;
		int error;
	} faults[] = {
		{ SK_FAULT_OPENAT, EMFILE }, { SK_FAULT_FSTAT, EIO },
		{ SK_FAULT_PREAD, EIO }, { SK_FAULT_FADVISE, EINVAL },
	};
	struct scene s;

	begin(&s);
	one_round(&s);
	for (size_t i = 0; i < SK_ARRAY_SIZE(faults); i++) {
		sk_fault_os_fail(s.w.fault, faults[i].op, 1, 8,
				 faults[i].error);
		one_round(&s);
		check_well(&s, "a call");
		sk_fault_os_shorten(s.w.fault, SK_FAULT_PREAD, i + 1, 4,
				    100);
		one_round(&s);
		check_well(&s, "a read");
	}
	for (uint64_t n = 1; n <= 24; n += 5) {
		sk_fault_alloc_next(n, 4);
		sk_fault_os_advance(s.w.fault, ROUND * SECOND);
		for (int i = 0; i < 4 * PIECES; i++) {
			sk_fault_os_advance(s.w.fault, SECOND);
			(void)usleep(1000);
		}
		check_well(&s, "an allocation");
	}
	end(&s);
}

/* ---- another file ---- */

static void evict(struct scene *s, int64_t step, uint32_t flags)
{
	struct sk_msg msg;
	int status;

	AWAIT((status = manage(s->sock, SK_MSG_EVICT, JOB, step,
			       flags | SK_EVICT_FORCE, &msg)) != -EBUSY,
	      "step %d is in use", (int)step);
	CHECK_STATUS(status, 0, &msg);
}

static void copy_file(const char *from, const char *to)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	char *buf = malloc(PIECE);
	ssize_t n;

	CHECK(in >= 0 && out >= 0 && buf, "%s", from);
	while ((n = read(in, buf, PIECE)) > 0)
		CHECK(write(out, buf, (size_t)n) == n, "write %s", to);
	CHECK(n == 0, "read %s", from);
	free(buf);
	close(in);
	close(out);
}

/* A bit of its last piece is another one. */
static void spoil(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat st;
	char c;

	CHECK(fd >= 0 && fstat(fd, &st) == 0 &&
	      pread(fd, &c, 1, st.st_size - 77) == 1, "read %s", path);
	c ^= 1;
	CHECK(pwrite(fd, &c, 1, st.st_size - 77) == 1, "write %s", path);
	close(fd);
}

/* What is bad in a file says nothing of the one that has its name by the time
 * that it is seen. */
static void test_replaced(void)
{
	char path[256], good[256];
	struct scene s;
	uint64_t before;

	begin(&s);
	CHECK_STATUS(rank_unregister(&s.r), 0, &s.r.msg);
	evict(&s, 1, SK_EVICT_MEMORY | SK_EVICT_DISK);
	evict(&s, 2, SK_EVICT_MEMORY);
	(void)snprintf(path, sizeof(path), "%s/" JOB "/step-000000000002/"
		       "rank-00000-of-00001.safetensors", s.w.rig.store);
	(void)snprintf(good, sizeof(good), "%s/good", s.w.rig.dir);
	copy_file(path, good);
	spoil(path);
	CHECK(snapshot_flags(s.sock, JOB, 2) & SK_SNAP_DURABLE, "step 2");
	/* What nothing else does. */
	before = sk_fault_os_calls(s.w.fault, SK_FAULT_FADVISE);
	pass(&s, ROUND);
	AWAIT(begun(&s, SK_FAULT_FADVISE) > before, "nothing is read");
	CHECK(rename(good, path) == 0, "rename");
	CHECK(snapshot_flags(s.sock, JOB, 2) & SK_SNAP_DURABLE, "step 2");
	for (int i = 0; i < 5 * PIECES; i++)
		pass(&s, 1);
	pass(&s, ROUND);
	AWAIT(passed(&s) >= 1, "it is not read");
	CHECK(stat_value(s.sock, BAD) == 0, "a verdict on another file");
	CHECK(snapshot_flags(s.sock, JOB, 2) & SK_SNAP_DURABLE, "step 2");
	end(&s);
}

/* ---- begun without some memory ---- */

static void fail_one(void *ctx)
{
	sk_fault_alloc_fail(*(const uint64_t *)ctx, 1);
}

static bool has_figures(struct scene *s)
{
	pass(s, 1);
	return access(s->w.metrics[0], F_OK) == 0;
}

/* It is as it was asked to be: it writes its figures and looks at what it
 * keeps. */
static void check_whole(struct scene *s)
{
	s->sock = rig_connect(&s->w.rig);
	AWAIT(has_figures(s), "no figures: %s", whole_log(&s->w));
	CHECK_STATUS(rank_open(&s->r, &s->w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 1 }), 0, &s->r.msg);
	rank_snapshot(&s->r, 1);
	CHECK_STATUS(rank_wait(&s->r, 1, 3, WAIT_MS), 0, &s->r.msg);
	pass(s, ROUND);
	AWAIT(passed(s) >= 2, "nothing is looked at");
	end(s);
}

/* One that serves is whole, whichever allocation of its start has failed; else
 * it says why it does not. */
static void test_short_start(void)
{
	uint64_t hits = 1;

	for (uint64_t n = 1; hits; n++) {
		struct scene s;

		sk_fault_alloc_share();
		whole_init(&s.w);
		whole_metrics(&s.w);
		s.w.options.scrub_rate = PIECE;
		s.w.before = fail_one;
		s.w.ctx = &n;
		whole_start(&s.w);
		hits = sk_fault_alloc_hits();
		sk_fault_alloc_next(0, 0);
		if (s.w.serves) {
			check_whole(&s);
			continue;
		}
		CHECK(whole_wait(&s.w) == 1, "status: %s", whole_log(&s.w));
		CHECK(strstr(whole_log(&s.w), "memory"), "allocation %d: %s",
		      (int)n, whole_log(&s.w));
		whole_remove(&s.w);
	}
}

int main(void)
{
	test_once_each();
	test_end_within();
	test_faults();
	test_replaced();
	test_short_start();
	return 0;
}
