/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a node that want the same have to decide alike, or it would come
 * twice. Who wants what each sees by itself, by arithmetic. Where the others
 * have it in memory nobody can compute: ranks tell their neighbours what of the
 * shared they have on their devices, but only where some rank has such and some
 * rank has others elsewhere.
 */
#include "restore/by-device.h"

#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "restore/agree.h"
#include "restore/keys.h"
#include "tensor/box.h"

/* What a rank has to say before. */
#define SAYS_WANTED ((uint64_t)1)	/* pieces that go so */
#define SAYS_SHARED ((uint64_t)2)	/* and that a neighbour wants */
#define SAYS_ELSEWHERE ((uint64_t)4)	/* shared ones that lie elsewhere */
#define SAYS_VERIFIED ((uint64_t)8)	/* both ends are to be */

bool sk_restore_is_by_device(const struct sk_restoring *rs, uint32_t local)
{
	const struct sk_local *l = &rs->state->locals[local];

	return rs->comm.device && !rs->device_off && l->gpu >= 0 &&
	       rs->state->gpus.v[l->gpu].ordinal == rs->comm.device->ordinal;
}

void sk_restore_none_by_device(struct sk_restoring *rs)
{
	for (uint32_t i = 0; i < rs->n_pieces; i++)
		rs->pieces[i].across = false;
}

/* ---- who else wants it ---- */

static int wants_any(struct sk_restoring *rs, const struct sk_local *local,
		     int32_t rank, bool *ret)
{
	const struct sk_spec *spec = &local->item.spec;
	struct sk_box *boxes, cut;
	int n, r;

	*ret = false;
	r = sk_spec_boxes(spec, rank, &boxes, &n, &rs->err);
	if (r < 0)
		return r;
	for (int i = 0; i < n * local->item.n_boxes; i++)
		*ret |= sk_box_intersect(spec->ndim, &boxes[i % n],
					 &local->parts[i / n].box, &cut);
	free(boxes);
	return 0;
}

static int is_shared(struct sk_restoring *rs, const struct sk_local *local,
		     bool *ret)
{
	int r = 0;

	*ret = false;
	for (int32_t k = 0; k < rs->n_near && !*ret && r >= 0; k++)
		if (rs->near_ranks[k] != rs->state->job.rank)
			r = wants_any(rs, local, rs->near_ranks[k], ret);
	return r;
}

/* ---- this rank's pieces ---- */

static uint64_t says_of(const struct sk_restoring *rs,
			struct sk_restore_piece *p, bool on_device)
{
	const struct sk_item *item = &rs->state->locals[p->local].item;

	/* Of boxes that ranks tell, overlap.c knows how others have them. */
	p->across = on_device || (rs->boxes_told[p->local] && p->beside);
	if (p->across)
		return SAYS_WANTED | (p->shared ? SAYS_SHARED : 0);
	return p->shared && !rs->boxes_told[p->local] &&
	       item->kind == SK_ITEM_TENSOR ? SAYS_ELSEWHERE : 0;
}

/* Pieces of a local lie together. */
static int look(struct sk_restoring *rs, uint64_t *said)
{
	uint32_t last = UINT32_MAX;
	bool on_device = false, shared = false;
	int r = 0;

	sk_restore_none_by_device(rs);
	for (uint32_t i = 0; i < rs->n_pieces && r >= 0; i++) {
		struct sk_restore_piece *p = &rs->pieces[i];

		if (rs->device_off || p->place < SK_PLACE_OTHERS)
			continue;
		if (p->local != last && !rs->boxes_told[p->local])
			r = is_shared(rs, &rs->state->locals[p->local],
				      &shared);
		if (p->local != last)
			on_device = sk_restore_is_by_device(rs, p->local);
		last = p->local;
		if (r >= 0 && !rs->boxes_told[p->local])
			p->shared = shared;
		if (r >= 0)
			*said |= says_of(rs, p, on_device);
	}
	return r;
}

/* ---- what neighbours have on devices ---- */

/* Names of the shared that ranks of the node have there, by their hashes. */
struct told {
	uint64_t *mine;
	size_t n, room;
	struct sk_restore_parcel *all;	/* per rank, sorted */
};

static int no_memory(struct sk_restoring *rs, size_t n)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu names of "
			  "tensors", n);
}

static int list_mine(struct sk_restoring *rs, struct told *e)
{
	uint32_t last = UINT32_MAX;

	for (uint32_t i = 0; i < rs->n_pieces; i++) {
		const struct sk_restore_piece *p = &rs->pieces[i];
		const struct sk_restore_key *key;

		if (!p->across || !p->shared || p->local == last ||
		    rs->boxes_told[p->local])
			continue;
		last = p->local;
		key = sk_restore_key_of(rs, p->local);
		if (!key)
			continue;
		if (sk_array_fit(e->mine, e->room, e->n + 1) < 0)
			return no_memory(rs, e->n);
		e->mine[e->n++] = key->hash;
	}
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static int tell_near(struct sk_restoring *rs, int r, struct told *e)
{
	r = sk_restore_trade_near(rs, r, e->mine, e->n * sizeof(*e->mine),
				  &e->all);
	for (int32_t k = 0; r >= 0 && k < rs->state->job.world; k++)
		qsort(e->all[k].data, e->all[k].bytes / sizeof(*e->mine),
		      sizeof(*e->mine), by_number);
	return r;
}

static bool has(const struct sk_restore_parcel *list, uint64_t hash)
{
	const uint64_t *v = list->data;
	size_t n = list->bytes / sizeof(*v);
	size_t at = sk_count_before(n, i, v[i] < hash);

	return at < n && v[at] == hash;
}

static int is_beside(struct sk_restoring *rs, const struct told *e,
		     uint32_t local, bool *ret)
{
	const struct sk_restore_key *key = sk_restore_key_of(rs, local);
	int r = 0;

	*ret = false;
	for (int32_t k = 0; key && k < rs->n_near && !*ret && r >= 0; k++)
		if (has(&e->all[rs->near_ranks[k]], key->hash))
			r = wants_any(rs, &rs->state->locals[local],
				      rs->near_ranks[k], ret);
	return r;
}

/* What this rank has elsewhere, and one of them on its device. */
static int join_beside(struct sk_restoring *rs, const struct told *e)
{
	uint32_t last = UINT32_MAX;
	bool beside = false;
	int r = 0;

	for (uint32_t i = 0; i < rs->n_pieces && r >= 0; i++) {
		struct sk_restore_piece *p = &rs->pieces[i];
		const struct sk_item *item =
			&rs->state->locals[p->local].item;

		if (p->place < SK_PLACE_OTHERS || p->across || !p->shared ||
		    rs->boxes_told[p->local] || item->kind != SK_ITEM_TENSOR)
			continue;
		if (p->local != last)
			r = is_beside(rs, e, p->local, &beside);
		last = p->local;
		p->beside = p->across = r >= 0 && beside;
	}
	return r;
}

static int settle_shared(struct sk_restoring *rs)
{
	struct told e = { 0 };
	int r = tell_near(rs, list_mine(rs, &e), &e);

	if (r >= 0)
		r = join_beside(rs, &e);
	/* A comm that failed may still read it. */
	if (!rs->broken)
		free(e.mine);
	free(e.all);
	return r;
}

/* ---- together ---- */

/* What all say, of whom each says its part. */
static int say(struct sk_restoring *rs, int r, uint64_t *said)
{
	struct sk_restore_word word = { .extra = *said }, *words;

	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < rs->state->job.world; k++)
		*said |= words[k].extra;
	return r;
}

int sk_restore_by_device(struct sk_restoring *rs, int r,
			 struct sk_by_device *ret)
{
	uint64_t said = rs->state->job.flags & SK_JOB_VERIFY ? SAYS_VERIFIED :
							       0;

	*ret = (struct sk_by_device){ 0 };
	if (r >= 0)
		r = look(rs, &said);
	r = say(rs, r, &said);
	if (r >= 0 && said & SAYS_SHARED && said & SAYS_ELSEWHERE &&
	    !(said & SAYS_VERIFIED))
		r = sk_restore_agreed(rs, settle_shared(rs));
	if (r < 0)
		return r;
	ret->any = said & SAYS_WANTED && !(said & SAYS_VERIFIED);
	ret->shared = ret->any && said & SAYS_SHARED;
	return 0;
}
