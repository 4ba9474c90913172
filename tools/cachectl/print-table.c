/* SPDX-License-Identifier: Apache-2.0 */
/* For people: aligned fields and tables. */
#include <string.h>

#include "report-private.h"

#define CELL_MAX 512

static const char bold[] = "\033[1m", dim[] = "\033[2m", plain[] = "\033[0m";

static const char *show(const struct cell *cell, char buf[CELL_MAX])
{
	switch (cell->kind) {
	case CELL_TEXT:
	case CELL_WORDS:
		return cell->text && *cell->text ? cell->text : "-";
	case CELL_BYTES:
		return format_bytes((uint64_t)cell->number, buf, CELL_MAX);
	case CELL_AGE:
		return format_age(cell->number, buf, CELL_MAX);
	case CELL_REAL:
		(void)snprintf(buf, CELL_MAX, "%.6g", cell->real);
		return buf;
	case CELL_BOOL:
		return cell->number ? "yes" : "no";
	case CELL_INT:
		(void)snprintf(buf, CELL_MAX, "%lld",
			       (long long)cell->number);
		return buf;
	default:
		return "-";
	}
}

/* Columns on the screen: UTF-8 continuation bytes take none. */
static int width(const char *s)
{
	int n = 0;

	for (; *s; s++)
		n += ((unsigned char)*s & 0xc0) != 0x80;
	return n;
}

static bool is_number(enum cell_kind kind)
{
	return kind == CELL_INT || kind == CELL_BYTES || kind == CELL_REAL ||
	       kind == CELL_AGE;
}

static int column_width(const struct part *part, int c)
{
	int w = width(part->columns[c].title);
	char buf[CELL_MAX];

	for (size_t i = (size_t)c; i < part->n_cells;
	     i += (size_t)part->n_columns) {
		int v = width(show(&part->cells[i], buf));

		w = v > w ? v : w;
	}
	return w;
}

static void print_padded(FILE *out, const char *text, int w, bool right,
			 bool last)
{
	int pad = w - width(text);

	if (right)
		fprintf(out, "%*s", pad, "");
	fputs(text, out);
	if (!right && !last)
		fprintf(out, "%*s", pad, "");
	fputs(last ? "\n" : "  ", out);
}

static bool right_aligned(const struct part *part, int c)
{
	return part->n_cells > (size_t)c && is_number(part->cells[c].kind);
}

static int last_shown(const struct part *part)
{
	int last = -1;

	for (int c = 0; c < part->n_columns; c++)
		if (part->columns[c].title)
			last = c;
	return last;
}

static void print_table(const struct part *part, bool colour, FILE *out)
{
	int last = last_shown(part), w[32] = { 0 };
	char buf[CELL_MAX];

	if (part->title)
		fprintf(out, "%s%s%s\n", colour ? bold : "", part->title,
			colour ? plain : "");
	for (int c = 0; c < part->n_columns && c < 32; c++)
		if (part->columns[c].title)
			w[c] = column_width(part, c);
	fputs(colour ? dim : "", out);
	for (int c = 0; c <= last; c++)
		if (part->columns[c].title)
			print_padded(out, part->columns[c].title, w[c],
				     right_aligned(part, c), c == last);
	fputs(colour ? plain : "", out);
	for (size_t i = 0; i < part->n_cells; i++) {
		int c = (int)(i % (size_t)part->n_columns);

		if (part->columns[c].title)
			print_padded(out, show(&part->cells[i], buf), w[c],
				     is_number(part->cells[i].kind),
				     c == last);
	}
}

static int field_width(const struct report *r)
{
	int w = 0;

	for (size_t i = 0; i < r->n_parts; i++)
		if (r->parts[i].kind == PART_FIELD && r->parts[i].title &&
		    width(r->parts[i].title) > w)
			w = width(r->parts[i].title);
	return w;
}

static void print_part(const struct part *part, int w, bool colour,
		       FILE *out)
{
	char buf[CELL_MAX];

	switch (part->kind) {
	case PART_FIELD:
		if (!part->title || !part->n_cells)
			return;
		fputs(colour ? dim : "", out);
		print_padded(out, part->title, w, false, false);
		fputs(colour ? plain : "", out);
		fprintf(out, "%s\n", show(&part->cells[0], buf));
		return;
	case PART_TABLE:
		print_table(part, colour, out);
		return;
	case PART_DRAWING:
		fputs(part->drawing ? part->drawing : "", out);
		return;
	}
}

static int print(const struct report *r, bool colour, FILE *out)
{
	int w = field_width(r);

	for (size_t i = 0; i < r->n_parts; i++) {
		/* Fields stand together, all else has a line before it. */
		if (i && (r->parts[i].kind != PART_FIELD ||
			  r->parts[i - 1].kind != PART_FIELD))
			fputc('\n', out);
		print_part(&r->parts[i], w, colour, out);
	}
	return 0;
}

const struct print_ops print_table_ops = { .print = print };
