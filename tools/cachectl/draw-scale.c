/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing: who is in a cell, and how large the cells are. */
#include "draw-private.h"

#include <stdio.h>
#include <string.h>

#include "base/util.h"

#define TALL 24		/* lines of a grid that has no need of more */

/* ---- who is in a cell ---- */

static bool holds(const struct drawing *d, const struct sk_box *b,
		  int row, int col)
{
	for (int i = 0; i < d->ndim; i++) {
		int64_t at = i == d->rows ? cut_at(d, i, row) :
			     i == d->cols ? cut_at(d, i, col) : d->at[i];

		if (at < b->offset[i] || at >= b->offset[i] + b->size[i])
			return false;
	}
	return true;
}

struct list {
	char *buf;
	int at, room, more;
	int32_t from, to;	/* a range that is not written yet; -1: none */
};

static void write_range(struct list *l)
{
	char text[40];
	int n;

	if (l->from < 0)
		return;
	n = snprintf(text, sizeof(text), l->to > l->from + 1 ? "%s%d-%d" :
		     l->to > l->from ? "%s%d,%d" : "%s%d",
		     l->at ? "," : "", l->from, l->to);
	/* Whatever comes after must still be counted: "+13". */
	if (l->more || (l->at && l->at + n > l->room)) {
		l->more += l->to - l->from + 1;
		return;
	}
	l->at += snprintf(l->buf + l->at, (size_t)(CELL_TEXT - l->at), "%s",
			  text);
}

void draw_cell(const struct drawing *d, int row, int col,
	       char buf[CELL_TEXT])
{
	struct list l = { .buf = buf, .room = d->room, .from = -1, .to = -1 };

	strcpy(buf, ".");
	for (size_t i = 0; i < d->n; i++) {
		int32_t rank = d->parts[i].rank;

		if (rank == l.to || !holds(d, &d->parts[i].box, row, col))
			continue;
		if (l.from >= 0 && rank == l.to + 1) {
			l.to = rank;
			continue;
		}
		write_range(&l);
		l.from = l.to = rank;
	}
	write_range(&l);
	if (l.more)
		(void)snprintf(buf + l.at, (size_t)(CELL_TEXT - l.at), ",+%d",
			       l.more);
}

/* ---- to scale ---- */

static void narrowest(const struct drawing *d, int ret[CUTS_MAX])
{
	char buf[CELL_TEXT];

	for (int j = 0; j < cells(d, d->cols); j++) {
		ret[j] = 1;
		for (int i = 0; i < cells(d, d->rows); i++) {
			int w;

			draw_cell(d, i, j, buf);
			w = (int)strlen(buf) + 2 * d->pad;
			ret[j] = w > ret[j] ? w : ret[j];
		}
	}
}

/*
 * Lengths of the cells of a dimension, in proportion to their sizes where the
 * least of each allows it, @want in all but never more than @most; the border
 * of each counts. False: they do not fit.
 */
static bool scale(const struct drawing *d, int dim, const int *least,
		  int want, int most, int ret[CUTS_MAX])
{
	int n = cells(d, dim);

	for (want = want < most ? want : most; want >= 0; want--) {
		int sum = 0;

		for (int i = 0; i < n; i++) {
			double part = dim < 0 ? 1 :
				(double)(cut_at(d, dim, i + 1) -
					 cut_at(d, dim, i)) /
				(double)cut_at(d, dim, n);
			int length = (int)(part * want + 0.5) - 1;

			ret[i] = length > least[i] ? length : least[i];
			sum += ret[i] + 1;
		}
		if (sum <= most)
			return true;
	}
	return false;
}

static int total(const int *lengths, int n)
{
	int sum = 0;

	for (int i = 0; i < n; i++)
		sum += lengths[i] + 1;
	return sum;
}

/* A character is about twice as high as it is wide. */
static bool fit(struct drawing *d, int room, int pad)
{
	int least[CUTS_MAX], most = LINE - d->label - 2, wide = most;
	int one[CUTS_MAX];
	double shape = d->cols < 0 ? 1 :
		(double)cut_at(d, d->rows, cells(d, d->rows)) /
		(double)cut_at(d, d->cols, cells(d, d->cols));

	d->room = room;
	d->pad = pad;
	if (shape * wide / 2 > TALL)
		wide = (int)(TALL * 2 / shape);
	narrowest(d, least);
	if (!scale(d, d->cols, least, d->cols < 0 ? 0 : wide, most,
		   d->widths))
		return false;
	for (int i = 0; i < CUTS_MAX; i++)
		one[i] = 1;
	wide = total(d->widths, cells(d, d->cols));
	shape = shape * wide / 2;
	return scale(d, d->rows, one, d->cols < 0 || shape > TALL ? TALL :
		     (int)shape, LINE * CUTS_MAX, d->heights);
}

bool draw_fit(struct drawing *d)
{
	static const int tries[][2] = { { 60, 1 }, { 24, 1 }, { 12, 1 },
					{ 6, 0 }, { 1, 0 } };

	for (size_t i = 0; i < SK_ARRAY_SIZE(tries); i++)
		if (fit(d, tries[i][0], tries[i][1]))
			return true;
	return false;
}
