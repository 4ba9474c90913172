/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl status: one screen about the agent. */
#include "cachectl.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "figures.h"

#define SECOND_NS UINT64_C(1000000000)

int ask_status(struct context *ctx, struct sk_wire_status_reply *ret,
	       struct sk_wire_state **ret_states, size_t *ret_n)
{
	struct sk_msg msg = { .type = SK_MSG_STATUS };
	int r = ask_records(ctx, &msg, sizeof(**ret_states), ret_states,
			    ret_n);

	if (r < 0)
		return r;
	*ret = msg.body.status_reply;
	ret->metrics[sizeof(ret->metrics) - 1] = 0;
	ret->io[sizeof(ret->io) - 1] = 0;
	for (size_t i = 0; i < *ret_n; i++) {
		struct sk_wire_state *s = &(*ret_states)[i];

		s->name[sizeof(s->name) - 1] = 0;
		s->what[sizeof(s->what) - 1] = 0;
		s->why[sizeof(s->why) - 1] = 0;
		s->remedy[sizeof(s->remedy) - 1] = 0;
	}
	return 0;
}

/* ---- the agent ---- */

static void add_agent(struct context *ctx,
		      const struct sk_wire_status_reply *s)
{
	const struct sk_wire_hello_reply *a = &ctx->conn.agent;
	struct report *r = ctx->report;

	report_text(r, "agent", "agent", "%.*s", (int)sizeof(a->version),
		    a->version);
	report_text(r, "socket", "socket", "%s", ctx->path);
	report_number(r, "pid", "pid", CELL_INT, a->pid);
	report_number(r, "uid", "uid", CELL_INT, a->uid);
	report_number(r, "uptime_s", "up for", CELL_AGE,
		      (int64_t)(s->uptime_ns / SECOND_NS));
	report_number(r, "stopping", s->stopping ? "stopping" : NULL,
		      CELL_BOOL, s->stopping);
	report_text(r, "metrics", "metrics", "%s", s->metrics);
}

static void add_disk(struct context *ctx,
		     const struct sk_wire_status_reply *s,
		     const struct figures *f)
{
	const struct sk_wire_hello_reply *a = &ctx->conn.agent;
	struct report *r = ctx->report;
	bool table = ctx->output == OUTPUT_TABLE;
	char free_text[SK_SIZE_TEXT], all[SK_SIZE_TEXT];

	report_text(r, "store", "store", "%.*s", (int)sizeof(a->store),
		    a->has_store ? a->store : "none");
	report_number(r, "store_free_bytes", NULL, CELL_BYTES,
		      (int64_t)s->store_free_bytes);
	report_number(r, "store_size_bytes", NULL, CELL_BYTES,
		      (int64_t)s->store_bytes);
	if (table && s->store_bytes)
		report_text(r, "disk", "disk", "%s free of %s, by %s",
			    sk_size_format(s->store_free_bytes, free_text,
					   sizeof(free_text)),
			    sk_size_format(s->store_bytes, all, sizeof(all)),
			    s->io);
	report_text(r, "io", NULL, "%s", s->io);
	report_number(r, "snapshots_to_flush", "to flush", CELL_INT,
		      figure(f, "shardkeep_snapshots_to_flush"));
	report_number(r, "clients", "clients", CELL_INT,
		      figure(f, "shardkeep_clients"));
}

/* ---- jobs ---- */

/* People with GPUs see what is taken of them. */
#define JOB_COLUMNS(gpus) {						\
	{ "job", "JOB" }, { "uid", "UID" }, { "ranks", "RANKS" },	\
	{ "memory_bytes", "MEMORY" }, { "device_memory_bytes", gpus },	\
	{ "to_flush", "TO FLUSH" }, { "sealed_step", "SEALED" },	\
	{ "complete_step", "COMPLETE" }, { "durable_step", "DURABLE" },	\
	{ "durable_age_s", "AGO" },					\
}
static const struct column job_columns[] = JOB_COLUMNS(NULL);
static const struct column gpu_job_columns[] = JOB_COLUMNS("GPUS");

static void add_jobs(struct report *r, const struct figures *f)
{
	static const char *const states[] = { "sealed", "complete",
					      "durable" };
	const struct sk_wire_stat *job;

	report_table(r, "jobs", NULL, figures_have_gpus(f) ?
		     gpu_job_columns : job_columns,
		     SK_ARRAY_SIZE(job_columns));
	for (size_t i = 0; (job = figure_job(f, i)); i++) {
		report_cell_name(r, "%s", job->job);
		report_cell(r, CELL_INT, job->uid);
		figures_cell(r, CELL_INT, f, "shardkeep_job_ranks", job, "");
		figures_cell(r, CELL_BYTES, f, "shardkeep_job_memory_bytes",
			     job, "");
		figures_cell(r, CELL_BYTES, f,
			     "shardkeep_job_device_memory_bytes", job, "");
		figures_cell(r, CELL_INT, f,
			     "shardkeep_job_snapshots_to_flush", job, "");
		for (size_t k = 0; k < SK_ARRAY_SIZE(states); k++)
			figures_cell(r, CELL_INT, f, "shardkeep_job_step",
				     job, states[k]);
		figures_cell(r, CELL_AGE, f, "shardkeep_job_age_seconds", job,
			     "durable");
	}
}

/* ---- what is wrong ---- */

static const struct column state_columns[] = {
	{ "state", NULL }, { "since_s", NULL }, { "what", NULL },
	{ "why", NULL }, { "remedy", NULL },
};

static void add_states(struct context *ctx, const struct sk_wire_state *all,
		       size_t n)
{
	struct report *r = ctx->report;
	char age[32];

	ctx->degraded = n;
	if (ctx->output == OUTPUT_TABLE) {
		for (size_t i = 0; i < n; i++)
			report_draw(r, "\ndegraded: %s, for %s\n  %s%s%s\n"
				    "  remedy: %s\n", all[i].name,
				    format_age((int64_t)(all[i].since_ns /
							 SECOND_NS), age,
					       sizeof(age)), all[i].what,
				    all[i].why[0] ? ":\n  " : "", all[i].why,
				    all[i].remedy);
		return;
	}
	report_table(r, "degraded", NULL, state_columns,
		     SK_ARRAY_SIZE(state_columns));
	for (size_t i = 0; i < n; i++) {
		report_cell_text(r, "%s", all[i].name);
		report_cell(r, CELL_INT,
			    (int64_t)(all[i].since_ns / SECOND_NS));
		report_cell_text(r, "%s", all[i].what);
		report_cell_text(r, "%s", all[i].why);
		report_cell_text(r, "%s", all[i].remedy);
	}
}

int command_status(struct context *ctx, int argc, char **argv)
{
	_cleanup_free_ struct sk_wire_state *states = NULL;
	struct sk_wire_status_reply status;
	struct figures f = { NULL, 0 };
	size_t n = 0;
	int r = ask_status(ctx, &status, &states, &n);

	(void)argc;
	(void)argv;
	if (r >= 0)
		r = ask_stats(ctx, &f.v, &f.n);
	if (r < 0)
		return r;
	add_agent(ctx, &status);
	figures_memory(ctx->report, &f, ctx->output == OUTPUT_TABLE);
	add_disk(ctx, &status, &f);
	figures_count_gpus(ctx->report, &f);
	figures_list_gpus(ctx->report, &f, ctx->output == OUTPUT_TABLE);
	if (figure_job(&f, 0) || ctx->output != OUTPUT_TABLE)
		add_jobs(ctx->report, &f);
	add_states(ctx, states, n);
	free(f.v);
	return 0;
}
