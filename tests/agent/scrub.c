/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over what is kept, of images of several pieces: each place is read
 * once a round, what goes before its turn is passed over, an error is no
 * verdict, and an end in the midst of one leaves nothing. */
#include <errno.h>
#include <signal.h>
#include <string.h>
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
	for (int i = 0; i < 3; i++)
		(void)stat_value(s->sock, "shardkeep_clients");
}

static double passed(struct scene *s)
{
	pass(s, 1);
	return stat_value(s->sock, READ);
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
	AWAIT((pass(&s, 0), sk_fault_os_calls(s.w.fault, SK_FAULT_PREAD)) >
	      before, "nothing is read");
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
		sk_fault_os_shorten(s.w.fault, SK_FAULT_PREAD, i + 1, 4, 0);
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

int main(void)
{
	test_once_each();
	test_end_within();
	test_faults();
	return 0;
}
