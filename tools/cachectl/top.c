/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl top: what the agent does, again and again. */
#include "cachectl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "figures.h"

#define SECOND_NS UINT64_C(1000000000)
#define INTERVAL_NS (2 * SECOND_NS)
#define CLEAR "\033[H\033[2J"

/* Two looks, and how long lay between them. */
struct looks {
	struct figures now, before;
	uint64_t now_ns, before_ns;
};

void live_wait(struct context *ctx, uint64_t otherwise_ns)
{
	uint64_t ns = ctx->interval_s ? ctx->interval_s * SECOND_NS :
					otherwise_ns;

	(void)ctx->os->poll(ctx->os, NULL, 0, ctx->os->now_ns(ctx->os) + ns);
}

int live_print(struct context *ctx, const struct report *r)
{
	int e = report_print(r, ctx->output, &ctx->style, stdout);

	return e < 0 ? sk_err_set(&ctx->err, e, "cannot print: %s",
				  strerror(-e)) : 0;
}

/* By second; what was not there before began at 0. */
static double rate(const struct looks *l, const char *name,
		   const struct sk_wire_stat *job)
{
	const char *whose = job ? job->job : "";
	uint32_t uid = job ? job->uid : 0;
	double now = 0, before = 0;

	(void)figure_of(&l->now, name, whose, uid, "", &now);
	(void)figure_of(&l->before, name, whose, uid, "", &before);
	/* Another agent counts anew. */
	if (!l->before.n || now < before || l->now_ns == l->before_ns)
		return 0;
	return (now - before) * 1e9 / (double)(l->now_ns - l->before_ns);
}

#define COLUMNS(gpus) {							\
	{ "job", "JOB" }, { "uid", NULL }, { "ranks", NULL },		\
	{ "memory_bytes", "MEMORY" }, { "device_memory_bytes", gpus },	\
	{ "sealed_step", "SEALED" }, { "complete_step", "COMPLETE" },	\
	{ "durable_step", "DURABLE" }, { "to_flush", NULL },		\
	{ "sealed_bytes_per_s", "COPIED/S" },				\
	{ "flushed_bytes_per_s", "FLUSHED/S" }, { "stalled", "STALL" },	\
}
static const struct column columns[] = COLUMNS(NULL);
static const struct column gpu_columns[] = COLUMNS("GPUS");

static void add_job(struct report *r, const struct looks *l,
		    const struct sk_wire_stat *job)
{
	const struct figures *f = &l->now;

	report_cell_name(r, "%s", job->job);
	report_cell(r, CELL_INT, job->uid);
	figures_cell(r, CELL_INT, f, "shardkeep_job_ranks", job, "");
	figures_cell(r, CELL_BYTES, f, "shardkeep_job_memory_bytes", job, "");
	figures_cell(r, CELL_BYTES, f, "shardkeep_job_device_memory_bytes",
		     job, "");
	figures_cell(r, CELL_INT, f, "shardkeep_job_step", job, "sealed");
	figures_cell(r, CELL_INT, f, "shardkeep_job_step", job, "complete");
	figures_cell(r, CELL_INT, f, "shardkeep_job_step", job, "durable");
	figures_cell(r, CELL_INT, f, "shardkeep_job_snapshots_to_flush", job,
		     "");
	report_cell(r, CELL_BYTES, figure_whole(
		    rate(l, "shardkeep_job_bytes_sealed_total", job)));
	report_cell(r, CELL_BYTES, figure_whole(
		    rate(l, "shardkeep_job_bytes_flushed_total", job)));
	/* Of each second, by all its ranks. */
	report_cell_real(r, rate(l, "shardkeep_job_stall_seconds_total",
				 job));
}

static void add_agent(struct report *r, const struct looks *l, bool table)
{
	figures_memory(r, &l->now, table);
	report_number(r, "clients", "clients", CELL_INT,
		      figure(&l->now, "shardkeep_clients"));
	report_number(r, "sealed_bytes_per_s", "copied/s", CELL_BYTES,
		      figure_whole(rate(l, "shardkeep_bytes_sealed_total",
					NULL)));
	report_number(r, "flushed_bytes_per_s", "flushed/s", CELL_BYTES,
		      figure_whole(rate(l, "shardkeep_bytes_flushed_total",
					NULL)));
}

/* Of the jobs, the first @most. */
static struct report *make_report(const struct context *ctx,
				  const struct looks *l, size_t most)
{
	struct report *r = report_new();
	const struct sk_wire_stat *job;

	if (!r)
		return NULL;
	add_agent(r, l, ctx->output == OUTPUT_TABLE);
	figures_list_gpus(r, &l->now, ctx->output == OUTPUT_TABLE);
	report_table(r, "jobs", NULL, figures_have_gpus(&l->now) ?
		     gpu_columns : columns, SK_ARRAY_SIZE(columns));
	for (size_t i = 0; i < most && (job = figure_job(&l->now, i)); i++)
		add_job(r, l, job);
	return r;
}

/* Lines of it on the screen. */
static int count_lines(const struct context *ctx, const struct report *r,
		       size_t *ret)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int e = f ? report_print(r, ctx->output, &ctx->style, f) : -ENOMEM;

	if (f && fclose(f) && e >= 0)
		e = -ENOMEM;
	*ret = 0;
	for (const char *at = text; e >= 0 && (at = strchr(at, '\n')); at++)
		++*ret;
	free(text);
	return e;
}

/* Whether the first @most jobs leave what stands above them on the screen, and
 * room for @below lines, and the cursor. */
static bool fits(const struct context *ctx, const struct looks *l, size_t most,
		 size_t below)
{
	_cleanup_report_ struct report *r = make_report(ctx, l, most);
	size_t lines;

	return !r || count_lines(ctx, r, &lines) < 0 ||
	       lines + below < (size_t)ctx->style.rows;
}

/* How many of @n jobs the screen has room for, one at least; a line that counts
 * the others is below them. */
static size_t jobs_that_fit(const struct context *ctx, const struct looks *l,
			    size_t n)
{
	size_t least = 1, most = n;

	if (!ctx->style.clears || !ctx->style.rows || fits(ctx, l, n, 0))
		return n;
	while (least < most) {
		size_t half = least + (most - least + 1) / 2;

		if (fits(ctx, l, half, 1))
			least = half;
		else
			most = half - 1;
	}
	return least;
}

static int show(struct context *ctx, const struct looks *l)
{
	_cleanup_report_ struct report *r = NULL;
	size_t n = 0, fit;
	int e;

	/* Whoever looks may have made the window larger. */
	ctx->style = choose_style();
	while (figure_job(&l->now, n))
		n++;
	fit = ctx->output != OUTPUT_TABLE ? n : jobs_that_fit(ctx, l, n);
	r = make_report(ctx, l, fit);
	if (!r)
		return sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	if (ctx->output == OUTPUT_TABLE && ctx->style.clears)
		fputs(CLEAR, stdout);
	e = live_print(ctx, r);
	if (e >= 0 && fit < n)
		printf("%zu more: cachectl top --json has all\n", n - fit);
	return e;
}

/* What was now is before. */
static int look(struct context *ctx, struct looks *l)
{
	int r;

	free(l->before.v);
	l->before = l->now;
	l->before_ns = l->now_ns;
	l->now = (struct figures){ NULL, 0 };
	r = ask_stats(ctx, &l->now.v, &l->now.n);
	l->now_ns = ctx->os->now_ns(ctx->os);
	return r;
}

int command_top(struct context *ctx, int argc, char **argv)
{
	struct looks l = { .now_ns = 0 };
	uint64_t n = 0;
	int r;

	(void)argc;
	(void)argv;
	for (;;) {
		r = look(ctx, &l);
		if (r >= 0)
			r = show(ctx, &l);
		if (r < 0 || (ctx->count && ++n >= ctx->count))
			break;
		live_wait(ctx, INTERVAL_NS);
	}
	free(l.now.v);
	free(l.before.v);
	return r;
}
