/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: pieces cut where checksummed chunks end. Where several ranks of this
 * node read one chunk, they take turns in verifying it: who reads what is
 * arithmetic, and what the arithmetic misses is found out afterwards.
 */
#include "restore/jobs.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "restore/keys.h"
#include "restore/plan.h"
#include "restore/shape.h"

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu jobs of a "
			  "restore", rs->n_jobs);
}

/* ---- who else reads an entry ---- */

struct reader {
	int32_t rank;
	struct sk_restore_shape shape;
};

struct readers {
	struct sk_restoring *rs;
	const struct sk_restore_piece *piece;	/* ours of that entry */
	const struct sk_restore_key *key;
	const struct sk_holders *sources;
	struct reader *v;
	size_t n, room;
};

static int add_reader(struct readers *readers, int32_t rank,
		      const struct sk_box *box)
{
	assert(rank >= 0 && rank < readers->rs->state->job.world);
	if (sk_array_fit(readers->v, readers->room, readers->n + 1) < 0)
		return -ENOMEM;
	readers->v[readers->n].rank = rank;
	sk_restore_shape(readers->key->item, readers->piece->entry, box,
			 &readers->v[readers->n++].shape);
	return 0;
}

/* A part of the entry that all of @holders want: those of them that take it
 * from this image. */
static int on_target(const struct sk_piece *piece,
		     const struct sk_holders *holders, void *ctx)
{
	struct readers *readers = ctx;
	const struct sk_restore_piece *mine = readers->piece;
	int r = 0;

	assert(readers->sources && readers->rs->near);
	for (int64_t i = 0; i < sk_holders_count(holders) && r >= 0; i++) {
		int32_t rank = sk_holders_rank(holders, i);
		uint32_t image, place;

		if (rank >= readers->rs->state->job.world ||
		    !readers->rs->near[rank])
			continue;
		if (!sk_restore_pick(readers->rs, readers->key,
				     &mine->entry->box, readers->sources, rank,
				     &image, &place))
			continue;
		if (image == mine->image && place == mine->place)
			r = add_reader(readers, rank, &piece->box);
	}
	return r;
}

static int on_source(const struct sk_piece *piece,
		     const struct sk_holders *holders, void *ctx)
{
	struct readers *readers = ctx;
	const struct sk_local *local =
		&readers->rs->state->locals[readers->piece->local];

	(void)piece;
	readers->sources = holders;
	return sk_plan_box(&local->item.spec,
			   readers->rs->state->job.world,
			   &readers->piece->entry->box, on_target, readers);
}

/* Fills in who reads the entry of a piece; nobody known: this rank alone. */
static int collect_readers(struct sk_restoring *rs,
			   const struct sk_restore_piece *piece,
			   struct readers *readers)
{
	const struct sk_item *item = &rs->state->locals[piece->local].item;

	assert(piece->local < rs->state->n_locals);
	readers->rs = rs;
	readers->piece = piece;
	readers->n = 0;
	readers->key = sk_restore_key(rs, item->kind, item->spec.name);
	if (rs->alone || rs->state->job.world == 1 || item->explicit_boxes ||
	    item->kind == SK_ITEM_BLOB_LOCAL || !readers->key ||
	    readers->key->is_explicit)
		return 0;
	return sk_plan_box(&readers->key->item->spec, rs->world,
			   &piece->entry->box, on_source, readers);
}

/* ---- jobs ---- */

static int append(struct sk_restoring *rs, struct sk_restore_job job)
{
	if (sk_array_fit(rs->jobs, rs->room_jobs, rs->n_jobs + 1) < 0)
		return no_memory(rs);
	rs->jobs[rs->n_jobs++] = job;
	return 0;
}

static bool touches(const struct sk_restore_shape *shape, uint64_t from,
		    uint64_t to)
{
	return sk_restore_before(shape, from) != sk_restore_before(shape, to);
}

/* Multiples of the golden ratio spread evenly, whatever the stride in which
 * large entries stand among small ones. */
static uint64_t turn_of(uint64_t index, uint32_t n)
{
	return (uint64_t)((uint32_t)index * 2654435769u) * n >> 32;
}

/* Whether it is this rank's turn; also how many read the chunk. A rank may
 * stand among the readers several times, once per part: that evens out. */
static bool my_turn(const struct readers *readers, uint32_t chunk,
		    uint32_t *ret_sharers)
{
	const struct sk_entry *entry = readers->piece->entry;
	int32_t mine = readers->rs->state->job.rank;
	uint64_t from, to, turn;
	uint32_t n = 0;

	assert(chunk < entry->n_sums);
	*ret_sharers = 1;
	if (readers->n < 2)
		return true;
	sk_restore_chunk(entry, chunk, &from, &to);
	for (size_t i = 0; i < readers->n; i++)
		n += touches(&readers->v[i].shape, from, to);
	if (n < 2)
		return true;
	*ret_sharers = n;
	turn = turn_of(sk_restore_sum_index(readers->rs, readers->piece,
					    chunk), n);
	for (size_t i = 0; i < readers->n; i++)
		if (touches(&readers->v[i].shape, from, to) && !turn--)
			return readers->v[i].rank == mine;
	return true;
}

static int cut_piece(struct sk_restoring *rs, uint32_t index,
		     const struct readers *readers)
{
	const struct sk_restore_piece *piece = &rs->pieces[index];
	const struct sk_local *local = &rs->state->locals[piece->local];
	struct sk_restore_shape shape;
	int r = 0;

	assert(index < rs->n_pieces);
	sk_restore_shape(&local->item, piece->entry, &piece->box, &shape);
	for (uint32_t c = 0; c < piece->entry->n_sums && r >= 0; c++) {
		struct sk_restore_job job = { .piece = index, .chunk = c };
		uint64_t from, to;

		sk_restore_chunk(piece->entry, c, &from, &to);
		if (!touches(&shape, from, to))
			continue;
		job.verify = my_turn(readers, c, &job.sharers) &&
			     !(rs->flags & SK_RESTORE_NO_VERIFY);
		sk_bit_set(rs->used, sk_restore_sum_index(rs, piece, c));
		r = append(rs, job);
	}
	return r;
}

static int by_position(const void *a, const void *b, void *ctx)
{
	const struct sk_restoring *rs = ctx;
	const struct sk_restore_job *x = a, *y = b;
	const struct sk_restore_piece *p = &rs->pieces[x->piece];
	const struct sk_restore_piece *q = &rs->pieces[y->piece];

	if (p->place != q->place)
		return p->place < q->place ? -1 : 1;
	if (p->image != q->image)
		return p->image < q->image ? -1 : 1;
	if (p->entry != q->entry)
		return p->entry < q->entry ? -1 : 1;
	if (x->chunk != y->chunk)
		return x->chunk < y->chunk ? -1 : 1;
	return x->piece < y->piece ? -1 : x->piece > y->piece;
}

/* A chunk that several pieces touch is verified by the first of them. */
static void verify_once(struct sk_restoring *rs)
{
	for (size_t i = 1; i < rs->n_jobs; i++) {
		const struct sk_restore_piece *p, *before;

		before = &rs->pieces[rs->jobs[i - 1].piece];
		p = &rs->pieces[rs->jobs[i].piece];
		if (p->entry == before->entry && p->place == before->place &&
		    rs->jobs[i].chunk == rs->jobs[i - 1].chunk)
			rs->jobs[i].verify = false;
	}
}

static int have_maps(struct sk_restoring *rs)
{
	size_t sums = (size_t)(2 * rs->n_sums) / 8 + 1;

	if (!rs->used)
		rs->used = calloc(1, sums);
	if (!rs->verified)
		rs->verified = calloc(1, sums);
	if (!rs->bad)
		rs->bad = calloc(1, (size_t)rs->n_images * 2 / 8 + 1);
	return rs->used && rs->verified && rs->bad ? 0 : no_memory(rs);
}

int sk_restore_jobs(struct sk_restoring *rs)
{
	struct readers readers = { 0 };
	int r;

	rs->n_jobs = 0;
	r = have_maps(rs);
	for (uint32_t i = 0; i < rs->n_pieces && r >= 0; i++) {
		r = collect_readers(rs, &rs->pieces[i], &readers);
		if (r >= 0)
			r = cut_piece(rs, i, &readers);
	}
	free(readers.v);
	if (r < 0)
		return r == -ENOMEM ? no_memory(rs) : r;
	if (rs->n_jobs)
		qsort_r(rs->jobs, rs->n_jobs, sizeof(*rs->jobs), by_position,
			rs);
	verify_once(rs);
	return 0;
}
