/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/ballot.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"

#define OFFERS_MOST (2 * SK_OFFERS_MAX)
#define MASK_WORDS (OFFERS_MOST / 64)

/* Which of the candidates a rank offers, bit by bit. */
struct mask {
	uint64_t complete[MASK_WORDS], durable[MASK_WORDS];
	uint64_t local[MASK_WORDS];	/* or complete */
};

/* What is gone through together; the rest is older. */
struct candidates {
	struct sk_restore_offer *v;
	size_t n;
};

uint64_t sk_restore_offers_digest(const struct sk_restore_offer *offers,
				  uint32_t n)
{
	return sk_xxh3(offers, n * sizeof(*offers));
}

bool sk_restore_same_offer(const struct sk_restore_offer *a,
			   const struct sk_restore_offer *b)
{
	return a->run == b->run && a->run_id == b->run_id && a->step == b->step;
}

/* What was offered before, or would have been. */
static bool was_tried(const struct sk_restoring *rs,
		      const struct sk_restore_offer *o)
{
	const struct sk_restore_offer *past = &rs->past;

	if (!past->run || o->run != past->run)
		return past->run && o->run > past->run;
	if (o->step != past->step)
		return o->step > past->step;
	return o->run_id >= past->run_id;
}

static int newest_first(const void *a, const void *b)
{
	const struct sk_restore_offer *x = a, *y = b;

	if (x->run != y->run)
		return x->run < y->run ? 1 : -1;
	if (x->step != y->step)
		return x->step < y->step ? 1 : -1;
	if (x->run_id != y->run_id)
		return x->run_id < y->run_id ? 1 : -1;
	/* What one of them knows to be complete comes first. */
	if (x->flags != y->flags)
		return x->flags < y->flags ? 1 : -1;
	return (x->digest > y->digest) - (x->digest < y->digest);
}

static bool is_older(const struct sk_restore_offer *a,
		     const struct sk_restore_offer *b)
{
	if (a->run != b->run)
		return a->run < b->run;
	return a->step != b->step ? a->step < b->step : a->run_id < b->run_id;
}

struct sk_restore_offer sk_restore_newest_offer(const struct sk_restoring *rs)
{
	struct sk_restore_offer newest = { .run = 0 };

	for (uint32_t i = 0; i < rs->n_offers; i++) {
		const struct sk_restore_offer *o = &rs->offers[i];

		if (o->flags & SK_OFFER_COMPLETE && !was_tried(rs, o) &&
		    is_older(&newest, o))
			newest = *o;
	}
	return newest;
}

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for what %d ranks "
			  "offer", rs->state->job.world);
}

/* ---- candidates ---- */

/* Each snapshot once, those that were tried not at all, and so many. */
static void sift(const struct sk_restoring *rs, struct candidates *c)
{
	size_t kept = 0;

	qsort(c->v, c->n, sizeof(*c->v), newest_first);
	for (size_t i = 0; i < c->n && kept < OFFERS_MOST; i++)
		if (!(kept && sk_restore_same_offer(&c->v[i],
						    &c->v[kept - 1])) &&
		    !was_tried(rs, &c->v[i]))
			c->v[kept++] = c->v[i];
	c->n = kept;
}

/* Ranks of one node have the same to choose from; what all have, the first
 * has. */
static int32_t count_tellers(const struct sk_restoring *rs)
{
	return rs->apart ? rs->n_nodes : 1;
}

static int32_t teller(const struct sk_restoring *rs, int32_t i)
{
	return rs->apart ? rs->nodes[i].ranks[0] : 0;
}

/* @all: from each rank @n of its offers, from its @at-th on. */
static void take(const struct sk_restoring *rs,
		 const struct sk_restore_ballot *ballots,
		 const struct sk_restore_offer *all, uint32_t at, uint32_t n,
		 struct candidates *c)
{
	for (int32_t i = 0; i < count_tellers(rs); i++) {
		int32_t rank = teller(rs, i);
		uint32_t has = ballots[rank].n_offers;

		for (uint32_t k = 0; k < n && at + k < has; k++)
			c->v[c->n++] = all[(uint32_t)rank * (size_t)n + k];
	}
	sift(rs, c);
}

static uint32_t longest(const struct sk_restoring *rs,
			const struct sk_restore_ballot *ballots)
{
	uint32_t most = 0;

	for (int32_t i = 0; i < count_tellers(rs); i++) {
		uint32_t n = ballots[teller(rs, i)].n_offers;

		most = n > most ? n : most;
	}
	return most;
}

static int gather_candidates(struct sk_restoring *rs,
			     const struct sk_restore_ballot *ballots,
			     struct candidates *c)
{
	uint32_t n = (uint32_t)sk_restore_portion(rs, sizeof(*rs->offers));
	struct sk_restore_offer *mine = rs->offers;
	uint32_t most = longest(rs, ballots);
	int r;

	assert(!c->v && most <= OFFERS_MOST);
	n = n < most ? n : most;
	c->v = calloc(OFFERS_MOST + (size_t)count_tellers(rs) * n,
		      sizeof(*c->v));
	r = c->v ? 0 : no_memory(rs);
	for (uint32_t at = 0; at < most && r >= 0; at += n) {
		_cleanup_free_ struct sk_restore_offer *all = NULL;

		/* The last portion is as long as the others. */
		n = at + n > most ? most - at : n;
		r = sk_restore_gather(rs, r, mine + at, n * sizeof(*mine),
				      &all);
		if (r >= 0)
			take(rs, ballots, all, at, n, c);
	}
	return r;
}

/* ---- who has them ---- */

static void mark(const struct sk_restoring *rs, struct candidates *c,
		 struct mask *mask)
{
	for (size_t i = 0; i < c->n; i++) {
		uint64_t bit = UINT64_C(1) << i % 64;

		for (uint32_t k = 0; k < rs->n_offers; k++) {
			const struct sk_restore_offer *o = &rs->offers[k];

			if (!sk_restore_same_offer(o, &c->v[i]))
				continue;
			c->v[i].flags |= SK_OFFER_MINE;
			if (o->digest != c->v[i].digest)
				continue;
			if (o->flags & SK_OFFER_COMPLETE)
				mask->complete[i / 64] |= bit;
			if (o->flags & SK_OFFER_DURABLE)
				mask->durable[i / 64] |= bit;
			if (o->flags & (SK_OFFER_COMPLETE | SK_OFFER_LOCAL))
				mask->local[i / 64] |= bit;
		}
	}
}

/* Of several nodes each has its part. What one node has of a job that had more
 * may be all that is asked for: the others are lost. */
static bool may_do(const struct sk_restoring *rs, const struct mask *all,
		   size_t i)
{
	const uint64_t *words = rs->n_nodes == 1 ? all->local : all->complete;

	return rs->apart || words[i / 64] >> i % 64 & 1;
}

static void keep(struct sk_restoring *rs, const struct candidates *c,
		 const struct mask *all)
{
	uint32_t kept = 0;

	for (size_t i = 0; i < c->n; i++) {
		uint64_t bit = UINT64_C(1) << i % 64;
		struct sk_restore_offer o = c->v[i];

		if (!may_do(rs, all, i))
			continue;
		if (!(all->durable[i / 64] & bit))
			o.flags &= ~SK_OFFER_DURABLE;
		rs->offers[kept++] = o;
	}
	rs->n_offers = kept;
}

/* What all say of each. */
static int compare(struct sk_restoring *rs, struct candidates *c)
{
	_cleanup_free_ struct mask *masks = NULL;
	struct mask mine = { 0 };
	int r;

	if (c->n) {
		mark(rs, c, &mine);
		r = sk_restore_gather(rs, 0, &mine, sizeof(mine), &masks);
		if (r < 0)
			return r;
	}
	for (int32_t i = 0; masks && i < rs->state->job.world; i++)
		for (size_t k = 0; k < MASK_WORDS; k++) {
			mine.complete[k] &= masks[i].complete[k];
			mine.durable[k] &= masks[i].durable[k];
			mine.local[k] &= masks[i].local[k];
		}
	keep(rs, c, &mine);
	return 0;
}

/* ---- together ---- */

static bool are_the_same(const struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots)
{
	for (int32_t i = 1; i < rs->state->job.world; i++)
		if (ballots[i].n_offers != ballots[0].n_offers ||
		    ballots[i].digest != ballots[0].digest)
			return false;
	return true;
}

/* All have what this rank has. */
static void keep_own(struct sk_restoring *rs)
{
	struct candidates c = { rs->offers, rs->n_offers };
	struct mask mine = { { 0 }, { 0 }, { 0 } };

	sift(rs, &c);
	rs->n_offers = (uint32_t)c.n;
	mark(rs, &c, &mine);
	keep(rs, &c, &mine);
}

int sk_restore_pool_offers(struct sk_restoring *rs,
			   const struct sk_restore_ballot *ballots)
{
	struct candidates c = { NULL, 0 };
	int r;

	assert(rs->n_offers <= OFFERS_MOST);
	if (are_the_same(rs, ballots)) {
		keep_own(rs);
		return 0;
	}
	r = gather_candidates(rs, ballots, &c);
	if (r >= 0)
		r = compare(rs, &c);
	free(c.v);
	return r;
}

bool sk_restore_out_of_step(const struct sk_restoring *rs,
			    const struct sk_restore_ballot *ballots)
{
	const struct sk_restore_offer *least = &ballots[0].newest;
	uint32_t at = 0;

	if (rs->n_nodes != 1 || are_the_same(rs, ballots))
		return false;
	while (at < rs->n_offers && !(rs->offers[at].flags &
				      SK_OFFER_COMPLETE))
		at++;
	for (int32_t i = 1; i < rs->state->job.world; i++) {
		if (is_older(&ballots[i].newest, least))
			least = &ballots[i].newest;
	}
	return least->run && (at == rs->n_offers ||
			      is_older(&rs->offers[at], least));
}
