/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store refuses beside the data, which are safe: files that cannot be
 * given to their job's user, and steps that cannot be deleted. It is said, and
 * done when it can be.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/whole.h"
#include "support/await.h"

#define JOB "undone"
#define SECOND UINT64_C(1000000000)
#define STRANGER 4711

static void begin(struct whole *w)
{
	whole_init(w);
	CHECK(chmod(w->rig.dir, 0755) == 0, "chmod");
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
}

static void end(struct whole *w, struct rank *r)
{
	rank_close(r);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
}

static bool is_durable(struct whole *w, int sock, int64_t step)
{
	sk_fault_os_advance(w->fault, SECOND);
	return snapshot_flags(sock, JOB, step) & SK_SNAP_DURABLE;
}

static void take(struct whole *w, struct rank *r, int64_t step)
{
	rank_snapshot(r, step);
	AWAIT(is_durable(w, r->sock, step), "step %d: %s", (int)step,
	      whole_log(w));
}

static unsigned times_said(const struct whole *w, const char *what)
{
	const char *at = whole_log(w);
	unsigned n = 0;

	for (; (at = strstr(at, what)); at++)
		n++;
	return n;
}

/* As where root is nobody to a file server. */
static void test_not_given(struct whole *w)
{
	const struct rank_options o = { .job = JOB, .world = 1 };
	struct rank r = { .sock = -1 };

	begin(w);
	sk_fault_os_fail(w->fault, SK_FAULT_FCHOWN, 1, SK_FAULT_ALWAYS, EPERM);
	CHECK(seteuid(STRANGER) == 0, "seteuid");
	CHECK_STATUS(rank_open(&r, &w->rig, &o), 0, &r.msg);
	for (int64_t step = 1; step <= 3; step++)
		take(w, &r, step);
	CHECK(seteuid(0) == 0, "seteuid");
	CHECK(sk_fault_os_hits(w->fault) >= 3, "nothing was to be given");
	AWAIT(times_said(w, "cannot be given to user 4711"), "it is not said");
	CHECK(times_said(w, "cannot be given to user") == 1, "%s",
	      whole_log(w));
	end(w, &r);
}

static bool is_counted(struct whole *w, int sock)
{
	sk_fault_os_advance(w->fault, SECOND);
	return stat_value(sock, "shardkeep_retention_errors_total") > 0;
}

static bool is_gone(struct whole *w, int sock, int64_t step)
{
	sk_fault_os_advance(w->fault, SECOND);
	return !(snapshot_flags(sock, JOB, step) & SK_SNAP_DISK);
}

/* What cannot go stays on the disk, and goes after the next flush. */
static void test_not_deleted(struct whole *w)
{
	const struct rank_options o = { .job = JOB, .world = 1,
					.keep_last = 1 };
	struct rank r = { .sock = -1 };

	begin(w);
	CHECK_STATUS(rank_open(&r, &w->rig, &o), 0, &r.msg);
	take(w, &r, 1);
	sk_fault_os_fail(w->fault, SK_FAULT_UNLINKAT, 1, SK_FAULT_ALWAYS, EIO);
	take(w, &r, 2);
	AWAIT(is_counted(w, r.sock), "it is not counted: %s", whole_log(w));
	CHECK(strstr(whole_log(w), "Input/output error"), "%s", whole_log(w));
	sk_fault_os_forget(w->fault);
	take(w, &r, 3);
	AWAIT(is_gone(w, r.sock, 1) && is_gone(w, r.sock, 2),
	      "they stay: %s", whole_log(w));
	end(w, &r);
}

int main(void)
{
	struct whole w;

	test_not_deleted(&w);
	if (!getuid())
		test_not_given(&w);
	else
		puts("files are given by root alone: not tested");
	return 0;
}
