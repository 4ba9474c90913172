/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For people: aligned fields and tables that fit the screen. Numbers are
 * never cut, names are cut in the middle, texts go on in the next line. Where
 * a terminal is too narrow for a table's columns, each row becomes fields, one
 * below the other.
 */
#include <string.h>

#include "base/text.h"
#include "report-private.h"

#define COLUMNS_MAX 32
#define GAP 2			/* between columns */
#define NAME_LEAST 12
#define NAME_FAIR 16		/* before texts are broken for it */
#define WORD_MOST 40		/* longer words are broken */

static const char bold[] = "\033[1m", dim[] = "\033[2m", plain[] = "\033[0m";

/* ---- what a terminal is given ---- */

/* Bytes of the character that @text begins with, where it may be shown; else 0,
 * and *ret_bytes of what is not: what a terminal takes for a command, older
 * builds let it into names, or what has it show others, or is no UTF-8. */
static int shown(const char *text, int *ret_bytes)
{
	int turns = sk_text_turns(text), stored = sk_text_stored(text);

	*ret_bytes = turns ? turns : stored ? stored : 1;
	return turns ? 0 : sk_text_character(text);
}

/* One '?' for each that is not, so that columns stay. Scripts, and --json, have
 * names as they are. */
static void put(FILE *out, const char *text, size_t bytes)
{
	const char *end = text + bytes;
	int n;

	for (; text < end && *text; text += n)
		if (shown(text, &n))
			(void)fwrite(text, 1, (size_t)n, out);
		else
			fputc('?', out);
}

/* ---- columns ---- */

struct widths {
	int now[COLUMNS_MAX], least[COLUMNS_MAX];
	bool name[COLUMNS_MAX];
	int last;
};

static bool is_number(enum cell_kind kind)
{
	return kind == CELL_INT || kind == CELL_BYTES || kind == CELL_REAL ||
	       kind == CELL_AGE;
}

static int at_most(int a, int b)
{
	return a < b ? a : b;
}

static int at_least(int a, int b)
{
	return a > b ? a : b;
}

static int screen(const struct style *style)
{
	return style->columns ? style->columns : 80;
}

/* What a cell may shrink to. */
static int cell_least(const struct cell *cell, const char *text)
{
	switch (cell->kind) {
	case CELL_NAME:
		return at_most(text_width(text), NAME_LEAST);
	case CELL_TEXT:
	case CELL_WORDS:
	case CELL_NUMBERS:
		return at_most(text_longest_word(text), WORD_MOST);
	default:
		return text_width(text);
	}
}

static void measure_column(const struct part *part, int c, struct widths *w)
{
	char buf[CELL_MAX];

	w->now[c] = w->least[c] = text_width(part->columns[c].title);
	for (size_t i = (size_t)c; i < part->n_cells;
	     i += (size_t)part->n_columns) {
		const struct cell *cell = &part->cells[i];
		const char *text = cell_text(cell, buf);

		w->name[c] |= cell->kind == CELL_NAME;
		w->now[c] = at_least(w->now[c], text_width(text));
		w->least[c] = at_least(w->least[c], cell_least(cell, text));
	}
}

static int sum_widths(const struct widths *w, int n)
{
	int sum = -GAP;

	for (int c = 0; c < n; c++)
		sum += w->now[c] ? w->now[c] + GAP : 0;
	return sum;
}

/* The widest of the names, or of the texts, that may become narrower; -1:
 * none. */
static int widest(const struct widths *w, int n, bool name, int least)
{
	int best = -1;

	for (int c = 0; c < n; c++) {
		if (w->name[c] != name ||
		    w->now[c] <= at_least(w->least[c], least))
			continue;
		if (best < 0 || w->now[c] > w->now[best])
			best = c;
	}
	return best;
}

static int to_narrow(const struct widths *w, int n)
{
	int c = widest(w, n, true, NAME_FAIR);

	if (c < 0)
		c = widest(w, n, false, 0);
	return c < 0 ? widest(w, n, true, 0) : c;
}

static void measure(const struct part *part, int columns, struct widths *w)
{
	int n = at_most(part->n_columns, COLUMNS_MAX), c;

	w->last = -1;
	for (c = 0; c < n; c++) {
		if (!part->columns[c].title)
			continue;
		measure_column(part, c, w);
		w->last = c;
	}
	while (sum_widths(w, n) > columns && (c = to_narrow(w, n)) >= 0)
		w->now[c]--;
}

/* ---- rows ---- */

/* A line; spaces are printed when something comes after them. */
struct line {
	FILE *out;
	int owed;
};

static void print_padded(struct line *line, const char *text, size_t bytes,
			 int w, bool right)
{
	char piece[CELL_MAX + 1];
	int pad;

	(void)snprintf(piece, sizeof(piece), "%.*s", (int)bytes, text);
	pad = at_least(w - text_width(piece), 0);
	line->owed += right ? pad : 0;
	if (*piece) {
		fprintf(line->out, "%*s", line->owed, "");
		put(line->out, piece, sizeof(piece));
		line->owed = 0;
	}
	line->owed += (right ? 0 : pad) + GAP;
}

/* One line of a cell; returns where its next line begins. */
static size_t print_cell(struct line *line, const struct cell *cell,
			 size_t from, int w)
{
	char buf[CELL_MAX], cut[CELL_MAX];
	const char *text = cell_text(cell, buf) + from;
	size_t bytes, next;

	if (cell->kind == CELL_NAME) {
		if (!from)
			format_name(text, w, cut, sizeof(cut));
		print_padded(line, from ? "" : cut, CELL_MAX, w, false);
		return from ? from : strlen(text);
	}
	bytes = text_line(text, w, &next);
	print_padded(line, text, bytes, w, is_number(cell->kind));
	return from + next;
}

static bool cell_ended(const struct cell *cell, size_t from)
{
	char buf[CELL_MAX];

	return !cell_text(cell, buf)[from];
}

/* A row, in as many lines as its longest text needs. */
static void print_row(const struct part *part, const struct cell *row,
		      const struct widths *w, FILE *out)
{
	size_t from[COLUMNS_MAX] = { 0 };
	bool more;

	do {
		struct line line = { .out = out };

		more = false;
		for (int c = 0; c <= w->last; c++) {
			if (!part->columns[c].title)
				continue;
			from[c] = print_cell(&line, &row[c], from[c],
					     w->now[c]);
			more |= !cell_ended(&row[c], from[c]);
		}
		fputc('\n', out);
	} while (more);
}

static void print_head(const struct part *part, const struct widths *w,
		       FILE *out)
{
	struct line line = { .out = out };

	for (int c = 0; c <= w->last; c++) {
		const char *title = part->columns[c].title;

		if (title)
			print_padded(&line, title, CELL_MAX, w->now[c],
				     part->n_cells > (size_t)c &&
				     is_number(part->cells[c].kind));
	}
	fputc('\n', out);
}

/* ---- the whole ---- */

static int field_width(const struct report *r)
{
	int w = 0;

	for (size_t i = 0; i < r->n_parts; i++)
		if (r->parts[i].kind == PART_FIELD && r->parts[i].title)
			w = at_least(w, text_width(r->parts[i].title));
	return w;
}

static void print_value(const char *title, const struct cell *cell, int w,
			const struct style *style, FILE *out)
{
	int room = at_least(screen(style) - w - GAP, 1);
	char buf[CELL_MAX], cut[CELL_MAX];
	const char *text = cell_text(cell, buf);
	size_t n, next;

	fprintf(out, "%s%s%s%*s", style->colour ? dim : "", title,
		style->colour ? plain : "", w - text_width(title) + GAP, "");
	if (cell->kind == CELL_NAME)
		text = format_name(text, at_least(room, NAME_LEAST), cut,
				   sizeof(cut));
	/* A path stays in one piece, whatever the screen, and so does a
	 * number with its unit. */
	room = is_number(cell->kind) ? CELL_MAX :
	       at_least(room, text_longest_word(text));
	for (; n = text_line(text, room, &next), text[next]; text += next) {
		put(out, text, n);
		fprintf(out, "\n%*s", w + GAP, "");
	}
	put(out, text, n);
	fputc('\n', out);
}

static void print_field(const struct part *part, int w,
			const struct style *style, FILE *out)
{
	if (part->title && part->n_cells)
		print_value(part->title, &part->cells[0], w, style, out);
}

/* ---- tables ---- */

/* For a screen that is too narrow for columns. */
static void print_records(const struct part *part, const struct style *style,
			  FILE *out)
{
	size_t n = (size_t)part->n_columns;
	int w = 0;

	for (size_t c = 0; c < n; c++)
		if (part->columns[c].title)
			w = at_least(w, text_width(part->columns[c].title));
	for (size_t i = 0; i + n <= part->n_cells; i += n) {
		if (i)
			fputc('\n', out);
		for (size_t c = 0; c < n; c++)
			if (part->columns[c].title)
				print_value(part->columns[c].title,
					    &part->cells[i + c], w, style, out);
	}
}

static void print_rows(const struct part *part, const struct widths *w,
		       const struct style *style, FILE *out)
{
	size_t n = (size_t)part->n_columns;

	fputs(style->colour ? dim : "", out);
	print_head(part, w, out);
	fputs(style->colour ? plain : "", out);
	for (size_t i = 0; i + n <= part->n_cells; i += n)
		print_row(part, &part->cells[i], w, out);
}

static void print_table(const struct part *part, const struct style *style,
			FILE *out)
{
	struct widths w = { 0 };

	measure(part, screen(style), &w);
	if (part->title)
		fprintf(out, "%s%s%s\n", style->colour ? bold : "",
			part->title, style->colour ? plain : "");
	/* What is read from a pipe is looked for in rows. */
	if (part->n_cells && style->columns &&
	    sum_widths(&w, part->n_columns) > style->columns)
		print_records(part, style, out);
	else
		print_rows(part, &w, style, out);
}

static void print_part(const struct part *part, int w,
		       const struct style *style, FILE *out)
{
	switch (part->kind) {
	case PART_FIELD:
		print_field(part, w, style, out);
		return;
	case PART_TABLE:
		print_table(part, style, out);
		return;
	case PART_DRAWING:
		fputs(part->drawing ? part->drawing : "", out);
		return;
	}
}

static bool is_shown(const struct part *part)
{
	return part->kind != PART_FIELD || part->title;
}

static int print(const struct report *r, const struct style *style, FILE *out)
{
	const struct part *before = NULL;
	int w = field_width(r);

	for (size_t i = 0; i < r->n_parts; i++) {
		const struct part *part = &r->parts[i];

		if (!is_shown(part))
			continue;
		/* Fields stand together, all else has a line before it. */
		if (before && (part->kind != PART_FIELD ||
			       before->kind != PART_FIELD))
			fputc('\n', out);
		print_part(part, w, style, out);
		before = part;
	}
	return 0;
}

const struct print_ops print_table_ops = { .print = print };
