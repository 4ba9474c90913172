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
#include "comm/nccl.h"
#include "restore/ballot.h"
#include "restore/begin.h"
#include "restore/limits.h"
#include "restore/nodes.h"
#include "restore/offer.h"
#include "restore/one-run.h"
#include "state/register.h"

/* What of the job's was asked for, "" where it was anything. */
static void asked_for(const struct sk_restoring *rs, char *ret, size_t size)
{
	char step[40] = "", run[64] = "";
	const char *where = rs->flags & SK_RESTORE_MEMORY_ONLY ? " in memory" :
			    rs->flags & SK_RESTORE_DISK_ONLY ? " on disk" : "";

	if (rs->step != SK_LATEST)
		(void)snprintf(step, sizeof(step), " of step %" PRId64,
			       rs->step);
	if (rs->run)
		(void)snprintf(run, sizeof(run), " of run %" PRIu64, rs->run);
	if (rs->run_id)
		(void)snprintf(run + strlen(run), sizeof(run) - strlen(run),
			       "%s (%016" PRIx64 ")", rs->run ? "" : " of a run",
			       rs->run_id);
	(void)snprintf(ret, size, "%s%s%s", step, run, where);
}

/* It is no first run where another rank has something: that one asked for
 * another one, or has another disk. */
static bool has_any(const struct sk_restoring *rs,
		    const struct sk_restore_ballot *ballots)
{
	bool any = false;

	for (int32_t i = 0; i < rs->state->job.world; i++)
		any |= ballots[i].n_complete > 0;
	return any;
}

/* Rank @i can reach none: what was asked for says which. */
static int none_of(struct sk_restoring *rs,
		   const struct sk_restore_ballot *ballots, int32_t i)
{
	const char *job = rs->state->job.name;
	char asked[128];

	asked_for(rs, asked, sizeof(asked));
	return sk_err_set(&rs->err, -ENOENT, "job \"%s\" has no snapshot%s "
			  "that rank %d can reach%s", job, asked, i,
			  has_any(rs, ballots) ? ", of what it asks for; other "
			  "ranks can" :
			  asked[0] ? "" : "; this is its first run, or its "
			  "images are gone");
}

/* What rank @i says of what it has, for all. */
static int heard_of(struct sk_restoring *rs, int32_t i, int status,
		    const char *what)
{
	char text[SK_ERR_MAX];
	int r = sk_restore_hear(rs, i, status, rs->note, text);

	rs->told = true;
	return r < 0 ? r : sk_err_set(&rs->err, status, "job \"%s\" %s%.*s",
				      rs->state->job.name, what,
				      SK_ERR_MAX - 1, text);
}

static int cannot_tell(struct sk_restoring *rs, int32_t i)
{
	char text[SK_ERR_MAX];
	int r = sk_restore_hear(rs, i, -EIO, rs->note, text);

	rs->told = true;
	return r < 0 ? r : sk_err_set(&rs->err, -EIO, "nobody can tell "
				      "whether job \"%s\" has a snapshot, "
				      "rank %d cannot read the store: %.*s",
				      rs->state->job.name, i, SK_ERR_MAX - 1,
				      text);
}

static int never_alike(struct sk_restoring *rs)
{
	char asked[128];

	asked_for(rs, asked, sizeof(asked));
	return sk_err_set(&rs->err, -EIO, "job \"%s\" has no snapshot%s that "
			  "all %d ranks have listed before it was replaced, of "
			  "%u times", rs->state->job.name, asked,
			  rs->state->job.world, rs->listed_again + 1);
}

/* The sentence of a restore that finds nothing. */
static int nothing(struct sk_restoring *rs,
		   const struct sk_restore_ballot *ballots)
{
	const char *job = rs->state->job.name;
	char asked[128];
	int r;

	/* A rank may have failed since the ballots. */
	r = sk_restore_agreed(rs, 0);
	if (r < 0)
		return r;
	/* One who could not look must not say that there is nothing. */
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (ballots[i].gaps)
			return cannot_tell(rs, i);
	/* Nor is it a first run where something was, and is damaged. */
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (ballots[i].damaged && !ballots[i].n_complete)
			return heard_of(rs, i, -EBADMSG,
					"has nothing to restore: ");
	for (int32_t i = 0; i < rs->state->job.world; i++) {
		if (ballots[i].n_complete)
			continue;
		return ballots[i].says ?
		       heard_of(rs, i, -ENOENT, "has nothing to restore: ") :
		       none_of(rs, ballots, i);
	}
	asked_for(rs, asked, sizeof(asked));
	return sk_err_set(&rs->err, -ENOENT, "job \"%s\" has no snapshot%s "
			  "that all %d ranks can reach", job, asked,
			  rs->state->job.world);
}

static int first_error(struct sk_restoring *rs,
		       const struct sk_restore_ballot *ballots)
{
	char text[SK_ERR_MAX];
	int32_t i = 0;
	int status, r;

	while (i < rs->state->job.world && ballots[i].status >= 0)
		i++;
	if (i == rs->state->job.world)
		return 0;
	if (rs->state->job.world == 1)
		return ballots[i].status;
	status = ballots[i].status;
	r = sk_restore_hear(rs, i, status, rs->note, text);
	rs->told = true;
	return r < 0 ? r : sk_err_set(&rs->err, status, "rank %d: %.*s", i,
				      SK_ERR_MAX - 1, text);
}

static int check_ballots(struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots)
{
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (ballots[i].n_offers > 2 * SK_OFFERS_MAX ||
		    ballots[i].status > 0)
			return sk_err_set(&rs->err, -EPROTO, "what the comm "
					  "brought of rank %d is nothing that "
					  "a rank says", i);
	return 0;
}

/* Of several nodes' ranks, all that some of them could do on devices they do
 * by the host. */
static void say_without(const struct sk_restoring *rs,
			const struct sk_restore_ballot *ballots)
{
	struct sk_err why;
	int32_t i = 0;

	while (ballots[i].devices)
		i++;
	(void)sk_err_set(&why, 0, "rank %d has no comm that moves the memory "
			 "of a device", i);
	sk_comm_nccl_note(&rs->comm, &why);
}

static int note_nodes(struct sk_restoring *rs,
		      const struct sk_restore_ballot *ballots)
{
	size_t world = (uint32_t)rs->state->job.world;
	_cleanup_free_ uint64_t *agents = calloc(world, sizeof(*agents));
	bool exchanges = true, devices = true, broadcasts = true;
	int r;

	for (size_t i = 0; i < world; i++) {
		exchanges &= ballots[i].exchanges;
		devices &= ballots[i].devices;
		broadcasts &= ballots[i].broadcasts;
		rs->gaps_anywhere |= ballots[i].gaps;
	}
	rs->device_off |= !devices;
	if (!broadcasts)
		rs->comm.broadcast = NULL;
	if (!agents)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu ranks",
				  world);
	for (size_t i = 0; i < world; i++)
		agents[i] = ballots[i].agent;
	sk_restore_forget_nodes(rs);
	r = sk_restore_nodes(rs, agents);
	rs->apart = exchanges && rs->n_nodes > 1;
	if (rs->apart && !devices)
		say_without(rs, ballots);
	return r < 0 ? r : sk_restore_settle_nodes(rs);
}

/* Each has something newer than all have. */
static int out_of_step(struct sk_restoring *rs,
		       const struct sk_restore_ballot *ballots)
{
	if (rs->listed_again < SK_LIST_AGAIN_MAX) {
		/* Said to who could not take what the others gave. */
		rs->stale = true;
		return sk_err_set(&rs->err, -ENOENT, "what ranks have listed "
				  "has been replaced meanwhile");
	}
	rs->moving = rs->step == SK_LATEST;
	if (rs->moving)
		return never_alike(rs);
	return rs->n_offers ? 0 : nothing(rs, ballots);
}

/* Lists before it is said that there is nothing. */
#define NOTHING_AGAIN 2u

/* A look at a store takes a while: one step may have been deleted before it,
 * and the one for which it was not yet be whole when it was looked at. And of
 * ranks of one agent, which has one answer, those that have nothing have looked
 * when the others have not. */
static bool may_be_between(const struct sk_restoring *rs,
			   const struct sk_restore_ballot *ballots)
{
	bool other = rs->n_nodes == 1 && has_any(rs, ballots), some = false;

	for (int32_t i = 0; i < rs->state->job.world; i++) {
		if (ballots[i].gaps || ballots[i].damaged)
			return false;
		some |= !ballots[i].n_complete && (other || ballots[i].says);
	}
	return some && rs->listed_again < NOTHING_AGAIN;
}

static int count(struct sk_restoring *rs,
		 const struct sk_restore_ballot *ballots)
{
	int r = note_nodes(rs, ballots);

	if (r >= 0)
		r = sk_restore_pool_offers(rs, ballots);
	if (r < 0)
		return r;
	if (sk_restore_out_of_step(rs, ballots) ||
	    (!rs->n_offers && may_be_between(rs, ballots)))
		return out_of_step(rs, ballots);
	return rs->n_offers ? 0 : nothing(rs, ballots);
}

static void fill_ballot(struct sk_restoring *rs, int r,
			struct sk_restore_ballot *mine)
{
	const char *note = r < 0 ? rs->err.text :
			   rs->gaps.n ? rs->gaps.first :
			   rs->incomplete ? rs->incomplete : "";

	(void)snprintf(rs->note, sizeof(rs->note), "%s", note);
	mine->status = r < 0 ? r : 0;
	mine->says = *note != '\0';
	mine->gaps = rs->gaps.n;
	mine->damaged = rs->damaged;
	mine->agent = rs->conn.agent.instance;
	mine->run = rs->state->run;
	mine->run_id = rs->state->run_id;
	mine->fresh = rs->state->fresh;
	mine->n_offers = r < 0 ? 0 : rs->n_offers;
	mine->cut = r >= 0 && rs->cut;
	mine->exchanges = rs->comm.exchange != NULL;
	mine->devices = rs->comm.device != NULL;
	mine->broadcasts = rs->comm.broadcast != NULL;
	mine->limits = sk_restore_limits(rs);
	for (uint32_t i = 0; i < mine->n_offers; i++)
		mine->n_complete += rs->offers[i].flags & SK_OFFER_COMPLETE;
	if (r >= 0)
		mine->newest = sk_restore_newest_offer(rs);
	mine->digest = sk_restore_offers_digest(rs->offers, mine->n_offers);
}

/* Whether another list would have more; who fails has told why, and no list
 * makes up for that. */
static bool may_be_older(const struct sk_restoring *rs,
			 const struct sk_restore_ballot *ballots)
{
	bool older = false, failed = false;

	for (int32_t i = 0; i < rs->state->job.world; i++) {
		older |= ballots[i].cut;
		failed |= ballots[i].status < 0;
	}
	return older && !failed;
}

/* One list, and what all say of theirs. *ret_again: some have listed by other
 * limits than all have now. */
static int vote(struct sk_restoring *rs, int r, bool *ret_again)
{
	const struct sk_restore_ballot *ballots;
	struct sk_restore_ballot mine = { 0 };
	uint64_t began = rs->sk->os->now_ns(rs->sk->os);
	int failed;

	sk_restore_anew(rs);
	rs->older = false;
	rs->n_offers = 0;
	if (r >= 0)
		r = sk_restore_offers(rs);
	fill_ballot(rs, r, &mine);
	rs->lists++;
	/* Whose agents see a store for the first time take as long, more or
	 * less. */
	r = sk_restore_cast(rs, &mine, &ballots, sk_restore_more_ms(
		rs->sk->os->now_ns(rs->sk->os) - began));
	if (r < 0 && rs->agent_comm.astray)
		return r;
	if (r >= 0)
		r = check_ballots(rs, ballots);
	if (r >= 0)
		r = sk_restore_check_jobs(rs, ballots);
	if (r < 0)
		return sk_restore_told(rs, r);
	/* Who fails may not know what it asks for: why it does comes first. */
	failed = first_error(rs, ballots);
	r = failed < 0 ? 0 : sk_restore_share_limits(rs, ballots, ret_again);
	if (r < 0)
		return sk_restore_told(rs, r);
	rs->older = may_be_older(rs, ballots);
	r = failed < 0 ? 0 : sk_restore_check_run(rs, ballots);
	if (r < 0)
		return sk_restore_told(rs, r);
	sk_restore_join_run(rs, ballots);
	r = failed < 0 || *ret_again ? failed : count(rs, ballots);
	return sk_restore_told(rs, r);
}

int sk_restore_choose(struct sk_restoring *rs, int r)
{
	bool again = false;

	r = vote(rs, r, &again);
	if (r >= 0 && again) {
		/* From now on all have the same. */
		again = false;
		rs->lists = 0;
		r = vote(rs, 0, &again);
	}
	while (r < 0 && rs->older && !rs->stale_anywhere && !rs->moving)
		r = vote(rs, 0, &again);
	return r;
}
