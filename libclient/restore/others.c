/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images of other nodes. The lowest rank of each node tells what its agent
 * has; all ranks then see the same, and plan by it.
 */
#include "restore/others.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/images.h"
#include "restore/nodes.h"
#include "restore/portions.h"

/* ---- what all have ---- */

static bool is_told(const struct sk_wire_part *w, bool disk_too)
{
	return w->place == SK_PLACE_MEMORY ||
	       (disk_too && w->place == SK_PLACE_DISK);
}

static bool tells(const struct sk_restoring *rs)
{
	return rs->near_ranks[0] == rs->state->job.rank;
}

static uint64_t count_told(const struct sk_restoring *rs, bool disk_too)
{
	uint64_t n = 0;

	for (size_t i = 0; tells(rs) && i < rs->n_listed; i++)
		n += is_told(&rs->listed[i], disk_too);
	return n;
}

static int by_rank_and_digest(const void *a, const void *b)
{
	const struct sk_restore_listed *x = a, *y = b;

	if (x->part.rank != y->part.rank)
		return x->part.rank < y->part.rank ? -1 : 1;
	return memcmp(&x->part.digest, &y->part.digest,
		      sizeof(x->part.digest));
}

/* Lists of all nodes, as they come in. */
struct joining {
	struct sk_restoring *rs;
	const uint64_t *lengths;	/* of every rank's list */
};

static void add_listed(struct sk_restoring *rs, const struct sk_wire_part *part,
		       int32_t node)
{
	rs->everywhere[rs->n_everywhere++] =
		(struct sk_restore_listed){ *part, node, 0 };
}

/* Room for this rank's own list, which is there, and what others tell. */
static int begin_join(struct sk_restoring *rs, const uint64_t *lengths)
{
	size_t n = rs->n_listed;

	for (int32_t k = 0; k < rs->n_nodes; k++)
		n += lengths[rs->nodes[k].ranks[0]];
	rs->everywhere = calloc(n + 1, sizeof(*rs->everywhere));
	if (!rs->everywhere)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu "
				  "images", n);
	for (size_t i = 0; i < rs->n_listed; i++)
		add_listed(rs, &rs->listed[i], rs->node);
	return 0;
}

static void join(void *ctx, const void *all, size_t at, size_t n)
{
	const struct joining *j = ctx;
	const struct sk_wire_part *told = all;

	for (int32_t k = 0; k < j->rs->n_nodes; k++) {
		size_t rank = (size_t)j->rs->nodes[k].ranks[0];

		for (size_t i = 0; k != j->rs->node && i < n &&
		     at + i < j->lengths[rank]; i++)
			add_listed(j->rs, &told[rank * n + i], k);
	}
}

static int gather_told(struct sk_restoring *rs, int r, bool disk_too,
		       uint64_t most, const uint64_t *lengths)
{
	struct joining j = { rs, lengths };
	_cleanup_free_ struct sk_wire_part *mine = NULL;
	size_t n = 0;

	mine = r < 0 ? NULL : calloc(most + 1, sizeof(*mine));
	if (r >= 0 && !mine)
		r = sk_err_set(&rs->err, -ENOMEM, "no memory to tell of %llu "
			       "images", (unsigned long long)most);
	for (size_t i = 0; mine && tells(rs) && i < rs->n_listed; i++)
		if (is_told(&rs->listed[i], disk_too))
			mine[n++] = rs->listed[i];
	return sk_restore_gather_long(rs, r, mine, most, sizeof(*mine), join,
				      &j);
}

/* What others say is checked like what a file says. */
static int check_told(struct sk_restoring *rs, uint64_t most)
{
	if (most <= UINT32_MAX / sizeof(struct sk_wire_part))
		return 0;
	return sk_err_set(&rs->err, -EPROTO, "a rank tells of %llu images",
			  (unsigned long long)most);
}

/* What one has, all have, unless it was not told. */
static bool is_whole(const struct sk_restoring *rs,
		     const struct sk_restore_word *words, bool disk_too)
{
	bool all = true, any = false;

	for (int32_t i = 0; i < rs->state->job.world; i++) {
		all &= words[i].whole != 0;
		any |= words[i].whole != 0;
	}
	return disk_too ? any : all;
}

int sk_restore_merge(struct sk_restoring *rs,
		     const struct sk_restore_offer *offer, int r)
{
	bool disk_too = !(offer->flags & SK_OFFER_DURABLE);
	_cleanup_free_ uint64_t *lengths = NULL;
	struct sk_restore_word *words;
	struct sk_restore_word word = { 0 };
	uint64_t most = 0;

	assert(!rs->everywhere && rs->apart);
	word.extra = r < 0 ? 0 : count_told(rs, disk_too);
	word.whole = r >= 0 && rs->whole;
	r = sk_restore_agree(rs, r, &word, &words, 0);
	if (r < 0)
		return r;
	for (int32_t i = 0; i < rs->state->job.world; i++)
		most = words[i].extra > most ? words[i].extra : most;
	rs->whole = is_whole(rs, words, disk_too);
	r = check_told(rs, most);
	/* Said words do not stay. */
	lengths = calloc((uint32_t)rs->state->job.world, sizeof(*lengths));
	if (r >= 0 && !lengths)
		r = sk_err_set(&rs->err, -ENOMEM, "no memory for %d ranks",
			       rs->state->job.world);
	for (int32_t i = 0; lengths && i < rs->state->job.world; i++)
		lengths[i] = words[i].extra;
	if (r >= 0)
		r = begin_join(rs, lengths);
	r = gather_told(rs, r, disk_too, most, lengths);
	if (r < 0)
		return r;
	qsort(rs->everywhere, rs->n_everywhere, sizeof(*rs->everywhere),
	      by_rank_and_digest);
	return 0;
}

/* ---- who has one ---- */

static int64_t image_of(const struct sk_restoring *rs, uint32_t from,
			const struct sk_wire_part *w)
{
	for (uint32_t i = from; i < rs->n_images &&
	     rs->images[i].rank == w->rank; i++)
		if (rs->images[i].kind == w->kind &&
		    sk_digest_equal(&rs->images[i].digest, &w->digest))
			return i;
	return -1;
}

static void add_holder(struct sk_restoring *rs, uint32_t image,
		       const struct sk_restore_listed *l)
{
	uint32_t place = l->part.place == SK_PLACE_DISK;
	bool there = l->part.state != SK_IMAGE_BAD;

	rs->images[image].places[SK_PLACE_OTHERS + place].listed = true;
	rs->images[image].places[SK_PLACE_OTHERS + place].there |= there;
	rs->holders[rs->n_holders++] = (struct sk_restore_holder){
		.image = image,
		.node = l->node,
		.id = l->part.image,
		.place = place,
		.there = there,
	};
}

static int by_image(const void *a, const void *b)
{
	const struct sk_restore_holder *x = a, *y = b;

	if (x->image != y->image)
		return x->image < y->image ? -1 : 1;
	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	return (x->node > y->node) - (x->node < y->node);
}

int sk_restore_note_holders(struct sk_restoring *rs)
{
	uint32_t from = 0;

	assert(!rs->holders && !rs->n_holders);
	rs->holders = calloc(rs->n_everywhere + 1, sizeof(*rs->holders));
	if (!rs->holders)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for who has %u "
				  "images", rs->n_images);
	for (size_t i = 0; i < rs->n_everywhere; i++) {
		const struct sk_restore_listed *l = &rs->everywhere[i];
		int64_t image;

		while (from < rs->n_images &&
		       rs->images[from].rank < l->part.rank)
			from++;
		if (l->node == rs->node || !sk_restore_allowed(rs, &l->part))
			continue;
		image = image_of(rs, from, &l->part);
		if (image >= 0)
			add_holder(rs, (uint32_t)image, l);
	}
	qsort(rs->holders, rs->n_holders, sizeof(*rs->holders), by_image);
	return 0;
}

static size_t first_holder(const struct sk_restoring *rs, uint32_t image)
{
	return sk_count_before(rs->n_holders, i,
			       rs->holders[i].image < image);
}

const struct sk_restore_holder *
sk_restore_holder(const struct sk_restoring *rs, uint32_t image,
		  uint32_t place)
{
	size_t first = first_holder(rs, image), n = 0, turn;

	assert(place >= SK_PLACE_OTHERS && place < SK_PLACES);
	place -= SK_PLACE_OTHERS;
	for (size_t i = first; i < rs->n_holders &&
	     rs->holders[i].image == image; i++)
		n += rs->holders[i].place == place && rs->holders[i].there;
	if (!n)
		return NULL;
	turn = (size_t)sk_restore_mix(image) % n;
	for (size_t i = first;; i++)
		if (rs->holders[i].place == place && rs->holders[i].there &&
		    !turn--)
			return &rs->holders[i];
}

void sk_restore_holder_gone(struct sk_restoring *rs, uint64_t agent,
			    uint64_t id, uint32_t place, uint32_t entry)
{
	for (size_t i = 0; i < rs->n_holders; i++) {
		struct sk_restore_holder *h = &rs->holders[i];
		struct sk_restore_place *p;

		if (rs->nodes[h->node].agent != agent || h->id != id ||
		    h->place != place || !h->there)
			continue;
		h->there = false;
		rs->report.damaged++;
		p = &rs->images[h->image].places[SK_PLACE_OTHERS + place];
		p->bad_entry = entry;
		p->there = sk_restore_holder(rs, h->image,
					     SK_PLACE_OTHERS + place);
	}
}
