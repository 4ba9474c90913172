/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/attempt.h"

#include <assert.h>
#include <inttypes.h>

#include "restore/agree.h"
#include "restore/images.h"
#include "restore/jobs.h"
#include "restore/keys.h"
#include "restore/move.h"
#include "restore/names.h"
#include "restore/open.h"
#include "restore/plan.h"
#include "restore/result.h"
#include "restore/tell.h"
#include "restore/whole.h"

static uint64_t now(const struct sk_restoring *rs)
{
	return rs->sk->os->now_ns(rs->sk->os);
}

void sk_restore_forget_attempt(struct sk_restoring *rs)
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
	rs->alone = rs->trusting = rs->doubted = rs->whole = false;
	rs->follow = rs->local = false;
	rs->n_lost = 0;
}

static void note_offer(struct sk_restoring *rs,
		       const struct sk_restore_offer *offer)
{
	rs->report.run = offer->run;
	rs->report.run_id = offer->run_id;
	rs->report.step = offer->step;
	rs->local = !rs->apart && !(offer->flags & SK_OFFER_COMPLETE);
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

int sk_restore_attempt(struct sk_restoring *rs,
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
