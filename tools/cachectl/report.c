/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "report-private.h"

struct report *report_new(void)
{
	return calloc(1, sizeof(struct report));
}

static void part_free(struct part *part)
{
	for (size_t i = 0; i < part->n_cells; i++)
		free(part->cells[i].text);
	free(part->cells);
	free(part->drawing);
}

struct report *report_free(struct report *report)
{
	if (!report)
		return NULL;
	for (size_t i = 0; i < report->n_parts; i++)
		part_free(&report->parts[i]);
	free(report->parts);
	free(report);
	return NULL;
}

static struct part *add_part(struct report *r, enum part_kind kind,
			     const char *key, const char *title)
{
	struct part *part;

	if (sk_array_fit(r->parts, r->room_parts, r->n_parts + 1) < 0) {
		r->failed = true;
		return NULL;
	}
	part = &r->parts[r->n_parts++];
	*part = (struct part){ .kind = kind, .key = key, .title = title };
	return part;
}

static void add_cell(struct report *r, struct part *part, struct cell cell)
{
	if (part && sk_array_fit(part->cells, part->room_cells,
				 part->n_cells + 1) < 0) {
		r->failed = true;
		part = NULL;
	}
	if (!part) {
		free(cell.text);
		return;
	}
	part->cells[part->n_cells++] = cell;
}

static struct part *last_table(struct report *r)
{
	struct part *part = r->n_parts ? &r->parts[r->n_parts - 1] : NULL;

	return part && part->kind == PART_TABLE ? part : NULL;
}

static char *copy_text(struct report *r, const char *fmt, va_list ap)
{
	char *text;

	if (vasprintf(&text, fmt, ap) < 0) {
		r->failed = true;
		return NULL;
	}
	return text;
}

static void add_text(struct report *r, struct part *part, enum cell_kind kind,
		     const char *fmt, va_list ap)
{
	add_cell(r, part, (struct cell){ .kind = kind,
					 .text = copy_text(r, fmt, ap) });
}

void report_text(struct report *r, const char *key, const char *title,
		 const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add_text(r, add_part(r, PART_FIELD, key, title), CELL_TEXT, fmt, ap);
	va_end(ap);
}

void report_number(struct report *r, const char *key, const char *title,
		   enum cell_kind kind, int64_t value)
{
	add_cell(r, add_part(r, PART_FIELD, key, title),
		 (struct cell){ .kind = kind, .number = value });
}

static void add_copy(struct report *r, struct part *part, enum cell_kind kind,
		     const char *text)
{
	struct cell cell = { .kind = kind, .text = strdup(text) };

	r->failed |= !cell.text;
	add_cell(r, part, cell);
}

void report_words(struct report *r, const char *key, const char *title,
		  const char *words)
{
	add_copy(r, add_part(r, PART_FIELD, key, title), CELL_WORDS, words);
}

void report_table(struct report *r, const char *key, const char *title,
		  const struct column *columns, int n_columns)
{
	struct part *part = add_part(r, PART_TABLE, key, title);

	if (!part)
		return;
	part->columns = columns;
	part->n_columns = n_columns;
}

void report_cell_text(struct report *r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add_text(r, last_table(r), CELL_TEXT, fmt, ap);
	va_end(ap);
}

void report_cell_name(struct report *r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	add_text(r, last_table(r), CELL_NAME, fmt, ap);
	va_end(ap);
}

void report_cell_words(struct report *r, const char *words)
{
	add_copy(r, last_table(r), CELL_WORDS, words);
}

void report_cell_numbers(struct report *r, const char *numbers)
{
	add_copy(r, last_table(r), CELL_NUMBERS, numbers);
}

void report_cell(struct report *r, enum cell_kind kind, int64_t value)
{
	add_cell(r, last_table(r),
		 (struct cell){ .kind = kind, .number = value });
}

void report_cell_real(struct report *r, double value)
{
	add_cell(r, last_table(r),
		 (struct cell){ .kind = CELL_REAL, .real = value });
}

static struct part *drawing(struct report *r)
{
	struct part *part = r->n_parts ? &r->parts[r->n_parts - 1] : NULL;

	if (part && part->kind == PART_DRAWING)
		return part;
	return add_part(r, PART_DRAWING, NULL, NULL);
}

void report_draw(struct report *r, const char *fmt, ...)
{
	struct part *part = drawing(r);
	char *text = NULL, *both = NULL;
	va_list ap;

	va_start(ap, fmt);
	text = copy_text(r, fmt, ap);
	va_end(ap);
	if (!part || !text) {
		free(text);
		return;
	}
	if (asprintf(&both, "%s%s", part->drawing ? part->drawing : "",
		     text) < 0) {
		r->failed = true;
		free(text);
		return;
	}
	free(text);
	free(part->drawing);
	part->drawing = both;
}

/* The formatters, by enum output. */
static const struct print_ops *const formatters[] = {
	[OUTPUT_TABLE] = &print_table_ops,
	[OUTPUT_JSON] = &print_json_ops,
	[OUTPUT_PROMETHEUS] = &print_prometheus_ops,
};

int report_print(const struct report *r, enum output output,
		 const struct style *style, FILE *out)
{
	static const struct style plain;
	int e;

	if (r->failed)
		return -ENOMEM;
	errno = 0;
	e = formatters[output]->print(r, style ? style : &plain, out);
	if (e && e != -EIO)
		return e;
	/* A stream tells that it failed; of why errno is all there is. */
	if (e || fflush(out) || ferror(out))
		return errno ? -errno : -EIO;
	return 0;
}
