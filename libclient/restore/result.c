/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moving came to. Ranks tell each other which images were bad, and a
 * number each by which they see whether every chunk was verified by whoever
 * was to. What came from a bad image is moved again from wherever else it
 * lies; where the numbers do not fit, so is what was left to others, and each
 * verifies its own.
 */
#include "restore/result.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/images.h"
#include "restore/jobs.h"
#include "restore/move.h"
#include "restore/open.h"
#include "restore/others.h"
#include "restore/plan.h"

/* ---- whether everything was verified ---- */

/* The shares that this rank relies on, less those that it gave. */
static uint64_t owed(const struct sk_restoring *rs)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < rs->n_jobs; i++) {
		const struct sk_restore_job *job = &rs->jobs[i];

		if (job->relied)
			sum += job->share;
		else if (job->verify && job->good)
			sum -= job->share;
	}
	return sum;
}

static int by_agent(const void *a, const void *b)
{
	const struct sk_restore_word *x = a, *y = b;

	return (x->agent > y->agent) - (x->agent < y->agent);
}

/* Whether the ranks of each agent gave each other what they relied on. Sorts
 * the words. */
static bool is_settled(struct sk_restoring *rs, struct sk_restore_word *words)
{
	int32_t world = rs->state->job.world;
	uint64_t sum = 0;
	bool settled = true;

	qsort(words, (size_t)world, sizeof(*words), by_agent);
	for (int32_t i = 0; i < world; i++) {
		sum += words[i].owed;
		if (i + 1 < world && words[i + 1].agent == words[i].agent)
			continue;
		settled &= !sum;
		if (words[i].agent == rs->conn.agent.instance)
			rs->doubted = sum;
		sum = 0;
	}
	return settled;
}

/* ---- bad images ---- */

/* Most that a rank tells of; what others read besides, they find themselves. */
#define BAD_MAX 4096u

/* As ranks name an image that they found bad. */
struct bad_image {
	uint64_t agent;		/* 0: none */
	uint64_t id;
	uint32_t place;
	uint32_t entry;		/* struct sk_restore_place's bad_entry */
};

static uint32_t count_bad(const struct sk_restoring *rs)
{
	uint32_t n = 0;

	for (uint64_t i = 0; rs->bad && i < 2 * (uint64_t)rs->n_images; i++)
		n += sk_bit(rs->bad, i);
	return n < BAD_MAX ? n : BAD_MAX;
}

static void name_bad(const struct sk_restoring *rs, struct bad_image *bad,
		     uint32_t max)
{
	uint32_t n = 0;

	for (uint32_t place = 0; place < 2; place++)
		for (uint32_t i = 0; i < rs->n_images && n < max; i++)
			if (sk_bit(rs->bad, (uint64_t)place * rs->n_images +
						    i))
				bad[n++] = (struct bad_image){
					rs->conn.agent.instance,
					rs->images[i].places[place].id, place,
					rs->images[i].places[place].bad_entry };
}

static void set_aside_found(struct sk_restoring *rs)
{
	for (uint32_t place = 0; place < 2; place++)
		for (uint32_t i = 0; i < rs->n_images; i++)
			if (sk_bit(rs->bad, (uint64_t)place * rs->n_images +
						    i))
				/* Else it was gone, or its header was bad:
				 * the agent knows. */
				sk_restore_set_aside(
					rs, i, place,
					rs->images[i].places[place].there);
}

/* Whoever found it tells the agent. */
static void set_aside_told(struct sk_restoring *rs,
			   const struct bad_image *bad)
{
	if (bad->agent && bad->agent != rs->conn.agent.instance)
		sk_restore_holder_gone(rs, bad->agent, bad->id, bad->place,
				       bad->entry);
	for (uint32_t i = 0; bad->agent == rs->conn.agent.instance &&
	     bad->place < 2 && i < rs->n_images; i++) {
		struct sk_restore_place *p = &rs->images[i].places[bad->place];

		if (!p->there || p->id != bad->id)
			continue;
		p->bad_entry = bad->entry;
		sk_restore_set_aside(rs, i, bad->place, false);
	}
}

/* Ranks tell each other what they found, so that each finds less. */
static int exchange_bad(struct sk_restoring *rs, uint32_t most)
{
	size_t world = (size_t)rs->state->job.world;
	uint32_t some = (uint32_t)sk_restore_portion(rs,
						     sizeof(struct bad_image));
	_cleanup_free_ struct bad_image *mine = NULL;
	int r = 0;

	assert(most);
	if (most > BAD_MAX)
		return sk_err_set(&rs->err, -EPROTO, "a rank says that it "
				  "found %u bad images, more than it can tell "
				  "of", most);
	mine = calloc(most, sizeof(*mine));
	if (!mine)
		return sk_err_set(&rs->err, -ENOMEM, "no memory to tell of %u "
				  "bad images", most);
	if (rs->bad) {
		name_bad(rs, mine, most);
		set_aside_found(rs);
		memset(rs->bad, 0, (size_t)rs->n_images * 2 / 8 + 1);
	}
	for (uint32_t at = 0; at < most && r >= 0; at += some) {
		_cleanup_free_ struct bad_image *all = NULL;

		some = most - at < some ? most - at : some;
		r = sk_restore_gather(rs, r, mine + at, some * sizeof(*mine),
				      &all);
		for (size_t i = 0; r >= 0 && i < world * some; i++)
			set_aside_told(rs, &all[i]);
	}
	return r;
}

/* ---- whether it was kept ---- */

/* What keeps a slot for a restore ends with the agent, and the next one may
 * have given it to a newer snapshot while this rank read it. What was hashed as
 * it passed is right all the same; the rest is only where the agent that leased
 * it is there still. */
static int check_kept(struct sk_restoring *rs)
{
	if (!rs->trusting || sk_conn_stands(&rs->conn))
		return 0;
	return sk_err_set(&rs->err, -ECONNRESET, "the agent ended while rank "
			  "%" PRId32 " read its memory, where another step "
			  "may be by now", rs->state->job.rank);
}

/* ---- together ---- */

int sk_restore_agree_moved(struct sk_restoring *rs, int r, bool *ret_again)
{
	struct sk_restore_word *words;
	struct sk_restore_word word = {
		.agent = rs->conn.agent.instance,
		.owed = owed(rs),
		.bad = count_bad(rs),
	};
	uint32_t most = 0;

	if (r >= 0)
		r = check_kept(rs);
	rs->moved = r >= 0 && !word.bad;
	r = sk_restore_agree(rs, r, &word, &words,
			     sk_restore_more_ms(rs->report.copy_ns));
	if (r < 0)
		return r;
	rs->moved = false;
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (words[i].bad > most)
			most = words[i].bad;
	*ret_again = !is_settled(rs, words) || most;
	return most ? exchange_bad(rs, most) : 0;
}

/* ---- moving again ---- */

/* The image, place and entry in which something was found that can be named;
 * NULL: none. */
static const struct sk_restore_image *find_named(struct sk_restoring *rs,
						 uint32_t *ret_place,
						 const struct sk_entry **ret)
{
	for (uint32_t i = 0; i < rs->n_images; i++) {
		const struct sk_restore_image *image = &rs->images[i];

		for (uint32_t place = 0; place < SK_PLACES; place++) {
			uint32_t entry = image->places[place].bad_entry;

			if (!entry || !image->layout ||
			    sk_restore_named_entry(rs, i, entry - 1, ret) < 0)
				continue;
			*ret_place = place;
			if (*ret)
				return image;
		}
	}
	return NULL;
}

/* What is damaged, and not what else cannot be had without that image. */
static int explain_damage(struct sk_restoring *rs)
{
	const struct sk_err before = rs->err;
	const struct sk_restore_image *image;
	const struct sk_entry *entry = NULL;
	uint32_t place;

	image = find_named(rs, &place, &entry);
	if (!image) {
		rs->err = before;
		return sk_err_prefix(&rs->err, -EBADMSG, "a checksum failed "
				     "and no other holder is left");
	}
	return sk_err_set(&rs->err, -EBADMSG, "\"%.100s\" of rank %" PRId32
			  " is damaged %s: a checksum failed, and no other "
			  "holder is left of all that its image had",
			  image->layout->items[entry->item].spec.name,
			  image->rank, sk_restore_where(place % 2));
}

static int replan(struct sk_restoring *rs)
{
	int r = sk_restore_replan(rs);

	if (r == -ENODATA)
		return explain_damage(rs);
	if (r < 0)
		return r;
	return sk_restore_jobs(rs);
}

int sk_restore_redo(struct sk_restoring *rs)
{
	rs->alone = true;
	return sk_restore_move(rs, replan(rs));
}
