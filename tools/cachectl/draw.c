/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws a tensor as a grid: a cell is a box, in it the ranks that hold it.
 * Rows and columns are dimensions that are cut; where more than two are, there
 * is one grid for each piece of the others. The cuts are those of the parts,
 * and to scale, so uneven shards show.
 */
#include "draw-private.h"

#include <stdio.h>
#include <string.h>

#define PLANES_MAX 16

/* ---- the cuts ---- */

static void add_cut(struct cuts *cuts, int64_t v)
{
	int i = cuts->n;

	while (i > 0 && cuts->at[i - 1] > v)
		i--;
	if (i > 0 && cuts->at[i - 1] == v)
		return;
	if (cuts->n == CUTS_MAX) {
		cuts->full = true;
		return;
	}
	memmove(&cuts->at[i + 1], &cuts->at[i],
		(size_t)(cuts->n - i) * sizeof(cuts->at[0]));
	cuts->at[i] = v;
	cuts->n++;
}

/* False: more cuts than anybody reads. */
static bool collect(struct drawing *d, const int64_t *shape)
{
	for (int i = 0; i < d->ndim; i++) {
		struct cuts *cuts = &d->cuts[i];

		add_cut(cuts, 0);
		add_cut(cuts, shape[i]);
		for (size_t k = 0; k < d->n && !cuts->full; k++) {
			const struct sk_box *b = &d->parts[k].box;

			if (sk_box_empty(d->ndim, b))
				continue;
			add_cut(cuts, b->offset[i]);
			add_cut(cuts, b->offset[i] + b->size[i]);
		}
		if (cuts->full)
			return false;
	}
	return true;
}

/* The first two that are cut; if there are fewer, the first that are not. */
static void choose_plane(struct drawing *d)
{
	int chosen[2] = { -1, -1 }, n = 0;

	for (int i = 0; i < d->ndim && n < 2; i++)
		if (d->cuts[i].n > 2)
			chosen[n++] = i;
	for (int i = 0; i < d->ndim && n < 2; i++)
		if (i != chosen[0])
			chosen[n++] = i;
	d->rows = n == 2 && chosen[0] > chosen[1] ? chosen[1] : chosen[0];
	d->cols = d->rows == chosen[0] ? chosen[1] : chosen[0];
}

/* ---- ink ---- */

static void rule(const struct drawing *d)
{
	report_draw(d->report, "%*s ", d->label, "");
	for (int j = 0; j < cells(d, d->cols); j++) {
		report_draw(d->report, "+");
		for (int k = 0; k < d->widths[j]; k++)
			report_draw(d->report, "-");
	}
	report_draw(d->report, "+\n");
}

/* Where each column begins; a number that has no room is left out. */
static void head(const struct drawing *d)
{
	int at = 0, border = 0;
	char number[24];

	report_draw(d->report, "%*s ", d->label, "");
	for (int j = 0; j <= cells(d, d->cols); j++) {
		int n = snprintf(number, sizeof(number), "%lld",
				 (long long)cut_at(d, d->cols, j));
		int end = d->label + 1 + border + n;

		if ((!j || border > at) && end <= LINE) {
			report_draw(d->report, "%*s%s", border - at, "",
				    number);
			at = border + n;
		}
		border += d->widths[j] + 1;
	}
	report_draw(d->report, "\n");
}

static void line(const struct drawing *d, int row, bool text)
{
	char buf[CELL_TEXT];

	for (int j = 0; j < cells(d, d->cols); j++) {
		int w = d->widths[j], left, n;

		if (text)
			draw_cell(d, row, j, buf);
		else
			buf[0] = 0;
		n = (int)strlen(buf);
		left = (w - n) / 2;
		report_draw(d->report, "|%*s%s%*s", left, "", buf,
			    w - n - left, "");
	}
	report_draw(d->report, "|\n");
}

static void grid(const struct drawing *d)
{
	int rows = cells(d, d->rows);

	if (d->cols >= 0)
		head(d);
	for (int i = 0; i < rows; i++) {
		rule(d);
		for (int k = 0; k < d->heights[i]; k++) {
			if (k)
				report_draw(d->report, "%*s ", d->label, "");
			else
				report_draw(d->report, "%*lld ", d->label,
					    (long long)cut_at(d, d->rows, i));
			line(d, i, k == (d->heights[i] - 1) / 2);
		}
	}
	rule(d);
	report_draw(d->report, "%*lld\n", d->label,
		    (long long)cut_at(d, d->rows, rows));
}

/* ---- planes ---- */

static bool is_other(const struct drawing *d, int dim)
{
	return dim != d->rows && dim != d->cols && d->cuts[dim].n > 2;
}

/* The next piece of the dimensions that are cut as well; false: no more. */
static bool next_plane(struct drawing *d, int index[SK_MAX_DIMS])
{
	for (int i = d->ndim - 1; i >= 0; i--) {
		if (!is_other(d, i))
			continue;
		index[i] = (index[i] + 1) % cells(d, i);
		d->at[i] = cut_at(d, i, index[i]);
		if (index[i])
			return true;
	}
	return false;
}

static void say_plane(const struct drawing *d, const int index[SK_MAX_DIMS])
{
	const char *before = "at";

	for (int i = 0; i < d->ndim; i++) {
		if (!is_other(d, i))
			continue;
		report_draw(d->report, "%s %lld:%lld of dimension %d", before,
			    (long long)cut_at(d, i, index[i]),
			    (long long)cut_at(d, i, index[i] + 1), i);
		before = ",";
	}
	if (*before == ',')
		report_draw(d->report, ":\n");
}

static void planes(struct drawing *d)
{
	int index[SK_MAX_DIMS] = { 0 }, n = 0;

	do {
		if (n++ == PLANES_MAX) {
			report_draw(d->report, "... and more; the table of "
				    "boxes has them all\n");
			return;
		}
		say_plane(d, index);
		if (draw_fit(d))
			grid(d);
		else
			report_draw(d->report, "cut too finely to draw; the "
				    "table of boxes has it\n");
	} while (next_plane(d, index));
}

static void say_title(const struct drawing *d, const char *name)
{
	char cut[41];

	report_draw(d->report, "%s: ranks that hold each part",
		    format_name(name, 40, cut, sizeof(cut)));
	if (d->rows >= 0)
		report_draw(d->report, ";\nrows are dimension %d", d->rows);
	if (d->cols >= 0)
		report_draw(d->report, ", columns dimension %d", d->cols);
	report_draw(d->report, "\n");
}

static int label_width(const struct drawing *d)
{
	int n = d->rows < 0 ? 1 :
		snprintf(NULL, 0, "%lld", (long long)
			 cut_at(d, d->rows, cells(d, d->rows)));

	return n > 4 ? n : 4;
}

void draw_tensor(struct report *r, const char *name, int ndim,
		 const int64_t *shape, const struct draw_part *parts, size_t n)
{
	struct drawing d = { .report = r, .ndim = ndim, .parts = parts,
			     .n = n };
	char cut[41];

	for (int i = 0; i < ndim; i++)
		if (shape[i] == 0) {
			report_draw(r, "%s has no elements\n",
				    format_name(name, 40, cut, sizeof(cut)));
			return;
		}
	if (!collect(&d, shape)) {
		report_draw(r, "%s is cut too finely to draw;\n"
			    "the table of boxes has it\n",
			    format_name(name, 40, cut, sizeof(cut)));
		return;
	}
	choose_plane(&d);
	d.label = label_width(&d);
	say_title(&d, name);
	planes(&d);
}
