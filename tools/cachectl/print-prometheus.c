/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For Prometheus: its text exposition format, version 0.0.4. Takes the table
 * "stats", whose columns are those of the list below; rows of one name follow
 * each other.
 */
#include <errno.h>
#include <string.h>

#include "report-private.h"

enum {
	COLUMN_NAME, COLUMN_SHORT, COLUMN_KIND,
	COLUMN_JOB, COLUMN_UID, COLUMN_KEY, COLUMN_WORD, COLUMN_LABELS,
	COLUMN_VALUE, COLUMN_HELP,
	COLUMNS
};

static void put_label(FILE *out, char *between, const char *key,
		      const char *value)
{
	fprintf(out, "%c%s=\"", *between, key);
	for (; *value; value++) {
		if (*value == '\n')
			fputs("\\n", out);
		else
			fprintf(out, *value == '\\' || *value == '"' ?
				"\\%c" : "%c", *value);
	}
	fputc('"', out);
	*between = ',';
}

static void put_labels(FILE *out, const struct cell *cell)
{
	char between = '{', uid[24];

	if (*cell[COLUMN_JOB].text) {
		(void)snprintf(uid, sizeof(uid), "%lld",
			       (long long)cell[COLUMN_UID].number);
		put_label(out, &between, "job", cell[COLUMN_JOB].text);
		put_label(out, &between, "uid", uid);
	}
	if (*cell[COLUMN_KEY].text)
		put_label(out, &between, cell[COLUMN_KEY].text,
			  cell[COLUMN_WORD].text);
	if (between == ',')
		fputc('}', out);
}

static void put_row(FILE *out, const struct cell *cell, const char **last)
{
	const char *name = cell[COLUMN_NAME].text;

	if (!*last || strcmp(*last, name) != 0)
		fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name,
			cell[COLUMN_HELP].text, name, cell[COLUMN_KIND].text);
	*last = name;
	fputs(name, out);
	put_labels(out, cell);
	fprintf(out, " %.17g\n", cell[COLUMN_VALUE].real);
}

static int print(const struct report *r, const struct style *style, FILE *out)
{
	const char *last = NULL;

	(void)style;
	for (size_t i = 0; i < r->n_parts; i++) {
		const struct part *part = &r->parts[i];

		if (part->kind != PART_TABLE || strcmp(part->key, "stats"))
			continue;
		for (size_t c = 0; c + COLUMNS <= part->n_cells;
		     c += COLUMNS)
			put_row(out, &part->cells[c], &last);
	}
	return 0;
}

const struct print_ops print_prometheus_ops = { .print = print };
