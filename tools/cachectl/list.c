/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl list */
#include "cachectl.h"

#include <stdio.h>
#include <string.h>

#include "lists.h"

static const struct column columns[] = {
	{ "job", "JOB" }, { "run", "RUN" }, { "step", "STEP" },
	{ "world", NULL }, { "images", NULL }, { NULL, "IMAGES" },
	{ "state", "STATE" }, { "flushed_bytes", NULL },
	{ "memory_bytes", "MEMORY" }, { "disk_bytes", "DISK" },
	{ "tensors", NULL }, { "age_s", "AGE" }, { "uid", NULL },
	{ "run_id", NULL }, { "note", NULL },
};

static int64_t age_s(uint64_t created_ns)
{
	uint64_t wall = sk_os_linux()->wall_ns(sk_os_linux());

	/* A clock that was set back must not show ages of centuries. */
	return wall > created_ns ? (int64_t)((wall - created_ns) / 1000000000)
				 : 0;
}

static void add_row(struct report *r, const struct sk_wire_snapshot *s)
{
	char words[160];

	report_cell_name(r, "%s", s->id.job);
	report_cell(r, CELL_INT, (int64_t)s->id.run);
	report_cell(r, CELL_INT, s->id.step);
	report_cell(r, CELL_INT, s->id.world);
	report_cell(r, CELL_INT, s->images);
	report_cell_text(r, "%u/%d", s->images, s->id.world);
	report_cell_words(r, snapshot_words(s, words, sizeof(words)));
	report_cell(r, CELL_BYTES, (int64_t)s->flushed_bytes);
	report_cell(r, CELL_BYTES, (int64_t)s->bytes_memory);
	report_cell(r, CELL_BYTES, (int64_t)s->bytes_disk);
	report_cell(r, CELL_INT, s->tensors);
	report_cell(r, CELL_AGE, age_s(s->created_ns));
	report_cell(r, CELL_INT, s->uid);
	report_cell_text(r, "%016llx", (unsigned long long)s->id.run_id);
	report_cell_text(r, "%s", s->text);
}

static void add_notes(struct report *r, const struct sk_wire_snapshot *all,
		      size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (all[i].text[0])
			report_draw(r, "%s@%llu/%lld: %s\n", all[i].id.job,
				    (unsigned long long)all[i].id.run,
				    (long long)all[i].id.step, all[i].text);
}

static const struct column retention_columns[] = {
	{ "job", NULL }, { "uid", NULL }, { "said_by", NULL },
	{ "keep_last", NULL }, { "keep_every", NULL }, { "keep_age_s", NULL },
	{ "keep_bytes", NULL },
};

static void add_retention(struct context *ctx, uint32_t uid,
			  const struct sk_wire_retain *is)
{
	struct report *r = ctx->report;
	char words[160], name[SK_JOB_MAX + 1];

	if (ctx->output == OUTPUT_TABLE) {
		report_draw(r, "%s keeps %s (%s)\n",
			    format_name(is->id.job, 32, name, sizeof(name)),
			    retention_words(&is->retention, words,
					    sizeof(words)),
			    retention_from(is->from));
		return;
	}
	report_cell_name(r, "%s", is->id.job);
	report_cell(r, CELL_INT, uid);
	report_cell_text(r, "%s", retention_from(is->from));
	report_cell(r, CELL_INT, is->retention.keep_last);
	report_cell(r, CELL_INT, is->retention.keep_every);
	report_cell(r, CELL_INT, (int64_t)is->retention.keep_age_s);
	report_cell(r, CELL_INT, (int64_t)is->retention.keep_bytes);
}

/* 1: no snapshot before it is of its job, which is noted; 0, -ENOMEM. */
static int is_first_of(struct sk_table *jobs,
		       const struct sk_wire_snapshot *all, size_t i)
{
	const char *job = all[i].id.job;
	uint64_t hash = sk_hash_bytes(sk_hash_seed(), job, strlen(job));
	struct sk_table_walk walk = sk_table_find(jobs, hash);
	uintptr_t at;

	while (sk_table_next(&walk, &at))
		if (strcmp(all[at].id.job, job) == 0)
			return 0;
	return sk_table_add(jobs, hash, i) < 0 ? -ENOMEM : 1;
}

/* What is to stay on disk, of each job that is listed; of none where the agent
 * has no store, or is an older one. */
static int add_retentions(struct context *ctx,
			  const struct sk_wire_snapshot *all, size_t n)
{
	struct sk_wire_retain is;
	struct sk_table jobs = { 0 };
	int r = 0;

	if (ctx->output != OUTPUT_TABLE)
		report_table(ctx->report, "retention", NULL, retention_columns,
			     SK_ARRAY_SIZE(retention_columns));
	for (size_t i = 0; i < n && r >= 0; i++) {
		int first = is_first_of(&jobs, all, i);

		if (first > 0)
			r = ask_retention(ctx, all[i].id.job, &is);
		if (first > 0 && r >= 0)
			add_retention(ctx, all[i].uid, &is);
		r = first < 0 ? first : r;
	}
	sk_table_free(&jobs);
	return r == -ECONNRESET || r == -ENOMEM ? r : 0;
}

/* What the argument names: of one snapshot, of a job, or all. */
static int find_snapshots(struct context *ctx, const char *text,
			  struct sk_wire_snapshot **ret, size_t *ret_n)
{
	struct sk_wire_id id = { .step = -1, .rank = -1 };
	int r = text ? ask_parse_snapshot(ctx, text, &id) : 0;

	if (r < 0)
		return r;
	if (!text || !ask_is_latest(text))
		return ask_snapshots(ctx, &id, ret, ret_n);
	r = ask_newest(ctx, &id, ret, ret_n);
	if (r >= 0 && *ret_n > 1)
		*ret_n = 1;	/* newest first */
	return r;
}

int command_list(struct context *ctx, int argc, char **argv)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	size_t n = 0;
	int r = find_snapshots(ctx, argc ? argv[0] : NULL, &all, &n);

	if (r >= 0)
		r = list_merge(all, n);
	if (r < 0)
		return r;
	if (!n && ctx->output == OUTPUT_TABLE) {
		report_draw(ctx->report, "no snapshots%s%s\n",
			    argc ? " of " : "", argc ? argv[0] : "");
		return 0;
	}
	report_table(ctx->report, "snapshots", NULL, columns,
		     SK_ARRAY_SIZE(columns));
	for (size_t i = 0; i < n; i++) {
		all[i].text[sizeof(all[i].text) - 1] = 0;
		add_row(ctx->report, &all[i]);
	}
	if (ctx->verbose)
		add_notes(ctx->report, all, n);
	if (ctx->verbose || ctx->output != OUTPUT_TABLE)
		r = add_retentions(ctx, all, n);
	return r;
}
