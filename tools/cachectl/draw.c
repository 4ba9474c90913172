/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws a tensor as a grid: a cell is a box, in it the ranks that hold it.
 * Rows are dimension 0, columns dimension 1; dimensions beyond are taken at
 * index 0. The cuts are those of the parts, so uneven shards show.
 */
#include "cachectl.h"

#include <stdio.h>
#include <string.h>

#define CUTS_MAX 65	/* more rows or columns than this nobody reads */
#define CELL_TEXT 24

struct cuts {
	int64_t at[CUTS_MAX];
	int n;			/* cuts; cells are n - 1 */
	bool full;
};

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

static bool in_plane(int ndim, const struct sk_box *box)
{
	if (sk_box_empty(ndim, box))
		return false;
	for (int d = 2; d < ndim; d++)
		if (box->offset[d] > 0)
			return false;
	return true;
}

static void collect(struct cuts *cuts, int d, int ndim, int64_t whole,
		    const struct draw_part *parts, size_t n)
{
	add_cut(cuts, 0);
	add_cut(cuts, ndim > d ? whole : 1);
	for (size_t i = 0; i < n && ndim > d; i++) {
		const struct sk_box *b = &parts[i].box;

		if (!in_plane(ndim, b))
			continue;
		add_cut(cuts, b->offset[d]);
		add_cut(cuts, b->offset[d] + b->size[d]);
	}
}

static bool holds(int ndim, const struct sk_box *b, int64_t row, int64_t col)
{
	const int64_t at[2] = { row, col };

	if (!in_plane(ndim, b))
		return false;
	for (int d = 0; d < 2 && d < ndim; d++)
		if (at[d] < b->offset[d] || at[d] >= b->offset[d] + b->size[d])
			return false;
	return true;
}

/* "0,4" or "0,1,2,+13": who holds the element. "." where nobody does. */
static void cell_text(int ndim, const struct draw_part *parts, size_t n,
		      int64_t row, int64_t col, char buf[CELL_TEXT])
{
	int at = 0, more = 0;
	int32_t last = -1;

	buf[0] = 0;
	for (size_t i = 0; i < n; i++) {
		if (parts[i].rank == last ||
		    !holds(ndim, &parts[i].box, row, col))
			continue;
		last = parts[i].rank;
		if (at > CELL_TEXT - 16) {
			more++;
			continue;
		}
		at += snprintf(buf + at, (size_t)(CELL_TEXT - at), "%s%d",
			       at ? "," : "", last);
	}
	if (more)
		(void)snprintf(buf + at, (size_t)(CELL_TEXT - at), ",+%d",
			       more);
	if (!buf[0])
		strcpy(buf, ".");
}

static int cell_width(int ndim, const struct draw_part *parts, size_t n,
		      const struct cuts *rows, const struct cuts *cols)
{
	char buf[CELL_TEXT];
	int w = 3;

	for (int i = 0; i + 1 < rows->n; i++)
		for (int j = 0; j + 1 < cols->n; j++) {
			cell_text(ndim, parts, n, rows->at[i], cols->at[j],
				  buf);
			if ((int)strlen(buf) > w)
				w = (int)strlen(buf);
		}
	for (int j = 0; j < cols->n; j++) {
		int k = snprintf(NULL, 0, "%lld", (long long)cols->at[j]);

		w = k > w ? k : w;
	}
	return w;
}

static void rule(struct report *r, int cells, int w)
{
	report_draw(r, "%10s", "");
	for (int j = 0; j < cells; j++) {
		report_draw(r, "+");
		for (int k = 0; k < w + 2; k++)
			report_draw(r, "-");
	}
	report_draw(r, "+\n");
}

static void head(struct report *r, const struct cuts *cols, int w)
{
	report_draw(r, "%10s", "");
	for (int j = 0; j < cols->n; j++)
		report_draw(r, "%-*lld", w + 3, (long long)cols->at[j]);
	report_draw(r, "\n");
}

static void grid(struct report *r, int ndim, const struct draw_part *parts,
		 size_t n, const struct cuts *rows, const struct cuts *cols)
{
	int w = cell_width(ndim, parts, n, rows, cols);
	char buf[CELL_TEXT];

	if (ndim > 1)
		head(r, cols, w);
	for (int i = 0; i + 1 < rows->n; i++) {
		rule(r, cols->n - 1, w);
		report_draw(r, "%9lld ", (long long)rows->at[i]);
		for (int j = 0; j + 1 < cols->n; j++) {
			cell_text(ndim, parts, n, rows->at[i], cols->at[j],
				  buf);
			report_draw(r, "| %-*s ", w, buf);
		}
		report_draw(r, "|\n");
	}
	rule(r, cols->n - 1, w);
	report_draw(r, "%9lld\n", (long long)rows->at[rows->n - 1]);
}

void draw_tensor(struct report *r, const char *name, int ndim,
		 const int64_t *shape, const struct draw_part *parts, size_t n)
{
	struct cuts rows = { 0 }, cols = { 0 };

	for (int d = 0; d < ndim; d++)
		if (shape[d] == 0) {
			report_draw(r, "%s has no elements\n", name);
			return;
		}
	collect(&rows, 0, ndim, ndim > 0 ? shape[0] : 1, parts, n);
	collect(&cols, 1, ndim, ndim > 1 ? shape[1] : 1, parts, n);
	if (rows.full || cols.full) {
		report_draw(r, "%s is cut too finely to draw; its boxes are "
			    "in the table\n", name);
		return;
	}
	report_draw(r, "%s: ranks that hold each part; rows are dimension 0"
		    "%s%s\n", name, ndim > 1 ? ", columns dimension 1" : "",
		    ndim > 2 ? ", the others at index 0" : "");
	grid(r, ndim, parts, n, &rows, &cols);
}
