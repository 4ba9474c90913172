/* SPDX-License-Identifier: Apache-2.0 */
/* What has to pass between nodes, by arithmetic, and what did. */
#include "nodes.h"

#include <assert.h>

#include "base/util.h"

#define BAR 1.05	/* of what is needed */

static const struct nodes_kind kinds[] = {
	{ PHASE_NODES_COLUMNS, PHASE_NODES_COLUMNS_COMM, CUT_COLUMNS, 0, false,
	  "columns for rows" },
	{ PHASE_NODES_MOVED, PHASE_NODES_MOVED_COMM, CUT_ROWS, 1, false,
	  "each rank on the next node" },
	{ PHASE_NODES_WITHIN, PHASE_NODES_WITHIN_COMM, CUT_WITHIN, 0, true,
	  "all of it on each node" },
	{ PHASE_NODES_ACROSS, PHASE_NODES_ACROSS_COMM, CUT_ACROSS, 0, true,
	  "a node's columns on each of its ranks" },
};
static_assert(SK_ARRAY_SIZE(kinds) == NODES_KINDS, "room for each");

const struct nodes_kind *nodes_kind(const struct bench *b, int k)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(kinds); i++) {
		if (kinds[i].several &&
		    (b->o.ranks == b->o.nodes || !b->o.more_meshes))
			continue;
		if (k-- == 0)
			return &kinds[i];
	}
	return NULL;
}

/* ---- what has to ---- */

/* Rows, or columns. */
struct range {
	int64_t from, to;
};

/* Parts [first, first + n) of @all in so many parts. */
static struct range parts(int64_t all, int of, int first, int n)
{
	int64_t each = (all + of - 1) / of;
	struct range r = { first * each, (first + n) * each };

	r.from = r.from < all ? r.from : all;
	r.to = r.to < all ? r.to : all;
	return r;
}

static int64_t length(struct range r)
{
	return r.to - r.from;
}

static int64_t overlap(struct range a, struct range b)
{
	int64_t from = a.from > b.from ? a.from : b.from;
	int64_t to = a.to < b.to ? a.to : b.to;

	return to > from ? to - from : 0;
}

/* Elements of a matrix that the node's ranks want and its memory lacks. */
static int64_t lacks(const struct bench *b, const struct nodes_kind *kind,
		     int node, int64_t rows, int64_t columns)
{
	int nodes = b->o.nodes, per = b->o.ranks / nodes;
	int as = (node + nodes - kind->moved) % nodes;
	struct range has = parts(rows, b->o.ranks, node * per, per);
	struct range r = { 0, rows }, c = { 0, columns };

	if (kind->cut == CUT_ROWS)
		r = parts(rows, b->o.ranks, as * per, per);
	if (kind->cut == CUT_COLUMNS)
		c = parts(columns, b->o.ranks, as * per, per);
	if (kind->cut == CUT_ACROSS)
		c = parts(columns, nodes, as, 1);
	return (length(r) - overlap(r, has)) * length(c);
}

uint64_t nodes_needed(const struct bench *b, const struct nodes_kind *kind,
		      int64_t rows, int64_t columns)
{
	int64_t sum = 0;

	for (int node = 0; node < b->o.nodes; node++)
		sum += lacks(b, kind, node, rows, columns);
	return (uint64_t)sum * 4 * (uint64_t)b->o.tensors;
}

/* ---- what did ---- */

static void keep_most(uint64_t *most, uint64_t v)
{
	*most = v > *most ? v : *most;
}

void nodes_add(struct bench *b, const struct nodes_kind *kind,
	       const struct nodes_count *counts)
{
	struct traffic *t = &b->traffic[kind - kinds];
	uint64_t received = 0, sent = 0, passed = 0, verified = 0;
	double all = (double)counts[0].rows * (double)counts[0].columns * 4 *
		     b->o.tensors;

	for (int i = 0; i < b->o.ranks; i++) {
		received += counts[i].received;
		sent += counts[i].sent;
		passed += counts[i].passed;
		verified += counts[i].verified;
		keep_most(&t->most, counts[i].sent);
	}
	t->needed = nodes_needed(b, kind, counts[0].rows, counts[0].columns);
	keep_most(&t->received, received);
	keep_most(&t->sent, sent);
	keep_most(&t->passed, passed);
	if ((double)verified / all > t->hashed)
		t->hashed = (double)verified / all;
}

static const struct column columns[] = {
	{ "restore", "RESTORE" }, { "needed", "NEEDED" },
	{ "received", "RECEIVED" }, { "sent", "SENT" },
	{ "passed", "PASSED ON" }, { "most", "MOST BY A RANK" },
	{ "hashed", NULL }, { NULL, "HASHED / THERE IS" },
	{ "ratio", NULL }, { NULL, "SENT / NEEDED" }, { "bar", "BAR" },
	{ "met", "MET" },
};

static void add_row(struct report *r, const char *what,
		    const struct traffic *t)
{
	double ratio = (double)t->sent / (double)t->needed;

	report_cell_text(r, "%s", what);
	report_cell(r, CELL_BYTES, (int64_t)t->needed);
	report_cell(r, CELL_BYTES, (int64_t)t->received);
	report_cell(r, CELL_BYTES, (int64_t)t->sent);
	report_cell(r, CELL_BYTES, (int64_t)t->passed);
	report_cell(r, CELL_BYTES, (int64_t)t->most);
	report_cell_real(r, t->hashed);
	report_cell_text(r, "%.3f x", t->hashed);
	report_cell_real(r, ratio);
	report_cell_text(r, "%.3f x", ratio);
	report_cell_text(r, "<= %g x", BAR);
	report_cell_text(r, "%s", ratio <= BAR ? "yes" : "NO");
}

void nodes_report(struct report *r, const struct bench *b)
{
	const struct nodes_kind *kind;
	bool any = false;

	for (int k = 0; (kind = nodes_kind(b, k)); k++) {
		const struct traffic *t = &b->traffic[kind - kinds];

		if (!t->needed)
			continue;
		if (!any)
			report_table(r, "between_nodes", "between nodes",
				     columns, SK_ARRAY_SIZE(columns));
		any = true;
		add_row(r, kind->what, t);
	}
}
