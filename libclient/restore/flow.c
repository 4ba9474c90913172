/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/flow.h"

#include <assert.h>

#include "base/util.h"
#include "restore/agree.h"

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

		if (!n || (k && w->begins && ++runs > f->runs))
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

uint64_t sk_flow_rounds(const struct sk_flow *flow)
{
	struct sk_flow f = *flow;
	uint64_t rounds = 0;

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

/* Beginnings are apart by what a round takes, its sum included. */
static void place_flows(struct sk_flow *v, size_t n, uint64_t sum_bytes)
{
	uint64_t base = 0;

	for (size_t i = 0; i < n; i++) {
		v[i].base = base;
		base += v[i].cap;
		v[i].cap -= sum_bytes;
	}
}

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
		};
		limit(rs, t, f->rank, rs->state->job.rank, f);
	}
	assert(flows->n_in == t->n_in);
	place_flows(flows->in, flows->n_in, flows->sum_bytes);
}

static void make_out(const struct sk_restoring *rs, const struct sk_terms *t,
		     struct sk_flows *flows)
{
	size_t at = 0;

	for (int32_t k = 0; k < rs->state->job.world; k++) {
		struct sk_flow *f = &flows->out[flows->n_out];

		if (!sk_terms_asked(t, k))
			continue;
		*f = (struct sk_flow){
			.rank = k,
			.wants = t->wants.asked[k].data,
			.sourced = &t->sourced[at],
			.n = sk_terms_asked(t, k),
		};
		at += f->n;
		limit(rs, t, rs->state->job.rank, k, f);
		flows->n_out++;
	}
	assert(flows->n_out == t->n_out);
	place_flows(flows->out, flows->n_out, flows->sum_bytes);
}

int sk_flows_make(struct sk_restoring *rs, const struct sk_terms *terms,
		  struct sk_flows *ret)
{
	*ret = (struct sk_flows){
		.in = calloc(terms->n_in + 1, sizeof(*ret->in)),
		.out = calloc(terms->n_out + 1, sizeof(*ret->out)),
		.sum_bytes = terms->end_to_end ? SUM_BYTES : 0,
		.window = sk_terms_window(terms, terms->n_out),
	};
	if (!ret->in || !ret->out)
		return sk_terms_no_memory(rs);
	make_in(rs, terms, ret);
	make_out(rs, terms, ret);
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
		uint64_t rounds = sk_flow_rounds(&v[i]);

		most = rounds > most ? rounds : most;
	}
	return most;
}

static uint64_t rounds_of(const struct sk_flows *flows)
{
	uint64_t in = most_rounds(flows->in, flows->n_in);
	uint64_t out = most_rounds(flows->out, flows->n_out);

	return in > out ? in : out;
}

int sk_flows_agree(struct sk_restoring *rs, int r,
		   const struct sk_flows *flows, uint64_t *ret_rounds)
{
	_cleanup_free_ struct sk_restore_word *words = NULL;
	struct sk_restore_word word = { 0 };

	*ret_rounds = 0;
	word.extra = r < 0 ? 0 : rounds_of(flows);
	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < rs->state->job.world; k++)
		if (words[k].extra > *ret_rounds)
			*ret_rounds = words[k].extra;
	return r;
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
		units += flows[i].units;
	return units;
}
