/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sk_restore(): choose together, then attempt one snapshot after the other
 * until one is whole on every rank.
 *
 * All ranks exchange words at the same points, whatever happens to them in
 * between, so that none waits for one that has given up.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "conn/say.h"
#include "restore/across.h"
#include "restore/agree.h"
#include "restore/ballot.h"
#include "restore/choose.h"
#include "restore/gpu.h"
#include "restore/images.h"
#include "restore/jobs.h"
#include "restore/keys.h"
#include "restore/move.h"
#include "restore/names.h"
#include "restore/nodes.h"
#include "restore/open.h"
#include "restore/options.h"
#include "restore/plan.h"
#include "restore/result.h"
#include "restore/room.h"
#include "restore/tell.h"
#include "restore/whole.h"
#include "state/register.h"

/* Names of overwritten tensors that a sentence gives. */
#define NAMED_MAX 8
/* Agents that may be killed while a rank begins. */
#define AGENTS_MOST 8

static uint64_t now(const struct sk_restoring *rs)
{
	return rs->sk->os->now_ns(rs->sk->os);
}

/* ---- one attempt ---- */

static void forget_attempt(struct sk_restoring *rs)
{
	sk_restore_release_images(rs);
	sk_restore_forget_keys(rs);
	sk_restore_unlearn(rs);
	free(rs->pieces);
	free(rs->jobs);
	free(rs->bad);
	rs->pieces = NULL;
	rs->jobs = NULL;
	rs->bad = NULL;
	rs->room_pieces = rs->n_pieces = 0;
	rs->n_jobs = rs->room_jobs = 0;
	rs->alone = rs->doubted = rs->whole = rs->follow = false;
}

static void note_offer(struct sk_restoring *rs,
		       const struct sk_restore_offer *offer)
{
	rs->report.run = offer->run;
	rs->report.run_id = offer->run_id;
	rs->report.step = offer->step;
}

static int examine(struct sk_restoring *rs,
		   const struct sk_restore_offer *offer)
{
	int r;

	note_offer(rs, offer);
	r = rs->images ? 0 : sk_restore_images(rs, offer);
	if (r < 0)
		return r;
	rs->report.world = rs->world;
	r = rs->whole ? 0 : sk_restore_whole(rs);
	if (r >= 0)
		r = sk_restore_index(rs);
	if (r < 0)
		return r;
	return sk_restore_compare(rs);
}

/* From here on ranks name images to each other by their numbers. Those of one
 * node may have listed it at moments between which some came or went. */
static int see_alike(struct sk_restoring *rs, int r)
{
	struct sk_restore_word word = { 0 }, *words;

	if (r >= 0)
		word.extra = sk_restore_images_digest(rs);
	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t i = 1; r >= 0 && i < rs->state->job.world; i++)
		if (words[i].extra != words[0].extra) {
			rs->stale = true;	/* which all hear next */
			r = sk_err_set(&rs->err, -EIO, "ranks 0 and %" PRId32
				       " see other images of step %" PRId64
				       " of run %" PRIu64 ", for some came or "
				       "went meanwhile", i, rs->report.step,
				       rs->report.run);
		}
	return r;
}

/* Ranks of several nodes have each other's lists and layouts. */
static int meet_nodes(struct sk_restoring *rs,
		      const struct sk_restore_offer *offer)
{
	int r;

	note_offer(rs, offer);
	r = see_alike(rs, sk_restore_images(rs, offer));
	return r < 0 ? r : sk_restore_tell(rs);
}

static int prepare(struct sk_restoring *rs)
{
	int r;

	r = sk_restore_plan(rs);
	if (r < 0)
		return r;
	return sk_restore_jobs(rs);
}

static int move(struct sk_restoring *rs)
{
	uint64_t began = now(rs);
	bool again = false;
	int r;

	r = sk_restore_move(rs, 0);
	do {
		rs->report.copy_ns += now(rs) - began;
		r = sk_restore_agree_moved(rs, r, &again);
		if (r < 0 || !again)
			return r;
		began = now(rs);
		r = sk_restore_redo(rs);
	} while (true);
}

/* What is lacking because of damage is no snapshot that was never there. */
static int explain(struct sk_restoring *rs, int r)
{
	const struct sk_wire_part *bad;

	if (r != -ENODATA)
		return r;
	bad = sk_restore_damaged(rs);
	if (!bad)
		return r;
	return sk_err_prefix(&rs->err, -EBADMSG, "the image of rank %" PRId32
			     " %s is damaged, and lacking without it",
			     bad->rank,
			     sk_restore_where(bad->place == SK_PLACE_DISK));
}

static int attempt(struct sk_restoring *rs,
		   const struct sk_restore_offer *offer)
{
	uint64_t began = now(rs), waited = rs->report.agree_ns;
	int r;

	assert(!rs->images && !rs->n_keys && !rs->n_pieces);
	r = rs->apart ? meet_nodes(rs, offer) : 0;
	if (r < 0)
		return r;
	r = explain(rs, examine(rs, offer));
	r = sk_restore_agree_keys(rs, r);
	if (r < 0)
		return r;
	r = sk_restore_agreed(rs, explain(rs, prepare(rs)));
	rs->report.plan_ns += now(rs) - began - rs->report.agree_ns + waited;
	if (r < 0)
		return r;
	return move(rs);
}

/* What another snapshot may do better. */
static bool passes_over(int r)
{
	return r == -ENODATA || r == -EBADMSG || r == -EIO || r == -ENOENT;
}

static void disconnect(struct sk_restoring *rs)
{
	if (rs->connected)
		sk_conn_close(&rs->conn);
	rs->connected = false;
}

/* Leases end with the connection: a new one has none. */
static int connect_again(struct sk_restoring *rs)
{
	int r;

	disconnect(rs);
	r = sk_conn_open_more(rs->sk->os, &rs->sk->conn, rs->sk->socket_path,
			      sk_until(rs->sk), &rs->conn, &rs->err);
	rs->connected = r >= 0;
	return r;
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
	struct sk_restore_offer past = rs->past;
	struct sk_err first = { 0 };
	int failed = 0, r = 0;
	bool went = false;

	for (uint32_t i = 0; i < rs->n_offers; i++) {
		sk_restore_anew(rs);
		rs->stale = rs->stale_anywhere = false;
		if (i)
			r = sk_restore_agreed(rs, connect_again(rs));
		if (r < 0)
			return r;
		rs->past = rs->offers[i];
		r = sk_restore_told(rs, attempt(rs, &rs->offers[i]));
		forget_attempt(rs);
		if (must_list_again(rs, r)) {
			rs->past = past;
			rs->gone = rs->offers[i];
			return r;
		}
		past = rs->past;
		if (!passes_over(r) || rs->step != SK_LATEST)
			break;
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

/* Killed then, the agent is followed by another one, or by none. */
static int find_agent(struct sk_restoring *rs)
{
	int r, agents = 0;

	do
		r = sk_state_register(rs->state, false, sk_until(rs->sk),
				      &rs->err);
	while (r == -ECONNRESET && ++agents < AGENTS_MOST);
	return r;
}

static int refuse(struct sk_restoring *rs)
{
	rs->err = rs->refusal;
	return rs->refused;
}

/* What is needed before the ranks meet, of an agent that was found; who asks
 * for what makes no sense has only that to say to them. */
static int begin(struct sk_restoring *rs)
{
	int r;

	if (rs->refused)
		return refuse(rs);

	r = sk_restore_settle_gpus(rs);
	if (r >= 0)
		r = connect_again(rs);
	if (r < 0)
		return r;
	/* On the same mesh the images' layouts are ours. */
	for (int k = 0; k < 2; k++)
		sk_recall_add(rs->sk->recall, rs->state->layouts[k]);
	return sk_restore_wanted(rs);
}

/* There may have been no agent before. */
static int begin_again(struct sk_restoring *rs)
{
	int r = find_agent(rs);

	return r < 0 ? r : begin(rs);
}

static void use_agent_comm(struct sk_restoring *rs, bool fresh)
{
	struct sk_state *state = rs->state;

	rs->agent_comm = (struct sk_agent_comm){
		.sk = rs->sk,
		.id = sk_state_wire_id(state, 0),
		.state = state,
		.fresh = fresh,
	};
	if (state->job.flags & SK_JOB_READER) {
		rs->agent_comm.state = NULL;
		rs->agent_comm.id.run = SK_RUN_READERS;
		rs->agent_comm.id.run_id = 0;
	}
	sk_comm_of_agent(&rs->agent_comm, &rs->comm);
}

/* Of another run now, and heard by nobody yet, it says so anew. */
static int choose(struct sk_restoring *rs, int r)
{
	int agents = 0;

	r = sk_restore_choose(rs, r);
	while (r < 0 && rs->agent_comm.astray && ++agents < AGENTS_MOST) {
		rs->agent_comm.astray = false;
		rs->lists = 0;
		r = sk_restore_choose(rs, begin_again(rs));
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
		r = choose(rs, begin_again(rs));
		if (r >= 0)
			r = attempt_all(rs);
	}
	return r;
}

/* What an agent may say no to because of what is described, or the system. */
static bool may_come_without(int r)
{
	return r == -EINVAL || r == -E2BIG || r == -EFBIG || r == -ENOMEM ||
	       r == -EOVERFLOW || r == -EDQUOT;
}

/* Finds the agent, and the others by its comm: @r is why this rank cannot be
 * registered with what it describes. It is let into the run with nothing, for
 * the others to hear that. */
static void come_without(struct sk_restoring *rs, int r)
{
	if (!rs->state->run_id && may_come_without(r))
		(void)sk_state_register_bare(rs->state, sk_until(rs->sk));
}

/* Who is in no run has nobody to tell anything by the agent, and gets no comm
 * of it. */
static int find_agent_and_comm(struct sk_restoring *rs)
{
	bool fresh = !rs->state->run_id;
	int r = find_agent(rs);

	if (rs->comm.allgather)
		return r;
	if (r < 0)
		come_without(rs, r);
	if (r >= 0 || rs->state->run_id)
		use_agent_comm(rs, fresh);
	return r;
}

/* What this rank has to tell the others first, where it is refused. */
static int run(struct sk_restoring *rs)
{
	struct sk_err first;
	int r = 0, mine;

	/* By a comm of the caller's it can be told without an agent. */
	if (!rs->refused || !rs->comm.allgather)
		r = find_agent_and_comm(rs);
	if (r < 0 && !rs->comm.allgather)
		return rs->refused ? refuse(rs) : r;
	if (rs->refused || r >= 0)
		r = begin(rs);
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
		r = choose_and_attempt(rs, connect_again(rs));
	if (!passes_over(r))
		return r;
	rs->err = first;
	return failed;
}

/* ---- the sentence ---- */

static uint32_t count_touched(const struct sk_restoring *rs)
{
	uint32_t n = 0;

	for (uint32_t i = 0; rs->touched && i < rs->state->n_locals; i++)
		n += rs->touched[i];
	return n;
}

static void write_touched(const struct sk_restoring *rs, FILE *f)
{
	uint32_t n = count_touched(rs), named = 0;

	fprintf(f, "; on rank %d %u of %u tensors may have been overwritten: ",
		rs->state->job.rank, n, rs->state->n_locals);
	for (uint32_t i = 0; i < rs->state->n_locals; i++) {
		if (!rs->touched[i] || named == NAMED_MAX)
			continue;
		fprintf(f, "%s%s", named++ ? ", " : "",
			rs->state->locals[i].item.spec.name);
	}
	if (n > named)
		fprintf(f, " and %u more", n - named);
}

static int say(struct sk_restoring *rs, int r)
{
	size_t size = 0;
	char *text = NULL;
	FILE *f;

	if (!count_touched(rs)) {
		if (!rs->text)
			return sk_say(r, &rs->err);
		return sk_say_long(r, sk_take_ptr(rs->text));
	}
	f = open_memstream(&text, &size);
	if (!f)
		return sk_say(r, &rs->err);
	fputs(rs->text ? rs->text : rs->err.text, f);
	write_touched(rs, f);
	if (fclose(f)) {
		free(text);
		return sk_say(r, &rs->err);
	}
	return sk_say_long(r, text);
}

static void release(struct sk_restoring *rs)
{
	sk_restore_end_across(rs);
	forget_attempt(rs);
	disconnect(rs);
	sk_agent_comm_free(&rs->agent_comm);
	sk_recall_clear(rs->sk->recall);
	free(rs->incomplete);
	sk_restore_forget_nodes(rs);
	free(rs->wanted);
	free(rs->boxes_told);
	free(rs->touched);
	free(rs->text);
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
		r = say(rs, r);
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
