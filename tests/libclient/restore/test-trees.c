/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees that a source makes of what is asked of it: whoever asks for a want
 * gets it once, from the one who says so, and no later than the logarithm of
 * how many they are allows; the source sends it once; who passes on in one
 * tree is a leaf of the other; and what comes to a rank in a round has room
 * there.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "restore/flow.h"
#include "restore/terms.h"
#include "support/random.h"

#define RANKS 200
#define WANTS 120
#define CASES 200

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
	return draw(&random_state, n);
}

struct scene {
	struct sk_state state;
	struct sk_restoring rs;
	struct sk_restore_node nodes[RANKS];
	int32_t node_of[RANKS];
	struct sk_terms terms;
	struct sk_term ranks[RANKS];
	uint64_t most_in[RANKS];
	struct sk_want wants[WANTS];
	struct sk_asked_want asked[WANTS];
	struct sk_ask asks[WANTS * RANKS];
	struct sk_want asked_of[WANTS * RANKS];	/* as each asks */
	uint32_t n_of[RANKS];		/* asks of that rank */
	uint64_t bytes_of[RANKS];
	uint64_t bytes, once;
	uint64_t got[WANTS][RANKS];	/* how often that want comes there */
};

/* The source is rank 0, and every other one a node of its own. */
static struct scene *new_scene(int32_t world)
{
	struct scene *s = calloc(1, sizeof(*s));

	cr_assert(s);
	s->state.job.world = world;
	s->rs.state = &s->state;
	s->rs.nodes = s->nodes;
	s->rs.node_of = s->node_of;
	for (int32_t i = 0; i < world; i++) {
		s->nodes[i].n = 1;
		s->node_of[i] = i;
		s->ranks[i].flows_in = 1 + below(40);
		s->most_in[i] = s->ranks[i].flows_in;
	}
	s->terms.ranks = s->ranks;
	s->terms.most_in = s->most_in;
	s->terms.n_out = (size_t)world - 1;
	s->terms.way = SK_WAY_HOST;
	s->terms.passed = true;
	s->terms.asked.asks = s->asks;
	s->terms.asked.wants = s->asked;
	return s;
}

/* Ranks of @step, from @first on, ask for @bytes. */
static void ask(struct scene *s, int32_t first, int32_t step, uint64_t bytes)
{
	struct sk_asked *a = &s->terms.asked;
	struct sk_want *w = &s->wants[a->n_wants];

	w->to = bytes;
	w->entry = (uint32_t)a->n_wants;
	s->asked[a->n_wants].first = a->n;
	for (int32_t k = first; k < s->state.job.world; k += step) {
		s->asks[a->n++] = (struct sk_ask){ w, k, s->n_of[k]++ };
		s->asked[a->n_wants].n++;
		s->bytes_of[k] += bytes;
		s->bytes += bytes;
	}
	a->several |= s->asked[a->n_wants++].n > 1;
	s->once += bytes;
}

static void free_scene(struct scene *s, struct sk_trees *trees)
{
	sk_trees_free(trees);
	free(s);
}

/* ---- what must hold of any ---- */

static size_t where(const struct sk_tree *t, int32_t rank)
{
	size_t i = 0;

	while (i < t->n_members && sk_tree_member(t, i) != rank)
		i++;
	cr_assert_lt(i, t->n_members, "rank %d is no member", rank);
	return i;
}

/* Parents and children know each other, and all hang together. */
static void check_places(const struct sk_tree *t)
{
	for (size_t i = 0; i < t->n_members; i++) {
		struct sk_place_in_tree p = sk_tree_place(t, i);

		cr_assert((p.parent < 0) == !i && (!i == !p.depth));
		cr_assert((size_t)1 << p.depth <= t->n_members);
		for (int k = 0; k < 2; k++) {
			struct sk_place_in_tree child;

			if (p.children[k] < 0)
				continue;
			child = sk_tree_place(t, where(t, p.children[k]));
			cr_assert_eq(child.parent, sk_tree_member(t, i));
			cr_assert_eq(child.depth, p.depth + 1);
		}
		if (!i)
			continue;
		p = sk_tree_place(t, where(t, p.parent));
		cr_assert(p.children[0] == sk_tree_member(t, i) ||
			  p.children[1] == sk_tree_member(t, i));
	}
}

static void note_got(struct scene *s, const struct sk_trees *trees,
		     const struct sk_tree *t)
{
	for (size_t i = t->first; i < t->first + t->n; i++)
		for (size_t k = 0; k < t->n_members; k++) {
			const struct sk_ask *a = &s->asks[trees->asks[i] + k];

			cr_assert_eq(a->rank, t->members[k].rank);
			cr_assert_eq(a->want->entry, trees->wants[i].entry);
			s->got[a->want->entry][a->rank]++;
		}
}

/* Of a tree: each set of those who have what its members pass on comes in one
 * go, and a round has room for one at least. */
static void check_others(struct scene *s, const struct sk_trees *trees,
			 const struct sk_tree *t)
{
	cr_assert(t->runs && t->runs <= SK_FLOW_RUNS);
	for (size_t i = t->first; i < t->first + t->n; i++)
		for (size_t k = t->first; k < i; k++) {
			const struct sk_ask *x = &s->asks[trees->asks[i]];
			const struct sk_ask *y = &s->asks[trees->asks[k]];
			bool same = true;

			for (size_t m = 0; m < t->n_members; m++)
				same &= x[m].want->others == y[m].want->others;
			cr_assert_eq(same, trees->wants[i].others ==
						   trees->wants[k].others);
		}
}

/* What comes to a rank in a round: bytes, and parts of wants. */
static void check_room(struct scene *s, const struct sk_trees *trees,
		       int32_t rank)
{
	struct sk_staging_size size = sk_terms_staging(&s->rs, &s->terms,
						       rank);
	uint64_t in = s->ranks[rank].flows_in, bytes = 0, units = 0;
	uint64_t most = SK_FLOW_RUNS / in, runs = 0;

	for (size_t i = 0; i < trees->n; i++)
		for (size_t k = 0; k < trees->v[i].n_members; k++)
			if (trees->v[i].members[k].rank == rank) {
				bytes += trees->v[i].cap;
				units += trees->v[i].units;
				runs += trees->v[i].runs;
			}
	cr_assert_leq(bytes, sk_staging_window(&size) / in, "rank %d", rank);
	cr_assert_leq(units, SK_FLOW_UNITS / in, "rank %d", rank);
	/* A pair of trees and its own one may take a run each. */
	if (s->terms.way == SK_WAY_RELAYS)
		cr_assert_leq(runs, most > 3 ? most : 3, "rank %d", rank);
}

static void check(struct scene *s, struct sk_trees *trees)
{
	const struct sk_asked *a = &s->terms.asked;

	for (size_t i = 0; i < trees->n; i++) {
		cr_assert(trees->v[i].n && trees->v[i].units);
		cr_assert(trees->v[i].cap >= SK_FLOW_ALIGN &&
			  trees->v[i].cap % SK_FLOW_ALIGN == 0);
		check_places(&trees->v[i]);
		note_got(s, trees, &trees->v[i]);
	}
	for (size_t i = 0; i < a->n; i++)
		cr_assert_eq(s->got[a->asks[i].want->entry][a->asks[i].rank],
			     1);
	for (int32_t k = 1; k < s->state.job.world; k++)
		check_room(s, trees, k);
}

static uint64_t sent(const struct sk_trees *trees)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < trees->n; i++)
		bytes += trees->v[i].bytes;
	return bytes;
}

/* Whatever is asked: sets of every kind, more of them than there are to be
 * trees. */
Test(trees, random)
{
	for (int c = 0; c < CASES; c++) {
		int32_t world = 2 + (int32_t)below(RANKS - 2);
		struct scene *s = new_scene(world);
		struct sk_trees trees;
		int n = 1 + (int)below(WANTS - 1);

		for (int i = 0; i < n; i++)
			ask(s, 1 + (int32_t)below((uint64_t)world - 1),
			    1 + (int32_t)below(c % 2 ? 3 : RANKS),
			    1 + below(8 << 20));
		cr_assert_eq(sk_trees_make(&s->rs, &s->terms, &trees), 0);
		check(s, &trees);
		cr_assert_geq(sent(&trees), s->once);
		cr_assert_leq(sent(&trees), s->bytes);
		free_scene(s, &trees);
	}
}

/* Ranks of nodes who pass on to others of theirs, other ones of each want. */
Test(trees, with_others)
{
	for (int c = 0; c < CASES / 4; c++) {
		struct scene *s = new_scene(2 + (int32_t)below(40));
		struct sk_trees trees;
		int n = 1 + (int)below(WANTS - 1);

		s->terms.way = SK_WAY_RELAYS;
		for (int i = 0; i < n; i++)
			ask(s, 1, 1 + (int32_t)below(2), 1 + below(2 << 20));
		for (size_t i = 0; i < s->terms.asked.n; i++) {
			struct sk_ask *a = &s->asks[i];

			s->asked_of[i] = *a->want;
			s->asked_of[i].others = below(3);
			a->want = &s->asked_of[i];
		}
		cr_assert_eq(sk_trees_make(&s->rs, &s->terms, &trees), 0);
		check(s, &trees);
		for (size_t i = 0; i < trees.n; i++)
			if (trees.v[i].n_members > 1)
				check_others(s, &trees, &trees.v[i]);
		free_scene(s, &trees);
	}
}

/* The most rounds that one of the trees takes. */
static uint64_t rounds_of(const struct sk_trees *trees)
{
	uint64_t most = 0;

	for (size_t i = 0; i < trees->n; i++) {
		const struct sk_tree *t = &trees->v[i];
		struct sk_flow f = { .wants = &trees->wants[t->first],
				     .n = t->n, .cap = t->cap,
				     .units = t->units, .runs = t->runs };
		uint64_t rounds = sk_flow_rounds(&f);

		most = rounds > most ? rounds : most;
	}
	return most;
}

/* Rank 8 stands in seven pairs of trees, of which one has many small wants, of
 * other neighbours each: it has as much of a round as it needs. */
static uint64_t rounds_with(uint64_t flows_in, bool others)
{
	struct scene *s = new_scene(9);
	struct sk_trees trees;
	uint64_t rounds;

	s->terms.way = SK_WAY_RELAYS;
	for (int32_t k = 1; k < 9; k++)
		s->ranks[k].flows_in = s->most_in[k] = flows_in;
	for (int i = 0; i < 96; i++)
		ask(s, 1, 1, 4096);
	for (int32_t first = 2; first < 8; first++)
		for (int i = 0; i < 2; i++)
			ask(s, first, 1, 4096);
	for (size_t i = 0; i < s->terms.asked.n; i++) {
		struct sk_ask *a = &s->asks[i];

		s->asked_of[i] = *a->want;
		s->asked_of[i].others = others ? a->want->entry : 0;
		a->want = &s->asked_of[i];
	}
	cr_assert_eq(sk_trees_make(&s->rs, &s->terms, &trees), 0);
	check(s, &trees);
	/* The largest set has its pair, whatever else has none. */
	cr_assert(trees.n >= 2 && trees.v[0].n_members == 8 &&
		  trees.v[1].n_members == 8);
	rounds = rounds_of(&trees);
	free_scene(s, &trees);
	return rounds;
}

Test(trees, have_of_a_round_what_they_need)
{
	/* 48 of 64, less one for each of 15 trees, and such. */
	cr_expect_leq(rounds_with(1, true), 3);
	cr_expect_leq(rounds_with(4, true), 48);
	cr_expect_leq(rounds_with(60, true), 48);
	/* Parts of wants: 68 in a round of 15 sources, 17 of 60. */
	cr_expect_leq(rounds_with(1, false), 1);
	cr_expect_leq(rounds_with(15, false), 2);
	cr_expect_leq(rounds_with(60, false), 8);
}

/* All want all: each byte is sent once, and by those who pass it on no more
 * than they receive, but for the bytes of one want. */
Test(trees, once)
{
	for (int32_t world = 3; world <= RANKS; world += 7) {
		struct scene *s = new_scene(world);
		uint64_t most = 8 << 20, passed;
		struct sk_trees trees;

		for (int i = 0; i < WANTS; i++)
			ask(s, 1, 1, 1 + below(most));
		cr_assert_eq(sk_trees_make(&s->rs, &s->terms, &trees), 0);
		check(s, &trees);
		cr_assert_eq(sent(&trees), s->once);
		cr_assert_eq(trees.n, 2);
		for (int32_t k = 1; k < world; k++) {
			passed = 0;
			for (size_t i = 0; i < 2; i++) {
				const struct sk_tree *t = &trees.v[i];
				struct sk_place_in_tree p =
					sk_tree_place(t, where(t, k));

				passed += ((p.children[0] >= 0) +
					   (p.children[1] >= 0)) * t->bytes;
			}
			cr_assert_leq(passed, s->once + 2 * most);
		}
		free_scene(s, &trees);
	}
}

/* Nobody asks for what another one does: there is no tree but to each. */
Test(trees, straight)
{
	struct scene *s = new_scene(9);
	struct sk_trees trees;

	for (int i = 0; i < WANTS; i++)
		ask(s, 1 + i % 8, RANKS, 1000);
	cr_assert_eq(sk_trees_make(&s->rs, &s->terms, &trees), 0);
	check(s, &trees);
	cr_assert_eq(trees.n, 8);
	cr_assert_eq(sent(&trees), s->bytes);
	free_scene(s, &trees);
}

/* What two ranks of a node ask for goes to each; what those of several nodes
 * do, once. */
Test(trees, of_one_node)
{
	struct scene *s = new_scene(9);
	struct sk_trees trees;

	s->node_of[4] = s->node_of[6] = 4;
	for (int i = 0; i < WANTS; i++)
		ask(s, 1 + i % 2, 1 + i % 2 * 2, 1000);
	cr_assert_eq(sk_trees_make(&s->rs, &s->terms, &trees), 0);
	check(s, &trees);
	for (size_t i = 0; i < trees.n; i++)
		cr_assert(trees.v[i].n_members != 8);
	/* 1 to 8 for the even ones, 2, 5 and 8 for the others. */
	cr_assert_eq(sent(&trees), WANTS / 2 * (8 + 1) * 1000);
	free_scene(s, &trees);
}

/* ---- what others ask for ---- */

static int hear(struct sk_want *want, struct sk_err *ret_err)
{
	struct sk_restore_parcel asked[2] = { { NULL, 0 },
					      { want, sizeof(*want) } };
	const struct sk_wants wants = { .asked = asked };
	struct scene *s = new_scene(2);
	struct sk_asked a;
	int r = sk_asked_new(&s->rs, &wants, &a);

	*ret_err = s->rs.err;
	sk_asked_free(&a);
	free(s);
	return r;
}

/* No byte is counted of what ends before it begins, or is asked of another
 * rank; of what can be, the image is looked for. */
Test(asked, what_cannot_be)
{
	struct sk_want wants[] = { { .from = 9, .to = 9 },
				   { .from = 9, .to = 8 },
				   { .to = 8, .source = 1 },
				   { .to = 8 } };

	for (size_t i = 0; i < SK_ARRAY_SIZE(wants); i++) {
		struct sk_err err = { "" };

		cr_assert_eq(hear(&wants[i], &err), -EPROTO);
		cr_assert(strstr(err.text, i < 3 ? "what cannot be" :
				 "that is not here"), "%s", err.text);
	}
}
