/* SPDX-License-Identifier: Apache-2.0 */
/* What report.c and the formatters share. */
#ifndef SK_CACHECTL_REPORT_PRIVATE_H
#define SK_CACHECTL_REPORT_PRIVATE_H

#include <stddef.h>

#include "report.h"

enum part_kind { PART_FIELD, PART_TABLE, PART_DRAWING };

struct cell {
	enum cell_kind kind;
	int64_t number;
	double real;
	char *text;		/* owned */
};

struct part {
	enum part_kind kind;
	const char *key, *title;
	const struct column *columns;	/* of a table */
	int n_columns;
	struct cell *cells;		/* a field has one */
	size_t n_cells;
	char *drawing;
};

struct report {
	struct part *parts;
	size_t n_parts;
	bool failed;
};

struct print_ops {
	int (*print)(const struct report *r, bool colour, FILE *out);
};

extern const struct print_ops print_table_ops;
extern const struct print_ops print_json_ops;
extern const struct print_ops print_prometheus_ops;

#endif
