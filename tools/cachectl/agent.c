/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl stats, version, stop: the agent itself. */
#include "cachectl.h"

#include <stdio.h>
#include <string.h>

#include "figures.h"

#define PREFIX ((int)sizeof("shardkeep_") - 1)

static const struct column columns[] = {
	{ "name", NULL }, { NULL, "NAME" }, { "kind", NULL },
	{ "job", NULL }, { "uid", NULL }, { "key", NULL }, { "word", NULL },
	{ NULL, "OF" }, { "value", "VALUE" }, { "help", "MEANING" },
};

/* Labels, for scripts and for people. */
static void report_labels(struct report *r, const struct sk_wire_stat *s)
{
	char job[sizeof(s->job) + 1], key[sizeof(s->key) + 1];
	char word[FIGURE_WORD];

	(void)snprintf(job, sizeof(job), "%.*s", (int)sizeof(s->job), s->job);
	(void)snprintf(key, sizeof(key), "%.*s", (int)sizeof(s->key), s->key);
	(void)figure_word(s, word);
	report_cell_text(r, "%s", job);
	report_cell(r, CELL_INT, s->uid);
	report_cell_text(r, "%s", key);
	report_cell_text(r, "%s", word);
	report_cell_name(r, "%s%s%s", job, *job && *word ? " " : "", word);
}

int command_stats(struct context *ctx, int argc, char **argv)
{
	_cleanup_free_ struct sk_wire_stat *stats = NULL;
	size_t n = 0;
	int r = ask_stats(ctx, &stats, &n);

	(void)argc;
	(void)argv;
	if (r < 0)
		return r;
	report_table(ctx->report, "stats", NULL, columns,
		     SK_ARRAY_SIZE(columns));
	for (size_t i = 0; i < n; i++) {
		report_cell_text(ctx->report, "%.*s",
				 (int)sizeof(stats[i].name), stats[i].name);
		/* People know whose they are. */
		report_cell_text(ctx->report, "%.*s",
				 (int)sizeof(stats[i].name) - PREFIX,
				 stats[i].name + PREFIX);
		report_cell_text(ctx->report, "%s",
				 stats[i].kind ? "counter" : "gauge");
		report_labels(ctx->report, &stats[i]);
		report_cell_real(ctx->report, stats[i].value);
		report_cell_text(ctx->report, "%.*s",
				 (int)sizeof(stats[i].help), stats[i].help);
	}
	return 0;
}

int command_version(struct context *ctx, int argc, char **argv)
{
	const struct sk_wire_hello_reply *a = &ctx->conn.agent;
	int r;

	(void)argc;
	(void)argv;
	report_text(ctx->report, "client", "cachectl", "%s", sk_version());
	report_number(ctx->report, "wire", "wire", CELL_INT, SK_WIRE_VERSION);
	r = ask_connect(ctx);
	if (ctx->unreachable) {	/* our own version is an answer as well */
		report_text(ctx->report, "agent", "agent", r == -ETIMEDOUT ?
			    "does not answer" : "not running");
		return 0;
	}
	if (r < 0)
		return r;
	report_text(ctx->report, "agent", "agent", "%.*s",
		    (int)sizeof(a->version), a->version);
	report_number(ctx->report, "agent_wire", "its wire", CELL_INT,
		      a->wire ? a->wire : ctx->conn.version);
	report_number(ctx->report, "spoken_wire", "spoken", CELL_INT,
		      ctx->conn.version);
	report_text(ctx->report, "socket", "socket", "%s", ctx->path);
	report_number(ctx->report, "pid", "pid", CELL_INT, a->pid);
	report_number(ctx->report, "uid", "uid", CELL_INT, a->uid);
	report_number(ctx->report, "budget_bytes", "budget", CELL_BYTES,
		      (int64_t)a->budget_bytes);
	report_number(ctx->report, "used_bytes", "used", CELL_BYTES,
		      (int64_t)a->used_bytes);
	report_text(ctx->report, "store", "store", "%.*s%s",
		    (int)sizeof(a->store), a->has_store ? a->store : "none",
		    a->has_store == 2 ? " (not durable)" : "");
	return 0;
}

static void say_stopped(struct context *ctx, const char *lost)
{
	const char *result = ctx->wait ? "stopped" : "stopping";

	report_text(ctx->report, "result", NULL, "%s", result);
	report_text(ctx->report, "lost", NULL, "%s", lost);
	if (*lost)
		report_draw(ctx->report, "lost with the agent: %s\n", lost);
	report_draw(ctx->report, "%s\n", ctx->wait ?
		    "the agent has stopped" :
		    "the agent flushes what is not durable, then stops");
}

/* It may have been an end by what we asked, or by somebody else. */
static int say_cut(struct context *ctx)
{
	struct sk_err none = { "" };
	struct sk_conn next = SK_CONN_NULL;
	int r = sk_conn_open_any(ctx->os, ctx->path, sk_until_ms(ctx->os,
				 ctx->timeout_ms), &next, &none);

	sk_conn_close(&next);
	return sk_err_set(&ctx->err, -ECONNRESET, "the agent ended before it "
			  "said what is lost with it; %s", r >= 0 ? "another "
			  "one serves there by now, which was not asked to "
			  "stop" : "nobody serves there by now");
}

int command_stop(struct context *ctx, int argc, char **argv)
{
	struct sk_msg msg = { .type = SK_MSG_STOP, .body.stop.flags =
			      ctx->wait ? SK_STOP_WAIT : 0 };
	int r = ctx->wait ? ask_deferred(ctx, &msg, SK_WAIT_MAX_MS) :
			    ask(ctx, &msg);

	(void)argc;
	(void)argv;
	if (r == -ENODATA) {
		ctx->lost = true;
		say_stopped(ctx, ctx->err.text);
		return sk_err_set(&ctx->err, r, "the agent has stopped, and "
				  "something was lost with it");
	}
	if (r == -ECONNRESET)
		return say_cut(ctx);
	if (r >= 0)
		say_stopped(ctx, ctx->wait ? "" : msg.body.text);
	return r;
}
