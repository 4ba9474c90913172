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
#include "conn/list.h"
#include "restore/agree.h"
#include "restore/images.h"
#include "restore/nodes.h"
#include "state/register.h"

/* How many complete ones are listed at first, and when those were not enough;
 * 0: all. All ranks go back in step. */
static const uint32_t list_most[] = { 8, SK_OFFERS_MAX, 0 };

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

/* ---- what this rank can offer ---- */

static int newest_first(const void *a, const void *b)
{
	const struct sk_wire_snapshot *x = a, *y = b;

	if (x->id.run != y->id.run)
		return x->id.run < y->id.run ? 1 : -1;
	if (x->id.step != y->id.step)
		return x->id.step < y->id.step ? 1 : -1;
	return (x->id.run_id < y->id.run_id) - (x->id.run_id > y->id.run_id);
}

static bool suits(const struct sk_restoring *rs,
		  const struct sk_wire_snapshot *s)
{
	if (rs->step != SK_LATEST && s->id.step != rs->step)
		return false;
	if ((rs->run && s->id.run != rs->run) ||
	    (rs->run_id && s->id.run_id != rs->run_id))
		return false;
	if (rs->flags & SK_RESTORE_MEMORY_ONLY && !(s->flags & SK_SNAP_MEMORY))
		return false;
	if (rs->flags & SK_RESTORE_DISK_ONLY && !(s->flags & SK_SNAP_DISK))
		return false;
	return true;
}

/* Of the first image that is damaged where the restore may look; -1. */
static int32_t damaged_rank(const struct sk_restoring *rs,
			    const struct sk_wire_snapshot *s, bool *ret_disk)
{
	*ret_disk = false;
	if (s->bad_memory >= 0 && !(rs->flags & SK_RESTORE_DISK_ONLY))
		return s->bad_memory;
	*ret_disk = true;
	return rs->flags & SK_RESTORE_MEMORY_ONLY ? -1 : s->bad_disk;
}

static int note_incomplete(struct sk_restoring *rs,
			   const struct sk_wire_snapshot *s)
{
	bool disk;
	int32_t bad = damaged_rank(rs, s, &disk);
	char which[80] = "";

	if (rs->incomplete && (rs->damaged || bad < 0))
		return 0;
	free(rs->incomplete);
	if (bad >= 0)
		(void)snprintf(which, sizeof(which), "the image of rank %"
			       PRId32 " %s is damaged; ", bad,
			       sk_restore_where(disk));
	if (asprintf(&rs->incomplete, "step %" PRId64 " of run %" PRIu64
		     " is not complete: %s%.*s", s->id.step, s->id.run, which,
		     SK_ERR_MAX - 1, s->text[0] ? s->text :
						  "images are missing") < 0) {
		rs->incomplete = NULL;
		return sk_err_set(&rs->err, -ENOMEM, "no memory for a list "
				  "of snapshots");
	}
	rs->damaged = bad >= 0;
	return 0;
}

static int list(struct sk_restoring *rs, struct sk_wire_snapshot **ret,
		size_t *ret_n)
{
	struct sk_wire_id id = { .step = rs->step, .rank = -1,
				 .run = rs->run, .run_id = rs->run_id };
	uint32_t most = list_most[rs->lists], complete = 0;
	int r;

	assert(rs->lists < SK_ARRAY_SIZE(list_most));
	strcpy(id.job, rs->state->job.name);
	r = sk_list_snapshots(&rs->conn, &id, most, sk_until(rs->sk), ret,
			      ret_n, &rs->gaps, &rs->err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < *ret_n; i++)
		complete += !!((*ret)[i].flags & SK_SNAP_COMPLETE);
	rs->cut = most && complete >= most;
	return 0;
}

static struct sk_restore_offer offer_of(const struct sk_wire_snapshot *s)
{
	return (struct sk_restore_offer){
		.run = s->id.run,
		.run_id = s->id.run_id,
		.step = s->id.step,
		.digest = s->digest,
		.world = s->id.world,
		.flags = (s->flags & SK_SNAP_COMPLETE ? SK_OFFER_COMPLETE :
							0) |
			 (s->flags & SK_SNAP_DURABLE ? SK_OFFER_DURABLE : 0),
	};
}

static int offer(struct sk_restoring *rs)
{
	uint32_t offered[2] = { 0 };
	_cleanup_free_ struct sk_wire_snapshot *s = NULL;
	size_t n = 0;
	int r;

	assert(!rs->n_offers);
	r = list(rs, &s, &n);
	if (r < 0)
		return r;
	qsort(s, n, sizeof(*s), newest_first);
	for (size_t i = 0; i < n && r >= 0; i++) {
		uint32_t whole = s[i].flags & SK_SNAP_COMPLETE ? 1 : 0;

		if (!suits(rs, &s[i]))
			continue;
		if (!whole)
			r = note_incomplete(rs, &s[i]);
		if (offered[whole]++ < SK_OFFERS_MAX)
			rs->offers[rs->n_offers++] = offer_of(&s[i]);
	}
	return r;
}

/* ---- what all can ---- */

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
		r = offer(rs);
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
