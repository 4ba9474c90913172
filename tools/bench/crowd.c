/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many ranks of one job on a node, each with many tensors and few bytes: what a
 * snapshot of all of them takes of the agent's event loop, how long it keeps
 * somebody else waiting, and what it takes when all of them come back.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/conn.h"
#include "report.h"
#include "world.h"

#define RANK_BAR 0.05		/* ms of CPU for each tensor that comes back */
#define PAUSE_NS 1000000	/* between two questions of the other client */

/* Lies in memory that all share. */
struct shared_by_all {
	uint64_t call_ns[BENCH_PROCESSES_MAX];
	uint64_t cpu_ns[BENCH_PROCESSES_MAX];	/* of a restore */
	volatile uint64_t wait_ns;		/* the other client's longest */
	volatile bool asks;			/* it does */
};
static struct shared_by_all *all;

static struct world *job;

/* Nanoseconds over the rounds. */
static struct figures {
	struct series call, slowest;	/* sk_snapshot() of the ranks */
	struct series complete;		/* from the first call on */
	struct series loop, agent;	/* CPU for one snapshot */
	struct series wait;
	struct series restore, cpu;	/* of all; CPU of a rank */
} figures;

/* ---- ranks ---- */

static int come(struct bench *b, int rank, struct world_member *m)
{
	if (world_member_open(job, rank, b->o.crowd, m))
		return fail(b, rank, "%s", job->figures->failed);
	return 0;
}

static int snapshot(struct bench *b, int rank, struct sk_state *state,
		    int64_t step)
{
	struct sk_snapshot_options o = { .flags = SK_SNAPSHOT_NO_FLUSH,
					 .wait_ms = WORLD_WAIT_MS };
	uint64_t began;

	meet(b);
	mark_start(b, rank);
	began = now_ns();
	if (sk_snapshot(state, step, &o))
		return fail(b, rank, "snapshot: %s", sk_error());
	all->call_ns[rank] = now_ns() - began;
	if (sk_wait(state, step, SK_COMPLETE, WORLD_WAIT_MS))
		return fail(b, rank, "snapshot: %s", sk_error());
	mark_end(b, rank);
	meet(b);
	return 0;
}

/* The first two find slots that are new; then in turn with another client that
 * asks, and without. */
#define NEW_SLOTS 2

static int snapshots_of(const struct bench *b)
{
	return NEW_SLOTS + 2 * b->o.rounds;
}

static int rank_train(struct bench *b, int rank)
{
	struct world_member m = { 0 };

	if (come(b, rank, &m))
		return -1;
	if (sk_prepare(m.state, WORLD_WAIT_MS))
		return fail(b, rank, "%s", sk_error());
	for (int i = 1; i <= snapshots_of(b); i++)
		if (snapshot(b, rank, m.state, i))
			return -1;
	world_member_close(&m);
	return 0;
}

static int rank_restore(struct bench *b, int rank)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = WORLD_WAIT_MS };
	struct world_member m = { 0 };
	uint64_t cpu;

	meet(b);
	mark_start(b, rank);
	cpu = cpu_ns();
	if (come(b, rank, &m))
		return -1;
	if (sk_restore(m.state, SK_LATEST, NULL, &o, NULL))
		return fail(b, rank, "restore: %s", sk_error());
	all->cpu_ns[rank] = cpu_ns() - cpu;
	mark_end(b, rank);
	meet(b);
	world_member_close(&m);
	return 0;
}

/* ---- another client ---- */

/* Asks again and again, before all others where it may. */
static void ask_on(struct bench *b)
{
	const struct timespec pause = { .tv_nsec = PAUSE_NS };
	const struct sk_os *os = sk_os_linux();
	struct sk_conn conn = SK_CONN_NULL;
	uint64_t until = sk_until_ms(os, WORLD_WAIT_MS);
	struct sk_err err = { "" };
	int r;

	(void)setpriority(PRIO_PROCESS, 0, -20);
	r = sk_conn_open(os, b->socket, until, &conn, &err);
	while (r >= 0) {
		struct sk_msg msg = { .type = SK_MSG_STATUS };
		uint64_t began, took;

		(void)nanosleep(&pause, NULL);
		if (!all->asks)
			continue;
		began = now_ns();
		r = sk_conn_call(&conn, &msg, NULL, 0, NULL, NULL, until,
				 &err);
		took = now_ns() - began;
		if (took > all->wait_ns)
			all->wait_ns = took;
	}
	note("another client: %s", err.text);
	_exit(1);
}

static pid_t start_asking(struct bench *b)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	ask_on(b);
	return 0;
}

/* ---- beside them ---- */

static uint64_t loop_cpu_ns(const struct bench *b)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat",
		       (int)b->agent, (int)b->agent);
	return first_number(path, "");
}

static void add_calls(int ranks)
{
	struct series calls = { .n = 0 };

	for (int i = 0; i < ranks; i++)
		series_add(&calls, (double)all->call_ns[i]);
	series_add(&figures.call, series_median(&calls));
	series_add(&figures.slowest, series_max(&calls));
}

static void one_snapshot(struct bench *b, int ranks, int i)
{
	bool asked = i % 2;
	uint64_t loop, agent;

	all->asks = asked;
	meet(b);
	all->wait_ns = 0;
	loop = loop_cpu_ns(b);
	agent = agent_cpu_ns(b);
	meet(b);
	if (i < NEW_SLOTS)
		return;
	if (asked) {
		series_add(&figures.wait, (double)all->wait_ns);
		return;
	}
	series_add(&figures.loop, (double)(loop_cpu_ns(b) - loop));
	series_add(&figures.agent, (double)(agent_cpu_ns(b) - agent));
	series_add(&figures.complete, marked(b, ranks));
	add_calls(ranks);
}

static void lead_train(struct bench *b, int ranks)
{
	pid_t asking = start_asking(b);

	for (int i = 0; i < snapshots_of(b); i++)
		one_snapshot(b, ranks, i);
	if (asking > 0) {
		(void)kill(asking, SIGKILL);
		(void)waitpid(asking, NULL, 0);
	}
}

static void lead_restore(struct bench *b, int ranks)
{
	double cpu = 0;

	meet(b);
	meet(b);
	for (int i = 0; i < ranks; i++)
		cpu += (double)all->cpu_ns[i];
	series_add(&figures.cpu, cpu / ranks);
	series_add(&figures.restore, marked(b, ranks));
}

/* ---- the table ---- */

static const struct column columns[] = {
	{ "figure", "FIGURE" }, { "value_ms", "MEDIAN, MS" },
	{ "min_ms", "MIN" }, { "max_ms", "MAX" }, { "bar", "BAR" },
	{ "met", "MET" },
};

static double ms(double ns)
{
	return round(ns / 1e3) / 1e3;
}

/* @bar 0: there is none. */
static void add_figure(struct report *r, const char *name,
		       const struct series *s, double bar)
{
	double median = series_median(s) / 1e6;

	report_cell_text(r, "%s", name);
	report_cell_real(r, ms(series_median(s)));
	report_cell_real(r, ms(series_min(s)));
	report_cell_real(r, ms(series_max(s)));
	if (bar > 0) {
		report_cell_text(r, "< %g ms", bar);
		report_cell_text(r, "%s", median < bar ? "yes" : "NO");
	} else {
		report_cell_text(r, "-");
		report_cell_text(r, "-");
	}
}

static int print(const struct bench *b)
{
	_cleanup_report_ struct report *r = report_new();

	if (!r)
		return -ENOMEM;
	report_number(r, "ranks", "ranks", CELL_INT, b->o.crowd);
	report_number(r, "tensors", "tensors of each", CELL_INT, b->o.tensors);
	report_number(r, "bytes_per_rank", "bytes of each", CELL_BYTES,
		      (int64_t)b->o.bytes);
	report_number(r, "rounds", "rounds", CELL_INT, b->o.rounds);
	report_table(r, "figures", NULL, columns, SK_ARRAY_SIZE(columns));
	add_figure(r, "a snapshot: the agent's event loop, CPU",
		   &figures.loop, 5);
	add_figure(r, "  all of the agent, CPU", &figures.agent, 0);
	add_figure(r, "  the call returns", &figures.call, 0);
	add_figure(r, "  the slowest one", &figures.slowest, 0);
	add_figure(r, "  another client waits, longest", &figures.wait, 10);
	add_figure(r, "  complete", &figures.complete, 0);
	add_figure(r, "all come back, from memory", &figures.restore, 2000);
	add_figure(r, "  of it a rank, CPU", &figures.cpu,
		   RANK_BAR * b->o.tensors);
	return report_print(r, b->o.json ? OUTPUT_JSON : OUTPUT_TABLE,
			    &(struct style){ .columns = 120 }, stdout);
}

/* ---- all of it ---- */

static int open_all(struct bench *b)
{
	job = share(sizeof(*job));
	all = share(sizeof(*all));
	if (!job || !all)
		return -ENOMEM;
	*job = (struct world){
		.bench = b, .job = "crowd",
		.model = { .kind = MODEL_LLAMA, .mesh = MESH_FSDP,
			   .world = b->o.crowd, .tensors = b->o.tensors,
			   .bytes = b->o.bytes } };
	return world_open(job);
}

int phase_crowd(struct bench *b)
{
	int r = open_all(b);

	if (!r)
		r = agent_start(b);
	if (!r) {
		note("%d snapshots", snapshots_of(b));
		r = run_ranks(b, b->o.crowd, rank_train, lead_train);
	}
	for (int i = 0; i < b->o.rounds && !r; i++) {
		note("restore %d of %d", i + 1, b->o.rounds);
		r = run_ranks(b, b->o.crowd, rank_restore, lead_restore);
	}
	if (agent_stop(b) && !r)
		r = -EIO;
	return r ? r : print(b);
}
