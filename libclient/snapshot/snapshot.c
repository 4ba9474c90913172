/* SPDX-License-Identifier: Apache-2.0 */
/* Taking snapshots, and fences. */
#include <assert.h>

#include "base/size.h"
#include "base/util.h"
#include "conn/check.h"
#include "conn/say.h"
#include "snapshot/copying.h"
#include "snapshot/verify.h"
#include "state/ahead.h"
#include "state/names.h"
#include "state/register.h"
#include "state/work.h"

#define TENTH_NS UINT64_C(100000000)	/* of a second */

static uint64_t now(const struct sk_state *state)
{
	return state->sk->os->now_ns(state->sk->os);
}

/* ---- a slot ---- */

struct given {
	uint32_t slot;
	uint32_t ranks;		/* that the agent serves */
	bool no_device;		/* the device slot is being read */
};

/* How long it will be: in the sentence, and for who would rather count. */
static void note_busy(struct sk_state *state, uint64_t eta_ns,
		      struct sk_err *err)
{
	struct sk_err why = { "" };
	char seconds[24];

	sk_fences_lock(&state->fences);
	state->status.busy_ns = eta_ns;
	sk_fences_unlock(&state->fences);
	if (!eta_ns || !err)
		return;
	why = *err;
	(void)sk_err_set(err, -EBUSY, "%.*s; the oldest flush needs %s s "
			 "more", SK_ERR_MAX - 64, why.text,
			 sk_size_tenths((eta_ns + TENTH_NS / 2) / TENTH_NS,
					seconds, sizeof(seconds)));
}

static int ask_slot(struct sk_state *state, int64_t step, uint32_t flags,
		    uint64_t until_ns, struct given *ret, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT, .body.slot = {
		.state = state->id, .step = step, .flags = flags } };
	int r;

	if (!sk_ahead_take(state, &msg, until_ns, &r, err))
		r = sk_conn_call_in(&state->sk->conn, state->generation, &msg,
				    until_ns, err);
	if (r == -EBUSY)
		note_busy(state, msg.body.slot_reply.eta_ns, err);
	if (r >= 0 && msg.body.slot_reply.slot >= state->n_slots)
		return sk_err_set(err, -EPROTO, "the agent gave slot %u of %u",
				  msg.body.slot_reply.slot, state->n_slots);
	if (r >= 0)
		*ret = (struct given){ msg.body.slot_reply.slot,
				       msg.body.slot_reply.ranks,
				       msg.body.slot_reply.no_device };
	return r;
}

static int wait_slot(struct sk_state *state, uint64_t until_ns)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT_WAIT, .body.slot_wait = {
		.id = sk_state_wire_id(state, 0) } };

	return sk_call_deferred(state->sk, &msg, NULL, 0, NULL, NULL,
				until_ns, NULL);
}

/* Who is given slices asks again for the others. */
static uint64_t slice_end(const struct sk_state *state,
			  const struct sk_snapshot_options *o)
{
	uint32_t ms = state->slice_ms;

	return sk_until_ms(state->sk->os,
			   ms && ms < o->wait_ms ? ms : o->wait_ms);
}

/* One that has come to be free may be a reader's again when it is asked for.
 * What is said once the time is over is the last word. */
static int ask_patiently(struct sk_state *state, int64_t step,
			 const struct sk_snapshot_options *o,
			 struct given *ret, struct sk_err *err)
{
	uint64_t until = slice_end(state, o);
	bool sliced = state->slice_ms && state->slice_ms < o->wait_ms, waits;
	int r;

	do {
		r = wait_slot(state, until);
		waits = r >= 0 && now(state) < until;
		if (sliced && !waits && (r >= 0 || r == -ETIMEDOUT))
			return -EINTR;
		r = ask_slot(state, step, sk_slot_flags(o->flags, waits),
			     sk_until(state->sk), ret, err);
	} while (r == -EBUSY && waits);
	return r;
}

/* Registered, with work prepared, and a slot of the agent. */
static int get_slot_once(struct sk_state *state, int64_t step,
			 const struct sk_snapshot_options *o,
			 struct given *ret, struct sk_err *err)
{
	uint64_t until = sk_until(state->sk);
	int r = sk_state_register(state, true, until, err);

	if (r >= 0)
		r = sk_work_prepare(state, err);
	if (r < 0)
		return r;
	r = ask_slot(state, step, sk_slot_flags(o->flags, o->wait_ms), until,
		     ret, err);
	if (r != -EBUSY || !o->wait_ms)
		return r;
	return ask_patiently(state, step, o, ret, err);
}

/* A lost agent may be back: once more, from the start. */
static int get_slot(struct sk_state *state, int64_t step,
		    const struct sk_snapshot_options *o, struct given *ret,
		    struct sk_err *err)
{
	int r = get_slot_once(state, step, o, ret, err);

	return r == -ECONNRESET ?
	       get_slot_once(state, step, o, ret, err) : r;
}

/* ---- taking ---- */

static int check_options(const struct sk_snapshot_options *o,
			 struct sk_err *err)
{
	int r = sk_check_flags(o->flags, SK_SNAPSHOT_FLUSH |
			       SK_SNAPSHOT_NO_FLUSH | SK_SNAPSHOT_VERIFY,
			       "sk_snapshot_options.flags", err);

	if (r >= 0 && o->flags & SK_SNAPSHOT_FLUSH &&
	    o->flags & SK_SNAPSHOT_NO_FLUSH)
		r = sk_err_set(err, -EINVAL, "a snapshot is to be flushed, and "
			       "not to be flushed");
	return r < 0 ? r : sk_check_zero(o->reserved, sizeof(o->reserved),
					 "sk_snapshot_options.reserved", err);
}

static int check(const struct sk_state *state, int64_t step,
		 struct sk_err *err)
{
	if (step < 0)
		return sk_err_set(err, -EINVAL, "step %lld is negative",
				  (long long)step);
	if (!state->n_locals)
		return sk_err_set(err, -EINVAL, "rank %d has described no "
				  "tensor and no blob", state->job.rank);
	return 0;
}

/* In step where nobody waits for the copy and the time that it takes later is
 * a training's; else where it takes the copy no time. */
static enum sk_sums when_to_hash(struct sk_state *state, uint32_t ranks)
{
	if (sk_fences_calm(&state->fences) &&
	    sk_hash_in_step(state->sk->cpus, ranks))
		return SK_SUMS_IN_STEP;
	return state->sk->hash_is_free ? SK_SUMS_WHERE_FREE : SK_SUMS_AFTER;
}

static int copy_to(struct sk_state *state, int64_t step,
		   const struct given *given, bool verify, uint64_t start_ns,
		   struct sk_err *err)
{
	enum sk_sums when = verify ? SK_SUMS_AFTER :
				     when_to_hash(state, given->ranks);
	struct sk_copying *c = sk_copying_new(state, step, given->slot, verify,
					      when);
	int r = 0;

	assert(given->slot < state->n_slots);
	if (!c)
		r = sk_err_set(err, -ENOMEM, "out of memory for the snapshot "
			       "of step %lld", (long long)step);
	else
		c->no_device = given->no_device;
	if (r >= 0 && verify)
		r = sk_verify_before(c, err);
	if (r < 0) {
		/* Whatever keeps us from using it, the agent has it back. */
		sk_slot_give_back(state, step, given->slot);
		sk_copying_free(c);
		return r;
	}
	state->in_step += when != SK_SUMS_AFTER;
	sk_copying_begin(c, start_ns);
	return 0;
}

/* Busy with a capture is not busy with a flush. */
static int follow(struct sk_state *state, uint32_t gpus, uint64_t stream,
		  struct sk_err *err)
{
	int r = sk_gpus_follow(state, gpus, stream, err);

	if (r == -EBUSY)
		note_busy(state, 0, NULL);
	return r;
}

static int snapshot(struct sk_state *state, int64_t step,
		    const struct sk_snapshot_options *o, struct sk_err *err)
{
	uint64_t start_ns = now(state);
	bool verify = o->flags & SK_SNAPSHOT_VERIFY ||
		      state->job.flags & SK_JOB_VERIFY;
	struct given given;
	uint32_t gpus;
	int r = check_options(o, err);

	if (r >= 0)
		r = check(state, step, err);
	if (r < 0)
		return r;
	r = sk_fence_wait_untold(&state->fences, SK_FOREVER, err);
	if (r == -ECANCELED)
		return r;
	/* While the trainer waits for a slot it queues nothing. */
	r = sk_gpus_check(state, &gpus, err);
	if (r >= 0)
		r = follow(state, gpus, o->stream, err);
	if (r >= 0)
		r = get_slot(state, step, o, &given, err);
	if (r < 0)
		return r;
	return copy_to(state, step, &given, verify, start_ns, err);
}

SK_API int sk_snapshot(struct sk_state *state, int64_t step,
		       const struct sk_snapshot_options *opts)
{
	const struct sk_snapshot_options none = { 0 };
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r < 0)
		return sk_say(r, &err);
	(void)pthread_mutex_lock(&state->lock);
	state->ahead.vain = false;
	r = snapshot(state, step, opts ? opts : &none, &err);
	sk_ahead_drop(state);
	(void)pthread_mutex_unlock(&state->lock);
	return sk_say(r, &err);
}

/* ---- fences ---- */

static int fence(struct sk_state *state, int64_t item, struct sk_err *err)
{
	uint64_t began = now(state);
	int r = sk_fence_wait(&state->fences, item, SK_FOREVER, err);

	__atomic_fetch_add(&state->fenced_ns, now(state) - began,
			   __ATOMIC_RELAXED);
	return r;
}

SK_API int sk_fence(struct sk_state *state)
{
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = fence(state, SK_FENCE_ALL, &err);
	return sk_say(r, &err);
}

/* What is asked of @stream from here on comes after the newest snapshot's
 * copies. One that is over has marks that are reached. */
static int hold_stream(struct sk_state *state, uint64_t stream,
		       struct sk_err *err)
{
	int n = __atomic_load_n(&state->gpus.n, __ATOMIC_ACQUIRE), r = 0;

	for (int i = 0; i < n && r >= 0; i++)
		r = sk_cuda_mark_hold(state->gpus.v[i].copied, stream, err);
	return r;
}

SK_API int sk_fence_stream(struct sk_state *state, uint64_t stream)
{
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = sk_fence_wait_asked(&state->fences, stream, SK_FOREVER,
					&err);
	if (r >= 0)
		r = hold_stream(state, stream, &err);
	return sk_say(r, &err);
}

SK_API int sk_fence_tensor(struct sk_state *state, const char *name)
{
	struct sk_err err = { "" };
	int64_t item;
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = sk_check_name(name, &err);
	if (r < 0)
		return sk_say(r, &err);
	/* Another thread may be describing tensors. */
	sk_fences_lock(&state->fences);
	item = sk_state_find(state, name);
	sk_fences_unlock(&state->fences);
	if (item < 0)
		return sk_say(sk_err_set(&err, -ENOENT, "nothing named \"%s\" "
					 "is described", name),
			      &err);
	return sk_say(fence(state, item, &err), &err);
}
