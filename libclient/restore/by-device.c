/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that want the same have to decide alike, or it would come twice. Who of
 * a node wants what each sees by itself, by arithmetic. Where others have it in
 * memory nobody can compute: ranks tell each other, but only where some have
 * tensors on their devices that others have elsewhere (elsewhere.h).
 */
#include "restore/by-device.h"

#include "restore/agree.h"
#include "restore/elsewhere.h"
#include "tensor/box.h"

/* What a rank has to say before. */
#define SAYS_WANTED ((uint64_t)1)	/* pieces that go so */
#define SAYS_SHARED ((uint64_t)2)	/* and that a neighbour wants */
#define SAYS_ELSEWHERE ((uint64_t)4)	/* others, of tensors */
#define SAYS_SHARED_ELSEWHERE ((uint64_t)8)	/* the same of those */
#define SAYS_VERIFIED ((uint64_t)16)	/* both ends are to be */

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
	p->across = on_device;
	if (on_device)
		return SAYS_WANTED | (p->shared ? SAYS_SHARED : 0);
	if (rs->state->locals[p->local].item.kind != SK_ITEM_TENSOR)
		return 0;
	return SAYS_ELSEWHERE | (p->shared ? SAYS_SHARED_ELSEWHERE : 0);
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

/* ---- together ---- */

/* What all say, of whom each says its part. */
struct said {
	uint64_t flags;
	bool differ;		/* in what they have on devices */
};

static int say(struct sk_restoring *rs, int r, uint64_t mine, struct said *ret)
{
	struct sk_restore_word word = { .flags = mine }, *words;

	*ret = (struct said){ 0 };
	if (r >= 0)
		word.extra = sk_restore_lies_as(rs);
	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < rs->state->job.world; k++) {
		ret->flags |= words[k].flags;
		ret->differ |= words[k].extra != words[0].extra;
	}
	return r;
}

int sk_restore_by_device(struct sk_restoring *rs, int r,
			 struct sk_by_device *ret)
{
	uint64_t mine = rs->state->job.flags & SK_JOB_VERIFY ? SAYS_VERIFIED :
							       0;
	struct said said;

	*ret = (struct sk_by_device){ 0 };
	if (r >= 0)
		r = look(rs, &mine);
	r = say(rs, r, mine, &said);
	if (r < 0 || said.flags & SAYS_VERIFIED || !(said.flags & SAYS_WANTED))
		return r;
	ret->any = true;
	ret->shared = said.flags & SAYS_SHARED;
	if (!said.differ || !(said.flags & SAYS_ELSEWHERE))
		return 0;
	ret->shared |= (said.flags & SAYS_SHARED_ELSEWHERE) != 0;
	return sk_restore_agreed(rs, sk_restore_elsewhere(rs, 0));
}
