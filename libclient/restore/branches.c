/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/branches.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/flow.h"
#include "restore/terms.h"

/* More than that no tree is deep. */
#define DEPTH_MOST 40u

/* A word and the numbers behind it; the next one is aligned. */
static uint64_t word_bytes(uint64_t n)
{
	return sizeof(struct sk_branch_word) +
	       sk_round_up(n * sizeof(uint32_t), sizeof(uint64_t));
}

/* ---- the source ---- */

static void count(const struct sk_trees *trees,
		  struct sk_restore_parcel *out)
{
	for (size_t i = 0; i < trees->n; i++)
		for (size_t k = 0; k < trees->v[i].n_members; k++)
			out[trees->v[i].members[k].rank].bytes +=
				word_bytes(trees->v[i].n);
}

static void say(const struct sk_restoring *rs, const struct sk_terms *t,
		uint32_t tree, size_t member, char *to)
{
	const struct sk_tree *of = &t->trees.v[tree];
	struct sk_place_in_tree place = sk_tree_place(of, member);
	struct sk_branch_word word = {
		.cap = of->cap,
		.units = of->units,
		.runs = of->runs,
		.n = (uint32_t)of->n,
		.number = tree,
		.parent = place.parent < 0 ? rs->state->job.rank :
					     place.parent,
		.children = { place.children[0], place.children[1] },
		.depth = place.depth,
	};
	uint32_t *numbers = (uint32_t *)(void *)(to + sizeof(word));
	size_t among = of->turned ? of->n_members - 1 - member : member;

	memcpy(to, &word, sizeof(word));
	for (size_t i = 0; i < of->n; i++) {
		const struct sk_want *w = &t->trees.wants[of->first + i];

		numbers[i] = t->asked.asks[t->trees.asks[of->first + i] +
					   among].index;
		if (i && w->others != w[-1].others)
			numbers[i] |= SK_BRANCH_BEGINS;
	}
}

/* All parcels lie in one piece of memory, which is the caller's. */
static int say_all(struct sk_restoring *rs, const struct sk_terms *t,
		   struct sk_restore_parcel *out, char **ret_words)
{
	size_t world = (size_t)rs->state->job.world;
	uint64_t bytes = 0;
	char *words;

	count(&t->trees, out);
	for (size_t k = 0; k < world; k++)
		bytes += out[k].bytes;
	words = *ret_words = calloc(1, bytes + 1);
	if (!words)
		return sk_terms_no_memory(rs);
	for (size_t k = 0; k < world; k++) {
		out[k].data = words;
		words += out[k].bytes;
		out[k].bytes = 0;
	}
	for (uint32_t i = 0; i < t->trees.n; i++) {
		const struct sk_tree *of = &t->trees.v[i];

		for (size_t m = 0; m < of->n_members; m++) {
			struct sk_restore_parcel *p =
				&out[sk_tree_member(of, m)];

			say(rs, t, i, m, (char *)p->data + p->bytes);
			p->bytes += word_bytes(of->n);
		}
	}
	return 0;
}

/* ---- the fetcher ---- */

struct hearing {
	struct sk_restoring *rs;
	struct sk_terms *terms;
	struct sk_want *wants;	/* as they come */
	size_t *where;		/* there, per want that is fetched; and 1 */
	size_t n;
	uint64_t bytes, units;	/* of one round */
};

static int wrong(const struct hearing *h, int32_t source)
{
	return sk_err_set(&h->rs->err, -EPROTO, "rank %d says of what it "
			  "sends what cannot be", source);
}

static bool is_elsewhere(const struct sk_restoring *rs, int32_t rank)
{
	return rank >= 0 && rank < rs->state->job.world &&
	       rs->node_of[rank] != rs->node;
}

static bool can_be(const struct hearing *h, const struct sk_branch_word *w,
		   uint64_t room)
{
	const int32_t *c = w->children;

	return w->n && word_bytes(w->n) <= room && w->units &&
	       w->units <= SK_FLOW_UNITS && w->runs &&
	       w->runs <= SK_FLOW_RUNS && w->depth <= DEPTH_MOST &&
	       w->cap >= SK_FLOW_ALIGN && w->cap <= SK_WINDOW_BYTES &&
	       w->cap % SK_FLOW_ALIGN == 0 &&
	       is_elsewhere(h->rs, w->parent) &&
	       (c[0] < 0 || is_elsewhere(h->rs, c[0])) &&
	       (c[1] < 0 || (is_elsewhere(h->rs, c[1]) && c[1] != c[0]));
}

/* Of the wants [first, first + n), which are of that source. */
static int hear_branch(struct hearing *h, int32_t source, size_t first,
		       size_t n, const struct sk_branch_word *word)
{
	const uint32_t *numbers = (const uint32_t *)(word + 1);
	struct sk_terms *t = h->terms;
	uint64_t others = 0;

	t->branches[t->n_branches++] = (struct sk_branch){
		.word = *word, .source = source, .first = h->n };
	h->bytes += word->cap;
	h->units += word->units;
	for (uint32_t i = 0; i < word->n; i++) {
		uint32_t number = numbers[i] & ~SK_BRANCH_BEGINS;

		if (number >= n || h->where[first + number])
			return wrong(h, source);
		others += number != numbers[i];
		h->wants[h->n] = t->wants.fetched[first + number];
		h->wants[h->n++].others = others;
		h->where[first + number] = h->n;
	}
	return 0;
}

static int hear_source(struct hearing *h, const struct sk_restore_parcel *said,
		       int32_t source, size_t first, size_t n)
{
	const char *at = said->data;
	uint64_t room = said->bytes;
	size_t before = h->n;
	int r = 0;

	while (room >= sizeof(struct sk_branch_word) && r >= 0) {
		const struct sk_branch_word *word = (const void *)at;

		if (!can_be(h, word, room))
			return wrong(h, source);
		r = hear_branch(h, source, first, n, word);
		at += word_bytes(word->n);
		room -= word_bytes(word->n);
	}
	if (r < 0 || h->n - before == n)
		return r;
	return wrong(h, source);
}

static int by_want(const void *a, const void *b)
{
	const struct sk_consumer *x = a, *y = b;

	if (x->want != y->want)
		return x->want < y->want ? -1 : 1;
	return (x->rank > y->rank) - (x->rank < y->rank);
}

static void put_in_order(struct hearing *h)
{
	struct sk_wants *w = &h->terms->wants;

	for (size_t i = 0; i < w->n_consumers; i++)
		w->consumers[i].want =
			(uint32_t)(h->where[w->consumers[i].want] - 1);
	qsort(w->consumers, w->n_consumers, sizeof(*w->consumers), by_want);
	memcpy(w->fetched, h->wants, w->n_fetched * sizeof(*w->fetched));
}

/* In a round there is room for what comes from all sources. */
static bool has_room(const struct hearing *h,
		     const struct sk_staging_size *size)
{
	uint64_t units = size->units > size->flows ? size->units : size->flows;

	return h->bytes <= sk_staging_window(size) && h->units <= units;
}

static int hear_all(struct hearing *h, const struct sk_restore_parcel *said)
{
	const struct sk_wants *w = &h->terms->wants;
	struct sk_staging_size size = sk_terms_staging(h->rs, h->terms,
						       h->rs->node);
	int r = 0;

	for (size_t i = 0, k; i < w->n_fetched && r >= 0; i = k) {
		int32_t source = w->fetched[i].source;

		for (k = i; k < w->n_fetched && w->fetched[k].source == source;)
			k++;
		r = hear_source(h, &said[source], source, i, k - i);
		if (r >= 0 && !has_room(h, &size))
			r = wrong(h, source);
	}
	if (r >= 0)
		put_in_order(h);
	return r;
}

static int hear(struct sk_restoring *rs, struct sk_terms *t,
		const struct sk_restore_parcel *said)
{
	size_t n = t->wants.n_fetched;
	_cleanup_free_ struct sk_want *wants = calloc(n + 1, sizeof(*wants));
	_cleanup_free_ size_t *where = calloc(n + 1, sizeof(*where));
	struct hearing h = { .rs = rs, .terms = t, .wants = wants,
			     .where = where };

	t->branches = calloc(n + 1, sizeof(*t->branches));
	if (!wants || !where || !t->branches)
		return sk_terms_no_memory(rs);
	return hear_all(&h, said);
}

int sk_branches_tell(struct sk_restoring *rs, int r, struct sk_terms *t)
{
	_cleanup_free_ struct sk_restore_parcel *out = NULL, *said = NULL;
	char *words = NULL;

	assert(t->passed);
	out = calloc((size_t)rs->state->job.world, sizeof(*out));
	if (r >= 0 && !out)
		r = sk_terms_no_memory(rs);
	if (r >= 0)
		r = say_all(rs, t, out, &words);
	r = sk_restore_trade(rs, r, out, &said);
	/* A comm that failed may still read it. */
	if (!rs->broken)
		free(words);
	return r < 0 ? r : hear(rs, t, said);
}
