/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks offer, brought together, beside a plain look at all lists. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/util.h"
#include "case.h"
#include "restore/ballot.h"
#include "restore/nodes.h"

#define WORLD 6
#define ROUNDS 300
#define STEPS 12	/* so that some meet */

struct member {
	pthread_t thread;
	struct world *w;
	struct sk sk;
	struct sk_state state;
	char room[WORLD * SK_SAID_BYTES] __attribute__((aligned(8)));
	struct sk_restoring rs;
	/* What it had before. */
	struct sk_restore_offer had[2 * SK_OFFERS_MAX];
	uint32_t n_had;
	int result;
};

struct world {
	pthread_barrier_t barrier;
	char all[WORLD * 2 * SK_OFFERS_MAX * sizeof(struct sk_restore_offer)];
	struct sk_restore_ballot ballots[WORLD];
	struct member members[WORLD];
};

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct member *m = ctx;
	struct world *w = m->w;

	(void)timeout_ms;
	cr_assert_leq(bytes * WORLD, sizeof(w->all));
	memcpy(w->all + bytes * (size_t)m->state.job.rank, in, bytes);
	pthread_barrier_wait(&w->barrier);
	memcpy(out, w->all, bytes * WORLD);
	pthread_barrier_wait(&w->barrier);
	return 0;
}

static int newest_first(const void *a, const void *b)
{
	const struct sk_restore_offer *x = a, *y = b;

	return (x->step < y->step) - (x->step > y->step);
}

/* Some steps, of which others may know more, or other images. */
static void draw_offers(struct member *m)
{
	for (int64_t step = STEPS; step > 0; step--)
		if (below(4))
			m->had[m->n_had++] = (struct sk_restore_offer){
				.run = 1, .run_id = 1, .step = step,
				.world = WORLD,
				.digest = one_in(8),
				.flags = (one_in(6) ? one_in(2) :
						      SK_OFFER_COMPLETE) |
					 (one_in(6) ? 0 : SK_OFFER_DURABLE) };
	qsort(m->had, m->n_had, sizeof(*m->had), newest_first);
}

/* All the same, now and then; two nodes or one. */
static void draw_world(struct world *w, bool apart)
{
	bool same = one_in(5);

	for (int i = 0; i < WORLD; i++) {
		struct member *m = &w->members[i];

		*m = (struct member){ .w = w };
		m->sk.os = sk_os_linux();
		m->state.job.rank = i;
		m->state.job.world = WORLD;
		m->state.said = m->room;
		if (same && i) {
			memcpy(m->had, w->members[0].had, sizeof(m->had));
			m->n_had = w->members[0].n_had;
		} else {
			draw_offers(m);
		}
		memcpy(m->rs.offers, m->had, sizeof(m->had));
		m->rs.n_offers = m->n_had;
		m->rs.sk = &m->sk;
		m->rs.state = &m->state;
		m->rs.comm = (struct sk_comm){ .ctx = m,
					       .allgather = allgather };
		m->rs.apart = apart;
		w->ballots[i] = (struct sk_restore_ballot){
			.digest = sk_restore_offers_digest(m->had, m->n_had),
			.n_offers = m->n_had };
	}
}

static void *run(void *arg)
{
	struct member *m = arg;

	m->result = sk_restore_pool_offers(&m->rs, m->w->ballots);
	return NULL;
}

static const struct sk_restore_offer *find(const struct member *m,
					   int64_t step)
{
	for (uint32_t i = 0; i < m->n_had; i++)
		if (m->had[i].step == step)
			return &m->had[i];
	return NULL;
}

/* The one that knows most of those that the lowest ranks of nodes have. */
static const struct sk_restore_offer *best(const struct world *w, bool apart,
					   int64_t step)
{
	const struct sk_restore_offer *a = find(&w->members[0], step), *b;

	b = apart ? find(&w->members[WORLD / 2], step) : NULL;
	if (!a || !b)
		return a ? a : b;
	if (a->flags != b->flags)
		return a->flags > b->flags ? a : b;
	return a->digest <= b->digest ? a : b;
}

static bool all_have(const struct world *w, const struct sk_restore_offer *o,
		     uint32_t flag)
{
	for (int i = 0; i < WORLD; i++) {
		const struct sk_restore_offer *x = find(&w->members[i],
							o->step);

		if (!x || x->digest != o->digest || !(x->flags & flag))
			return false;
	}
	return true;
}

/* @same: one agent is all that there is. */
static void check(const struct world *w, const struct member *m, bool apart,
		  bool same)
{
	const uint32_t said = SK_OFFER_COMPLETE | SK_OFFER_LOCAL;
	uint32_t at = 0;

	for (int64_t step = STEPS - 2; step > 0; step--) {
		const struct sk_restore_offer *o = best(w, apart, step);
		const struct sk_restore_offer *got = &m->rs.offers[at];
		uint32_t flags;

		if (!o || (!apart && !all_have(w, o, same ? said :
						     SK_OFFER_COMPLETE)))
			continue;
		flags = (o->flags & said) |
			(all_have(w, o, SK_OFFER_DURABLE) ? SK_OFFER_DURABLE :
							    0) |
			(find(m, step) ? SK_OFFER_MINE : 0);
		cr_assert_lt(at++, m->rs.n_offers);
		cr_assert(got->step == step && got->digest == o->digest &&
			  got->flags == flags);
	}
	cr_assert_eq(at, m->rs.n_offers);
}

/* The newest that a rank has by itself, of those that were not tried. */
static int64_t newest_of(const struct member *m)
{
	for (int64_t step = STEPS - 2; step > 0; step--) {
		const struct sk_restore_offer *o = find(m, step);

		if (o && o->flags & SK_OFFER_COMPLETE)
			return step;
	}
	return 0;
}

/* Where one agent says all of it, none goes back past what each has. */
static void check_step(const struct world *w, const struct member *m,
		       bool same)
{
	int64_t least = STEPS, common = 0;

	for (int i = 0; i < WORLD; i++) {
		int64_t newest = newest_of(&w->members[i]);

		least = newest < least ? newest : least;
		cr_assert_eq(w->ballots[i].newest.step, newest);
	}
	for (uint32_t i = m->rs.n_offers; i > 0; i--)
		if (m->rs.offers[i - 1].flags & SK_OFFER_COMPLETE)
			common = m->rs.offers[i - 1].step;
	cr_assert_eq(sk_restore_out_of_step(&m->rs, w->ballots),
		     same && common < least, "%d: %d, %d", same, (int)common,
		     (int)least);
}

static void play(struct world *w, bool apart, bool same)
{
	const uint64_t agents[] = { 7, 7, 7, same ? 7 : 9, same ? 7 : 9,
				    same ? 7 : 9 };

	draw_world(w, apart);
	for (int i = 0; i < WORLD; i++) {
		struct member *m = &w->members[i];

		cr_assert_eq(sk_restore_nodes(&m->rs, agents), 0);
		/* What is newer was tried. */
		m->rs.past = (struct sk_restore_offer){
			.run = 1, .run_id = 1, .step = STEPS - 1 };
		w->ballots[i].newest = sk_restore_newest_offer(&m->rs);
	}
	for (int i = 0; i < WORLD; i++)
		pthread_create(&w->members[i].thread, NULL, run,
			       &w->members[i]);
	for (int i = 0; i < WORLD; i++)
		pthread_join(w->members[i].thread, NULL);
	for (int i = 0; i < WORLD; i++) {
		cr_assert_eq(w->members[i].result, 0);
		check(w, &w->members[i], apart, same);
		check_step(w, &w->members[i], same);
		sk_restore_forget_nodes(&w->members[i].rs);
	}
}

Test(ballot, what_all_have_or_any_node_has_is_what_is_tried)
{
	struct world *w = calloc(1, sizeof(*w));

	draw_from(1);
	pthread_barrier_init(&w->barrier, NULL, WORLD);
	for (int i = 0; i < ROUNDS; i++)
		play(w, i % 3 == 1, i % 3 == 2);
	pthread_barrier_destroy(&w->barrier);
	free(w);
}
