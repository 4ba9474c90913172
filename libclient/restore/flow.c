/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/flow.h"

#include <assert.h>

#include "base/util.h"

#define SUM_BYTES 8u	/* an XXH3 */

uint64_t sk_flow_cut(struct sk_flow *f, struct sk_flow_part *parts,
		     size_t *n_parts)
{
	uint64_t bytes = 0;
	size_t runs = 1;

	assert(f->cap && f->units && f->runs);
	for (size_t k = 0; k < f->units && f->at < f->n; k++) {
		const struct sk_want *w = &f->wants[f->at];
		uint64_t left = w->to - w->from - f->done;
		uint64_t n = left < f->cap - bytes ? left : f->cap - bytes;

		if (!n || (k && w->others != w[-1].others &&
			   ++runs > f->runs))
			break;
		if (parts)
			parts[(*n_parts)++] = (struct sk_flow_part){
				.flow = f,
				.want = f->at,
				.from = w->from + f->done,
				.to = w->from + f->done + n,
				.offset = f->base + bytes,
			};
		bytes += n;
		f->done += n;
		if (n < left)
			break;
		f->at++;
		f->done = 0;
	}
	return bytes;
}

void sk_flows_cut(struct sk_flow *v, size_t n, uint64_t round,
		  uint64_t sum_bytes, struct sk_flow_part *parts,
		  size_t *n_parts)
{
	for (size_t i = 0; i < n; i++) {
		const struct sk_flow *before = i ? &v[i - 1] : NULL;

		if (before && before->rank == v[i].rank && !v[i].apart)
			v[i].base = before->base + before->bytes +
				    (before->bytes ? sum_bytes : 0);
		v[i].bytes = 0;
		if (round >= v[i].delay)
			v[i].bytes = sk_flow_cut(&v[i], v[i].from ? NULL :
						 parts, n_parts);
	}
}

size_t sk_flows_together(const struct sk_flow *v, size_t n, size_t i)
{
	size_t k = i + 1;

	assert(i < n);
	while (k < n && v[k].rank == v[i].rank && !v[k].apart)
		k++;
	return k - i;
}

uint64_t sk_flows_message(const struct sk_flow *v, size_t n,
			  uint64_t sum_bytes, uint64_t *ret_sums)
{
	uint64_t bytes = 0;

	*ret_sums = 0;
	for (size_t i = 0; i < n; i++) {
		bytes += v[i].bytes;
		*ret_sums += v[i].bytes ? sum_bytes : 0;
	}
	return bytes + *ret_sums;
}

uint64_t sk_flow_rounds(const struct sk_flow *flow)
{
	struct sk_flow f = *flow;
	uint64_t rounds = f.delay;

	f.at = 0;
	f.done = 0;
	while (sk_flow_cut(&f, NULL, NULL))
		rounds++;
	return rounds;
}

/* ---- those of a rank ---- */

/* What goes from one rank to another in a round, at most; both know it. */
static void limit(const struct sk_restoring *rs, const struct sk_terms *t,
		  int32_t from, int32_t to, struct sk_flow *f)
{
	struct sk_staging_size size = sk_terms_staging(rs, t, rs->node_of[to]);
	uint64_t in = t->ranks[to].flows_in, out = t->ranks[from].flows_out;
	uint64_t cap = sk_staging_window(&size) / (in ? in : 1);
	uint64_t sent = sk_terms_window(t, out) / (out ? out : 1);

	cap = (cap < sent ? cap : sent) / SK_FLOW_ALIGN * SK_FLOW_ALIGN;
	f->cap = cap > SK_FLOW_ALIGN ? cap : SK_FLOW_ALIGN;
	f->units = SK_FLOW_UNITS / (in ? in : 1);
	f->units = f->units ? f->units : 1;
	f->runs = SK_FLOW_RUNS / (in ? in : 1);
	f->runs = f->runs ? f->runs : 1;
}

/* Beginnings are apart by what a round takes, its sum included; what goes
 * between the same two lies together. From device to device what is passed on
 * stays where it landed. */
static uint64_t place_flows(enum sk_way way, struct sk_flow *v, size_t n,
			    uint64_t sum_bytes)
{
	uint64_t base = 0;

	for (size_t i = 0; i < n; i++) {
		v[i].apart = way != SK_WAY_HOST;
		v[i].base = base;
		base += v[i].apart && v[i].from ? 0 : v[i].cap;
		v[i].cap -= sum_bytes;
	}
	return base;
}

/* From each source what it is asked for. */
static void make_in(const struct sk_restoring *rs, const struct sk_terms *t,
		    struct sk_flows *flows)
{
	const struct sk_wants *w = &t->wants;

	for (size_t i = 0, k; i < w->n_fetched; i = k) {
		struct sk_flow *f = &flows->in[flows->n_in++];

		for (k = i; k < w->n_fetched &&
		     w->fetched[k].source == w->fetched[i].source;)
			k++;
		*f = (struct sk_flow){
			.rank = w->fetched[i].source,
			.wants = &w->fetched[i],
			.first = i,
			.n = k - i,
			.children = { -1, -1 },
		};
		limit(rs, t, f->rank, rs->state->job.rank, f);
	}
	assert(flows->n_in == t->n_in);
}

/* From whom the source has said. */
static void make_in_passed(const struct sk_terms *t, struct sk_flows *flows)
{
	for (size_t i = 0; i < t->n_branches; i++) {
		const struct sk_branch *b = &t->branches[i];

		flows->in[flows->n_in++] = (struct sk_flow){
			.rank = b->word.parent,
			.wants = &t->wants.fetched[b->first],
			.first = b->first,
			.n = b->word.n,
			.cap = b->word.cap,
			.units = b->word.units,
			.runs = b->word.runs,
			.delay = (uint64_t)b->word.depth *
				 sk_tree_rounds(t->way),
			.children = { b->word.children[0],
				      b->word.children[1] },
			.source = b->source,
			.number = b->word.number,
		};
	}
}

/* To the first who stands in each tree; whoever else does is passed it on. */
static void make_out(const struct sk_restoring *rs, const struct sk_terms *t,
		     struct sk_flows *flows)
{
	for (uint32_t i = 0; i < t->trees.n; i++) {
		const struct sk_tree *tree = &t->trees.v[i];
		struct sk_flow *f = &flows->out[flows->n_out++];

		*f = (struct sk_flow){
			.rank = sk_tree_member(tree, 0),
			.wants = &t->trees.wants[tree->first],
			.sourced = &t->trees.sourced[tree->first],
			.n = tree->n,
			.cap = tree->cap,
			.units = tree->units,
			.runs = tree->runs,
			.children = { -1, -1 },
			.source = rs->state->job.rank,
			.number = i,
		};
		if (!t->passed)
			limit(rs, t, rs->state->job.rank, f->rank, f);
	}
}

static void make_out_passed(const struct sk_terms *t, struct sk_flows *flows)
{
	for (size_t i = 0; i < flows->n_in; i++) {
		const struct sk_flow *in = &flows->in[i];

		for (size_t k = 0; k < 2; k++) {
			struct sk_flow *f = &flows->out[flows->n_out];

			if (in->children[k] < 0)
				continue;
			*f = *in;
			f->rank = in->children[k];
			f->from = in;
			f->delay += sk_tree_rounds(t->way);
			flows->n_out++;
		}
	}
}

static int by_rank(const void *a, const void *b)
{
	const struct sk_flow *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	if (x->source != y->source)
		return x->source < y->source ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

static int make_room(struct sk_restoring *rs, const struct sk_terms *t,
		     struct sk_flows *flows)
{
	size_t in = t->passed ? t->n_branches : t->n_in;
	size_t out = t->trees.n + (t->passed ? 2 * in : 0);

	flows->in = calloc(in + 1, sizeof(*flows->in));
	flows->out = calloc(out + 1, sizeof(*flows->out));
	return flows->in && flows->out ? 0 : sk_terms_no_memory(rs);
}

int sk_flows_make(struct sk_restoring *rs, struct sk_terms *t,
		  struct sk_flows *ret)
{
	uint64_t window;
	int r;

	*ret = (struct sk_flows){
		.sum_bytes = t->end_to_end ? SUM_BYTES : 0 };
	r = sk_terms_trees(rs, t);
	if (r >= 0)
		r = make_room(rs, t, ret);
	if (r < 0)
		return r;
	if (t->passed)
		make_in_passed(t, ret);
	else
		make_in(rs, t, ret);
	qsort(ret->in, ret->n_in, sizeof(*ret->in), by_rank);
	(void)place_flows(t->way, ret->in, ret->n_in, 0);
	make_out(rs, t, ret);
	make_out_passed(t, ret);
	qsort(ret->out, ret->n_out, sizeof(*ret->out), by_rank);
	window = place_flows(t->way, ret->out, ret->n_out, ret->sum_bytes);
	for (size_t i = 0; i < ret->n_in; i++)
		ret->in[i].cap -= ret->sum_bytes;
	ret->window = window ? sk_terms_window(t, t->n_out) : 0;
	if (ret->window < window)
		ret->window = sk_round_up(window, SK_PAGE);
	return 0;
}

void sk_flows_free(struct sk_flows *flows)
{
	free(flows->in);
	free(flows->out);
}

static uint64_t most_rounds(const struct sk_flow *v, size_t n)
{
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t rounds = v[i].from ? 0 : sk_flow_rounds(&v[i]);

		most = rounds > most ? rounds : most;
	}
	return most;
}

uint64_t sk_flows_rounds(const struct sk_flows *flows)
{
	uint64_t in = most_rounds(flows->in, flows->n_in);
	uint64_t out = most_rounds(flows->out, flows->n_out);

	return in > out ? in : out;
}

size_t sk_flows_runs(const struct sk_flow *flows, size_t n)
{
	size_t runs = 0;

	for (size_t i = 0; i < n; i++)
		runs += flows[i].runs;
	return runs;
}

size_t sk_flows_units(const struct sk_flow *flows, size_t n)
{
	size_t units = 0;

	for (size_t i = 0; i < n; i++)
		units += flows[i].from ? 1 : flows[i].units;
	return units;
}
