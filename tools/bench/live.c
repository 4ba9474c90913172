/* SPDX-License-Identifier: Apache-2.0 */
/* The real ranks of a simulated world, and what the agent does for them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conn/list.h"
#include "state/state.h"
#include "world.h"

/* ---- what a process takes ---- */

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts = { 0 };

	(void)clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t cpu_ns(void)
{
	return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t agent_cpu_ns(const struct bench *b)
{
	clockid_t clock;

	return clock_getcpuclockid(b->agent, &clock) ? 0 : clock_ns(clock);
}

uint64_t peak_bytes(pid_t pid)
{
	char path[64];

	if (pid)
		(void)snprintf(path, sizeof(path), "/proc/%d/status",
			       (int)pid);
	else
		(void)snprintf(path, sizeof(path), "/proc/self/status");
	return 1024 * (first_number(path, "VmHWM:") -
		       first_number(path, "RssShmem:"));
}

static uint64_t read_so_far(void)
{
	return first_number("/proc/self/io", "rchar:");
}

int world_fail(struct world *w, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(w->figures->failed, sizeof(w->figures->failed), fmt,
			ap);
	va_end(ap);
	return -1;
}

/* ---- a rank ---- */

int world_save(struct world *w, int rank)
{
	struct world_member m = { 0 };
	uint64_t began;
	char end;

	if (world_member_open(w, rank, w->model.world, &m))
		return -1;
	began = now_ns();
	if (sk_prepare(m.state, 0))
		return world_fail(w, "%s", sk_error());
	if (!rank) {
		w->figures->register_ns = now_ns() - began;
		w->figures->describe_ns = m.describe_ns;
		w->run->number = m.state->run;
		w->run->id = m.state->run_id;
	}
	if (sk_snapshot(m.state, WORLD_STEP, NULL) ||
	    sk_wait(m.state, WORLD_STEP, SK_SEALED, WORLD_WAIT_MS))
		return world_fail(w, "%s", sk_error());
	/* The others are simulated now. */
	close(w->go[1]);
	if (write(w->sealed[1], "", 1) != 1 || read(w->go[0], &end, 1))
		return world_fail(w, "a real rank lost the others");
	return 0;
}

/* ---- lists ---- */

static int list_once(struct world *w, struct sk_conn *conn,
		     uint32_t *ret_flags)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_wire_id id = { .step = -1, .rank = -1 };
	struct sk_list_gaps gaps = { 0 };
	struct sk_wire_snapshot *s = NULL;
	struct sk_err err = { "" };
	size_t n = 0;
	int r;

	(void)snprintf(id.job, sizeof(id.job), "%s", w->job);
	r = sk_list_snapshots(conn, &id, 0, sk_until_ms(os, WORLD_WAIT_MS), &s,
			      &n, &gaps, &err);
	if (r < 0)
		r = world_fail(w, "the first list: %s", err.text);
	else if (gaps.n)
		r = world_fail(w, "the first list: %s", gaps.first);
	else if (n != 1 || !(s->flags & SK_SNAP_COMPLETE))
		r = world_fail(w, "the first list: %s",
			       n ? s->text : "no snapshot");
	else
		*ret_flags = s->flags;
	free(s);
	return r;
}

/* The agent flushes what ranks leave behind: its files take the places of
 * simulated ones, which nobody may be reading then. */
static int await_flush(struct world *w, struct sk_conn *conn, uint32_t flags)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	int r = 0;

	while (!r && flags & (SK_SNAP_FLUSHING | SK_SNAP_WANTED)) {
		(void)nanosleep(&pause, NULL);
		r = list_once(w, conn, &flags);
	}
	return r;
}

int world_list(struct world *w)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_conn conn = SK_CONN_NULL;
	uint64_t cpu, began = now_ns();
	struct sk_err err = { "" };
	uint32_t flags;
	int r;

	if (sk_conn_open(os, w->bench->socket, sk_until_ms(os, WORLD_WAIT_MS),
			 &conn, &err) < 0)
		return world_fail(w, "%s", err.text);
	cpu = agent_cpu_ns(w->bench);
	if (list_once(w, &conn, &flags))
		return -1;
	w->figures->list_ns = now_ns() - began;
	w->figures->list_cpu_ns = agent_cpu_ns(w->bench) - cpu;
	began = now_ns();
	if (list_once(w, &conn, &flags))
		return -1;
	w->figures->again_ns = now_ns() - began;
	r = await_flush(w, &conn, flags);
	sk_conn_close(&conn);
	return r;
}

int world_list_next(struct world *w)
{
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_err err = { "" };
	uint32_t flags;
	uint64_t cpu;
	int r;

	if (sk_conn_open(sk_os_linux(), w->bench->socket,
			 sk_until_ms(sk_os_linux(), WORLD_WAIT_MS), &conn,
			 &err) < 0)
		return world_fail(w, "%s", err.text);
	cpu = agent_cpu_ns(w->bench);
	r = list_once(w, &conn, &flags);
	w->figures->next_cpu_ns = agent_cpu_ns(w->bench) - cpu;
	sk_conn_close(&conn);
	return r;
}

/* ---- restores ---- */

/* The words of all ranks, by the one that is there. */
struct chorus {
	uint64_t agent;		/* that serves it; the others have others */
	const struct sk_state *state;	/* in a run that this one drew */
	int32_t ranks;
	uint64_t told;		/* bytes */
};

static bool is_of_the_agent(const struct chorus *c, const char *word)
{
	return !memcmp(word, &c->agent, 8) ||
	       (c->state->run_id && !memcmp(word, &c->state->run_id, 8));
}

/* Each says what we do, but for the agent that serves it, and for the id that
 * this one gave the run. */
static int repeat(void *ctx, const void *in, size_t bytes, void *out,
		  uint32_t timeout_ms)
{
	struct chorus *c = ctx;
	char *all = out, *other = malloc(bytes ? bytes : 1);

	(void)timeout_ms;
	if (!other)
		return -ENOMEM;
	memcpy(other, in, bytes);
	for (size_t at = 0; at + 8 <= bytes; at += 8)
		if (is_of_the_agent(c, other + at))
			other[at] ^= 1;
	memcpy(all, in, bytes);
	for (int32_t i = 1; i < c->ranks; i++)
		memcpy(all + (size_t)i * bytes, other, bytes);
	free(other);
	c->told += (uint64_t)c->ranks * bytes;
	return 0;
}

int world_restore(struct world *w, int32_t ranks, uint32_t flags,
		  struct world_restore *ret)
{
	struct sk_restore_options o = { .flags = flags,
					.timeout_ms = WORLD_WAIT_MS };
	struct chorus chorus = { .ranks = ranks };
	struct sk_comm comm = { .ctx = &chorus, .allgather = repeat };
	struct sk_report report = { 0 };
	struct world_member m = { 0 };
	uint64_t began, cpu, agent, before;

	if (world_member_open(w, 0, ranks, &m))
		return -1;
	chorus.agent = m.sk->conn.agent.instance;
	chorus.state = m.state;
	before = read_so_far();
	agent = agent_cpu_ns(w->bench);
	cpu = cpu_ns();
	began = now_ns();
	if (sk_restore(m.state, WORLD_STEP, &comm, &o, &report))
		return world_fail(w, "a restore: %s", sk_error());
	*ret = (struct world_restore){
		.wall_ns = now_ns() - began, .cpu_ns = cpu_ns() - cpu,
		.agent_ns = agent_cpu_ns(w->bench) - agent,
		.plan_ns = report.plan_ns,
		.needed = report.bytes_memory + report.bytes_disk,
		.read = read_so_far() - before + report.bytes_memory +
			report.bytes_disk,
		.told = chorus.told, .peak = peak_bytes(0),
	};
	return 0;
}
