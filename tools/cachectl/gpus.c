/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that device slots take, as status and top show it. */
#include "figures.h"

#include "cachectl.h"

#define USED "shardkeep_device_memory_used_bytes"
#define BUDGET "shardkeep_device_memory_budget_bytes"

static const struct column columns[] = {
	{ "gpu", "GPU" }, { "used_bytes", "DEVICE SLOTS" },
	{ "budget_bytes", "OF" },
};

bool figures_have_gpus(const struct figures *f)
{
	return figure(f, BUDGET) > 0 || figure_at(f, USED, 0);
}

static void add_count(struct report *r, const struct figures *f,
		      const char *key, const char *label, const char *name)
{
	int64_t n = figure(f, name);

	/* People hear of what has happened. */
	report_number(r, key, n > 0 ? label : NULL, CELL_INT, n);
}

void figures_count_gpus(struct report *r, const struct figures *f)
{
	report_number(r, "device_slots", figures_have_gpus(f) ?
		      "device slots" : NULL, CELL_INT,
		      figure(f, "shardkeep_device_slots"));
	add_count(r, f, "device_slots_refused", "refused",
		  "shardkeep_device_slots_refused_total");
	add_count(r, f, "device_slots_failed", "failed",
		  "shardkeep_device_slots_failed_total");
	add_count(r, f, "device_drains", "drained",
		  "shardkeep_device_drains_total");
	add_count(r, f, "device_lost", "lost on GPUs",
		  "shardkeep_device_lost_total");
}

void figures_list_gpus(struct report *r, const struct figures *f, bool table)
{
	const struct sk_wire_stat *s;
	char name[FIGURE_WORD];

	if (table && !figure_at(f, USED, 0))
		return;
	report_table(r, "gpus", NULL, columns, SK_ARRAY_SIZE(columns));
	for (size_t i = 0; (s = figure_at(f, USED, i)); i++) {
		report_cell_name(r, "%s", figure_word(s, name));
		report_cell(r, CELL_BYTES, figure_whole(s->value));
		report_cell(r, CELL_BYTES, figure(f, BUDGET));
	}
}
