/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: pieces cut where checksummed chunks end. Where several ranks of this
 * node read one chunk, they take turns in verifying it: who reads what is
 * arithmetic.
 *
 * Whether the ranks' arithmetic agreed, and each did its part, is found out
 * afterwards. Each chunk that a rank relies on another for has a number, its
 * share; whoever verifies a chunk has the shares of all who rely on it. If
 * over the ranks of a node both sum up to the same, nothing was left out.
 */
#include "restore/jobs.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "restore/keys.h"
#include "restore/neighbour.h"
#include "restore/nodes.h"
#include "restore/shape.h"
#include "restore/wants.h"

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
	struct sk_restore_having having;	/* who has the entry */
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

/* Whether @rank takes what the entry has from the place that we do. On disk
 * there is but one. */
static bool takes(const struct readers *readers, int32_t rank)
{
	const struct sk_restoring *rs = readers->rs;
	const struct sk_restore_piece *mine = readers->piece;
	int32_t from = sk_restore_having_for(&readers->having, rank);

	return from < 0 ? mine->place == 1 :
			  !mine->place && rs->images[mine->image].rank == from;
}

static bool is_near(const struct sk_restoring *rs, int32_t rank)
{
	return rank < rs->state->job.world && rs->node_of[rank] == rs->node;
}

/* A part of the entry that all of @holders want: those of them that take it
 * from this image, by whichever list is shorter. */
static int on_target(const struct sk_piece *piece,
		     const struct sk_holders *holders, void *ctx)
{
	struct readers *readers = ctx;
	const struct sk_restoring *rs = readers->rs;
	int64_t n = sk_holders_count(holders);
	bool by_holder = n <= rs->n_near;
	int r = 0;

	assert(readers->having.holders && rs->node_of);
	n = by_holder ? n : rs->n_near;
	for (int64_t i = 0; i < n && r >= 0; i++) {
		int32_t rank = by_holder ? sk_holders_rank(holders, i) :
					   rs->near_ranks[i];

		if (by_holder ? is_near(rs, rank) :
				sk_holders_find(holders, rank) >= 0)
			if (takes(readers, rank))
				r = add_reader(readers, rank, &piece->box);
	}
	return r;
}

static int on_source(const struct sk_piece *piece,
		     const struct sk_holders *holders, void *ctx)
{
	struct readers *readers = ctx;
	const struct sk_box *box = &readers->piece->entry->box;
	const struct sk_local *local =
		&readers->rs->state->locals[readers->piece->local];
	int r;

	(void)piece;
	r = sk_restore_having_find(&readers->having, readers->key, box,
				   holders);
	return r < 0 ? r :
	       sk_plan_box(&local->item.spec, readers->rs->state->job.world,
			   box, on_target, readers);
}

static int by_reader(const void *a, const void *b)
{
	const struct reader *x = a, *y = b;

	return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Whether each element is one rank's alone, now as when it was saved: nobody
 * reads what another one does. */
static bool is_each_ones_own(const struct sk_spec *saved,
			     const struct sk_spec *now)
{
	for (int m = 0; saved->mesh && m < sk_mesh_ndim(saved->mesh); m++)
		if (saved->placements[m].kind == SK_PLACEMENT_REPLICATE &&
		    sk_mesh_dim(saved->mesh, m) > 1)
			return false;
	return saved->mesh && sk_spec_same_layout(saved, now);
}

/* Fills in who reads the entry of a piece; nobody known: this rank alone. */
static int collect_readers(struct sk_restoring *rs,
			   const struct sk_restore_piece *piece,
			   struct readers *readers)
{
	const struct sk_item *item = &rs->state->locals[piece->local].item;
	int r;

	assert(piece->local < rs->state->n_locals);
	readers->rs = rs;
	readers->piece = piece;
	readers->n = 0;
	readers->key = sk_restore_key_of(rs, piece->local);
	if (rs->alone || rs->state->job.world == 1 || item->explicit_boxes ||
	    item->kind == SK_ITEM_BLOB_LOCAL || !readers->key ||
	    readers->key->is_explicit ||
	    is_each_ones_own(&readers->key->item->spec, &item->spec))
		return 0;
	r = sk_plan_box(&readers->key->item->spec, rs->world,
			&piece->entry->box, on_source, readers);
	if (r >= 0 && readers->n)
		qsort(readers->v, readers->n, sizeof(*readers->v), by_reader);
	return r;
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

/* Of a chunk that @rank takes: the same number at every rank. */
static uint64_t share_of(const struct sk_restoring *rs,
			 const struct sk_restore_piece *p, uint32_t chunk,
			 int32_t rank)
{
	uint64_t id;

	memcpy(&id, rs->images[p->image].digest.bytes, sizeof(id));
	id = sk_restore_mix(id + p->place);
	id = sk_restore_mix(id + p->entry->first_sum + chunk);
	return sk_restore_mix(id + (uint32_t)rank);
}

/* The next of the readers, which are by rank, who touches the chunk. */
static size_t next_reader(const struct readers *readers, size_t i,
			  uint64_t from, uint64_t to)
{
	while (i < readers->n && !touches(&readers->v[i].shape, from, to))
		i++;
	return i;
}

static size_t after_rank(const struct readers *readers, size_t i)
{
	int32_t rank = readers->v[i].rank;

	while (i < readers->n && readers->v[i].rank == rank)
		i++;
	return i;
}

/* Those who read the chunk: how many, the shares of all but this rank, and
 * who is the @turn-th, or @first, if it is one of them. */
static uint32_t count_readers(const struct readers *readers, uint32_t chunk,
			      uint64_t turn, int32_t first,
			      uint64_t *ret_shares, int32_t *ret_whose)
{
	const struct sk_restoring *rs = readers->rs;
	uint64_t from, to;
	bool found = false;
	uint32_t n = 0;
	size_t i = 0;

	*ret_shares = 0;
	*ret_whose = rs->state->job.rank;
	sk_restore_chunk(readers->piece->entry, chunk, &from, &to);
	while ((i = next_reader(readers, i, from, to)) < readers->n) {
		int32_t rank = readers->v[i].rank;

		if (rank == first || (n == turn && !found))
			*ret_whose = rank;
		found |= rank == first;
		n++;
		if (rank != rs->state->job.rank)
			*ret_shares += share_of(rs, readers->piece, chunk,
						rank);
		i = after_rank(readers, i);
	}
	return n;
}

/* Who verifies the chunk, and what comes of it. Of what other nodes may want,
 * whoever reads it for them. */
static void take_turn(const struct readers *readers,
		      struct sk_restore_job *job)
{
	const struct sk_restoring *rs = readers->rs;
	const struct sk_restore_piece *p = readers->piece;
	uint64_t index = p->entry->first_sum + job->chunk +
			 (uint64_t)rs->images[p->image].rank;
	int32_t whose = rs->state->job.rank, first = -1;
	uint64_t shares = 0;
	uint32_t n;

	if (rs->apart && !p->place)
		first = sk_wants_reader(rs, &rs->images[p->image], p->entry,
					job->chunk);
	n = readers->n < 2 ? 1 : count_readers(readers, job->chunk, UINT64_MAX,
					       first, &shares, &whose);
	job->sharers = n ? n : 1;
	if (n > 1)
		(void)count_readers(readers, job->chunk,
				    sk_restore_turn(index, n), first, &shares,
				    &whose);
	if (rs->flags & SK_RESTORE_NO_VERIFY)
		return;
	job->verify = whose == rs->state->job.rank;
	job->relied = !job->verify;
	job->share = job->verify ? shares :
				   share_of(rs, p, job->chunk,
					    rs->state->job.rank);
}

static int cut_piece(struct sk_restoring *rs, uint32_t index,
		     const struct readers *readers)
{
	struct sk_restore_piece *piece = &rs->pieces[index];
	struct sk_restore_shape shape;
	int r = 0;

	assert(index < rs->n_pieces);
	sk_restore_shape_of(rs, piece, &shape);
	for (uint32_t c = 0; c < piece->entry->n_sums && r >= 0; c++) {
		struct sk_restore_job job = { .piece = index, .chunk = c };
		uint64_t from, to;

		sk_restore_chunk(piece->entry, c, &from, &to);
		if (!touches(&shape, from, to))
			continue;
		take_turn(readers, &job);
		piece->relied |= job.relied;
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

/* A chunk that several pieces touch is verified by the first of them, and
 * relied on once. */
static void verify_once(struct sk_restoring *rs)
{
	for (size_t i = 1; i < rs->n_jobs; i++) {
		const struct sk_restore_piece *p, *before;
		struct sk_restore_job *job = &rs->jobs[i];

		before = &rs->pieces[rs->jobs[i - 1].piece];
		p = &rs->pieces[job->piece];
		if (p->entry == before->entry && p->place == before->place &&
		    job->chunk == rs->jobs[i - 1].chunk) {
			job->verify = job->relied = false;
			job->share = 0;
		}
	}
}

static int have_map(struct sk_restoring *rs)
{
	if (!rs->bad)
		rs->bad = calloc(1, (size_t)rs->n_images * 2 / 8 + 1);
	return rs->bad ? 0 : no_memory(rs);
}

int sk_restore_jobs(struct sk_restoring *rs)
{
	struct readers readers = { 0 };
	int r;

	rs->n_jobs = 0;
	r = have_map(rs);
	if (r >= 0)
		r = sk_restore_having_begin(rs, &readers.having);
	for (uint32_t i = 0; i < rs->n_pieces && r >= 0; i++) {
		if (rs->pieces[i].place >= SK_PLACE_OTHERS)
			continue;
		r = collect_readers(rs, &rs->pieces[i], &readers);
		if (r >= 0)
			r = cut_piece(rs, i, &readers);
	}
	free(readers.v);
	sk_restore_having_end(&readers.having);
	if (r < 0)
		return r == -ENOMEM ? no_memory(rs) : r;
	if (rs->n_jobs)
		qsort_r(rs->jobs, rs->n_jobs, sizeof(*rs->jobs), by_position,
			rs);
	verify_once(rs);
	return 0;
}
