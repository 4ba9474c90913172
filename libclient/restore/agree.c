/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/agree.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "comm/links.h"
#include "conn/check.h"

/* Bytes of all ranks in one gather, where what each has to say is long. */
#define AT_ONCE ((size_t)4 << 20)

/* Where the comm puts what this rank gives: where it says, though it be wrong
 * of the job, which is told by it then. */
static size_t own_place(const struct sk_restoring *rs)
{
	bool says = rs->comm.world && rs->state->job.world > 1;

	return (size_t)(says ? rs->comm.rank : rs->state->job.rank);
}

/* A comm that loses what it is given would set ranks at odds; what relies on
 * one's own part of the whole may then rely on it. */
static int check_own(struct sk_restoring *rs, const void *in, size_t bytes,
		     const void *all)
{
	const char *own = (const char *)all + own_place(rs) * bytes;

	if (!memcmp(own, in, bytes))
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

/* Who it was, where the comm can tell. */
static void name_missed(const struct sk_restoring *rs, int r, char ret[100])
{
	bool passes;
	int32_t rank = sk_links_missed(&rs->comm, &passes);

	ret[0] = '\0';
	if (rank >= 0)
		(void)snprintf(ret, 100, ", and rank %" PRId32 "%s %s", rank,
			       passes ? ", by which all words go," : "",
			       r == -ETIMEDOUT ? "did not answer" :
						 "is gone, or has given up");
}

/* What a rank that has had all its bytes, and does not hear the last word, can
 * say: who has heard it ends well. */
static const char nobody_knows[] = "all that this rank wants is restored, and "
				   "of the others nobody can tell: restore "
				   "again on all";

/* What one that went on while another rank was started again has to do. */
static const char begin_anew[] = "make all ranks' states anew, as after a "
				 "restart";

/* Why no word of the others comes any more. */
static void explain(struct sk_restoring *rs, int r)
{
	const struct sk_job *job = &rs->state->job;
	bool ours = rs->comm.ctx == &rs->agent_comm;
	char missed[100];

	name_missed(rs, r, missed);
	if (ours && r == -ECONNRESET && !rs->agent_comm.over)
		sk_err_set(&rs->err, r, "rank %d cannot agree with the %d "
			   "other ranks of job \"%s\" on a restore: the agent "
			   "that they met through is gone, with what it "
			   "held%s%s", job->rank, job->world - 1, job->name,
			   rs->moved ? "; " : "",
			   rs->moved ? nobody_knows : "");
	else if (ours && rs->agent_comm.err.text[0])
		sk_err_set(&rs->err, r, "rank %d cannot agree with the %d "
			   "other ranks on a restore: %s; %s", job->rank,
			   job->world - 1, rs->agent_comm.err.text,
			   rs->moved ? nobody_knows :
			   rs->agent_comm.over ? begin_anew :
			   r == -ETIMEDOUT ? "every rank must call it" :
					     "all of them must ask alike");
	else
		sk_err_errno(&rs->err, r, "rank %d cannot agree with the %d "
			     "other ranks of job \"%s\" on a restore; %s%s",
			     job->rank, job->world - 1, job->name,
			     rs->moved ? nobody_knows :
					 "every rank must call it", missed);
}

int sk_restore_give(struct sk_restoring *rs, const void *in, size_t bytes,
		    void *all, uint32_t more_ms)
{
	size_t world = (size_t)rs->state->job.world;
	uint64_t began = rs->sk->os->now_ns(rs->sk->os);
	int r = 0;

	assert(world && rs->state->job.rank < rs->state->job.world);
	rs->missed = false;
	if (rs->broken)
		return -ETIMEDOUT;
	if (world == 1)
		memcpy(all, in, bytes);
	else
		r = sk_check_returned(rs->comm.allgather(
			rs->comm.ctx, in, bytes, all,
			rs->timeout_ms + more_ms));
	rs->report.agree_ns += rs->sk->os->now_ns(rs->sk->os) - began;
	if (r >= 0)
		return check_own(rs, in, bytes, all);
	/* The others have all: this rank says so with its next word. */
	rs->missed = rs->agent_comm.met;
	if (rs->missed)
		return sk_err_errno(&rs->err, r, "rank %d cannot take what "
				    "the other ranks say",
				    rs->state->job.rank);
	if (rs->agent_comm.astray)
		return r;
	give_up(rs);
	explain(rs, r);
	/* As in the exchange in which others may be. */
	return rs->comm.exchange ? -ETIMEDOUT : r;
}

static int make_room(struct sk_restoring *rs, size_t bytes, void **ret)
{
	size_t world = (size_t)rs->state->job.world;
	uint64_t all;

	if (!sk_mul_u64(world, bytes, &all))
		return sk_err_set(&rs->err, -EOVERFLOW, "%zu ranks cannot "
				  "exchange %zu bytes each", world, bytes);
	*ret = malloc(all ? all : 1);
	return *ret ? 0 :
	       sk_err_set(&rs->err, -ENOMEM, "no memory for what %zu ranks "
			  "say (%" PRIu64 " bytes)", world, all);
}

int sk_restore_gather(struct sk_restoring *rs, int r, const void *in,
		      size_t bytes, void *ret_all)
{
	_cleanup_free_ void *all = NULL;
	bool gives;
	int given = 0;

	if (r >= 0)
		r = make_room(rs, bytes, &all);
	gives = r >= 0;
	r = sk_restore_agreed(rs, r);
	/* Who has not heard that the others go on is needed all the same. */
	if (r >= 0 || (gives && rs->missed))
		given = sk_restore_give(rs, in, bytes, all, 0);
	if (r >= 0 || (given < 0 && !rs->missed))
		r = given;
	if (r < 0)
		return r;
	*(void **)ret_all = sk_take_ptr(all);
	return 0;
}

size_t sk_restore_portion(const struct sk_restoring *rs, size_t bytes)
{
	size_t n;

	assert(bytes && rs->state->job.world > 0);
	n = AT_ONCE / (uint32_t)rs->state->job.world / bytes;
	return n ? n : 1;
}

/* ---- bytes ---- */

static int outcome(struct sk_restoring *rs, int r)
{
	char missed[100];

	r = sk_check_returned(r);
	if (r >= 0)
		return 0;
	give_up(rs);
	name_missed(rs, r, missed);
	sk_err_errno(&rs->err, r, "rank %d cannot exchange bytes with other "
		     "ranks of job \"%s\" in a restore%s",
		     rs->state->job.rank, rs->state->job.name, missed);
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
