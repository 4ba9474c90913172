/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/terms.h"

#include "base/util.h"
#include "restore/flow.h"

/* Measured: of 4 MiB, few ranks took up to twice as long. */
#define WINDOW_LEAST ((uint64_t)1 << 20)
#define MESSAGE_BYTES ((uint64_t)64 << 10)
/* Of what the other ranks of a node pass on to one in a round, at most. */
#define RELAYED_BYTES ((uint64_t)32 << 20)

int sk_terms_no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory to exchange pieces "
			  "with other nodes");
}

static size_t count_flows_in(const struct sk_wants *w)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n_fetched; i++)
		n += !i || w->fetched[i].source != w->fetched[i - 1].source;
	return n;
}

static size_t count_flows_out(const struct sk_restoring *rs,
			      const struct sk_wants *w)
{
	size_t n = 0;

	for (int32_t k = 0; k < rs->state->job.world; k++)
		n += w->asked[k].bytes != 0;
	return n;
}

uint64_t sk_terms_window(const struct sk_terms *t, uint64_t flows)
{
	uint64_t bytes = WINDOW_LEAST;

	if (t->way != SK_WAY_HOST || flows > SK_WINDOW_BYTES / MESSAGE_BYTES ||
	    t->round_bytes > SK_WINDOW_BYTES)
		return SK_WINDOW_BYTES;
	if (bytes < t->round_bytes)
		bytes = sk_round_up(t->round_bytes, SK_PAGE);
	return bytes < flows * MESSAGE_BYTES ? flows * MESSAGE_BYTES : bytes;
}

struct sk_staging_size sk_terms_staging(const struct sk_restoring *rs,
					const struct sk_terms *t, int32_t node)
{
	struct sk_staging_size size = {
		.ranks = rs->nodes[node].n,
		.flows = t->most_in[node],
		.units = SK_FLOW_UNITS,
		.window = sk_terms_window(t, t->most_in[node]),
	};
	uint64_t others = (uint32_t)size.ranks - 1u;

	if (t->way == SK_WAY_RELAYS && size.window * others > RELAYED_BYTES)
		size.window = RELAYED_BYTES / others / SK_PAGE * SK_PAGE;
	if (!size.window)
		size.window = SK_PAGE;
	return size;
}

/* What rank @k has said. */
static int take_term(struct sk_restoring *rs, struct sk_terms *t, int32_t k)
{
	uint32_t world = (uint32_t)rs->state->job.world;
	uint64_t *most = &t->most_in[rs->node_of[k]];
	const struct sk_term *term = &t->ranks[k];

	if (term->flows_in > world || term->flows_out > world)
		return sk_err_set(&rs->err, -EPROTO, "rank %d has more peers "
				  "than there are ranks", k);
	if (term->flows_in > *most)
		*most = term->flows_in;
	t->end_to_end |= term->end_to_end != 0;
	t->passed |= term->passed != 0;
	if (term->round_bytes > t->round_bytes)
		t->round_bytes = term->round_bytes;
	return 0;
}

static int gather_terms(struct sk_restoring *rs, int r, struct sk_terms *t)
{
	const struct sk_os *os = rs->sk->os;
	struct sk_term mine = {
		.flows_in = t->n_in,
		.flows_out = t->n_out,
		.end_to_end = rs->state->job.flags & SK_JOB_VERIFY,
		.round_bytes = rs->comm.round_bytes,
		.passed = t->asked.several,
	};

	/* Without, it is a number that others may have, too. */
	if (os->random(os, &mine.meeting, sizeof(mine.meeting)) < 0)
		mine.meeting = os->now_ns(os);
	r = sk_restore_gather(rs, r, &mine, sizeof(mine), &t->ranks);
	for (int32_t k = 0; k < rs->state->job.world && r >= 0; k++)
		r = take_term(rs, t, k);
	return r < 0 ? r : 0;
}

int sk_terms_trees(struct sk_restoring *rs, struct sk_terms *t)
{
	int r = sk_trees_make(rs, t, &t->trees);

	return t->passed ? sk_branches_tell(rs, r, t) : r;
}

int sk_restore_terms(struct sk_restoring *rs, int r, enum sk_way way,
		     struct sk_terms *ret)
{
	*ret = (struct sk_terms){
		.most_in = calloc((uint32_t)rs->n_nodes,
				  sizeof(*ret->most_in)),
		.way = way };
	if (r >= 0 && !ret->most_in)
		r = sk_terms_no_memory(rs);
	r = sk_restore_wants(rs, r, way, &ret->wants);
	if (r < 0)
		return r;
	ret->n_in = count_flows_in(&ret->wants);
	ret->n_out = count_flows_out(rs, &ret->wants);
	r = sk_asked_new(rs, &ret->wants, &ret->asked);
	return gather_terms(rs, r, ret);
}

void sk_restore_free_terms(const struct sk_restoring *rs, struct sk_terms *t)
{
	if (!rs->broken)
		sk_restore_free_wants(&t->wants);
	sk_asked_free(&t->asked);
	sk_trees_free(&t->trees);
	free(t->branches);
	free(t->ranks);
	free(t->most_in);
}
