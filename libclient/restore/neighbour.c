/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/neighbour.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "restore/images.h"
#include "restore/open.h"
#include "tensor/box.h"

#define BOTH_KINDS (1u << SK_IMAGE_PRIMARY | 1u << SK_IMAGE_REPLICA)
/* Nor are both all that the rank holds, or that is not known. */
#define KEEPS_SOME (1u << 7)

static int32_t first_in_memory(const struct sk_restoring *rs, int32_t rank)
{
	return (int32_t)sk_count_before(rs->n_memory_ranks, i,
					rs->memory_ranks[i] < rank);
}

/* Which of the ranks of memory it is; -1: none. */
static int32_t place_in_memory(const struct sk_restoring *rs, int32_t rank)
{
	int32_t at = first_in_memory(rs, rank);

	return at < rs->n_memory_ranks && rs->memory_ranks[at] == rank ? at :
									 -1;
}

/* The rank's own image, which it may have left on its own NUMA node; else
 * spread over the holders, by whichever of the two lists is shorter. */
int32_t sk_restore_neighbour(const struct sk_restoring *rs,
			     const struct sk_holders *holders, int32_t rank,
			     int64_t *at)
{
	int64_t n = sk_holders_count(holders), of = rs->n_memory_ranks;
	int32_t start = first_in_memory(rs, rank);

	assert(*at >= 0);
	if (!*at && of && place_in_memory(rs, rank) >= 0 &&
	    sk_holders_find(holders, rank) >= 0) {
		++*at;
		return rank;
	}
	for (; of && n <= of && *at <= n; ++*at) {
		int32_t holder = sk_holders_rank(holders, (rank + *at) % n);

		if (place_in_memory(rs, holder) >= 0) {
			++*at;
			return holder;
		}
	}
	for (; n > of && *at <= of && of; ++*at) {
		int32_t other = rs->memory_ranks[(start + *at) % of];

		if (sk_holders_find(holders, other) >= 0) {
			++*at;
			return other;
		}
	}
	return -1;
}

/* ---- entries ---- */

static bool is_entry(const struct sk_layout *l, const struct sk_entry *e,
		     const struct sk_restore_key *key, const int64_t *offset)
{
	const struct sk_item *item = &l->items[e->item];
	const struct sk_spec *spec = &key->item->spec;

	if (item != key->item && (item->kind != key->item->kind ||
				  item->spec.ndim != spec->ndim ||
				  strcmp(item->spec.name, spec->name)))
		return false;
	return !memcmp(e->box.offset, offset,
		       (size_t)spec->ndim * sizeof(*offset));
}

/* Mostly what comes next is what was saved next: then it is not looked for. */
static const struct sk_entry *find_entry(struct sk_restore_image *image,
					 const struct sk_restore_key *key,
					 const int64_t *offset)
{
	const struct sk_layout *l = image->layout;
	const struct sk_entry *e = NULL;

	if (image->next < l->n_entries &&
	    is_entry(l, &l->entries[image->next], key, offset))
		e = &l->entries[image->next];
	if (!e)
		e = sk_layout_find(l, key->item->kind, key->item->spec.name,
				   offset);
	if (e)
		image->next = (uint32_t)(e - l->entries) + 1;
	return e;
}

int sk_restore_entry_in(struct sk_restoring *rs, uint32_t image,
			const struct sk_restore_key *key,
			const struct sk_box *box, const struct sk_entry **ret)
{
	const struct sk_entry *e;
	int r;

	assert(image < rs->n_images);
	r = sk_restore_know(rs, image);
	if (r < 0)
		return r;
	e = find_entry(&rs->images[image], key, box->offset);
	if (!e || !sk_box_equal(key->item->spec.ndim, &e->box, box))
		return -ENOENT;
	*ret = e;
	return 0;
}

/* ---- who has it ---- */

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for what %d ranks "
			  "have", rs->n_memory_ranks);
}

/* Whether its rank leaves replicas to others of its node. */
static bool may_keep_some(const struct sk_restoring *rs,
			  const struct sk_restore_image *image)
{
	const struct sk_layout *l = sk_restore_described(rs,
							 image->description);

	return !l || l->nodes;
}

/* Both are by rank. */
int sk_restore_having_begin(struct sk_restoring *rs,
			    struct sk_restore_having *ret)
{
	int32_t at = 0;

	ret->rs = rs;
	free(ret->kinds);
	ret->kinds = calloc((size_t)rs->n_memory_ranks + 1, 1);
	if (!ret->kinds)
		return no_memory(rs);
	for (uint32_t i = 0; i < rs->n_images; i++) {
		const struct sk_restore_image *image = &rs->images[i];

		while (at < rs->n_memory_ranks &&
		       rs->memory_ranks[at] < image->rank)
			at++;
		if (!image->places[0].there || at == rs->n_memory_ranks ||
		    rs->memory_ranks[at] != image->rank)
			continue;
		ret->kinds[at] |= (uint8_t)(1u << image->kind);
		if (may_keep_some(rs, image))
			ret->kinds[at] |= KEEPS_SOME;
	}
	ret->all_kinds = true;
	for (int32_t i = 0; i < rs->n_memory_ranks; i++)
		ret->all_kinds &= ret->kinds[i] == BOTH_KINDS;
	return 0;
}

/* Whether the rank of memory, who holds the box, has it: its two images are
 * all that it holds, as a rule. 1: yes. */
static int has(struct sk_restore_having *h, int32_t at,
	       const struct sk_restore_key *key, const struct sk_box *box)
{
	struct sk_restoring *rs = h->rs;
	int32_t rank = rs->memory_ranks[at];
	int r = -ENOENT;

	if (h->kinds[at] == BOTH_KINDS)
		return 1;
	for (uint32_t i = sk_restore_first_of(rs, rank); r == -ENOENT &&
	     i < rs->n_images && rs->images[i].rank == rank; i++) {
		const struct sk_entry *e;

		if (rs->images[i].places[0].there)
			r = sk_restore_entry_in(rs, i, key, box, &e);
	}
	return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

static int add_if_it_has(struct sk_restore_having *h, int64_t place,
			 int32_t at, const struct sk_restore_key *key,
			 const struct sk_box *box)
{
	int r = has(h, at, key, box);

	if (r <= 0)
		return r;
	if (sk_array_fit(h->at, h->room, h->n + 1) < 0)
		return no_memory(h->rs);
	h->at[h->n++] = place;
	return 0;
}

int sk_restore_having_find(struct sk_restore_having *h,
			   const struct sk_restore_key *key,
			   const struct sk_box *box,
			   const struct sk_holders *holders)
{
	const struct sk_restoring *rs = h->rs;
	int64_t n = sk_holders_count(holders), of = rs->n_memory_ranks;
	int r = 0;

	h->holders = holders;
	h->n = 0;
	h->by_holder = n <= of;
	/* What one alone holds, nobody looks for elsewhere. */
	h->all = h->all_kinds || n == 1;
	for (int64_t i = 0; h->by_holder && !h->all && i < n && r >= 0; i++) {
		int32_t at = place_in_memory(rs, sk_holders_rank(holders, i));

		if (at >= 0)
			r = add_if_it_has(h, i, at, key, box);
	}
	for (int32_t i = 0; !h->by_holder && !h->all && i < of && r >= 0; i++)
		if (sk_holders_find(holders, rs->memory_ranks[i]) >= 0)
			r = add_if_it_has(h, i, i, key, box);
	return r;
}

static size_t first_from(const struct sk_restore_having *h, int64_t place)
{
	return sk_count_before(h->n, i, h->at[i] < place);
}

int32_t sk_restore_having_for(const struct sk_restore_having *h, int32_t rank)
{
	const struct sk_restoring *rs = h->rs;
	int64_t holder, from = 0;
	int32_t at;
	size_t i;

	if (h->all)
		return sk_restore_neighbour(rs, h->holders, rank, &from);
	if (!h->n)
		return -1;
	/* As the neighbours follow each other: itself, and from there, or from
	 * the next, on. */
	at = place_in_memory(rs, rank);
	holder = at < 0 ? -1 : sk_holders_find(h->holders, rank);
	if (holder >= 0) {
		from = h->by_holder ? holder : at;
		i = first_from(h, from);
		if (i < h->n && h->at[i] == from)
			return rank;
	}
	from = (h->by_holder ? rank : first_in_memory(rs, rank)) +
	       (holder >= 0);
	from %= h->by_holder ? sk_holders_count(h->holders) :
			       rs->n_memory_ranks;
	i = first_from(h, from);
	from = h->at[i < h->n ? i : 0];
	return h->by_holder ? sk_holders_rank(h->holders, from) :
			      rs->memory_ranks[from];
}

void sk_restore_having_end(struct sk_restore_having *h)
{
	free(h->kinds);
	free(h->at);
	*h = (struct sk_restore_having){ 0 };
}
