/* SPDX-License-Identifier: Apache-2.0 */
/* What draw.c, which has the ink, and draw-scale.c, which measures, share. */
#ifndef SK_CACHECTL_DRAW_PRIVATE_H
#define SK_CACHECTL_DRAW_PRIVATE_H

#include "draw.h"

#define CUTS_MAX 65	/* more rows or columns than this nobody reads */
#define LINE 80		/* columns of a screen */
#define CELL_TEXT 72

struct cuts {
	int64_t at[CUTS_MAX];
	int n;			/* cuts; cells are n - 1 */
	bool full;
};

struct drawing {
	struct report *report;
	int ndim;
	const struct draw_part *parts;
	size_t n;
	struct cuts cuts[SK_MAX_DIMS];
	int rows, cols;			/* dimensions; -1: none */
	int64_t at[SK_MAX_DIMS];	/* of the plane, in the others */
	int room, pad;			/* of the text in a cell */
	int label;			/* width of the numbers on the left */
	int widths[CUTS_MAX], heights[CUTS_MAX];
};

/** Cells of a dimension, and where they begin; -1 has one cell. */
static inline int cells(const struct drawing *d, int dim)
{
	return dim < 0 ? 1 : d->cuts[dim].n - 1;
}

static inline int64_t cut_at(const struct drawing *d, int dim, int i)
{
	return dim < 0 ? i : d->cuts[dim].at[i];
}

/** "0-3,7" or "0,2,4,+13": who holds the cell; "." where nobody does. */
void draw_cell(const struct drawing *d, int row, int col,
	       char buf[CELL_TEXT]);
/** Measures the cells of the plane, with as much text as there is room for.
 * False: there is none. */
bool draw_fit(struct drawing *d);

#endif
