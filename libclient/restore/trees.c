/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/trees.h"

#include <assert.h>
#include <stdlib.h>

#include "base/util.h"
#include "restore/flow.h"
#include "restore/terms.h"

/* Most trees of one source that a rank stands in, but for its own one. */
#define TREES_MOST 16u
/* The pair of those who ask for most, whatever a round has room for: without,
 * their source would send all of it to each. */
#define TREES_LEAST 2u

/* What comes to a rank by all trees that it stands in. */
struct load {
	uint64_t bytes, wants, runs;
};

struct growing {
	struct sk_restoring *rs;
	const struct sk_terms *terms;
	const struct sk_asked *asked;
	struct sk_trees *trees;
	uint32_t *shared;	/* wants that several ask for, by who does */
	size_t n_shared;
	bool *taken;		/* per want: it stands in a tree */
	size_t *asked_on;	/* per node: the last want, and 1 */
	uint32_t *in;		/* per rank: trees that it stands in */
	struct load *loads;	/* per rank */
};

/* Wants that the same ranks ask for. */
struct group {
	size_t from, to;	/* of ->shared */
	uint64_t spared;	/* bytes that the source need not send */
};

static uint64_t bytes_of(const struct growing *g, size_t want)
{
	const struct sk_want *w =
		g->asked->asks[g->asked->wants[want].first].want;

	return w->to - w->from;
}

/* ---- which are shared alike ---- */

static int compare_askers(const struct sk_asked *a, uint32_t x, uint32_t y)
{
	const struct sk_asked_want *p = &a->wants[x], *q = &a->wants[y];

	if (p->n != q->n)
		return p->n < q->n ? -1 : 1;
	for (size_t i = 0; i < p->n; i++) {
		int32_t s = a->asks[p->first + i].rank;
		int32_t t = a->asks[q->first + i].rank;

		if (s != t)
			return s < t ? -1 : 1;
	}
	return 0;
}

/* Of wants that the same ranks ask for: who else of their nodes has them. */
static int compare_others(const struct sk_asked *a, size_t x, size_t y)
{
	const struct sk_asked_want *p = &a->wants[x], *q = &a->wants[y];

	assert(p->n == q->n);
	for (size_t i = 0; i < p->n; i++) {
		uint64_t s = a->asks[p->first + i].want->others;
		uint64_t t = a->asks[q->first + i].want->others;

		if (s != t)
			return s < t ? -1 : 1;
	}
	return 0;
}

static int by_askers(const void *x, const void *y, void *ctx)
{
	const struct sk_asked *a = ctx;
	uint32_t p = *(const uint32_t *)x, q = *(const uint32_t *)y;
	int c = compare_askers(a, p, q);

	c = c ? c : compare_others(a, p, q);
	return c ? c : (p > q) - (p < q);
}

static int by_spared(const void *x, const void *y)
{
	const struct group *a = x, *b = y;

	if (a->spared != b->spared)
		return a->spared > b->spared ? -1 : 1;
	return (a->from > b->from) - (a->from < b->from);
}

/* Nobody passes on to its own node: there is relay.h for that. Its ranks ask
 * for the same once, but for what they did not know of each other. */
static bool is_of_nodes(struct growing *g, size_t want)
{
	const struct sk_asked_want *w = &g->asked->wants[want];

	for (size_t i = w->first; i < w->first + w->n; i++) {
		int32_t node = g->rs->node_of[g->asked->asks[i].rank];

		if (g->asked_on[node] == want + 1)
			return false;
		g->asked_on[node] = want + 1;
	}
	return true;
}

static size_t list_groups(struct growing *g, struct group *groups)
{
	const struct sk_asked *a = g->asked;
	size_t n = 0;

	assert(g->shared);
	for (uint32_t i = 0; i < a->n_wants; i++)
		if (a->wants[i].n > 1 && is_of_nodes(g, i))
			g->shared[g->n_shared++] = i;
	qsort_r(g->shared, g->n_shared, sizeof(*g->shared), by_askers,
		(void *)a);
	for (size_t i = 0; i < g->n_shared; i++) {
		uint64_t others = a->wants[g->shared[i]].n - 1;

		if (!i || compare_askers(a, g->shared[i], g->shared[i - 1]))
			groups[n++] = (struct group){ i, i, 0 };
		groups[n - 1].to = i + 1;
		groups[n - 1].spared += others * bytes_of(g, g->shared[i]);
	}
	qsort(groups, n, sizeof(*groups), by_spared);
	return n;
}

/* ---- what a rank has room for ---- */

/* Of what comes to it in a round: this source's share. */
static uint64_t share_of(const struct growing *g, int32_t rank)
{
	struct sk_staging_size size = sk_terms_staging(
		g->rs, g->terms, g->rs->node_of[rank]);
	uint64_t in = g->terms->ranks[rank].flows_in;

	return sk_staging_window(&size) / (in ? in : 1);
}

static uint64_t units_of(const struct growing *g, int32_t rank)
{
	uint64_t in = g->terms->ranks[rank].flows_in;

	return SK_FLOW_UNITS / (in ? in : 1);
}

static uint64_t runs_of(const struct growing *g, int32_t rank)
{
	uint64_t in = g->terms->ranks[rank].flows_in;

	return SK_FLOW_RUNS / (in ? in : 1);
}

/* Each of them is messages of its own to who else of the node has it. */
static bool has_runs(const struct growing *g, int32_t rank, uint64_t trees)
{
	return g->terms->way != SK_WAY_RELAYS || trees <= TREES_LEAST ||
	       trees + 1 <= runs_of(g, rank);
}

/* Beside its own one. */
static bool has_room(const struct growing *g, int32_t rank, uint32_t more)
{
	uint64_t n = g->in[rank] + more, share = share_of(g, rank);

	return n <= TREES_MOST && has_runs(g, rank, n) &&
	       n + 1 <= units_of(g, rank) &&
	       n + 1 <= share / SK_FLOW_ALIGN;
}

/* ---- making them ---- */

static struct sk_tree *add_tree(struct growing *g, const struct sk_ask *members,
				size_t n, bool turned)
{
	struct sk_tree *t = &g->trees->v[g->trees->n++];

	*t = (struct sk_tree){ .first = g->trees->n_wants, .members = members,
			       .n_members = n, .turned = turned };
	for (size_t i = 0; i < n; i++)
		g->in[members[i].rank]++;
	return t;
}

/* @begins: others have it than have the one before. */
static void add_want(struct growing *g, struct sk_tree *t, size_t want,
		     size_t ask, bool begins)
{
	struct sk_trees *trees = g->trees;
	size_t at = trees->n_wants++;

	trees->wants[at] = *g->asked->asks[ask].want;
	trees->wants[at].others = t->n ? trees->wants[at - 1].others + begins :
					 0;
	trees->sourced[at] = g->asked->wants[want].sourced;
	trees->asks[at] = ask;
	t->n++;
	t->bytes += bytes_of(g, want);
	g->taken[want] = true;
}

/* The larger half is the first, as nearly as wants allow. */
static void grow(struct growing *g, const struct group *group)
{
	const struct sk_asked *a = g->asked;
	const struct sk_asked_want *any = &a->wants[g->shared[group->from]];
	uint64_t all = group->spared / (any->n - 1);
	struct sk_tree *t = add_tree(g, &a->asks[any->first], any->n, false);
	bool turned = false;

	for (size_t i = group->from; i < group->to; i++) {
		uint32_t want = g->shared[i];

		if (!turned && t->n && t->bytes >= all / 2) {
			t = add_tree(g, &a->asks[any->first], any->n, true);
			turned = true;
		}
		add_want(g, t, want, a->wants[want].first,
			 i > group->from &&
				 compare_others(a, want, g->shared[i - 1]));
	}
}

static void grow_shared(struct growing *g, const struct group *groups,
			size_t n)
{
	const struct sk_asked *a = g->asked;

	for (size_t i = 0; i < n; i++) {
		const struct sk_asked_want *any =
			&a->wants[g->shared[groups[i].from]];
		uint32_t trees = groups[i].to - groups[i].from > 1 ? 2 : 1;
		bool fits = true;

		for (size_t k = 0; k < any->n && fits; k++)
			fits = has_room(g, a->asks[any->first + k].rank,
					trees);
		if (fits)
			grow(g, &groups[i]);
	}
}

/* Wants of those asks that stand in no tree, by rank and in the order in which
 * it asks. */
struct left {
	size_t want, ask;
	const struct sk_ask *of;
};

static int by_rank(const void *x, const void *y)
{
	const struct left *a = x, *b = y;

	if (a->of->rank != b->of->rank)
		return a->of->rank < b->of->rank ? -1 : 1;
	return (a->of->index > b->of->index) - (a->of->index < b->of->index);
}

static int grow_straight(struct growing *g)
{
	const struct sk_asked *a = g->asked;
	_cleanup_free_ struct left *left = calloc(a->n + 1, sizeof(*left));
	struct sk_tree *t = NULL;
	size_t n = 0;

	if (!left)
		return sk_terms_no_memory(g->rs);
	for (size_t i = 0; i < a->n_wants; i++)
		for (size_t k = 0; !g->taken[i] && k < a->wants[i].n; k++) {
			size_t ask = a->wants[i].first + k;

			left[n++] = (struct left){ i, ask, &a->asks[ask] };
		}
	qsort(left, n, sizeof(*left), by_rank);
	for (size_t i = 0; i < n; i++) {
		if (!i || left[i].of->rank != left[i - 1].of->rank)
			t = add_tree(g, left[i].of, 1, false);
		add_want(g, t, left[i].want, left[i].ask,
			 i && left[i].of->want->others !=
				      left[i - 1].of->want->others);
	}
	return 0;
}

/* ---- how much goes in a round ---- */

/* Of @room for @n trees the part that @bytes of @all have; whole
 * SK_FLOW_ALIGN, one at least, and together no more than the room. */
static uint64_t part_of(uint64_t room, uint64_t n, uint64_t bytes,
			uint64_t all)
{
	uint64_t least = (n + 1) * SK_FLOW_ALIGN, more = 0;

	if (room > least)
		more = (uint64_t)((double)(room - least) * (double)bytes /
				  (double)all);
	return more / SK_FLOW_ALIGN * SK_FLOW_ALIGN + SK_FLOW_ALIGN;
}

/* The same of what is counted one by one: one at least. */
static uint64_t some_of(uint64_t room, uint64_t n, uint64_t part, uint64_t all)
{
	return 1 + (room > n ? (room - n) * part / all : 0);
}

/* Times that others have what comes than have what came before. */
static uint64_t runs_in(const struct growing *g, const struct sk_tree *t)
{
	return g->trees->wants[t->first + t->n - 1].others + 1;
}

static void limit(const struct growing *g, struct sk_tree *t, uint64_t window,
		  uint64_t all)
{
	t->cap = part_of(window, g->trees->n, t->bytes, all);
	t->units = SK_FLOW_UNITS;
	t->runs = SK_FLOW_RUNS;
	for (size_t i = 0; i < t->n_members; i++) {
		int32_t rank = t->members[i].rank;
		const struct load *l = &g->loads[rank];
		uint64_t n = g->in[rank];
		uint64_t cap = part_of(share_of(g, rank), n, t->bytes,
				       l->bytes);
		uint64_t units = some_of(units_of(g, rank), n, t->n, l->wants);
		uint64_t runs = some_of(runs_of(g, rank), n, runs_in(g, t),
					l->runs);

		t->cap = cap < t->cap ? cap : t->cap;
		t->units = units < t->units ? units : t->units;
		t->runs = runs < t->runs ? runs : t->runs;
	}
}

static void add_load(struct growing *g, const struct sk_tree *t)
{
	for (size_t i = 0; i < t->n_members; i++) {
		struct load *l = &g->loads[t->members[i].rank];

		l->bytes += t->bytes;
		l->wants += t->n;
		l->runs += runs_in(g, t);
	}
}

static void limit_all(struct growing *g)
{
	struct sk_trees *trees = g->trees;
	uint64_t all = 0;

	for (size_t i = 0; i < trees->n; i++) {
		add_load(g, &trees->v[i]);
		all += trees->v[i].bytes;
	}
	for (size_t i = 0; i < trees->n; i++)
		limit(g, &trees->v[i],
		      sk_terms_window(g->terms, g->terms->n_out), all);
}

/* ---- all of them ---- */

static int make_room(struct growing *g)
{
	size_t n = g->asked->n, world = (size_t)g->rs->state->job.world;
	struct sk_trees *t = g->trees;

	/* A pair of trees for each want, at most, or one for each ask. */
	t->v = calloc(n + 1, sizeof(*t->v));
	t->wants = calloc(n + 1, sizeof(*t->wants));
	t->sourced = calloc(n + 1, sizeof(*t->sourced));
	t->asks = calloc(n + 1, sizeof(*t->asks));
	g->shared = calloc(n + 1, sizeof(*g->shared));
	g->taken = calloc(n + 1, sizeof(*g->taken));
	g->asked_on = calloc(world, sizeof(*g->asked_on));
	g->in = calloc(world, sizeof(*g->in));
	g->loads = calloc(world, sizeof(*g->loads));
	return t->v && t->wants && t->sourced && t->asks && g->shared &&
	       g->taken && g->asked_on && g->in && g->loads ?
		       0 : sk_terms_no_memory(g->rs);
}

static int grow_all(struct growing *g)
{
	_cleanup_free_ struct group *groups = NULL;
	int r = make_room(g);

	if (r < 0)
		return r;
	groups = calloc(g->asked->n_wants + 1, sizeof(*groups));
	if (!groups)
		return sk_terms_no_memory(g->rs);
	if (g->asked->several)
		grow_shared(g, groups, list_groups(g, groups));
	r = grow_straight(g);
	if (r >= 0 && g->terms->passed)
		limit_all(g);
	return r;
}

int sk_trees_make(struct sk_restoring *rs, const struct sk_terms *terms,
		  struct sk_trees *ret)
{
	struct growing g = { .rs = rs, .terms = terms,
			     .asked = &terms->asked, .trees = ret };
	int r;

	*ret = (struct sk_trees){ 0 };
	r = grow_all(&g);
	free(g.shared);
	free(g.taken);
	free(g.asked_on);
	free(g.in);
	free(g.loads);
	return r;
}

void sk_trees_free(struct sk_trees *trees)
{
	free(trees->v);
	free(trees->wants);
	free(trees->sourced);
	free(trees->asks);
}

/* ---- who stands where ---- */

int32_t sk_tree_member(const struct sk_tree *t, size_t i)
{
	assert(i < t->n_members);
	return t->members[t->turned ? t->n_members - 1 - i : i].rank;
}

struct sk_place_in_tree sk_tree_place(const struct sk_tree *t, size_t i)
{
	struct sk_place_in_tree place = { -1, { -1, -1 }, 0 };

	if (i)
		place.parent = sk_tree_member(t, (i - 1) / 2);
	for (size_t k = 0; k < 2; k++)
		if (2 * i + 1 + k < t->n_members)
			place.children[k] = sk_tree_member(t, 2 * i + 1 + k);
	for (; i; i = (i - 1) / 2)
		place.depth++;
	return place;
}
