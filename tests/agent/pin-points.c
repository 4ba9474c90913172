/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that is pinned in memory goes to disk for that, and the agent is
 * killed at each of its calls on the way: the pin stands there in the end, for
 * whoever comes when the memory is gone. So it is with what an agent without a
 * store was asked to pin, once the next one has some.
 *
 * $SK_EVERY: only every so many.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/outlive.h"
#include "base/util.h"

#define CALLS_MOST 300

static bool is_pinned_on_disk(const struct scene *s)
{
	char path[200];

	(void)snprintf(path, sizeof(path), "%s/" OUTLIVE_JOB "/step-%012d"
		       "/.pinned", s->rig.store, 1);
	return access(path, F_OK) == 0;
}

/* As cachectl does, only where nobody has heard it. */
static void pin_again(const struct scene *s)
{
	int sock = rig_connect(&s->rig);
	struct sk_msg msg;

	CHECK_STATUS(manage(sock, SK_MSG_PIN, OUTLIVE_JOB, 1, 0, &msg), 0,
		     &msg);
	close(sock);
}

/* Whoever takes its place writes both, and is not asked for it. */
static void stands_in_the_end(const struct scene *s)
{
	int sock = rig_connect(&s->rig);

	AWAIT(snapshot_flags(sock, OUTLIVE_JOB, 1) & SK_SNAP_DURABLE,
	      "it is not durable");
	CHECK(snapshot_flags(sock, OUTLIVE_JOB, 1) & SK_SNAP_PINNED,
	      "it is not pinned");
	AWAIT((snapshot_flags(sock, OUTLIVE_JOB, 1), is_pinned_on_disk(s)),
	      "it is not pinned on disk");
	close(sock);
}

static void go_on(const struct scene *s, pid_t first, bool heard)
{
	AWAIT(serving(s) > 0 && serving(s) != first, "nobody serves");
	if (!heard)
		pin_again(s);
	stands_in_the_end(s);
}

/* How often it was killed. */
static uint64_t pin(struct scene *s, enum sk_fault_op op, uint64_t nth)
{
	struct sk_msg msg;
	struct rank r;
	uint64_t hits;
	pid_t first;
	int sock, status;

	sk_fault_os_forget(s->fault);
	begin(s);
	story(s, &r, 1);
	first = serving(s);
	sock = rig_connect(&s->rig);
	sk_fault_os_meddle(s->fault, op, sk_fault_os_calls(s->fault, op) + nth,
			   die, NULL);
	status = manage(sock, SK_MSG_PIN, OUTLIVE_JOB, 1, 0, &msg);
	AWAIT(is_pinned_on_disk(s) || sk_fault_os_hits(s->fault), "it is not "
	      "pinned on disk");
	hits = sk_fault_os_hits(s->fault);
	CHECK(hits || status == 0, "%d: %s", status, rig_why(&msg));
	if (hits)
		go_on(s, first, status == 0);
	close(sock);
	rank_close(&r);
	/* Its end is nobody's matter. */
	sk_fault_os_forget(s->fault);
	end(s);
	return hits;
}

/* ---- without a store at first ---- */

static void with_store_or_not(void *ctx)
{
	struct scene *s = ctx;

	/* Of no other test's rules: the first agent has been through. */
	s->options.store = sk_fault_os_hits(s->fault) ? s->rig.store : NULL;
}

static void test_store_comes(struct scene *s)
{
	struct sk_msg msg;
	struct rank r;
	pid_t first;
	int sock;

	sk_fault_os_forget(s->fault);
	s->before = with_store_or_not;
	s->ctx = s;
	begin(s);
	story(s, &r, 2);
	first = serving(s);
	sock = rig_connect(&s->rig);
	CHECK_STATUS(manage(sock, SK_MSG_PIN, OUTLIVE_JOB, 1, 0, &msg), 0,
		     &msg);
	sk_fault_os_meddle(s->fault, SK_FAULT_SENDMSG,
			   sk_fault_os_calls(s->fault, SK_FAULT_SENDMSG) + 1,
			   die, NULL);
	msg = (struct sk_msg){ .type = SK_MSG_STATUS };
	rig_send(sock, &msg);
	go_on(s, first, true);
	close(sock);
	rank_close(&r);
	sk_fault_os_forget(s->fault);
	end(s);
	s->before = NULL;
}

/* ---- unpinned before it is written ---- */

/* What the pin alone had sent to disk, the next agent sends no more; what
 * somebody wants there it does. */
static void test_unpinned_by_next(struct scene *s, bool wanted)
{
	struct sk_msg msg;
	struct rank r;
	pid_t first;
	int sock;

	sk_fault_os_forget(s->fault);
	begin(s);
	story(s, &r, 2);
	first = serving(s);
	sock = rig_connect(&s->rig);
	sk_fault_os_fail(s->fault, SK_FAULT_FALLOCATE, 1, SK_FAULT_ALWAYS,
			 ENOSPC);
	CHECK_STATUS(manage(sock, SK_MSG_PIN, OUTLIVE_JOB, 1, 0, &msg), 0,
		     &msg);
	if (wanted)
		CHECK_STATUS(manage(sock, SK_MSG_FLUSH, OUTLIVE_JOB, 1, 0,
				    &msg), 0, &msg);
	CHECK(kill(first, SIGKILL) == 0, "kill");
	close(sock);
	AWAIT(serving(s) > 0 && serving(s) != first, "nobody serves");
	sock = rig_connect(&s->rig);
	CHECK(snapshot_flags(sock, OUTLIVE_JOB, 1) & SK_SNAP_WANTED,
	      "it is not to be written");
	CHECK_STATUS(manage(sock, SK_MSG_UNPIN, OUTLIVE_JOB, 1, 0, &msg), 0,
		     &msg);
	CHECK(!(snapshot_flags(sock, OUTLIVE_JOB, 1) & SK_SNAP_WANTED) ==
	      !wanted, "it is to be written");
	sk_fault_os_forget(s->fault);
	close(sock);
	rank_close(&r);
	end(s);
}

int main(void)
{
	static const enum sk_fault_op ops[] = {
		SK_FAULT_RENAMEAT, SK_FAULT_FSYNC, SK_FAULT_FSTATAT,
	};
	struct scene s = { .flush_every = 1u << 20 };

	s.fault = mmap(NULL, sizeof(*s.fault), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(s.fault != MAP_FAILED, "mmap");
	sk_fault_os_init(s.fault, sk_os_linux());
	test_store_comes(&s);
	test_unpinned_by_next(&s, false);
	test_unpinned_by_next(&s, true);
	for (size_t i = 0; i < SK_ARRAY_SIZE(ops); i++) {
		uint64_t n = 1;

		while (n < CALLS_MOST && pin(&s, ops[i], n))
			n += sk_fault_every();
		CHECK(n > 1 && n < CALLS_MOST, "killed %" PRIu64 " times", n);
	}
	return 0;
}
