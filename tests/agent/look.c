/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of an agent that did not write what the store has, or where others
 * have been at it since: each call and each allocation of such a look fails in
 * turn. What is listed then is all that there is and nothing else, or it is
 * said that it is not; the next list is right.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"
#include "fault-alloc.h"
#include "store/private.h"

#define SECOND UINT64_C(1000000000)
#define JOB "look"
#define OTHER "other"
#define STEPS 3
#define STEP "step-00000000000"
#define MANY 20			/* jobs beside it */
#define LATER "later starts take longer"

/* ---- an agent, and the one before it ---- */

static void start(struct whole *w)
{
	struct timespec now;

	/* What was written is an hour old. */
	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_init(w->fault, sk_os_linux());
	sk_fault_os_clock(w->fault, SECOND,
			  ((uint64_t)now.tv_sec + 3600) * SECOND);
	sk_fault_alloc_share();
	w->options.level = LOG_LEVEL_INFO;
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
}

static void stop(struct whole *w)
{
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "%s", whole_log(w));
}

/* What there is when the agent that is looked at begins. */
static int begin(struct whole *w)
{
	whole_init(w);
	start(w);
	rank_write_steps(&w->rig, JOB, STEPS);
	rank_write_steps(&w->rig, OTHER, 1);
	stop(w);
	start(w);
	return rig_connect(&w->rig);
}

static void end(struct whole *w, int sock)
{
	close(sock);
	stop(w);
	CHECK(!strstr(whole_log(w), LATER), "an index that was written: %s",
	      whole_log(w));
	whole_remove(w);
}

/* ---- what others do to the store ---- */

static void path_of(const struct whole *w, const char *name, char path[256])
{
	(void)snprintf(path, 256, "%s/%s", w->rig.store, name);
}

/* It has times that it never had: clocks tick too seldom to tell. */
static void touch(const struct whole *w, const char *name)
{
	static long count;
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
				     { .tv_sec = 1000000000 + ++count } };
	char path[256];

	path_of(w, name, path);
	CHECK(utimensat(AT_FDCWD, path, times, 0) == 0, "touch %s: %s", path,
	      strerror(errno));
}

static void move(const struct whole *w, const char *from, const char *to)
{
	char a[256], b[256];

	path_of(w, from, a);
	path_of(w, to, b);
	CHECK(rename(a, b) == 0, "rename %s: %s", a, strerror(errno));
}

/* Its names, each step, and the header of its newest image are read anew. */
static void doubt(const struct whole *w)
{
	touch(w, JOB "/" STEP "3/rank-00000-of-00001.safetensors");
	for (char c = '1'; c < '1' + STEPS; c++) {
		char step[64];

		(void)snprintf(step, sizeof(step), "%s/%s%c", JOB, STEP, c);
		touch(w, step);
	}
	touch(w, JOB);
}

/* ---- lists ---- */

struct listed {
	int status;
	bool said;		/* that it is not all */
	unsigned n, durable;	/* of the job, or all jobs; complete on disk */
	struct sk_msg msg;
};

static struct listed list(int sock, const char *job)
{
	struct listed l = { .msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } } };
	struct sk_wire_snapshot s;
	int fds[SK_MSG_FDS], n = 0;

	strcpy(l.msg.body.list.id.job, job);
	l.status = rig_call(sock, &l.msg, NULL, 0, fds, &n);
	if (l.status < 0)
		return l;
	CHECK(n == 1, "%d descriptors", n);
	l.said = l.msg.body.list_reply.unreadable &&
		 l.msg.body.list_reply.text[0];
	l.n = (unsigned)l.msg.body.list_reply.n;
	for (unsigned i = 0; i < l.n; i++) {
		CHECK(pread(fds[0], &s, sizeof(s), (off_t)(i * sizeof(s))) ==
		      sizeof(s), "a short list");
		l.durable += s.flags & SK_SNAP_COMPLETE &&
			     s.flags & SK_SNAP_DURABLE;
	}
	close(fds[0]);
	return l;
}

static void check_all(const struct listed *l, unsigned n, const char *what)
{
	CHECK(l->status == 0 && !l->said && l->n == n && l->durable == n,
	      "%s: %d, %u listed, %u durable, of %u: %s", what, l->status,
	      l->n, l->durable, n, l->status < 0 ? rig_why(&l->msg) :
	      l->msg.body.list_reply.text);
}

/* With something failed: right, or it says so, in these words. */
static void check_or_said(const struct listed *l, unsigned n,
			  const char *words, const char *what)
{
	if (l->status == 0 && !l->said)
		check_all(l, n, what);
	else
		CHECK(strstr(l->status < 0 ? rig_why(&l->msg) :
			     l->msg.body.list_reply.text, words),
		      "%s: %d, %s", what, l->status, l->status < 0 ?
		      rig_why(&l->msg) : l->msg.body.list_reply.text);
}

static void mend(struct whole *w)
{
	sk_fault_alloc_next(0, 0);
	sk_fault_os_forget(w->fault);
}

/* ---- tests ---- */

static void test_calls(void)
{
	static const struct {
		enum sk_fault_op op;
		int error;
	} faults[] = {
		{ SK_FAULT_OPENAT, EMFILE }, { SK_FAULT_FSTATAT, ENOMEM },
		{ SK_FAULT_FSTATAT, EIO }, { SK_FAULT_PREAD, EIO },
		{ SK_FAULT_GETDENTS, EIO }, { SK_FAULT_FSTAT, EIO },
	};
	struct whole w;
	int sock = begin(&w);

	for (size_t i = 0; i < SK_ARRAY_SIZE(faults); i++) {
		uint64_t hits = 1, n;

		for (n = 1; hits; n++) {
			struct listed l;
			char what[64];

			(void)snprintf(what, sizeof(what), "operation %d, "
				       "call %d", faults[i].op, (int)n);
			doubt(&w);
			mend(&w);
			sk_fault_os_fail(w.fault, faults[i].op, n, 1,
					 faults[i].error);
			l = list(sock, JOB);
			hits = sk_fault_os_hits(w.fault);
			mend(&w);
			check_or_said(&l, STEPS, strerror(faults[i].error),
				      what);
			l = list(sock, JOB);
			check_all(&l, STEPS, what);
		}
		CHECK(n > 2, "operation %d is not called", faults[i].op);
	}
	end(&w, sock);
}

static void test_memory(void)
{
	struct whole w;
	int sock = begin(&w);
	uint64_t hits = 1, n;

	for (n = 1; hits; n++) {
		struct listed l;
		char what[64];

		(void)snprintf(what, sizeof(what), "allocation %d", (int)n);
		doubt(&w);
		sk_fault_alloc_next(n, 1);
		l = list(sock, JOB);
		hits = sk_fault_alloc_hits();
		mend(&w);
		check_or_said(&l, STEPS, "memory", what);
		l = list(sock, JOB);
		check_all(&l, STEPS, what);
	}
	CHECK(n > 10, "%d allocations", (int)n);
	end(&w, sock);
}

/* A step is gone: it is not listed, or nothing is. */
static void test_gone(void)
{
	struct whole w;
	int sock = begin(&w);
	uint64_t hits = 1;

	for (uint64_t n = 1; hits; n++) {
		struct listed l = list(sock, "");
		char what[64];

		(void)snprintf(what, sizeof(what), "gone, allocation %d",
			       (int)n);
		check_all(&l, STEPS + 1, what);
		move(&w, OTHER "/" STEP "1", "../aside");
		touch(&w, OTHER);
		sk_fault_alloc_next(n, 1);
		l = list(sock, "");
		hits = sk_fault_alloc_hits();
		mend(&w);
		check_or_said(&l, STEPS, "memory", what);
		l = list(sock, "");
		check_all(&l, STEPS, what);
		move(&w, "../aside", OTHER "/" STEP "1");
		touch(&w, OTHER "/" STEP "1");
		touch(&w, OTHER);
	}
	end(&w, sock);
}

/* A directory of the same name and number is another run's by now, as where one
 * was removed and another made: what it had is not taken for that run's. */
static void test_another_run(void)
{
	const struct sk_store_run nine = { 9, 999 };
	char text[SK_RUN_TEXT_MAX], path[256];
	struct listed l;
	struct whole w;
	int sock = begin(&w);
	FILE *f;

	l = list(sock, JOB);
	check_all(&l, STEPS, "before");
	move(&w, JOB "/" STEP "2/.run", "../run");
	path_of(&w, JOB "/" STEP "2/.run", path);
	sk_run_text_format(text, &nine);
	f = fopen(path, "w");
	CHECK(f && fprintf(f, "%s\n", text) > 0 && fclose(f) == 0, "run");
	doubt(&w);
	l = list(sock, JOB);
	CHECK(l.status == 0 && l.n == STEPS - 1 && l.durable == STEPS - 1,
	      "%d, %u listed", l.status, l.n);
	move(&w, "../run", JOB "/" STEP "2/.run");
	touch(&w, JOB "/" STEP "2/rank-00000-of-00001.safetensors");
	doubt(&w);
	l = list(sock, JOB);
	check_all(&l, STEPS, "after");
	end(&w, sock);
}

/* Who asks for one job has the store asked for nothing of others. */
static void test_one_job_alone(void)
{
	uint64_t before, few;
	struct listed l;
	char path[256];
	struct whole w;
	int sock = begin(&w);

	l = list(sock, JOB);
	check_all(&l, STEPS, "before");
	doubt(&w);
	before = sk_fault_os_calls(w.fault, SK_FAULT_OPENAT);
	l = list(sock, JOB);
	few = sk_fault_os_calls(w.fault, SK_FAULT_OPENAT) - before;
	CHECK(few > 0, "the store is not asked");
	for (int i = 0; i < MANY; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "more-%d", i);
		path_of(&w, name, path);
		CHECK(mkdir(path, 0700) == 0, "mkdir");
	}
	doubt(&w);
	before = sk_fault_os_calls(w.fault, SK_FAULT_OPENAT);
	l = list(sock, JOB);
	check_all(&l, STEPS, "beside many");
	CHECK(sk_fault_os_calls(w.fault, SK_FAULT_OPENAT) - before <= few + 2,
	      "%d opens, %d beside few",
	      (int)(sk_fault_os_calls(w.fault, SK_FAULT_OPENAT) - before),
	      (int)few);
	end(&w, sock);
}

/* An index that cannot be written is told of, once. */
static void test_no_index(void)
{
	const char *said;
	struct listed l;
	char path[256];
	struct whole w;
	int sock = begin(&w);

	path_of(&w, SK_INDEX_DIR "/" JOB, path);
	CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0, "%s", path);
	path_of(&w, SK_INDEX_DIR "/" JOB "/x", path);
	CHECK(mkdir(path, 0700) == 0, "%s", path);
	doubt(&w);
	l = list(sock, JOB);
	check_all(&l, STEPS, "before");
	AWAIT((sk_fault_os_advance(w.fault, SECOND), list(sock, JOB),
	       strstr(whole_log(&w), LATER)), "it is not told");
	/* And once more at the end. */
	rank_write_steps(&w.rig, JOB, 1);
	close(sock);
	stop(&w);
	said = strstr(whole_log(&w), LATER);
	CHECK(said && strstr(whole_log(&w), "cannot write the index"), "%s",
	      whole_log(&w));
	CHECK(!strstr(said + 1, LATER), "more than once: %s", said);
	whole_remove(&w);
}

int main(void)
{
	test_calls();
	test_memory();
	test_gone();
	test_another_run();
	test_one_job_alone();
	test_no_index();
	return 0;
}
