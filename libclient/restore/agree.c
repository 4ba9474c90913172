/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/agree.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "conn/check.h"

/* Bytes of all ranks in one gather, where what each has to say is long. */
#define AT_ONCE ((size_t)4 << 20)

/* A comm that loses what it is given would set ranks at odds; what relies on
 * one's own part of the whole may then rely on it. */
static int check_own(struct sk_restoring *rs, const void *in, size_t bytes,
		     const char *all)
{
	if (!memcmp(all + (size_t)rs->state->job.rank * bytes, in, bytes))
		return 0;
	return sk_err_set(&rs->err, -EPROTO, "the comm's allgather did not "
			  "bring rank %d back what it gave (%zu bytes); it "
			  "must put the part of rank N at N times the bytes",
			  rs->state->job.rank, bytes);
}

/* Others wait for what does not come any more. */
static void give_up(struct sk_restoring *rs)
{
	if (!rs->broken && rs->comm.abort)
		rs->comm.abort(rs->comm.ctx);
	rs->broken = true;
}

int sk_restore_gather(struct sk_restoring *rs, const void *in, size_t bytes,
		      void *ret_all, uint32_t more_ms)
{
	size_t world = (size_t)rs->state->job.world;
	uint64_t began = rs->sk->os->now_ns(rs->sk->os);
	uint64_t all_bytes;
	char *all;
	int r = 0;

	assert(world && rs->state->job.rank < rs->state->job.world);
	if (!sk_mul_u64(world, bytes, &all_bytes))
		return sk_err_set(&rs->err, -EOVERFLOW, "%zu ranks cannot "
				  "exchange %zu bytes each", world, bytes);
	all = malloc(all_bytes ? all_bytes : 1);
	if (rs->broken) {
		free(all);
		return -ETIMEDOUT;
	}
	if (!all)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for what %zu "
				  "ranks say (%" PRIu64 " bytes)", world,
				  all_bytes);
	if (world == 1)
		memcpy(all, in, bytes);
	else
		r = sk_check_returned(rs->comm.allgather(
			rs->comm.ctx, in, bytes, all,
			rs->timeout_ms + more_ms));
	rs->report.agree_ns += rs->sk->os->now_ns(rs->sk->os) - began;
	if (r < 0) {
		free(all);
		give_up(rs);
		sk_err_errno(&rs->err, r, "rank %d cannot agree with the %zu "
			     "other ranks of job %s on a restore; every rank "
			     "must call it", rs->state->job.rank, world - 1,
			     rs->state->job.name);
		/* As in the exchange in which others may be. */
		return rs->comm.exchange ? -ETIMEDOUT : r;
	}
	r = check_own(rs, in, bytes, all);
	if (r < 0) {
		free(all);
		return r;
	}
	*(void **)ret_all = all;
	return 0;
}

size_t sk_restore_portion(const struct sk_restoring *rs, size_t bytes)
{
	size_t n;

	assert(bytes && rs->state->job.world > 0);
	n = AT_ONCE / (uint32_t)rs->state->job.world / bytes;
	return n ? n : 1;
}

/* The status of all: that of the first rank which has one. */
static int heard(struct sk_restoring *rs, const struct sk_restore_word *words)
{
	assert(rs->state->job.world > 0);
	for (int32_t i = 0; i < rs->state->job.world; i++) {
		const struct sk_restore_word *w = &words[i];
		char text[SK_ERR_MAX];

		if (w->status >= 0)
			continue;
		(void)snprintf(text, sizeof(text), "%.*s", SK_ERR_MAX - 1,
			       w->text);
		if (rs->state->job.world == 1)
			return sk_err_set(&rs->err, w->status, "%s", text);
		return sk_err_set(&rs->err, w->status, "rank %d: %s", i, text);
	}
	return 0;
}

int sk_restore_agree(struct sk_restoring *rs, int r,
		     struct sk_restore_word *word,
		     struct sk_restore_word **ret_words, uint32_t more_ms)
{
	_cleanup_free_ struct sk_restore_word *words = NULL;

	word->status = r < 0 ? r : 0;
	word->stale = rs->stale;
	if (r < 0)
		memcpy(word->text, rs->err.text, sizeof(word->text));
	r = sk_restore_gather(rs, word, sizeof(*word), &words, more_ms);
	if (r < 0)
		return r;
	for (int32_t i = 0; i < rs->state->job.world; i++)
		rs->stale_anywhere |= words[i].stale;
	r = heard(rs, words);
	if (ret_words)
		*ret_words = sk_take_ptr(words);
	return r;
}

/* ---- bytes ---- */

static int outcome(struct sk_restoring *rs, int r)
{
	r = sk_check_returned(r);
	if (r >= 0)
		return 0;
	give_up(rs);
	sk_err_errno(&rs->err, r, "rank %d cannot exchange bytes with other "
		     "ranks of job %s in a restore", rs->state->job.rank,
		     rs->state->job.name);
	return -ETIMEDOUT;
}

typedef int (*exchange_fn)(void *ctx, const struct sk_comm_part *sends,
			   size_t n_sends,
			   const struct sk_comm_part *receives,
			   size_t n_receives, uint32_t timeout_ms);

static int exchange_by(struct sk_restoring *rs, exchange_fn exchange,
		       const struct sk_comm_part *sends, size_t n_sends,
		       const struct sk_comm_part *receives, size_t n_receives)
{
	if (!n_sends && !n_receives)
		return 0;
	if (rs->broken)
		return -ETIMEDOUT;
	return outcome(rs, exchange(rs->comm.ctx, sends, n_sends, receives,
				    n_receives, rs->timeout_ms));
}

int sk_restore_exchange(struct sk_restoring *rs,
			const struct sk_comm_part *sends, size_t n_sends,
			const struct sk_comm_part *receives,
			size_t n_receives)
{
	assert(rs->comm.exchange || (!n_sends && !n_receives));
	return exchange_by(rs, rs->comm.exchange, sends, n_sends, receives,
			   n_receives);
}

int sk_restore_exchange_device(struct sk_restoring *rs,
			       const struct sk_comm_part *sends,
			       size_t n_sends,
			       const struct sk_comm_part *receives,
			       size_t n_receives)
{
	return exchange_by(rs, rs->comm.device->exchange, sends, n_sends,
			   receives, n_receives);
}

int sk_restore_begin_device(struct sk_restoring *rs)
{
	int r;

	if (rs->broken)
		return -ETIMEDOUT;
	r = rs->comm.device->begin(rs->comm.ctx, rs->timeout_ms);
	return r == -ENODEV ? r : outcome(rs, r);
}

int sk_restore_broadcast(struct sk_restoring *rs, int32_t root, void *data,
			 uint64_t bytes)
{
	if (rs->broken)
		return -ETIMEDOUT;
	assert(rs->comm.broadcast);
	return outcome(rs, rs->comm.broadcast(rs->comm.ctx, root, data, bytes,
					      rs->timeout_ms));
}

/* One piece of memory: the parcels, then what is in them. */
static struct sk_restore_parcel *make_parcels(const uint64_t *bytes,
					      size_t world, size_t rank)
{
	uint64_t total = world * sizeof(struct sk_restore_parcel);
	struct sk_restore_parcel *in;
	char *at;

	for (size_t i = 0; i < world; i++)
		if (!sk_add_u64(total, sk_round_up(bytes[i * world + rank],
						   8), &total))
			return NULL;
	in = malloc(total);
	at = in ? (char *)&in[world] : NULL;
	for (size_t i = 0; in && i < world; i++) {
		in[i].bytes = bytes[i * world + rank];
		in[i].data = at;
		at += sk_round_up(in[i].bytes, 8);
	}
	return in;
}

static int post(struct sk_restoring *rs, const struct sk_restore_parcel *out,
		struct sk_restore_parcel *in)
{
	size_t world = (size_t)rs->state->job.world, n = 0, m = 0;
	size_t rank = (size_t)rs->state->job.rank;
	_cleanup_free_ struct sk_comm_part *parts = NULL;
	struct sk_comm_part *from;

	parts = calloc(2 * world, sizeof(*parts));
	if (!parts)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu ranks",
				  world);
	from = parts + world;
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
	_cleanup_free_ uint64_t *mine = NULL, *all = NULL;
	struct sk_restore_word word = { 0 };

	mine = calloc(world, sizeof(*mine));
	if (!mine)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu ranks",
				  world);
	for (size_t i = 0; r >= 0 && i < world; i++)
		mine[i] = out[i].bytes;
	if (sk_restore_gather(rs, mine, world * sizeof(*mine), &all, 0) < 0)
		return -ETIMEDOUT;
	if (r >= 0)
		in = make_parcels(all, world, (size_t)rs->state->job.rank);
	if (r >= 0 && !in)
		r = sk_err_set(&rs->err, -ENOMEM, "no memory for what %zu "
			       "ranks say", world);
	r = sk_restore_agree(rs, r, &word, NULL, 0);
	if (r >= 0)
		r = post(rs, out, in);
	if (r >= 0)
		*ret_in = in;
	/* A comm that failed may still write to it. */
	if (r >= 0 || rs->broken)
		(void)sk_take_ptr(in);
	return r;
}
