/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For Prometheus: its text exposition format, version 0.0.4. Takes the table
 * "stats", whose columns are name, the name for people, kind, value, help.
 */
#include <errno.h>
#include <string.h>

#include "report-private.h"

enum {
	COLUMN_NAME, COLUMN_SHORT, COLUMN_KIND, COLUMN_VALUE, COLUMN_HELP,
	COLUMNS
};

static int print(const struct report *r, const struct style *style, FILE *out)
{
	(void)style;
	for (size_t i = 0; i < r->n_parts; i++) {
		const struct part *part = &r->parts[i];

		if (part->kind != PART_TABLE || strcmp(part->key, "stats"))
			continue;
		for (size_t c = 0; c + COLUMNS <= part->n_cells;
		     c += COLUMNS) {
			const struct cell *cell = &part->cells[c];
			const char *name = cell[COLUMN_NAME].text;

			fprintf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n",
				name, cell[COLUMN_HELP].text, name,
				cell[COLUMN_KIND].text, name,
				cell[COLUMN_VALUE].real);
		}
	}
	return 0;
}

const struct print_ops print_prometheus_ops = { .print = print };
