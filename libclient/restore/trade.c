/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks give to each other. Most have something for a few: so each says
 * for whom and how long, and not to whom it has nothing to give; all of them
 * say as many lengths as the one with most.
 */
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/portions.h"

struct length {
	uint64_t bytes;
	int32_t rank;		/* for whom; of 0 bytes for nobody */
	uint32_t reserved;
};

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for what %d ranks say",
			  rs->state->job.world);
}

/* ---- lengths ---- */

static uint64_t list_lengths(const struct sk_restoring *rs,
			     const struct sk_restore_parcel *out,
			     struct length *mine)
{
	uint64_t n = 0;

	for (int32_t k = 0; k < rs->state->job.world; k++)
		if (k != rs->state->job.rank && out[k].bytes)
			mine[n++] = (struct length){ out[k].bytes, k, 0 };
	return n;
}

/* What all have for this rank. */
struct hearing {
	size_t world;
	int32_t rank;
	uint64_t *bytes;		/* by rank */
};

static void hear(void *ctx, const void *all, size_t at, size_t n)
{
	const struct hearing *h = ctx;
	const struct length *v = all;

	(void)at;
	for (size_t i = 0; i < h->world * n; i++)
		if (v[i].rank == h->rank && v[i].bytes)
			h->bytes[i / n] = v[i].bytes;
}

/* @bytes of each rank for this one. */
static int gather_lengths(struct sk_restoring *rs, int r,
			  const struct length *mine, uint64_t n,
			  uint64_t *bytes)
{
	struct hearing h = { .world = (size_t)rs->state->job.world,
			     .rank = rs->state->job.rank, .bytes = bytes };
	_cleanup_free_ uint64_t *counts = NULL;
	uint64_t most = 0;

	r = sk_restore_gather(rs, r, &n, sizeof(n), &counts);
	if (r < 0)
		return r;
	for (uint64_t k = 0; k < h.world; k++)
		most = counts[k] > most ? counts[k] : most;
	if (most > h.world)
		return sk_err_set(&rs->err, -EPROTO, "a rank has more to give "
				  "than there are ranks");
	return sk_restore_gather_long(rs, 0, mine, most, sizeof(*mine), hear,
				      &h);
}

/* ---- parcels ---- */

/* One piece of memory: the parcels, then what is in them. */
static struct sk_restore_parcel *make_parcels(const uint64_t *bytes,
					      size_t world)
{
	uint64_t total = world * sizeof(struct sk_restore_parcel);
	struct sk_restore_parcel *in;
	char *at;

	/* What others say may be any length; rounded up it must not wrap, and
	 * no object is longer than that. */
	for (size_t i = 0; i < world; i++)
		if (bytes[i] > INT64_MAX ||
		    !sk_add_u64(total, sk_round_up(bytes[i], 8), &total) ||
		    total > INT64_MAX)
			return NULL;
	in = malloc(total);
	at = in ? (char *)&in[world] : NULL;
	for (size_t i = 0; in && i < world; i++) {
		in[i].bytes = bytes[i];
		in[i].data = at;
		at += sk_round_up(in[i].bytes, 8);
	}
	return in;
}

/* The parts that @out has for others, and those of @in that come from them,
 * in @parts, which has room for all. */
static int post(struct sk_restoring *rs, const struct sk_restore_parcel *out,
		struct sk_restore_parcel *in, struct sk_comm_part *parts)
{
	size_t world = (size_t)rs->state->job.world, n = 0, m = 0;
	size_t rank = (size_t)rs->state->job.rank;
	struct sk_comm_part *from = parts + world;

	if (out[rank].bytes)
		memcpy(in[rank].data, out[rank].data, out[rank].bytes);
	for (size_t i = 0; i < world; i++) {
		if (i != rank && out[i].bytes)
			parts[n++] = (struct sk_comm_part){
				(int32_t)i, 0, out[i].data, out[i].bytes };
		if (i != rank && in[i].bytes)
			from[m++] = (struct sk_comm_part){
				(int32_t)i, 0, in[i].data, in[i].bytes };
	}
	return sk_restore_exchange(rs, parts, n, from, m);
}

int sk_restore_trade(struct sk_restoring *rs, int r,
		     const struct sk_restore_parcel *out,
		     struct sk_restore_parcel **ret_in)
{
	size_t world = (size_t)rs->state->job.world;
	_cleanup_free_ struct sk_restore_parcel *in = NULL;
	_cleanup_free_ struct length *mine = NULL;
	_cleanup_free_ struct sk_comm_part *parts = NULL;
	_cleanup_free_ uint64_t *bytes = NULL;
	uint64_t n = 0;

	mine = calloc(world + 1, sizeof(*mine));
	parts = calloc(2 * world, sizeof(*parts));
	bytes = calloc(world, sizeof(*bytes));
	if (r >= 0 && (!mine || !parts || !bytes))
		r = no_memory(rs);
	if (r >= 0)
		n = list_lengths(rs, out, mine);
	r = gather_lengths(rs, r, mine, n, bytes);
	if (r >= 0) {
		bytes[rs->state->job.rank] = out[rs->state->job.rank].bytes;
		in = make_parcels(bytes, world);
		r = in ? 0 : no_memory(rs);
	}
	r = sk_restore_agreed(rs, r);
	if (r >= 0)
		r = post(rs, out, in, parts);
	if (r >= 0)
		*ret_in = in;
	/* A comm that failed may still write to it. */
	if (r >= 0 || rs->broken)
		(void)sk_take_ptr(in);
	return r;
}

int sk_restore_trade_near(struct sk_restoring *rs, int r, void *data,
			  uint64_t bytes, struct sk_restore_parcel **ret_in)
{
	_cleanup_free_ struct sk_restore_parcel *out = NULL;

	out = calloc((size_t)rs->state->job.world, sizeof(*out));
	if (r >= 0 && !out)
		r = no_memory(rs);
	for (int32_t k = 0; r >= 0 && k < rs->n_near; k++)
		if (rs->near_ranks[k] != rs->state->job.rank)
			out[rs->near_ranks[k]] = (struct sk_restore_parcel){
				data, bytes };
	return sk_restore_trade(rs, r, out, ret_in);
}
