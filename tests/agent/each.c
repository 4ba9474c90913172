/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each request of a living agent, with each allocation and each call of the
 * system that answering it takes failed: it is refused in the words of the
 * error, or done, and looked at whether it is; the next one is done. At its
 * end the agent has given everything back (whole.c).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/each.h"
#include "base/util.h"
#include "fault-alloc.h"
#include "worker/worker.h"

#define ROUNDS_MOST 2000	/* a request that is never done */

static const struct {
	enum sk_fault_op op;
	int error;
	bool refused;		/* there is no other way */
	bool otherwise;		/* it may be told in other words, or none */
} calls[] = {
	{ SK_FAULT_MEMFD_CREATE, EMFILE, true },
	{ SK_FAULT_FTRUNCATE, ENOSPC, true },
	{ SK_FAULT_FCNTL_SEAL, EPERM, true },
	{ SK_FAULT_MMAP, ENOMEM, true },
	{ SK_FAULT_OPENAT, EMFILE }, { SK_FAULT_FSTATAT, EIO },
	{ SK_FAULT_PREAD, EIO }, { SK_FAULT_PWRITE, ENOSPC },
	{ SK_FAULT_FSYNC, EIO }, { SK_FAULT_MKDIRAT, EACCES },
	{ SK_FAULT_RENAMEAT, EROFS }, { SK_FAULT_UNLINKAT, EROFS },
	{ SK_FAULT_GETDENTS, EIO }, { SK_FAULT_FLOCK, ENOLCK },
	{ SK_FAULT_FSTATFS, EIO }, { SK_FAULT_RANDOM, EIO },
	{ SK_FAULT_SENDMSG, EAGAIN },
	{ SK_FAULT_FSTAT, EIO, .otherwise = true },
	{ SK_FAULT_FCNTL, EMFILE, .otherwise = true },
	{ SK_FAULT_EPOLL_CTL, ENOSPC, .otherwise = true },
	{ SK_FAULT_SOCKETPAIR, EMFILE }, { SK_FAULT_SPAWN, EAGAIN },
	{ SK_FAULT_PIDFD_OPEN, EMFILE, .otherwise = true },
};

/* How much was failed meanwhile; it is no more. */
static uint64_t meet(struct scene *s, const struct asked *q,
		     int *ret_status)
{
	uint64_t hits;

	s->hits = 0;
	*ret_status = q->fn(s);
	hits = s->hits + hits_of(s);
	mend(s);
	CHECK(*ret_status == 0 || !strstr(rig_why(&s->msg), "Connection timed"),
	      "%s: it is never answered", q->name);
	return hits;
}

static void must_go_on(struct scene *s, const struct asked *q)
{
	int r;

	if (s->lost) {
		end(s);
		begin(s);
	}
	r = q->fn(s);
	CHECK(r == 0, "%s: afterwards it is refused: %s", q->name,
	      rig_why(&s->msg));
}

static bool goes_on(const struct asked *q, uint64_t n)
{
	return n < ROUNDS_MOST && (!q->most || n <= q->most);
}

/* Whether it is done although that is failed; *@ret_hits is how much was. */
static bool is_spared(struct scene *s, const struct asked *q, uint64_t nth,
		      uint64_t times, uint64_t *ret_hits)
{
	int r;

	sk_fault_alloc_next(nth, times);
	*ret_hits = meet(s, q, &r);
	/* A connection that cannot be made is none. */
	CHECK(r == 0 || strstr(rig_why(&s->msg), "memory") ||
	      strstr(rig_why(&s->msg), "no reply"),
	      "%s, allocation %d: %d, %s", q->name, (int)nth, r,
	      rig_why(&s->msg));
	must_go_on(s, q);
	return *ret_hits && r == 0;
}

static void test_allocations(struct scene *s, const struct asked *q,
			     uint64_t times, unsigned most_spared)
{
	const uint64_t every = sk_fault_every();
	uint64_t hits = 1, again;
	unsigned spared = 0;

	/* What an earlier request left to the background may come at any
	 * time, but not twice. */
	for (uint64_t n = 1; hits && goes_on(q, n); n += every)
		spared += is_spared(s, q, n, times, &hits) &&
			  is_spared(s, q, n, times, &again);
	CHECK(!hits || q->most, "%s has no end", q->name);
	CHECK(spared <= most_spared, "%s does without %u allocations",
	      q->name, spared);
}

static void test_calls(struct scene *s, const struct asked *q, size_t k)
{
	const char *words = strerror(calls[k].error);
	const uint64_t every = sk_fault_every();
	uint64_t hits = 1;
	int r;

	for (uint64_t n = 1; hits && goes_on(q, n); n += every) {
		mend(s);
		sk_fault_os_fail(s->w.fault, calls[k].op, n, 1,
				 calls[k].error);
		hits = meet(s, q, &r);
		CHECK(r == 0 || calls[k].otherwise ||
		      strstr(rig_why(&s->msg), words),
		      "%s, operation %d: %d, %s", q->name,
		      calls[k].op, r, rig_why(&s->msg));
		CHECK(!hits || r < 0 || !calls[k].refused ||
		      q->spared == ANY, "%s, operation %d: nothing "
		      "is told", q->name, calls[k].op);
		must_go_on(s, q);
	}
	CHECK(!hits || q->most, "%s has no end", q->name);
}

/* What the agent has opened there, and has not closed; "" is nothing. A slot
 * that another thread made in between stays as long as its job. */
static const char *zero_of(const struct scene *s)
{
	static char name[128];
	char path[64];
	ssize_t n;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd/0",
		       (int)s->w.rig.agent);
	n = readlink(path, name, sizeof(name) - 1);
	name[n < 0 ? 0 : n] = '\0';
	return strcmp(name, "/dev/null") == 0 ||
	       strncmp(name, "/memfd:", 7) == 0 ? "" : name;
}

/* Each descriptor may be 0, is none the worse for it, and is closed. */
static void test_zeros(struct scene *s, const struct asked *q)
{
	uint64_t n = 1, calls_made = 1;
	int r;

	for (; n <= calls_made; n += sk_fault_every()) {
		mend(s);
		sk_fault_os_meddle(s->w.fault, SK_FAULT_ANY, 1,
				   whole_take_zero, NULL);
		sk_fault_os_meddle(s->w.fault, SK_FAULT_OPENAT, n,
				   whole_free_zero, NULL);
		r = q->fn(s);
		calls_made = sk_fault_os_calls(s->w.fault, SK_FAULT_OPENAT);
		CHECK(r == 0, "%s, descriptor 0: %s", q->name,
		      rig_why(&s->msg));
		AWAIT(q->keeps || !zero_of(s)[0], "%s, open %d: 0 is left, %s",
		      q->name, (int)n, zero_of(s));
	}
	mend(s);
}

static void test(struct scene *s, const struct asked *q)
{
	unsigned spared = q->spared;

	must_go_on(s, q);
	test_allocations(s, q, 1, spared);
	test_allocations(s, q, SK_FAULT_ALLOC_ALWAYS,
			 spared > 2 ? spared : spared / 2);
	for (size_t k = 0; k < SK_ARRAY_SIZE(calls); k++)
		/* Who is refused its own descriptor of what all have been
		 * given comes back too late. */
		if (calls[k].op != SK_FAULT_FCNTL || !q->unsure)
			test_calls(s, q, k);
	test_zeros(s, q);
}

/* Who cannot be noted as one that waits for the end is told so, and nothing
 * ends. */
static void test_stop(struct scene *s)
{
	struct sk_wire_state state;
	uint64_t n;

	s->msg = (struct sk_msg){ .type = SK_MSG_STOP,
				  .body.stop.flags = SK_STOP_WAIT };
	sk_fault_alloc_next(1, SK_FAULT_ALLOC_ALWAYS);
	CHECK_STATUS(ask(s, s->sock), -ENOMEM, &s->msg);
	mend(s);
	CHECK(strstr(rig_why(&s->msg), "to wait"), "%s", rig_why(&s->msg));
	s->msg = (struct sk_msg){ .type = SK_MSG_STATUS };
	CHECK_STATUS(ask_records(s, s->sock, &state, sizeof(state), &n), 0,
		     &s->msg);
	CHECK(!s->msg.body.status_reply.stopping, "it stops all the same");
}

int main(int argc, char **argv)
{
	const struct asked_set *sets[] = { &asked_for, &asked_to };
	struct scene s;

	/* What the agent starts for its GPUs is itself. */
	if (argc == 3 && strcmp(argv[1], "--gpu-worker") == 0)
		return worker_run(sk_os_linux(), atoi(argv[2]));
	begin(&s);
	for (size_t k = 0; k < SK_ARRAY_SIZE(sets); k++)
		for (size_t i = 0; i < sets[k]->n; i++)
			/* To look at one alone, by its name. */
			if (argc < 2 ||
			    strcmp(argv[1], sets[k]->v[i].name) == 0)
				test(&s, &sets[k]->v[i]);
	test_stop(&s);
	end(&s);
	return 0;
}
