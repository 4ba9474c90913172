/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moving came to. Ranks tell each other which chunks they verified and
 * which images were bad; what came from a bad image, or was verified by
 * nobody, is moved again from wherever else it lies.
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
#include "restore/plan.h"

/* Bits for 8 PiB of chunks: more is no rank's honest word. */
#define MAP_MAX ((size_t)1 << 30)

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory to compare %" PRIu64
			  " checksums", rs->n_sums);
}

static size_t sum_bytes(const struct sk_restoring *rs)
{
	return (size_t)(2 * rs->n_sums) / 8 + 1;
}

static size_t bad_bytes(const struct sk_restoring *rs)
{
	return (size_t)rs->n_images * 2 / 8 + 1;
}

/* True if this rank found a bad image, or relied on another's check. */
static bool wants_more(const struct sk_restoring *rs)
{
	if (rs->flags & SK_RESTORE_NO_VERIFY || !rs->used)
		return false;
	for (size_t i = 0; i < bad_bytes(rs); i++)
		if (rs->bad[i])
			return true;
	for (size_t i = 0; i < sum_bytes(rs); i++)
		if (rs->used[i] & ~rs->verified[i])
			return true;
	return false;
}

/* ---- together ---- */

static void combine(uint8_t *to, const uint8_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] |= from[i];
}

static void set_aside_bad(struct sk_restoring *rs, const uint8_t *found)
{
	assert(rs->bad);
	for (uint32_t place = 0; place < 2; place++)
		for (uint32_t i = 0; i < rs->n_images; i++) {
			uint64_t bit = (uint64_t)place * rs->n_images + i;

			if (sk_bit(rs->bad, bit) &&
			    rs->images[i].places[place].there)
				sk_restore_set_aside(rs, i, place,
						     sk_bit(found, bit));
		}
}

/* The maps of all ranks that see the same images. */
static int exchange(struct sk_restoring *rs,
		    const struct sk_restore_word *words, uint64_t view)
{
	size_t sums = sum_bytes(rs), bads = bad_bytes(rs), bytes = 0;
	_cleanup_free_ uint8_t *mine = NULL, *all = NULL;
	int r;

	assert(rs->verified && rs->bad);
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (words[i].bytes > bytes)
			bytes = (size_t)words[i].bytes;
	if (bytes > MAP_MAX)
		return sk_err_set(&rs->err, -EPROTO, "a rank says that it "
				  "verified %zu bytes of chunks, one bit each",
				  bytes);
	mine = calloc(1, bytes);
	if (!mine)
		return no_memory(rs);
	memcpy(mine, rs->verified, sums);
	memcpy(mine + sums, rs->bad, bads);
	r = sk_restore_gather(rs, mine, bytes, &all, 0);
	if (r < 0)
		return r;
	for (int32_t i = 0; i < rs->state->job.world; i++) {
		const uint8_t *theirs = all + (size_t)i * bytes;

		if (words[i].view != view || words[i].bytes != sums + bads)
			continue;
		combine(rs->verified, theirs, sums);
		combine(rs->bad, theirs + sums, bads);
	}
	set_aside_bad(rs, mine + sums);
	return 0;
}

/* The sooner ranks wait for the later ones, who may have much more to do. */
static uint32_t more_time(const struct sk_restoring *rs)
{
	uint64_t ms = rs->report.copy_ns / 1000000 * 8;

	return ms > 3000000 ? 3000000 : (uint32_t)ms;
}

int sk_restore_agree_moved(struct sk_restoring *rs, int r, bool *ret_again)
{
	_cleanup_free_ struct sk_restore_word *words = NULL;
	struct sk_restore_word word = {
		.again = r >= 0 && wants_more(rs),
		.view = sk_restore_view(rs),
		.bytes = sum_bytes(rs) + bad_bytes(rs),
	};
	bool again = false;

	r = sk_restore_agree(rs, r, &word, &words, more_time(rs));
	if (r < 0)
		return r;
	for (int32_t i = 0; i < rs->state->job.world; i++)
		again |= words[i].again;
	if (again) {
		r = exchange(rs, words, word.view);
		if (r < 0)
			return r;
	}
	*ret_again = again;
	return 0;
}

/* ---- moving again ---- */

int sk_restore_redo(struct sk_restoring *rs)
{
	size_t sums = sum_bytes(rs);
	_cleanup_free_ uint8_t *unverified = calloc(1, sums);
	int r;

	assert(rs->used && rs->verified && rs->bad);
	if (!unverified)
		return no_memory(rs);
	if (!(rs->flags & SK_RESTORE_NO_VERIFY))
		for (size_t i = 0; i < sums; i++)
			unverified[i] = rs->used[i] & ~rs->verified[i];
	rs->alone = true;
	r = sk_restore_replan(rs, unverified);
	memset(rs->used, 0, sums);
	memset(rs->bad, 0, bad_bytes(rs));
	if (r == -ENODATA)
		return sk_err_prefix(&rs->err, -EBADMSG, "a checksum failed "
				     "and no other holder is left");
	if (r < 0)
		return r;
	r = sk_restore_jobs(rs);
	if (r < 0)
		return r;
	return sk_restore_move(rs);
}
