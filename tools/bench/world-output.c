/* SPDX-License-Identifier: Apache-2.0 */
/* The table of worlds. */
#include "world.h"

#include <errno.h>
#include <math.h>

#include "base/util.h"
#include "report.h"

/* Keys are of figures in nanoseconds or bytes; people see rounded ones. */
static const struct column columns[] = {
	{ "model", "MODEL" }, { "mesh", "MESH" }, { "world", "RANKS" },
	{ "describe_ms", "DESCRIBE" }, { "layout_ms", "LAYOUT" },
	{ "header_bytes", "HEADER" }, { "parse_ms", "PARSE" },
	{ "cover_ms", "COVER" }, { "register_ms", "REGISTER" },
	{ "list_ms", "1ST LIST" }, { "list_cpu_ms", "CPU" },
	{ "list_again_ms", "2ND" }, { "agent_bytes", "AGENT" },
	{ "plan_ms", "PLAN" }, { "memory_ms", "MEMORY" },
	{ "disk_ms", "DISK" }, { "half_ms", "HALF" }, { "told_bytes", "TOLD" },
	{ "needed_bytes", "NEEDED" }, { "read_bytes", "READ" },
	{ "peak_bytes", "PEAK" }, { "half_needed_bytes", NULL },
	{ "half_read_bytes", NULL }, { "half_peak_bytes", NULL },
	{ "disk_cpu_ms", NULL }, { "half_cpu_ms", NULL },
	{ "half_plan_ms", NULL }, { "list_next_cpu_ms", NULL },
	{ "disk_agent_ms", NULL }, { "half_agent_ms", NULL },
	{ "failed", NULL },
};

static void cell_ms(struct report *r, uint64_t ns)
{
	/* Three digits are more than any two runs agree on. */
	if (ns)
		report_cell_real(r, round((double)ns / 1e3) / 1e3);
	else
		report_cell(r, CELL_NONE, 0);
}

static void cell_bytes(struct report *r, uint64_t bytes)
{
	report_cell(r, CELL_BYTES, (int64_t)bytes);
}

static void add_world(struct report *r, const struct world *w)
{
	const struct world_figures *f = w->figures;

	report_cell_text(r, "%s", model_name((int)w->model.kind));
	report_cell_text(r, "%s", model_mesh_name((int)w->model.mesh));
	report_cell(r, CELL_INT, w->model.world);
	cell_ms(r, f->describe_ns);
	cell_ms(r, f->layout_ns);
	cell_bytes(r, f->header_bytes);
	cell_ms(r, f->parse_ns);
	cell_ms(r, f->cover_ns);
	cell_ms(r, f->register_ns);
	cell_ms(r, f->list_ns);
	cell_ms(r, f->list_cpu_ns);
	cell_ms(r, f->again_ns);
	cell_bytes(r, f->agent_bytes);
	cell_ms(r, f->near.plan_ns);
	cell_ms(r, f->near.wall_ns);
	cell_ms(r, f->disk.wall_ns);
	cell_ms(r, f->half.wall_ns);
	cell_bytes(r, f->near.told);
	cell_bytes(r, f->disk.needed);
	cell_bytes(r, f->disk.read);
	cell_bytes(r, f->disk.peak);
	cell_bytes(r, f->half.needed);
	cell_bytes(r, f->half.read);
	cell_bytes(r, f->half.peak);
	cell_ms(r, f->disk.cpu_ns);
	cell_ms(r, f->half.cpu_ns);
	cell_ms(r, f->half.plan_ns);
	cell_ms(r, f->next_cpu_ns);
	cell_ms(r, f->disk.agent_ns);
	cell_ms(r, f->half.agent_ns);
	report_cell_text(r, "%s", f->failed);
}

int world_print(const struct bench *b, const struct world *worlds, int n)
{
	_cleanup_report_ struct report *r = report_new();

	if (!r)
		return -ENOMEM;
	report_number(r, "tensors", "tensors", CELL_INT, b->o.tensors);
	report_number(r, "bytes_per_rank", "bytes per rank", CELL_BYTES,
		      (int64_t)b->o.bytes);
	report_table(r, "worlds", "Milliseconds", columns,
		     SK_ARRAY_SIZE(columns));
	for (int i = 0; i < n; i++)
		if (worlds[i].figures)
			add_world(r, &worlds[i]);
	return report_print(r, b->o.json ? OUTPUT_JSON : OUTPUT_TABLE,
			    &(struct style){ .columns = 220 }, stdout);
}
