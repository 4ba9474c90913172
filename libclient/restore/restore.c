/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sk_restore(): choose together, then attempt one snapshot after the other
 * until one is whole on every rank.
 *
 * All ranks exchange words at the same points, whatever happens to them in
 * between, so that none waits for one that has given up.
 */
#include <inttypes.h>

#include "conn/say.h"
#include "restore/across.h"
#include "restore/agree.h"
#include "restore/attempt.h"
#include "restore/ballot.h"
#include "restore/begin.h"
#include "restore/choose.h"
#include "restore/nodes.h"
#include "restore/options.h"
#include "restore/room.h"
#include "restore/sentence.h"
#include "state/register.h"

/* Agents that may be killed before the ranks have met. */
#define AGENTS_MOST 8

static uint64_t now(const struct sk_restoring *rs)
{
	return rs->sk->os->now_ns(rs->sk->os);
}

/* ---- one attempt after the other ---- */

/* What another snapshot may do better. */
static bool passes_over(int r)
{
	return r == -ENODATA || r == -EBADMSG || r == -EIO || r == -ENOENT;
}

/* It may have come anew, whole, or a newer one in its place, or an agent was
 * killed, and the next one has what outlived it: who lists again will see. All
 * ranks heard the same. */
static bool must_list_again(const struct sk_restoring *rs, int r)
{
	bool other = (passes_over(r) && rs->stale_anywhere) ||
		     r == -ECONNRESET;

	return other && !rs->broken &&
	       rs->listed_again < SK_LIST_AGAIN_MAX;
}

static int say_went(struct sk_restoring *rs)
{
	return sk_err_prefix(&rs->err, -EIO, "what there is was replaced or "
			     "went each of %u times that it was listed, and",
			     rs->listed_again + 1);
}

/* Who could not look must not say that there is nothing: a job would begin
 * anew. */
static int say_lacking(struct sk_restoring *rs, int r, bool went)
{
	if (r != -ENODATA && r != -ENOENT)
		return r;
	if (r == -ENODATA && rs->apart && rs->gaps_anywhere)
		return sk_err_prefix(&rs->err, -EIO, "a store cannot be read, "
				     "and without it");
	return rs->step == SK_LATEST && went ? say_went(rs) : -ENOENT;
}

/* It was listed, and has gone, as did another one the last time: there will be
 * newer ones than what was listed after it. */
static bool is_moving(const struct sk_restoring *rs,
		      const struct sk_restore_offer *o)
{
	return rs->stale_anywhere && !rs->broken &&
	       !sk_restore_same_offer(o, &rs->gone);
}

static int attempt_all(struct sk_restoring *rs)
{
	/* A new list has what came since, newer than what this one had. */
	const struct sk_restore_offer past = rs->past;
	struct sk_err first = { 0 };
	int failed = 0, r = 0;
	bool went = false;

	for (uint32_t i = 0; i < rs->n_offers; i++) {
		sk_restore_anew(rs);
		rs->stale = rs->stale_anywhere = false;
		if (i)
			r = sk_restore_agreed(rs, sk_restore_connect(rs));
		if (r < 0)
			return r;
		rs->past = rs->offers[i];
		r = sk_restore_told(rs, sk_restore_attempt(rs, &rs->offers[i]));
		sk_restore_forget_attempt(rs);
		if (must_list_again(rs, r)) {
			rs->past = past;
			rs->gone = rs->offers[i];
			return r;
		}
		if (!passes_over(r) || rs->step != SK_LATEST)
			break;
		rs->doubtful |= r != -ENODATA || rs->stale_anywhere;
		rs->moving = is_moving(rs, &rs->offers[i]);
		if (rs->moving)
			return say_went(rs);
		went |= rs->stale_anywhere;
		if (!failed) {
			failed = r;
			first = rs->err;
		}
	}
	if (!passes_over(r))
		return r;
	if (failed) {
		rs->err = first;
		r = failed;
	}
	return say_lacking(rs, r, went);
}

/* ---- the call ---- */

/* Of another run now, and heard by nobody yet, it says so anew. */
static int choose(struct sk_restoring *rs, int r)
{
	int agents = 0;

	r = sk_restore_choose(rs, r);
	while (r < 0 && rs->agent_comm.astray && ++agents < AGENTS_MOST) {
		rs->agent_comm.astray = false;
		rs->lists = 0;
		r = sk_restore_choose(rs, sk_restore_begin_again(rs));
	}
	return r;
}

/* @r: what comes of the connection. */
static int choose_and_attempt(struct sk_restoring *rs, int r)
{
	r = choose(rs, r);
	if (r >= 0)
		r = attempt_all(rs);
	while (must_list_again(rs, r)) {
		rs->listed_again++;
		rs->lists = 0;
		rs->stale = rs->stale_anywhere = false;
		r = choose(rs, sk_restore_begin_again(rs));
		if (r >= 0)
			r = attempt_all(rs);
	}
	return r;
}

/* What this rank has to tell the others first, where it is refused. */
static int run(struct sk_restoring *rs)
{
	struct sk_err first;
	int r = 0, mine;

	/* By a comm of the caller's it can be told without an agent. */
	if (!rs->refused || !rs->comm.allgather)
		r = sk_restore_find(rs);
	if (r < 0 && !rs->comm.allgather)
		return rs->refused ? sk_restore_refuse(rs) : r;
	if (rs->refused || r >= 0)
		r = sk_restore_begin(rs);
	mine = r;
	first = rs->err;
	r = choose_and_attempt(rs, r);
	if (mine >= 0 || !rs->broken || rs->listed_again)
		return r;
	/* They did not come to hear it; it is why, all the same. */
	rs->err = first;
	return mine;
}

/* All that were listed are none: there are older ones. */
static int go_further_back(struct sk_restoring *rs, int failed)
{
	struct sk_err first = rs->err;
	int r = failed;

	while (passes_over(r) && rs->older && rs->step == SK_LATEST &&
	       !rs->moving)
		r = choose_and_attempt(rs, sk_restore_connect(rs));
	if (!passes_over(r))
		return r;
	rs->err = first;
	return failed;
}

static void release(struct sk_restoring *rs)
{
	sk_restore_end_across(rs);
	sk_restore_forget_attempt(rs);
	sk_restore_disconnect(rs);
	sk_agent_comm_free(&rs->agent_comm);
	sk_recall_clear(rs->sk->recall);
	free(rs->incomplete);
	sk_restore_forget_nodes(rs);
	free(rs->wanted);
	free(rs->boxes_told);
	free(rs->touched);
	free(rs->text);
}

/* Nobody goes back to what is newer, where any would have done, and what each
 * node has counted. What is brought back for its names alone is only read. */
static void note_begun(const struct sk_restoring *rs)
{
	if (rs->names)
		return;
	rs->state->begun = (struct sk_begun){
		.run = rs->report.run, .run_id = rs->report.run_id,
		.step = rs->report.step,
		.newest = rs->step == SK_LATEST && !rs->run && !rs->run_id &&
			  !(rs->flags & (SK_RESTORE_MEMORY_ONLY |
					 SK_RESTORE_DISK_ONLY)) &&
			  (rs->apart || rs->n_nodes == 1) &&
			  !rs->gaps_anywhere && !rs->doubtful,
	};
}

static int restore(struct sk_restoring *rs)
{
	uint64_t began = now(rs);
	int r;

	pthread_mutex_lock(&rs->state->lock);
	/* The last snapshot may still read what is to be overwritten. */
	(void)sk_fences_settle(&rs->state->fences, SK_FOREVER);
	r = run(rs);
	if (rs->past.run)
		r = go_further_back(rs, r);
	rs->report.total_ns = now(rs) - began;
	if (!rs->broken)
		sk_agent_comm_leave(&rs->agent_comm);
	if (r < 0)
		r = sk_restore_say(rs, r);
	else
		note_begun(rs);
	/* Slots that it read are free when it returns. */
	if (r >= 0 && rs->connected)
		sk_conn_leave(&rs->conn);
	release(rs);
	pthread_mutex_unlock(&rs->state->lock);
	return r;
}

/* To what is wrong with the call nobody listens where the rank is alone, or the
 * comm is none. */
static bool can_be_told(const struct sk_restoring *rs,
			const struct sk_comm *comm)
{
	return rs->state->job.world > 1 && (!comm || rs->comm.allgather);
}

int sk_restore_first(struct sk_state *state, int64_t step,
		     const struct sk_comm *comm,
		     const struct sk_restore_options *opts,
		     struct sk_report *ret_report)
{
	struct sk_restoring rs = { .state = state, .conn = SK_CONN_NULL };
	int r;

	r = sk_state_check(state, &rs.err);
	if (r < 0)
		return sk_say(r, &rs.err);
	rs.sk = state->sk;
	r = sk_restore_take_comm(&rs, comm);
	r = sk_restore_take_options(&rs, step, opts, r);
	if (r < 0 && !can_be_told(&rs, comm))
		return sk_say(r, &rs.err);
	rs.refused = r;
	rs.refusal = rs.err;
	r = restore(&rs);
	if (r < 0)
		return r;
	if (ret_report)
		*ret_report = rs.report;
	return 0;
}

/* Training goes on from here: memory is faulted in beside it, and not beside
 * the restore. */
void sk_restore_room(struct sk_state *state)
{
	if (sk_state_check(state, NULL) < 0)
		return;
	pthread_mutex_lock(&state->lock);
	if (state->n_locals && !(state->job.flags & SK_JOB_READER))
		(void)sk_state_register(state, true, sk_until(state->sk),
					NULL);
	pthread_mutex_unlock(&state->lock);
}

struct sk_begun sk_restore_begun(struct sk_state *state)
{
	struct sk_begun begun;

	pthread_mutex_lock(&state->lock);
	begun = state->begun;
	pthread_mutex_unlock(&state->lock);
	return begun;
}

void sk_restore_begin_with(struct sk_state *state,
			   const struct sk_begun *begun)
{
	pthread_mutex_lock(&state->lock);
	state->begun = *begun;
	state->begun.by_id = 0;
	/* Who has slots would not tell the agent of it. */
	state->changed |= state->n_slots > 0;
	pthread_mutex_unlock(&state->lock);
}

void sk_restore_nodes_as(struct sk_state *state, const struct sk_state *other)
{
	sk_state_set_nodes(state, other->nodes);
}

SK_API int sk_restore(struct sk_state *state, int64_t step,
		      const struct sk_comm *comm,
		      const struct sk_restore_options *opts,
		      struct sk_report *ret_report)
{
	int r = sk_restore_first(state, step, comm, opts, ret_report);

	if (r >= 0 || r == -ENOENT)
		sk_restore_room(state);
	return r;
}
