/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that the system had no huge pages for come to lie in them later, and
 * not while somebody fills them or the disk has them: with a system that says
 * what the test wants, and notes what it is asked for.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"
#include "memory/slot.h"

#define SECOND UINT64_C(1000000000)
#define JOB "collapse"
#define POPULATE_WRITE 23	/* MADV_POPULATE_WRITE */
#define COLLAPSE 25		/* MADV_COLLAPSE */
#define RANGES 64

/* Shared with the agent; numbers are atomic. */
struct kernel {
	int answer;
	unsigned refused;	/* so many of the first, whatever that is */
	bool holds;		/* who is asked waits at the gate */
	bool old;		/* it never heard of it */
	bool lazy;		/* it only says that it faults in */
	unsigned asked;
	struct range {
		uintptr_t at, bytes;
	} ranges[RANGES];	/* the last ones */
};

static struct kernel *kernel;
/* Who comes says so at 1, and goes on by what it reads at 2; made before the
 * agent is. */
static int at_kernel[4], at_disk[4];

static void gate(void *ctx)
{
	const int *ends = ctx;
	char c = 0;

	CHECK(write(ends[1], &c, 1) == 1 && read(ends[2], &c, 1) == 1,
	      "gate");
}

static void await_at(const int *ends)
{
	char c;

	CHECK(read(ends[0], &c, 1) == 1, "nobody comes");
}

static void let_go(const int *ends)
{
	CHECK(write(ends[3], "", 1) == 1, "let go");
}

static int pretend(const struct sk_os *os, void *at, size_t bytes, int advice)
{
	unsigned n;

	(void)os;
	if (advice == COLLAPSE && !bytes)
		return kernel->old ? -EINVAL : 0;
	if (advice == POPULATE_WRITE && kernel->lazy)
		return 0;
	if (advice != COLLAPSE)
		return sk_os_linux()->madvise(sk_os_linux(), at, bytes,
					      advice);
	if (__atomic_load_n(&kernel->holds, __ATOMIC_RELAXED))
		gate(at_kernel);
	n = __atomic_fetch_add(&kernel->asked, 1, __ATOMIC_RELAXED);
	kernel->ranges[n % RANGES] = (struct range){ (uintptr_t)at, bytes };
	return n < kernel->refused ? -EINVAL :
	       __atomic_load_n(&kernel->answer, __ATOMIC_RELAXED);
}

/* Of the huge pages that somebody has set aside there are as many as the first
 * image takes, and those are but said to be. */
static int open_number(const struct sk_os *os, int dir, const char *path,
		       int flags, unsigned mode)
{
	static unsigned looks;
	const char *text = "0";
	int fd;

	(void)os;
	if (!strstr(path, "_hugepages"))
		return sk_os_linux()->openat(sk_os_linux(), dir, path, flags,
					     mode);
	if (strstr(path, "free_hugepages") && !looks++)
		text = "5";
	fd = memfd_create("number", MFD_CLOEXEC);
	CHECK(fd >= 0 && write(fd, text, 1) == 1, "number");
	return fd;
}

static int create_small(const struct sk_os *os, const char *name,
			unsigned flags)
{
	(void)os;
	if (flags & MFD_HUGETLB)
		flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	return sk_os_linux()->memfd_create(sk_os_linux(), name, flags);
}

static unsigned asked(void)
{
	return __atomic_load_n(&kernel->asked, __ATOMIC_RELAXED);
}

static void answer(int status)
{
	__atomic_store_n(&kernel->answer, status, __ATOMIC_RELAXED);
}

static void prepare(struct rank *r)
{
	struct sk_msg msg = { .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .step = -1, .job = JOB }, .timeout_ms = WAIT_MS } };

	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

/* Two slots of one piece each, of which so many are refused: for either the
 * agent has asked as it faulted it in, and once more. */
static void begin(struct whole *w, struct rank *r, unsigned refused)
{
	*kernel = (struct kernel){ .refused = refused };
	whole_init(w);
	w->options.level = LOG_LEVEL_INFO;
	w->fault->os.madvise = pretend;
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 2048 }), 0, &r->msg);
	prepare(r);
	AWAIT(asked() == 4, "%u times: %s", asked(), whole_log(w));
}

static void begin_small(struct whole *w, struct rank *r)
{
	begin(w, r, 4);
	answer(-EINVAL);
	CHECK(is_degraded(r->sock, "small-pages"), "%s", whole_log(w));
}

static void end(struct whole *w, struct rank *r)
{
	rank_close(r);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
}

/* Time passes in turns of the agent, each of which sees the clock. */
static void pass(struct whole *w, struct rank *r, unsigned seconds)
{
	for (unsigned i = 0; i < seconds; i++) {
		sk_fault_os_advance(w->fault, SECOND);
		(void)is_degraded(r->sock, "small-pages");
		(void)is_degraded(r->sock, "small-pages");
	}
}

/* Where the machine is slow, what is due is not asked for yet. */
static bool is_well_in_time(struct whole *w, struct rank *r)
{
	pass(w, r, 1);
	return !is_degraded(r->sock, "small-pages");
}

/* Of each slot what are whole huge pages, once. */
static void check_ranges(unsigned from, unsigned n)
{
	for (unsigned i = from; i < from + n; i++) {
		const struct range *a = &kernel->ranges[i % RANGES];

		CHECK(a->at % SK_HUGE_PAGE == 0 &&
		      a->bytes == 4 * SK_HUGE_PAGE, "%zu bytes", a->bytes);
		for (unsigned k = from; k < i; k++)
			CHECK(kernel->ranges[k % RANGES].at != a->at,
			      "one of them twice");
	}
}

/* They were not to be had for a moment. */
static void test_at_once(void)
{
	struct whole w;
	struct rank r;

	begin(&w, &r, 1);
	AWAIT(!is_degraded(r.sock, "small-pages"), "%u times", asked());
	CHECK(strstr(whole_log(&w), "degraded: small-pages"), "%s",
	      whole_log(&w));
	check_ranges(2, 2);
	end(&w, &r);
}

static void test_heals(void)
{
	struct whole w;
	struct rank r;

	begin_small(&w, &r);
	check_ranges(2, 2);
	pass(&w, &r, 55);
	CHECK(asked() == 4, "%u times within a minute", asked());
	answer(0);
	pass(&w, &r, 10);
	AWAIT(is_well_in_time(&w, &r), "%u times", asked());
	CHECK(asked() == 6, "%u times", asked());
	check_ranges(4, 2);
	pass(&w, &r, 300);
	CHECK(asked() == 6, "%u times, where it is done", asked());
	end(&w, &r);
}

/* Where it is always refused: after 1, 3, 7, 15 and 31 minutes. The thread that
 * asks has the time that it needs: what is next counts from then. */
static void test_seldom(void)
{
	static const unsigned minutes[] = { 1, 3, 7, 15, 31 };
	unsigned now = 0;
	struct whole w;
	struct rank r;

	begin_small(&w, &r);
	for (unsigned i = 0; i < SK_ARRAY_SIZE(minutes); i++) {
		unsigned until = minutes[i] * 60 + (i + 1) * 10;

		pass(&w, &r, until - now);
		now = until;
		AWAIT(is_degraded(r.sock, "small-pages") &&
		      asked() == 4 + 2 * (i + 1), "%u times after %u min",
		      asked(), minutes[i]);
	}
	pass(&w, &r, 3600 - now);
	CHECK(asked() == 14, "%u times in an hour", asked());
	CHECK(is_degraded(r.sock, "small-pages"), "%s", whole_log(&w));
	end(&w, &r);
}

/* The one that is being filled waits until it is sealed and on disk. */
static void test_used(void)
{
	struct whole w;
	struct rank r;
	int slot;

	begin_small(&w, &r);
	slot = rank_slot(&r, 1, SK_SLOT_FLUSH);
	CHECK(slot >= 0, "slot: %s", rig_why(&r.msg));
	answer(0);
	pass(&w, &r, 300);
	CHECK(asked() == 5, "%u times while it is filled", asked());
	sk_fault_os_meddle(w.fault, SK_FAULT_FALLOCATE, sk_fault_os_calls(
			   w.fault, SK_FAULT_FALLOCATE) + 1, gate, at_disk);
	rank_fill(&r, slot, 1);
	CHECK_STATUS(rank_seal(&r, slot, 1), 0, &r.msg);
	await_at(at_disk);
	pass(&w, &r, 300);
	CHECK(asked() == 5, "%u times while it is written", asked());
	CHECK(is_degraded(r.sock, "small-pages"), "%s", whole_log(&w));
	let_go(at_disk);
	AWAIT(!is_degraded(r.sock, "small-pages"), "%u times", asked());
	CHECK(asked() == 6, "%u times", asked());
	end(&w, &r);
}

/* Given back while a piece of it is under way. */
static void test_gone(void)
{
	struct whole w;
	struct rank r;
	int sock;

	begin_small(&w, &r);
	sock = rig_connect(&w.rig);
	answer(0);
	__atomic_store_n(&kernel->holds, true, __ATOMIC_RELAXED);
	sk_fault_os_advance(w.fault, 60 * SECOND);
	await_at(at_kernel);
	__atomic_store_n(&kernel->holds, false, __ATOMIC_RELAXED);
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	AWAIT(stat_value(sock, "shardkeep_memory_used_bytes") == 0, "%s",
	      whole_log(&w));
	let_go(at_kernel);
	AWAIT(!is_degraded(sock, "small-pages"), "%s", whole_log(&w));
	CHECK(asked() <= 6, "%u times", asked());
	close(sock);
	end(&w, &r);
}

/* One image found room among the huge pages that are set aside, and the other
 * three did not. */
static void test_other_image(void)
{
	struct rank_options o = { .job = JOB, .rank = 1, .world = 2,
				  .rows = 2048, .replicated = true,
				  .wide = 2097152 };
	struct whole w;
	struct rank r;

	*kernel = (struct kernel){ .refused = 3 };
	whole_init(&w);
	w.fault->os.madvise = pretend;
	w.fault->os.openat = open_number;
	w.fault->os.memfd_create = create_small;
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
	AWAIT(asked() == 6, "%u times: %s", asked(), whole_log(&w));
	AWAIT(!is_degraded(r.sock, "small-pages"), "%s", whole_log(&w));
	end(&w, &r);
}

/* Where there is no room, the system looks for it long, each time: after a few
 * pieces of a slot the others wait as well. */
static void test_no_room(void)
{
	struct whole w;
	struct rank r;

	*kernel = (struct kernel){ .lazy = true, .answer = -ENOMEM };
	whole_init(&w);
	w.options.memory = UINT64_C(2) << 30;
	w.fault->os.madvise = pretend;
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	/* 16 pieces each. */
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 131072 }), 0, &r.msg);
	prepare(&r);
	AWAIT(asked() == 2 * (16 + 8), "%u times", asked());
	pass(&w, &r, 50);
	CHECK(asked() == 2 * (16 + 8), "%u times", asked());
	CHECK(is_degraded(r.sock, "small-pages"), "%s", whole_log(&w));
	answer(0);
	pass(&w, &r, 20);
	AWAIT(is_well_in_time(&w, &r), "%u times", asked());
	CHECK(asked() == 2 * (16 + 8 + 16), "%u times", asked());
	end(&w, &r);
}

/* With the first page of a huge one that is asked for come the others. */
static int whole_there(const struct sk_os *os, void *at, size_t bytes,
		       unsigned char *seen)
{
	int r = sk_os_linux()->mincore(sk_os_linux(), at, bytes, seen);

	(void)os;
	for (size_t i = 0; i < bytes / SK_PAGE; i++)
		seen[i] = seen[i / 512 * 512];
	return r;
}

/* A system before Linux 6.1 that gives memfds huge pages where they are faulted
 * in: there is nothing to mend, and nobody is asked to. */
static void test_old(void)
{
	struct whole w;
	struct rank r;

	*kernel = (struct kernel){ .old = true, .answer = -EINVAL };
	whole_init(&w);
	w.fault->os.madvise = pretend;
	w.fault->os.mincore = whole_there;
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 2048 }), 0, &r.msg);
	prepare(&r);
	CHECK(!is_degraded(r.sock, "small-pages"), "%s", whole_log(&w));
	pass(&w, &r, 300);
	CHECK(asked() == 2, "%u times", asked());
	CHECK(!is_degraded(r.sock, "small-pages"), "%s", whole_log(&w));
	end(&w, &r);
}

int main(void)
{
	kernel = mmap(NULL, sizeof(*kernel), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(kernel != MAP_FAILED, "mmap");
	CHECK(pipe(at_kernel) == 0 && pipe(at_kernel + 2) == 0 &&
	      pipe(at_disk) == 0 && pipe(at_disk + 2) == 0, "pipe");
	test_at_once();
	test_heals();
	test_seldom();
	test_used();
	test_gone();
	test_other_image();
	test_old();
	test_no_room();
	return 0;
}
