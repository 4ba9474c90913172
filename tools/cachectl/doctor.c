/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl doctor: what of this machine helps or hinders, agent or not. */
#include "checks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"

static const struct column columns[] = {
	{ "check", "CHECK" }, { "verdict", "VERDICT" }, { "found", "FOUND" },
	{ "remedy", NULL },
};

static const char *const words[] = { "ok", "warn", "fail" };

void doctor_say(struct doctor *d, const char *check, enum verdict verdict,
		const char *remedy, const char *fmt, ...)
{
	struct report *r = d->ctx->report;
	char found[512];
	bool table = d->ctx->output == OUTPUT_TABLE;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(found, sizeof(found), fmt, ap);
	va_end(ap);
	report_cell_text(r, "%s", check);
	report_cell_text(r, "%s", words[verdict]);
	/* People read on; scripts have it apart. */
	report_cell_text(r, "%s%s%s", found, table && remedy ? "; " : "",
			 table && remedy ? remedy : "");
	report_cell_text(r, "%s", remedy ? remedy : "");
	d->worst = verdict > d->worst ? verdict : d->worst;
}

char *doctor_text(struct doctor *d, const char *path, char *buf, size_t size)
{
	int r = sk_text_read(d->ctx->os, path, buf, size);

	/* The first of it will do. */
	return r < 0 && r != -EFBIG ? NULL : buf;
}

char *doctor_read(struct doctor *d, const char *path, char *buf, size_t size)
{
	if (!doctor_text(d, path, buf, size))
		return NULL;
	buf[strcspn(buf, "\n")] = 0;
	return buf;
}

/* ---- the agent ---- */

static void check_socket(struct doctor *d)
{
	const struct sk_os *os = d->ctx->os;
	char dir[SK_PATH_ROOM];
	struct stat st;
	char *slash;

	(void)snprintf(dir, sizeof(dir), "%s", d->ctx->path);
	slash = strrchr(dir, '/');
	if (!slash)
		return;
	*slash = 0;
	if (os->fstatat(os, AT_FDCWD, dir, 0, &st) < 0)
		doctor_say(d, "socket", VERDICT_WARN, "look who may enter its "
			   "parents", "%s cannot be looked at", dir);
	else if (st.st_mode & S_IWOTH || (st.st_mode & S_IWGRP))
		doctor_say(d, "socket", VERDICT_FAIL, "chmod go-w: who can "
			   "write there can put another agent in its place",
			   "%s can be written to by others", dir);
	else
		doctor_say(d, "socket", VERDICT_OK, NULL, "%s",
			   d->ctx->path);
}

static void check_states(struct doctor *d)
{
	_cleanup_free_ struct sk_wire_state *all = NULL;
	struct sk_wire_status_reply status;
	size_t n = 0;

	if (ask_status(d->ctx, &status, &all, &n) < 0) {
		doctor_say(d, "agent", VERDICT_FAIL, "restart it", "it does "
			   "not say how it is: %s", d->ctx->err.text);
		return;
	}
	for (size_t i = 0; i < n; i++)
		doctor_say(d, all[i].name, VERDICT_WARN, all[i].remedy,
			   "the agent: %s%s%s", all[i].what,
			   all[i].why[0] ? ": " : "", all[i].why);
}

/* One step apart is all that there may be between the two. */
static void check_versions(struct doctor *d)
{
	const struct sk_conn *conn = &d->ctx->conn;
	unsigned theirs = conn->agent.wire ? conn->agent.wire : conn->version;

	if (theirs == SK_WIRE_VERSION)
		doctor_say(d, "agent", VERDICT_OK, NULL, "%.*s answers, with "
			   "the same messages (%u)",
			   (int)sizeof(conn->agent.version),
			   conn->agent.version, theirs);
	else
		doctor_say(d, "agent", VERDICT_WARN, theirs < SK_WIRE_VERSION ?
			   "upgrade the agent, before the next upgrade of "
			   "clients" : "upgrade clients, before the next "
			   "upgrade of the agent", "%.*s answers, with "
			   "messages of version %u, where ours are of %u; "
			   "both speak %u", (int)sizeof(conn->agent.version),
			   conn->agent.version, theirs, SK_WIRE_VERSION,
			   conn->version);
}

/* What the agent tells of a long path is its beginning; the variable may have
 * all of it. */
static void take_store(struct doctor *d)
{
	const struct sk_wire_hello_reply *agent = &d->ctx->conn.agent;
	size_t n = strlen(agent->store);

	if (!agent->has_store) {
		d->store = NULL;
		return;
	}
	d->store_cut = n == sizeof(agent->store) - 1;
	if (d->store_cut && d->store && strncmp(d->store, agent->store, n) == 0)
		d->store_cut = false;
	else
		d->store = agent->store;
}

static void check_agent(struct doctor *d)
{
	struct context *ctx = d->ctx;
	int r = ask_connect(ctx);

	if (r == -EPROTO)
		doctor_say(d, "agent", VERDICT_FAIL, "install one version of "
			   "both", "%s", ctx->err.text);
	else if (r == -ETIMEDOUT)
		doctor_say(d, "agent", VERDICT_FAIL, "see in its log what it "
			   "does; SIGCONT it, or end it", "%s",
			   ctx->err.text);
	else if (r < 0)
		doctor_say(d, "agent", sk_agent_named(ctx->socket) ?
			   VERDICT_FAIL : VERDICT_WARN,
			   "start shardkeepd, or let the first "
			   "client do that", "none answers: %s",
			   ctx->err.text);
	if (r < 0)
		return;
	d->has_agent = true;
	d->budget = ctx->conn.agent.budget_bytes;
	take_store(d);
	(void)snprintf(d->pid, sizeof(d->pid), "%u", ctx->conn.agent.pid);
	check_versions(d);
	check_socket(d);
	check_states(d);
}

int command_doctor(struct context *ctx, int argc, char **argv)
{
	static void (*const checks[])(struct doctor *d) = {
		check_agent,
		check_kernel,
		check_memory,
		check_cgroup,
		check_memlock,
		check_files,
		check_pages,
		check_numa,
		check_uring,
		check_store,
		check_room,
		check_gpus,
		check_clock,
	};
	struct doctor d = { .ctx = ctx, .store = getenv("SHARDKEEP_STORE"),
			    .pid = "self" };

	(void)argc;
	(void)argv;
	report_table(ctx->report, "checks", NULL, columns,
		     SK_ARRAY_SIZE(columns));
	for (size_t i = 0; i < SK_ARRAY_SIZE(checks); i++)
		checks[i](&d);
	report_text(ctx->report, "verdict", NULL, "%s", words[d.worst]);
	ctx->unreachable = false;	/* it was said, and is no error */
	ctx->degraded = d.worst == VERDICT_WARN;
	ctx->unfit = d.worst == VERDICT_FAIL;
	return 0;
}
