/* SPDX-License-Identifier: Apache-2.0 */
/* One size after the other, ten times as much each, and the table. */
#include "growth.h"

#include <errno.h>
#include <math.h>
#include <time.h>

#include "base/util.h"
#include "report.h"
#include "world.h"

#define LEAST 10		/* steps, or other jobs */
#define SIZES_MAX 16
#define LOOK_MS 2000		/* an agent that rests takes next to nothing */
#define REST_NS 2000000u	/* of CPU in that time */
#define LOOKS_MOST 300

static const struct column columns[] = {
	{ "steps", "STEPS" }, { "jobs", "OTHER JOBS" },
	{ "new_agent_ms", "1ST RESTART" }, { "new_agent_cpu_ms", "AGENT" },
	{ "rest_cpu_ms", "AFTER IT" },
	{ "next_agent_ms", "NEXT AGENT'S" }, { "next_agent_cpu_ms", "AGENT" },
	{ "restart_ms", "RESTART" }, { "restart_cpu_ms", "AGENT" },
	{ "restart_ratio", NULL },
	{ "snapshot_ms", "SNAPSHOT" }, { "snapshot_cpu_ms", "AGENT" },
	{ "snapshot_ratio", NULL },
	{ "durable_ms", "DURABLE" }, { "durable_cpu_ms", "AGENT" },
	{ "agent_bytes", "MEMORY" },
};

/* ---- one size ---- */

/* What it has found in its store, or has been given, it looks at beside what
 * it serves: until it is done. */
static void await_rest(struct bench *b, struct growth *g)
{
	const struct timespec look = { .tv_sec = LOOK_MS / 1000 };
	uint64_t first = agent_cpu_ns(b), last = first, now;

	for (int i = 0; i < LOOKS_MOST; i++, last = now) {
		(void)nanosleep(&look, NULL);
		now = agent_cpu_ns(b);
		if (now - last < REST_NS)
			break;
	}
	g->rest_cpu_ns = last - first;
}

static int next_agent(struct bench *b, struct growth *g)
{
	return agent_stop(b) || agent_start(b) ||
	       growth_restart(b, &g->next_agent) ? -1 : 0;
}

static int measure_all(struct bench *b, struct growth *g)
{
	int r = growth_restart(b, &g->new_agent);

	if (!r)
		await_rest(b, g);
	for (int i = 0; i < b->o.rounds && !r; i++)
		r = growth_restart(b, &g->restart);
	if (!r)
		r = growth_train(b, g);
	g->agent_bytes = peak_bytes(b->agent);
	return r ? r : next_agent(b, g);
}

static int measure(struct bench *b, bool kept, struct growth *g)
{
	int steps = kept ? g->n : LEAST, r;

	note("%d %s", g->n, kept ? "steps kept" : "other jobs");
	r = growth_add_steps(b, steps);
	if (!r)
		r = agent_start(b);
	if (!r && !kept)
		r = growth_add_jobs(b, g->n);
	if (!r) {
		growth_keep(steps);
		r = measure_all(b, g);
	}
	if (agent_stop(b) && !r)
		r = -EIO;
	remove_tree(b->store);
	return r;
}

/* ---- the table ---- */

static void cell_ms(struct report *r, const struct series *s)
{
	/* Three digits are more than any two runs agree on. */
	report_cell_real(r, round(series_median(s) / 1e3) / 1e3);
}

static void cell_cost(struct report *r, const struct growth_cost *c)
{
	cell_ms(r, &c->passed);
	cell_ms(r, &c->agent);
}

static void cell_ratio(struct report *r, const struct growth_cost *c,
		       const struct growth_cost *least)
{
	report_cell_real(r, round(100 * series_median(&c->passed) /
				  series_median(&least->passed)) / 100);
}

static void add_row(struct report *r, bool kept, const struct growth *g,
		    const struct growth *least)
{
	report_cell(r, CELL_INT, kept ? g->n : LEAST);
	report_cell(r, CELL_INT, kept ? 0 : g->n);
	cell_cost(r, &g->new_agent);
	report_cell_real(r, round((double)g->rest_cpu_ns / 1e3) / 1e3);
	cell_cost(r, &g->next_agent);
	cell_cost(r, &g->restart);
	cell_ratio(r, &g->restart, &least->restart);
	cell_cost(r, &g->memory);
	cell_ratio(r, &g->memory, &least->memory);
	cell_cost(r, &g->durable);
	report_cell(r, CELL_BYTES, (int64_t)g->agent_bytes);
}

static int print(const struct bench *b, bool kept, const struct growth *sizes,
		 int n)
{
	_cleanup_report_ struct report *r = report_new();

	if (!r)
		return -ENOMEM;
	report_number(r, "ranks", "ranks", CELL_INT, GROWTH_RANKS);
	report_number(r, "tensors", "tensors", CELL_INT, b->o.tensors);
	report_number(r, "bytes_per_rank", "bytes per rank", CELL_BYTES,
		      (int64_t)b->o.bytes);
	report_number(r, "rounds", "rounds", CELL_INT, b->o.rounds);
	report_table(r, "sizes", "Milliseconds, and of the agent's CPU",
		     columns, SK_ARRAY_SIZE(columns));
	for (int i = 0; i < n; i++)
		add_row(r, kept, &sizes[i], &sizes[0]);
	return report_print(r, b->o.json ? OUTPUT_JSON : OUTPUT_TABLE,
			    &(struct style){ .columns = 170 }, stdout);
}

int phase_growth(struct bench *b)
{
	static struct growth sizes[SIZES_MAX];
	bool kept = b->o.kept > 0;
	int most = kept ? b->o.kept : b->o.jobs, n = 0, r = 0;

	for (int64_t at = LEAST; !r && n < SIZES_MAX; at *= 10) {
		sizes[n].n = at < most ? (int)at : most;
		r = measure(b, kept, &sizes[n++]);
		if (at >= most)
			break;
	}
	return r ? r : print(b, kept, sizes, n);
}
