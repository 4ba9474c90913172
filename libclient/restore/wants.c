/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/wants.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "restore/nodes.h"
#include "restore/others.h"
#include "restore/shape.h"

/* Chunks of one want: large entries are read by several ranks of a node. Fewer
 * where fetchers pass something on, so that those of a node have as much to do;
 * the same for all nodes, whose wants are one then. */
#define WANT_CHUNKS 8u
#define PASSED_CHUNKS 2u

static int no_memory(struct sk_restoring *rs, size_t n)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu pieces from "
			  "other nodes", n);
}

/* ---- who reads ---- */

/* Whatever is wanted of the group of chunks. Entries take turns, and so do the
 * groups of a large one. */
static int32_t source_of(const struct sk_restore_node *node, int32_t rank,
			 uint32_t entry, uint32_t group)
{
	uint32_t n = (uint32_t)node->n;
	uint64_t index = (uint64_t)(uint32_t)rank + entry;

	return node->ranks[(sk_restore_turn(index, n) + group) % n];
}

int32_t sk_wants_reader(const struct sk_restoring *rs,
			const struct sk_restore_image *image,
			const struct sk_entry *entry, uint32_t chunk)
{
	return source_of(&rs->nodes[rs->node], image->rank, entry->index,
			 chunk / WANT_CHUNKS);
}

/* ---- this rank's ---- */

/* The rank that fetches a want for its node, and the one that reads it. */
struct mover {
	int32_t fetcher, source;
};

static struct mover movers_of(const struct sk_restoring *rs,
			      const struct sk_restore_holder *h,
			      const struct sk_want *w, bool alone,
			      uint32_t group)
{
	const struct sk_restore_node *theirs = &rs->nodes[h->node];
	uint64_t hash = ((uint64_t)(uint32_t)w->rank << 32) + w->entry;

	hash = sk_restore_mix(hash + w->kind);
	for (int d = 0; d < SK_MAX_DIMS; d++)
		hash = sk_restore_mix(hash + (uint64_t)w->box.offset[d]);
	/* Large ones go round; small ones fall where they may. */
	return (struct mover){
		alone ? rs->state->job.rank :
			rs->near_ranks[(hash + group) %
				       (uint32_t)rs->n_near],
		source_of(theirs, w->rank, w->entry, group),
	};
}

static int add_want(struct sk_restoring *rs, struct sk_wants *w,
		    uint32_t piece, const struct sk_want *want)
{
	if (sk_array_fit(w->mine, w->room, w->n + 1) < 0 ||
	    sk_array_fit(w->pieces, w->room_pieces, w->n + 1) < 0)
		return no_memory(rs, w->n);
	w->pieces[w->n] = piece;
	w->mine[w->n++] = *want;
	return 0;
}

static struct sk_want want_of(const struct sk_restoring *rs,
			      const struct sk_restore_piece *p,
			      const struct sk_restore_holder *h)
{
	const struct sk_restore_image *image = &rs->images[p->image];
	struct sk_want want = {
		.digest = image->digest,
		.image = h->id,
		.rank = image->rank,
		.kind = image->kind,
		.place = h->place,
		.entry = p->entry->index,
	};
	int n = rs->state->locals[p->local].item.spec.ndim;

	/* Bytes beyond the dimensions are compared, too. */
	memcpy(want.box.offset, p->box.offset, (size_t)n * sizeof(int64_t));
	memcpy(want.box.size, p->box.size, (size_t)n * sizeof(int64_t));
	return want;
}

/* The fetcher stands in want.others until they are sorted by it. */
static int want_piece(struct sk_restoring *rs, struct sk_wants *w,
		      uint32_t index, uint32_t chunks)
{
	struct sk_restore_piece *p = &rs->pieces[index];
	const struct sk_restore_holder *h;
	struct sk_restore_shape shape;
	struct sk_want want;
	int r = 0;

	h = sk_restore_holder(rs, p->image, p->place);
	if (!h)
		return sk_err_set(&rs->err, -EIO, "nobody has the image of "
				  "rank %d any more", rs->images[p->image].rank);
	p->holder = (uint32_t)(h - rs->holders);
	want = want_of(rs, p, h);
	sk_restore_shape(&rs->state->locals[p->local].item, p->entry, &p->box,
			 &shape);
	for (uint32_t c = 0; c < p->entry->n_sums && r >= 0; c += chunks) {
		struct mover m = movers_of(rs, h, &want,
					   p->across && !p->shared,
					   c / chunks);

		want.from = sk_restore_before(&shape, c * SK_SUM_CHUNK);
		want.to = sk_restore_before(&shape,
					    (c + chunks) * SK_SUM_CHUNK);
		want.source = m.source;
		want.others = (uint32_t)m.fetcher;
		if (want.from < want.to)
			r = add_want(rs, w, index, &want);
	}
	return r;
}

static int want_pieces(struct sk_restoring *rs, enum sk_way way,
		       struct sk_wants *w)
{
	uint32_t chunks = way == SK_WAY_RELAYS ? PASSED_CHUNKS : WANT_CHUNKS;
	bool across = way != SK_WAY_HOST;
	int r = 0;

	for (uint32_t i = 0; i < rs->n_pieces && r >= 0; i++)
		if (rs->pieces[i].place >= SK_PLACE_OTHERS &&
		    rs->pieces[i].across == across)
			r = want_piece(rs, w, i, chunks);
	return r;
}

/* ---- given to fetchers ---- */

/* By fetcher, in the order of the pieces. */
static int sort_by_fetcher(struct sk_restoring *rs, struct sk_wants *w)
{
	size_t world = (size_t)rs->state->job.world;
	_cleanup_free_ struct sk_want *sorted = calloc(w->n + 1,
						       sizeof(*sorted));
	_cleanup_free_ uint32_t *pieces = calloc(w->n + 1, sizeof(*pieces));
	_cleanup_free_ size_t *at = calloc(world + 2, sizeof(*at));

	w->first_of = calloc(world + 2, sizeof(*w->first_of));
	if (!sorted || !pieces || !at || !w->first_of)
		return no_memory(rs, w->n);
	for (size_t i = 0; i < w->n; i++)
		w->first_of[w->mine[i].others + 1]++;
	for (size_t i = 0; i < world; i++)
		w->first_of[i + 1] += w->first_of[i];
	memcpy(at, w->first_of, (world + 1) * sizeof(*at));
	for (size_t i = 0; i < w->n; i++) {
		size_t to = at[w->mine[i].others]++;

		sorted[to] = w->mine[i];
		sorted[to].others = 0;
		pieces[to] = w->pieces[i];
	}
	free(w->mine);
	free(w->pieces);
	w->mine = sk_take_ptr(sorted);
	w->pieces = sk_take_ptr(pieces);
	return 0;
}

static struct sk_restore_parcel *parcels(const struct sk_restoring *rs)
{
	return calloc((uint32_t)rs->state->job.world,
		      sizeof(struct sk_restore_parcel));
}

/* To oneself: nobody is told. */
static int keep(struct sk_restoring *rs, const struct sk_wants *w,
		struct sk_restore_parcel **ret_given)
{
	struct sk_restore_parcel *given = parcels(rs);

	if (!given)
		return no_memory(rs, w->n);
	given[rs->state->job.rank] = (struct sk_restore_parcel){
		w->mine, w->n * sizeof(struct sk_want) };
	*ret_given = given;
	return 0;
}

static int give(struct sk_restoring *rs, int r, const struct sk_wants *w,
		struct sk_restore_parcel **ret_given)
{
	_cleanup_free_ struct sk_restore_parcel *out = parcels(rs);

	if (r >= 0 && !out)
		r = no_memory(rs, w->n);
	for (int32_t i = 0; r >= 0 && i < rs->state->job.world; i++) {
		size_t first = w->first_of[i], n = w->first_of[i + 1] - first;

		out[i].data = &w->mine[first];
		out[i].bytes = n * sizeof(struct sk_want);
	}
	return sk_restore_trade(rs, r, out, ret_given);
}

/* ---- asked of sources ---- */

int sk_want_compare(const struct sk_want *x, const struct sk_want *y)
{
	if (x->source != y->source)
		return x->source < y->source ? -1 : 1;
	if (x->image != y->image)
		return x->image < y->image ? -1 : 1;
	if (x->entry != y->entry)
		return x->entry < y->entry ? -1 : 1;
	if (x->from != y->from)
		return x->from < y->from ? -1 : 1;
	return memcmp(x, y, offsetof(struct sk_want, others));
}

struct given {
	const struct sk_want *want;
	int32_t rank;
	uint32_t reserved;
	uint64_t index;
	uint64_t others;	/* a number of who else has it; 0: nobody */
};

static int by_want(const void *a, const void *b)
{
	const struct given *x = a, *y = b;
	int c = sk_want_compare(x->want, y->want);

	return c ? c : (x->rank > y->rank) - (x->rank < y->rank);
}

/* So that what the same ranks get lies together. */
static int by_others(const void *a, const void *b)
{
	const struct given *x = a, *y = b;

	if (x->want->source != y->want->source)
		return x->want->source < y->want->source ? -1 : 1;
	if (x->others != y->others)
		return x->others < y->others ? -1 : 1;
	return by_want(a, b);
}

static void sort_by_others(const struct sk_restoring *rs, struct given *v,
			   size_t n)
{
	for (size_t i = 0, k; i < n; i = k) {
		uint64_t others = 0;

		for (k = i; k < n &&
		     !sk_want_compare(v[k].want, v[i].want); k++)
			if (v[k].rank != rs->state->job.rank)
				others = sk_restore_mix(
					others + (uint32_t)v[k].rank + 1u);
		while (i < k)
			v[i++].others = others;
	}
	qsort(v, n, sizeof(*v), by_others);
}

static bool is_valid(const struct sk_restoring *rs, const struct sk_want *w)
{
	return w->source >= 0 && w->source < rs->state->job.world &&
	       rs->node_of[w->source] != rs->node && w->from < w->to;
}

static int list_given(struct sk_restoring *rs,
		      const struct sk_restore_parcel *given,
		      struct given **ret, size_t *ret_n)
{
	_cleanup_free_ struct given *v = NULL;
	size_t n = 0;

	for (int32_t k = 0; k < rs->state->job.world; k++)
		n += given[k].bytes / sizeof(struct sk_want);
	v = calloc(n + 1, sizeof(*v));
	if (!v)
		return no_memory(rs, n);
	n = 0;
	for (int32_t k = 0; k < rs->state->job.world; k++) {
		const struct sk_want *w = given[k].data;

		for (uint64_t i = 0; i < given[k].bytes / sizeof(*w); i++) {
			if (!is_valid(rs, &w[i]))
				return sk_err_set(&rs->err, -EPROTO, "rank %d "
						  "wants what cannot be", k);
			v[n++] = (struct given){ &w[i], k, 0, i, 0 };
		}
	}
	qsort(v, n, sizeof(*v), by_want);
	*ret = sk_take_ptr(v);
	*ret_n = n;
	return 0;
}

static void fetch(struct sk_wants *w, const struct given *v)
{
	w->fetched[w->n_fetched] = *v->want;
	w->fetched[w->n_fetched++].others = v->others;
}

/* Each once, and who has it. */
static int fetch_once(struct sk_restoring *rs, enum sk_way way,
		      const struct sk_restore_parcel *given,
		      struct sk_wants *w)
{
	_cleanup_free_ struct given *v = NULL;
	size_t n = 0;
	int r = list_given(rs, given, &v, &n);

	if (r < 0)
		return r;
	w->fetched = calloc(n + 1, sizeof(*w->fetched));
	w->consumers = calloc(n + 1, sizeof(*w->consumers));
	if (!w->fetched || !w->consumers)
		return no_memory(rs, n);
	if (way == SK_WAY_RELAYS)
		sort_by_others(rs, v, n);
	for (size_t i = 0; i < n; i++) {
		if (!i || sk_want_compare(v[i].want, v[i - 1].want))
			fetch(w, &v[i]);
		w->consumers[w->n_consumers++] = (struct sk_consumer){
			(uint32_t)(w->n_fetched - 1), v[i].rank, v[i].index };
	}
	return 0;
}

static int ask(struct sk_restoring *rs, int r, struct sk_wants *w)
{
	_cleanup_free_ struct sk_restore_parcel *out = parcels(rs);
	size_t at = 0;

	if (r >= 0 && !out)
		r = no_memory(rs, w->n_fetched);
	for (int32_t i = 0; r >= 0 && i < rs->state->job.world; i++) {
		size_t first = at;

		while (at < w->n_fetched && w->fetched[at].source == i)
			at++;
		out[i].data = &w->fetched[first];
		out[i].bytes = (at - first) * sizeof(struct sk_want);
	}
	return sk_restore_trade(rs, r, out, &w->asked);
}

int sk_restore_wants(struct sk_restoring *rs, int r, enum sk_way way,
		     struct sk_wants *ret)
{
	_cleanup_free_ struct sk_restore_parcel *given = NULL;

	*ret = (struct sk_wants){ 0 };
	if (r >= 0)
		r = want_pieces(rs, way, ret);
	if (r >= 0)
		r = sort_by_fetcher(rs, ret);
	if (way != SK_WAY_DEVICE)
		r = give(rs, r, ret, &given);
	else if (r >= 0)
		r = keep(rs, ret, &given);
	if (r < 0 && way != SK_WAY_DEVICE)
		return r;
	return ask(rs, r < 0 ? r : fetch_once(rs, way, given, ret), ret);
}

const struct sk_consumer *sk_wants_consumers(const struct sk_wants *w,
					     size_t want, size_t *ret_n)
{
	size_t first = sk_count_before(w->n_consumers, i,
				       w->consumers[i].want < want);
	size_t n = first;

	while (n < w->n_consumers && w->consumers[n].want == want)
		n++;
	*ret_n = n - first;
	return &w->consumers[first];
}

void sk_restore_free_wants(struct sk_wants *wants)
{
	free(wants->mine);
	free(wants->pieces);
	free(wants->first_of);
	free(wants->fetched);
	free(wants->consumers);
	free(wants->asked);
	*wants = (struct sk_wants){ 0 };
}
