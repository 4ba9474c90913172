/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/relay.h"

#include <assert.h>

#include "base/util.h"
#include "restore/agree.h"

/* ---- what the fetcher says ---- */

struct saying {
	struct sk_relaying *relaying;
	size_t *at;			/* per rank: the next of ->words */
};

/* How many for each rank, and where they begin; world + 1 numbers. */
static size_t *count_words(const struct sk_restoring *rs,
			   const struct sk_wants *w)
{
	size_t world = (size_t)rs->state->job.world;
	size_t *first = calloc(world + 1, sizeof(*first));

	for (size_t i = 0; first && i < w->n_consumers; i++)
		if (w->consumers[i].rank != rs->state->job.rank)
			first[w->consumers[i].rank + 1]++;
	for (size_t i = 0; first && i < world; i++)
		first[i + 1] += first[i];
	return first;
}

/* To all who have it. */
static void say_want(struct saying *s, const struct sk_flow *f,
		     const struct sk_flow_part *p, uint64_t round)
{
	const struct sk_wants *w = s->relaying->wants;
	const struct sk_consumer *c;
	size_t n;

	c = sk_wants_consumers(w, f->first + p->want, &n);
	for (size_t i = 0; i < n; i++)
		if (c[i].rank != s->relaying->rs->state->job.rank)
			s->relaying->words[s->at[c[i].rank]++] =
				(struct sk_relay_word){ c[i].index, round,
							p->offset, f->base,
							f->cap };
}

static void say_flow(struct saying *s, const struct sk_flow *flow,
		     struct sk_flow_part *parts)
{
	struct sk_flow f = *flow;
	size_t n;

	for (uint64_t round = f.delay;; round++) {
		n = 0;
		if (!sk_flow_cut(&f, parts, &n))
			return;
		for (size_t i = 0; i < n; i++)
			if (parts[i].from == f.wants[parts[i].want].from)
				say_want(s, &f, &parts[i], round);
	}
}

static int say_all(struct sk_relaying *relaying, const struct sk_flows *flows,
		   size_t *first, struct sk_restore_parcel *out)
{
	size_t world = (size_t)relaying->rs->state->job.world;
	size_t units = sk_flows_units(flows->in, flows->n_in);
	_cleanup_free_ struct sk_flow_part *parts = NULL;
	struct saying s = { relaying, first };

	parts = calloc(units + 1, sizeof(*parts));
	relaying->words = calloc(first[world] + 1, sizeof(*relaying->words));
	if (!parts || !relaying->words)
		return sk_terms_no_memory(relaying->rs);
	for (size_t k = 0; k < world; k++)
		out[k] = (struct sk_restore_parcel){
			relaying->words + first[k],
			(first[k + 1] - first[k]) * sizeof(*relaying->words) };
	for (size_t i = 0; i < flows->n_in; i++)
		say_flow(&s, &flows->in[i], parts);
	return 0;
}

static int say(struct sk_relaying *relaying, int r,
	       const struct sk_flows *flows)
{
	struct sk_restoring *rs = relaying->rs;
	_cleanup_free_ struct sk_restore_parcel *out = NULL;
	_cleanup_free_ size_t *first = NULL;

	out = calloc((size_t)rs->state->job.world, sizeof(*out));
	first = count_words(rs, relaying->wants);
	if (r >= 0 && (!out || !first))
		r = sk_terms_no_memory(rs);
	if (r >= 0)
		r = say_all(relaying, flows, first, out);
	return sk_restore_trade(rs, r, out, &relaying->heard);
}

/* ---- what others have said ---- */

/* Of one rank: its flows are apart from each other and lie in its window, and
 * so do the wants of one. */
static bool is_next(const struct sk_relay_word *w,
		    const struct sk_relay_word *last, size_t given,
		    uint64_t most)
{
	if (w->index >= given || !w->cap || w->cap > most ||
	    w->base > most - w->cap || w->offset < w->base ||
	    w->offset >= w->base + w->cap)
		return false;
	if (!last || w->base >= last->base + last->cap)
		return true;
	return w->base == last->base && w->cap == last->cap &&
	       (w->round > last->round ||
		(w->round == last->round && w->offset > last->offset));
}

static int hear_rank(struct sk_relaying *relaying, const struct sk_terms *t,
		     int32_t rank)
{
	const struct sk_relay_word *v = relaying->heard[rank].data;
	size_t n = relaying->heard[rank].bytes / sizeof(*v);
	const size_t *first = &relaying->wants->first_of[rank];
	uint64_t flows = t->ranks[rank].flows_in;
	uint64_t most = SK_WINDOW_BYTES + flows * SK_FLOW_ALIGN;
	size_t rows = relaying->n_rows;

	for (size_t i = 0; i < n; i++) {
		const struct sk_relay_word *last = i ? &v[i - 1] : NULL;

		if (!is_next(&v[i], last, first[1] - first[0], most))
			return sk_err_set(&relaying->rs->err, -EPROTO, "rank "
					  "%d passes on what cannot be", rank);
		if (!last || v[i].base != last->base) {
			relaying->rows[relaying->n_rows++] =
				(struct sk_relay_row){ rank, &v[i], 0, 0 };
			relaying->window += v[i].cap;
		}
		relaying->rows[relaying->n_rows - 1].n++;
	}
	if (n)
		relaying->most_parts += flows > SK_FLOW_UNITS ? flows :
								SK_FLOW_UNITS;
	/* Of each flow one at least. */
	if (n)
		relaying->most_receives += SK_FLOW_RUNS + relaying->n_rows -
					   rows;
	return 0;
}

static int hear(struct sk_relaying *relaying, const struct sk_terms *t)
{
	struct sk_restoring *rs = relaying->rs;
	size_t n = 0;
	int r = 0;

	for (int32_t k = 0; k < rs->n_near; k++)
		n += relaying->heard[rs->near_ranks[k]].bytes /
		     sizeof(struct sk_relay_word);
	relaying->rows = calloc(n + 1, sizeof(*relaying->rows));
	relaying->runs = calloc((size_t)rs->state->job.world,
				sizeof(*relaying->runs));
	if (!relaying->rows || !relaying->runs)
		return sk_terms_no_memory(rs);
	for (int32_t k = 0; k < rs->n_near && r >= 0; k++)
		r = hear_rank(relaying, t, rs->near_ranks[k]);
	if (r < 0)
		return r;
	relaying->parts = calloc(relaying->most_parts + 1,
				 sizeof(*relaying->parts));
	return relaying->parts ? 0 : sk_terms_no_memory(rs);
}

int sk_relaying_new(struct sk_restoring *rs, int r,
		    const struct sk_terms *terms, const struct sk_flows *flows,
		    struct sk_relaying *ret)
{
	size_t others = (uint32_t)rs->n_near - 1u;

	*ret = (struct sk_relaying){
		.rs = rs,
		.wants = &terms->wants,
		.most_sends = sk_flows_runs(flows->in, flows->n_in) * others,
	};
	r = say(ret, r, flows);
	return r < 0 ? r : hear(ret, terms);
}

void sk_relaying_free(struct sk_relaying *relaying)
{
	if (relaying->rs && !relaying->rs->broken)
		free(relaying->words);
	free(relaying->heard);
	free(relaying->rows);
	free(relaying->runs);
	free(relaying->parts);
}

/* ---- a round ---- */

/* What lies together for one rank, in the fetcher's window, is one message. */
static size_t add(struct sk_relaying *r, const struct sk_comm_part *part,
		  uint64_t offset, struct sk_comm_part *parts, size_t n)
{
	struct sk_relay_run *run = &r->runs[part->rank];

	if (run->part && run->end == offset) {
		parts[run->part - 1].bytes += part->bytes;
	} else {
		parts[n++] = *part;
		run->part = n;
	}
	run->end = offset + part->bytes;
	return n;
}

static void begin_runs(struct sk_relaying *r)
{
	for (int32_t k = 0; k < r->rs->n_near; k++)
		r->runs[r->rs->near_ranks[k]].part = 0;
}

/* To all who have it. */
static size_t send_part(struct sk_relaying *r, const struct sk_flow_part *p,
			uint64_t window, struct sk_comm_part *parts, size_t n)
{
	const struct sk_consumer *c;
	size_t n_c;

	c = sk_wants_consumers(r->wants, p->flow->first + p->want, &n_c);
	for (size_t i = 0; i < n_c; i++) {
		struct sk_comm_part part = {
			c[i].rank, 0,
			(void *)(uintptr_t)(window + p->offset),
			p->to - p->from };

		if (c[i].rank != r->rs->state->job.rank)
			n = add(r, &part, p->offset, parts, n);
	}
	return n;
}

size_t sk_relaying_sends(struct sk_relaying *r,
			 const struct sk_flow_part *landed, size_t n_landed,
			 uint64_t window, struct sk_comm_part *parts, size_t n)
{
	size_t end = n;

	begin_runs(r);
	for (size_t i = 0; i < n_landed; i++)
		end = send_part(r, &landed[i], window, parts, end);
	assert(end - n <= r->most_sends);
	return end;
}

/* The part of it that comes in that round; of @bytes those that are left. */
static struct sk_relay_part part_in(const struct sk_relay_word *w,
				    uint64_t bytes, uint64_t round)
{
	uint64_t first = w->base + w->cap - w->offset, from;
	bool begins = round == w->round;

	first = first < bytes ? first : bytes;
	from = begins ? 0 : first + (round - w->round - 1) * w->cap;
	if (!begins)
		first = from < bytes && w->cap > bytes - from ? bytes - from :
								w->cap;
	return (struct sk_relay_part){
		.from = from,
		.to = from + first,
		.offset = begins ? w->offset : w->base,
	};
}

/* What of a round comes, and where. */
struct receiving {
	uint64_t round;
	uint64_t window, at;	/* how much of it is taken */
	struct sk_comm_part *parts;
	size_t first, n;
};

/* The want that is next of one flow of a fetcher. Whether it is over. */
static bool receive_want(struct sk_relaying *r, const struct sk_relay_row *row,
			 struct receiving *v)
{
	const struct sk_relay_word *word = &row->words[row->at];
	size_t index = r->wants->first_of[row->rank] + word->index;
	const struct sk_want *mine = &r->wants->mine[index];
	uint64_t bytes = mine->to - mine->from;
	struct sk_relay_part p = part_in(word, bytes, v->round);
	struct sk_comm_part part = { row->rank, 0,
				     (void *)(uintptr_t)(v->window + v->at),
				     p.to - p.from };

	if (p.from >= bytes || r->n == r->most_parts ||
	    v->n - v->first > r->most_receives ||
	    part.bytes > r->window - v->at)
		return true;	/* no fetcher says that */
	v->n = add(r, &part, p.offset, v->parts, v->n);
	r->parts[r->n++] = (struct sk_relay_part){
		r->wants->pieces[index], mine->from + p.from,
		mine->from + p.to, v->at };
	v->at += part.bytes;
	return p.to == bytes;
}

size_t sk_relaying_receives(struct sk_relaying *r, uint64_t round,
			    uint64_t window, struct sk_comm_part *parts,
			    size_t n)
{
	struct receiving v = { .round = round, .window = window,
			       .parts = parts, .first = n, .n = n };

	r->n = 0;
	begin_runs(r);
	for (size_t i = 0; i < r->n_rows; i++) {
		struct sk_relay_row *row = &r->rows[i];

		while (row->at < row->n &&
		       row->words[row->at].round <= round &&
		       receive_want(r, row, &v))
			row->at++;
	}
	return v.n;
}
