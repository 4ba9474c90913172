/* SPDX-License-Identifier: Apache-2.0 */
/* The table of figures, each beside its ceiling and its bar. */
#include <math.h>
#include <stdio.h>

#include "base/util.h"
#include "nodes.h"
#include "report.h"

static const struct column columns[] = {
	{ "figure", "FIGURE" }, { "value_ms", NULL }, { NULL, "MEDIAN" },
	{ "min_ms", NULL }, { "max_ms", NULL }, { NULL, "MIN .. MAX" },
	{ "gb_per_s", NULL }, { NULL, "GB/S" }, { "ratio", NULL },
	{ NULL, "RATIO" }, { "of", "OF" }, { "bar", "BAR" },
	{ "met", "MET" },
};

enum bar { BAR_NONE, BAR_MS, BAR_AT_MOST, BAR_AT_LEAST_SPEED };

static const struct figure {
	const char *name;
	enum phase phase, of;		/* of: PHASE_COUNT for none */
	const char *of_name;
	bool bytes;			/* show GB/s */
	enum bar bar;
	double limit;
} figures[] = {
	{ "ceiling: memory to slot", PHASE_COPY_IN, PHASE_COUNT, "", true,
	  BAR_NONE, 0 },
	{ "ceiling: slot to memory", PHASE_COPY_OUT, PHASE_COUNT, "", true,
	  BAR_NONE, 0 },
	{ "ceiling: XXH3", PHASE_HASH, PHASE_COUNT, "", true, BAR_NONE, 0 },
	{ "ceiling: write + fsync", PHASE_WRITE, PHASE_COUNT, "", true,
	  BAR_NONE, 0 },
	{ "ceiling: read", PHASE_READ, PHASE_COUNT, "", true, BAR_NONE, 0 },
	{ "first snapshot: call returns", PHASE_FIRST_CALL, PHASE_COUNT, "",
	  false, BAR_MS, 1 },
	{ "first snapshot: safe to overwrite", PHASE_FIRST_SAFE,
	  PHASE_COPY_IN, "memory to slot", true, BAR_AT_MOST, 1.3 },
	{ "warm snapshot: call returns", PHASE_CALL, PHASE_COUNT, "", false,
	  BAR_MS, 1 },
	{ "warm snapshot: safe to overwrite", PHASE_SAFE, PHASE_COPY_IN,
	  "memory to slot", true, BAR_AT_MOST, 1.15 },
	{ "warm snapshot: sealed", PHASE_SEALED, PHASE_COPY_IN,
	  "memory to slot", true, BAR_NONE, 0 },
	{ "durable, from the call", PHASE_DURABLE, PHASE_WRITE,
	  "write + fsync", true, BAR_NONE, 0 },
	{ "durable, from complete", PHASE_FLUSH, PHASE_WRITE,
	  "write + fsync", true, BAR_AT_LEAST_SPEED, 0.9 },
	{ "10,000 x 64 KiB: call returns", PHASE_MANY_CALL, PHASE_COUNT, "",
	  false, BAR_MS, 1 },
	{ "10,000 x 64 KiB: safe to overwrite", PHASE_MANY_SAFE,
	  PHASE_ONE_SAFE, "one tensor of the bytes", false, BAR_AT_MOST,
	  1.2 },
	{ "restore from memory, same mesh", PHASE_RESTORE_SAME,
	  PHASE_COPY_OUT, "slot to memory", true, BAR_AT_MOST, 1.15 },
	{ "  without checksums", PHASE_RESTORE_SAME_PLAIN, PHASE_COPY_OUT,
	  "slot to memory", true, BAR_NONE, 0 },
	{ "restore from memory, columns for rows", PHASE_RESTORE_COLUMNS,
	  PHASE_COPY_OUT, "slot to memory", true, BAR_AT_MOST, 1.3 },
	{ "  without checksums", PHASE_RESTORE_COLUMNS_PLAIN,
	  PHASE_COPY_OUT, "slot to memory", true, BAR_NONE, 0 },
	{ "restore from memory, one rank fewer", PHASE_RESTORE_FEWER,
	  PHASE_COPY_OUT, "slot to memory", true, BAR_NONE, 0 },
	{ "restore over nodes, columns for rows", PHASE_NODES_COLUMNS,
	  PHASE_NODES_COLUMNS_COMM, "the comm's exchange", true, BAR_AT_MOST,
	  1.5 },
	{ "  each rank on the next node", PHASE_NODES_MOVED,
	  PHASE_NODES_MOVED_COMM, "the comm's exchange", true, BAR_AT_MOST,
	  1.5 },
	{ "  all of it on each node", PHASE_NODES_WITHIN,
	  PHASE_NODES_WITHIN_COMM, "the comm's exchange", false, BAR_AT_MOST,
	  1.5 },
	{ "  a node's columns on each of its ranks", PHASE_NODES_ACROSS,
	  PHASE_NODES_ACROSS_COMM, "the comm's exchange", false, BAR_AT_MOST,
	  1.5 },
	{ "restore from disk, cold", PHASE_RESTORE_DISK, PHASE_READ, "read",
	  true, BAR_AT_LEAST_SPEED, 0.9 },
	{ "  columns for rows", PHASE_RESTORE_DISK_COLUMNS, PHASE_READ,
	  "read", true, BAR_NONE, 0 },
	{ "step with a snapshot every step", PHASE_STEP_SNAPSHOT, PHASE_STEP,
	  "step without", false, BAR_NONE, 0 },
	{ "plan, 1,024 ranks x 1,024 tensors", PHASE_PLAN_1K, PHASE_COUNT,
	  "", false, BAR_MS, 10 },
	{ "plan, 16,384 ranks x 1,024 tensors", PHASE_PLAN_16K,
	  PHASE_PLAN_1K, "1,024 ranks", false, BAR_MS, 10 },
	{ "empty round trip", PHASE_ROUND_TRIP, PHASE_COUNT, "", false,
	  BAR_NONE, 0 },
};

static void bar_cells(struct report *r, const struct figure *f, double ms,
		      double ratio)
{
	bool met = true;

	switch (f->bar) {
	case BAR_NONE:
		report_cell_text(r, "%s", "");
		report_cell_text(r, "%s", "");
		return;
	case BAR_MS:
		report_cell_text(r, "< %g ms", f->limit);
		met = ms < f->limit;
		break;
	case BAR_AT_MOST:
		report_cell_text(r, "<= %g x", f->limit);
		met = ratio <= f->limit;
		break;
	case BAR_AT_LEAST_SPEED:
		report_cell_text(r, ">= %.0f %% speed", f->limit * 100);
		met = 1 / ratio >= f->limit;
		break;
	}
	report_cell_text(r, "%s", met ? "yes" : "NO");
}

static void add_figure(struct report *r, const struct bench *b,
		       const struct figure *f)
{
	const struct series *s = &b->series[f->phase];
	double ms = series_median(s) / 1e6, ratio = NAN;
	double bytes = (double)b->o.bytes * b->o.ranks;

	if (!s->n)
		return;
	if (f->of != PHASE_COUNT) {
		const struct series *c = &b->series[f->of];

		/* Rounds pair where both were measured as often. */
		ratio = s->n == c->n ? series_ratio(s, c) :
			series_median(s) / series_median(c);
	}
	report_cell_text(r, "%s", f->name);
	report_cell_real(r, ms);
	report_cell_text(r, "%.3f ms", ms);
	report_cell_real(r, series_min(s) / 1e6);
	report_cell_real(r, series_max(s) / 1e6);
	report_cell_text(r, "%.3f .. %.3f", series_min(s) / 1e6,
			 series_max(s) / 1e6);
	if (f->bytes)
		report_cell_real(r, bytes / ms / 1e6);
	else
		report_cell(r, CELL_NONE, 0);
	if (f->bytes)
		report_cell_text(r, "%.2f", bytes / ms / 1e6);
	else
		report_cell_text(r, "%s", "");
	if (isnan(ratio))
		report_cell(r, CELL_NONE, 0);
	else
		report_cell_real(r, ratio);
	if (isnan(ratio))
		report_cell_text(r, "%s", "");
	else
		report_cell_text(r, "%.2f x", ratio);
	report_cell_text(r, "%s", f->of_name);
	bar_cells(r, f, ms, ratio);
}

/* Sealed after safe: its own figure, a difference and not a ratio. */
static void add_seal(struct report *r, const struct bench *b)
{
	const struct series *safe = &b->series[PHASE_SAFE];
	const struct series *sealed = &b->series[PHASE_SEALED];
	struct series after = { 0 };
	double hash = series_median(&b->series[PHASE_HASH]) / 1e6, ms;

	for (int i = 0; i < safe->n && i < sealed->n; i++)
		series_add(&after, sealed->v[i] - safe->v[i]);
	if (!after.n)
		return;
	ms = series_median(&after) / 1e6;
	report_number(r, "sealed_after_safe_us",
		      "sealed after safe to overwrite, us", CELL_INT,
		      (int64_t)(ms * 1000));
	report_text(r, "sealed_after_safe_met", "  bar: one hash pass + 2 ms",
		    "%s (hash pass %.1f ms)", ms <= hash + 2 ? "met" : "NOT",
		    hash);
}

static void add_memory(struct report *r, const struct bench *b)
{
	double limit = (double)b->slots * 0.01 + (8 << 20);

	if (!b->slots)
		return;
	report_number(r, "slot_bytes", "slots", CELL_BYTES,
		      (int64_t)b->slots);
	report_number(r, "beyond_slots_bytes", "memory beyond the slots",
		      CELL_BYTES, (int64_t)b->beyond);
	report_text(r, "beyond_slots_met", "  bar: 1 % + 8 MiB", "%s",
		    (double)b->beyond <= limit ? "met" : "NOT met");
}

int print_results(const struct bench *b)
{
	_cleanup_report_ struct report *r = report_new();

	if (!r)
		return -ENOMEM;
	report_number(r, "ranks", "ranks", CELL_INT, b->o.ranks);
	report_number(r, "nodes", "nodes, where there are several", CELL_INT,
		      b->o.nodes);
	report_number(r, "bytes_per_rank", "bytes per rank", CELL_BYTES,
		      (int64_t)b->o.bytes);
	report_number(r, "tensors", "tensors", CELL_INT, b->o.tensors);
	report_number(r, "rounds", "rounds", CELL_INT, b->o.rounds);
	report_number(r, "threads", "copy threads per rank", CELL_INT,
		      b->o.threads);
	if (b->write_depth)
		report_text(r, "write_ceiling", "io_uring ceiling",
			    "%u KiB blocks, depth %u", b->write_block / 1024,
			    b->write_depth);
	add_seal(r, b);
	add_memory(r, b);
	report_table(r, "figures", NULL, columns, SK_ARRAY_SIZE(columns));
	for (size_t i = 0; i < SK_ARRAY_SIZE(figures); i++)
		add_figure(r, b, &figures[i]);
	nodes_report(r, b);
	return report_print(r, b->o.json ? OUTPUT_JSON : OUTPUT_TABLE,
			    &(struct style){ .columns = 140 }, stdout);
}
