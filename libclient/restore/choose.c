/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which snapshot: every rank says what its agent has; what all of them have
 * may be tried, newest first.
 */
#include "restore/choose.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/nodes.h"
#include "restore/offer.h"
#include "state/register.h"

/* A rank's part of the choice. */
struct ballot {
	struct sk_restore_word word;
	uint64_t agent;			/* its instance */
	uint64_t run, run_id;		/* that it registered in; 0: none */
	uint32_t n_offers;
	uint32_t n_complete;		/* of them */
	uint32_t gaps;			/* its word's text is about them */
	uint32_t damaged;		/* or about a damaged image */
	uint32_t cut;			/* it has older ones */
	uint32_t exchanges;		/* its comm does more than gather */
	struct sk_restore_offer offers[2 * SK_OFFERS_MAX];
};

static bool same_snapshot(const struct sk_restore_offer *a,
			  const struct sk_restore_offer *b)
{
	return a->run == b->run && a->run_id == b->run_id &&
	       a->step == b->step;
}

/* Whether it has the same, as complete as said. */
static bool offers(const struct ballot *b, const struct sk_restore_offer *o,
		   uint32_t flags)
{
	for (uint32_t i = 0; i < b->n_offers; i++)
		if (same_snapshot(&b->offers[i], o) &&
		    b->offers[i].digest == o->digest &&
		    (b->offers[i].flags & flags) == flags)
			return true;
	return false;
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

static bool all_offer(const struct sk_restoring *rs,
		      const struct ballot *ballots,
		      const struct sk_restore_offer *o, uint32_t flags)
{
	for (int32_t k = 0; k < rs->state->job.world; k++)
		if (!offers(&ballots[k], o, flags))
			return false;
	return true;
}

static void keep_common(struct sk_restoring *rs, const struct ballot *ballots)
{
	uint32_t kept = 0;

	assert(rs->n_offers <= 2 * SK_OFFERS_MAX);
	for (uint32_t i = 0; i < rs->n_offers; i++)
		if (!was_tried(rs, &rs->offers[i]) &&
		    all_offer(rs, ballots, &rs->offers[i], SK_OFFER_COMPLETE))
			rs->offers[kept++] = rs->offers[i];
	rs->n_offers = kept;
}

static int newest_offer_first(const void *a, const void *b)
{
	const struct sk_restore_offer *x = a, *y = b;

	if (x->run != y->run)
		return x->run < y->run ? 1 : -1;
	if (x->step != y->step)
		return x->step < y->step ? 1 : -1;
	if (x->run_id != y->run_id)
		return x->run_id < y->run_id ? 1 : -1;
	/* What one of them knows to be complete comes first. */
	return (x->flags < y->flags) - (x->flags > y->flags);
}

/*
 * Nodes have parts of snapshots: what any of them has may be whole with what
 * the others have. Of the flags of each, complete is what some agent says,
 * durable what all say.
 */
static int keep_any(struct sk_restoring *rs, const struct ballot *ballots)
{
	_cleanup_free_ struct sk_restore_offer *all = NULL;
	size_t n = 0, world = (uint32_t)rs->state->job.world;
	uint32_t kept = 0;

	all = calloc(world, sizeof(ballots->offers));
	if (!all)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for what %zu "
				  "ranks offer", world);
	for (int32_t k = 0; k < rs->n_nodes; k++) {
		const struct ballot *b = &ballots[rs->nodes[k].ranks[0]];

		memcpy(&all[n], b->offers, b->n_offers * sizeof(*all));
		n += b->n_offers;
	}
	qsort(all, n, sizeof(*all), newest_offer_first);
	for (size_t i = 0; i < n && kept < 2 * SK_OFFERS_MAX; i++) {
		if ((i && same_snapshot(&all[i], &all[i - 1])) ||
		    was_tried(rs, &all[i]))
			continue;
		rs->offers[kept] = all[i];
		if (!all_offer(rs, ballots, &all[i], SK_OFFER_DURABLE))
			rs->offers[kept].flags &= ~SK_OFFER_DURABLE;
		kept++;
	}
	rs->n_offers = kept;
	return 0;
}

/* The sentence of a restore that finds nothing. */
static int nothing(struct sk_restoring *rs, const struct ballot *ballots)
{
	const char *job = rs->state->job.name;

	/* One who could not look must not say that there is nothing. */
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (ballots[i].gaps)
			return sk_err_set(&rs->err, -EIO, "nobody can tell "
					  "whether job %s has a snapshot, rank "
					  "%d cannot read the store: %.*s",
					  job, i, SK_ERR_MAX - 1,
					  ballots[i].word.text);
	/* Nor is it a first run where something was, and is damaged. */
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (ballots[i].damaged && !ballots[i].n_complete)
			return sk_err_set(&rs->err, -EBADMSG, "job %s has "
					  "nothing to restore: %.*s", job,
					  SK_ERR_MAX - 1,
					  ballots[i].word.text);
	for (int32_t i = 0; i < rs->state->job.world; i++) {
		const struct sk_restore_word *w = &ballots[i].word;

		if (ballots[i].n_complete)
			continue;
		if (w->text[0])
			return sk_err_set(&rs->err, -ENOENT, "job %s has "
					  "nothing to restore: %.*s", job,
					  SK_ERR_MAX - 1, w->text);
		if (rs->step != SK_LATEST)
			return sk_err_set(&rs->err, -ENOENT, "job %s has no "
					  "snapshot of step %" PRId64
					  " that rank %d can reach", job,
					  rs->step, i);
		return sk_err_set(&rs->err, -ENOENT, "job %s has no snapshot "
				  "that rank %d can reach; this is its first "
				  "run, or its images are gone", job, i);
	}
	return sk_err_set(&rs->err, -ENOENT, "job %s has no snapshot that all "
			  "%d ranks can reach", job, rs->state->job.world);
}

static int first_error(struct sk_restoring *rs, const struct ballot *ballots)
{
	for (int32_t i = 0; i < rs->state->job.world; i++) {
		const struct sk_restore_word *w = &ballots[i].word;

		if (w->status < 0 && rs->state->job.world == 1)
			return w->status;
		if (w->status < 0)
			return sk_err_set(&rs->err, w->status, "rank %d: %.*s",
					  i, SK_ERR_MAX - 1, w->text);
	}
	return 0;
}

static int check_ballots(struct sk_restoring *rs,
			 const struct ballot *ballots)
{
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (ballots[i].n_offers > 2 * SK_OFFERS_MAX ||
		    ballots[i].word.status > 0)
			return sk_err_set(&rs->err, -EPROTO, "what the comm "
					  "brought of rank %d is nothing that "
					  "a rank says", i);
	return 0;
}

static int note_nodes(struct sk_restoring *rs, const struct ballot *ballots)
{
	size_t world = (uint32_t)rs->state->job.world;
	_cleanup_free_ uint64_t *agents = calloc(world, sizeof(*agents));
	bool exchanges = true;
	int r;

	if (!agents)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu ranks",
				  world);
	rs->older = false;
	for (size_t i = 0; i < world; i++) {
		rs->older |= ballots[i].cut;
		agents[i] = ballots[i].agent;
		exchanges &= ballots[i].exchanges;
		rs->gaps_anywhere |= ballots[i].gaps;
	}
	sk_restore_forget_nodes(rs);
	r = sk_restore_nodes(rs, agents);
	rs->apart = exchanges && rs->n_nodes > 1;
	return r;
}

static int count(struct sk_restoring *rs, const struct ballot *ballots)
{
	int r;

	r = first_error(rs, ballots);
	if (r < 0)
		return r;
	r = note_nodes(rs, ballots);
	if (r >= 0 && rs->apart)
		r = keep_any(rs, ballots);
	else
		keep_common(rs, ballots);
	if (r < 0)
		return r;
	return rs->n_offers ? 0 : nothing(rs, ballots);
}

/*
 * Ranks that several agents serve were let into as many runs. All go on in
 * the one of the highest number, of several in that of the lowest rank: else
 * no snapshot of theirs would ever be whole. What fails here is told by the
 * first snapshot.
 */
static void join_one_run(struct sk_restoring *rs,
			 const struct ballot *ballots)
{
	const struct ballot *chosen = &ballots[0];
	struct sk_state *state = rs->state;

	assert(state->job.world > 0);
	for (int32_t i = 0; i < state->job.world; i++) {
		if (!ballots[i].run)
			return;		/* readers, or one that failed */
		if (ballots[i].run > chosen->run)
			chosen = &ballots[i];
	}
	if (state->run == chosen->run && state->run_id == chosen->run_id)
		return;
	sk_state_unregister(state);
	sk_state_set_run(state, chosen->run, chosen->run_id);
	(void)sk_state_register(state, false, sk_until(rs->sk), NULL);
}

static void fill_ballot(const struct sk_restoring *rs, int r,
			struct ballot *mine)
{
	mine->word.status = r < 0 ? r : 0;
	mine->gaps = rs->gaps.n;
	mine->damaged = rs->damaged;
	if (r < 0)
		memcpy(mine->word.text, rs->err.text, SK_ERR_MAX);
	else if (rs->gaps.n)
		memcpy(mine->word.text, rs->gaps.first, SK_ERR_MAX);
	else if (rs->incomplete)
		(void)snprintf(mine->word.text, SK_ERR_MAX, "%s",
			       rs->incomplete);
	mine->agent = rs->conn.agent.instance;
	mine->run = rs->state->run;
	mine->run_id = rs->state->run_id;
	mine->n_offers = r < 0 ? 0 : rs->n_offers;
	mine->cut = r >= 0 && rs->cut;
	mine->exchanges = rs->comm.exchange != NULL;
	for (uint32_t i = 0; i < mine->n_offers; i++)
		mine->n_complete += rs->offers[i].flags & SK_OFFER_COMPLETE;
	memcpy(mine->offers, rs->offers, sizeof(mine->offers));
}

/* One list, and what all say of theirs. */
static int vote(struct sk_restoring *rs, int r)
{
	_cleanup_free_ struct ballot *ballots = NULL;
	_cleanup_free_ struct ballot *mine = calloc(1, sizeof(*mine));

	if (!mine)
		return sk_err_set(&rs->err, -ENOMEM, "no memory to choose a "
				  "snapshot");
	rs->older = false;
	rs->n_offers = 0;
	if (r >= 0)
		r = sk_restore_offers(rs);
	fill_ballot(rs, r, mine);
	rs->lists++;
	r = sk_restore_gather(rs, mine, sizeof(*mine), &ballots, 0);
	if (r < 0)
		return r;
	r = check_ballots(rs, ballots);
	if (r < 0)
		return r;
	join_one_run(rs, ballots);
	return count(rs, ballots);
}

int sk_restore_choose(struct sk_restoring *rs, int r)
{
	r = vote(rs, r);
	while (r < 0 && rs->older)
		r = vote(rs, 0);
	return r;
}
