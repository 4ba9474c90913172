/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/offer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "conn/list.h"
#include "restore/images.h"

/* How many complete ones are listed at first, and when those were not enough;
 * 0: all. All ranks go back in step. */
static const uint32_t list_most[] = { 8, SK_OFFERS_MAX, 0 };

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

static struct sk_restore_offer offer_of(const struct sk_restoring *rs,
					const struct sk_wire_snapshot *s)
{
	struct sk_restore_offer offer = {
		.run = s->id.run,
		.run_id = s->id.run_id,
		.step = s->id.step,
		.digest = s->digest,
		.world = s->id.world,
	};

	if (s->flags & SK_SNAP_COMPLETE)
		offer.flags |= SK_OFFER_COMPLETE;
	if (s->flags & SK_SNAP_DURABLE)
		offer.flags |= SK_OFFER_DURABLE;
	if (s->flags & sk_restore_whole_flag(rs))
		offer.flags |= SK_OFFER_THERE;
	if (s->flags & SK_SNAP_LOCAL)
		offer.flags |= SK_OFFER_LOCAL;
	return offer;
}

int sk_restore_offers(struct sk_restoring *rs)
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
			rs->offers[rs->n_offers++] = offer_of(rs, &s[i]);
	}
	return r;
}
