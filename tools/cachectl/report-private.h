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
	size_t n_cells, room_cells;
	char *drawing;
};

struct report {
	struct part *parts;
	size_t n_parts, room_parts;
	bool failed;
};

struct print_ops {
	int (*print)(const struct report *r, const struct style *style,
		     FILE *out);
};

/* ---- text.c ---- */

#define CELL_MAX 512

/** What people see of a cell, before it is cut or broken. */
const char *cell_text(const struct cell *cell, char buf[CELL_MAX]);
/** Columns on the screen: UTF-8 continuation bytes take none. */
int text_width(const char *text);
/** Bytes of the first @columns of a text. */
size_t text_prefix(const char *text, int columns);
/** Columns of the longest word. */
int text_longest_word(const char *text);
/** Bytes of @text that go on a line of @columns: whole words, or what fits of
 * one that is longer. *ret_next is where the next line begins. */
size_t text_line(const char *text, int columns, size_t *ret_next);
/** A real number as people and scripts read it: whole ones without a point. */
bool is_whole(double value);

extern const struct print_ops print_table_ops;
extern const struct print_ops print_json_ops;
extern const struct print_ops print_prometheus_ops;

#endif
