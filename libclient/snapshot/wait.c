/* SPDX-License-Identifier: Apache-2.0 */
/* sk_wait, sk_flush, sk_keep, sk_status. */
#include <string.h>

#include "base/util.h"
#include "conn/check.h"
#include "conn/say.h"
#include "state/state.h"

/* Of our own snapshot we know first what became of it. */
static int wait_own(struct sk_state *state, int64_t step, uint64_t until_ns,
		    struct sk_err *err)
{
	struct sk_fences *f = &state->fences;
	int r = sk_fence_wait_step(f, step, until_ns, err);

	if (r < 0)
		return r;
	/* Its fence may have been dropped since, with the sentence. */
	sk_fences_lock(f);
	if (state->status.step == step)
		r = state->status.result;
	sk_fences_unlock(f);
	return r < 0 ? sk_err_set(err, r, "step %lld is not sealed: %s",
				  (long long)step, strerror(-r)) : 0;
}

static struct sk_msg wait_msg(struct sk_state *state, int64_t step, int until)
{
	return (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = sk_state_wire_id(state, step),
		.until = (uint32_t)until } };
}

#define LOOK_MS 500u

/* As it is now. */
static int look(struct sk_state *state, int64_t step, int until,
		struct sk_err *err)
{
	struct sk_msg msg = wait_msg(state, step, until);

	return sk_call_apart(state->sk, &msg, NULL, 0, NULL, NULL,
			     sk_until_ms(state->sk->os, LOOK_MS), err);
}

#define LOST_MOST 3u	/* agents, while one waits */

/* The next one is asked where it was killed: what it knew may have outlived
 * it. */
static int wait_agent(struct sk_state *state, int64_t step, int until,
		      uint64_t until_ns, struct sk_err *err)
{
	const struct sk_os *os = state->sk->os;
	unsigned lost = 0;
	int r;

	do {
		struct sk_msg msg = wait_msg(state, step, until);

		r = sk_call_deferred(state->sk, &msg, NULL, 0, NULL, NULL,
				     until_ns, err);
	} while (r == -ECONNRESET && lost++ < LOST_MOST &&
		 os->now_ns(os) < until_ns);
	return r;
}

static int check_step(int64_t step, struct sk_err *err)
{
	return step >= 0 ? 0 : sk_err_set(err, -EINVAL, "step %lld is negative",
					  (long long)step);
}

static int check_wait(int64_t step, int until, struct sk_err *err)
{
	int r = check_step(step, err);

	if (r < 0)
		return r;
	if (until < SK_SEALED || until > SK_WRITTEN)
		return sk_err_set(err, -EINVAL, "one cannot wait for %d; "
				  "give SK_SEALED, SK_COMPLETE, SK_DURABLE or "
				  "SK_WRITTEN", until);
	return 0;
}

SK_API int sk_wait(struct sk_state *state, int64_t step, int until,
		   uint32_t timeout_ms)
{
	struct sk_err err = { "" };
	uint64_t until_ns;
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = check_wait(step, until, &err);
	if (r < 0)
		return sk_say(r, &err);
	until_ns = sk_until_ms(state->sk->os, timeout_ms);
	r = wait_own(state, step, until_ns, &err);
	if (r >= 0)
		r = timeout_ms ?
		    wait_agent(state, step, until, until_ns, &err) :
		    look(state, step, until, &err);
	return sk_say(r, &err);
}

SK_API int sk_flush(struct sk_state *state, int64_t step)
{
	struct sk_msg msg = { .type = SK_MSG_FLUSH };
	struct sk_err err = { "" };
	uint64_t until;
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = check_step(step, &err);
	if (r < 0)
		return sk_say(r, &err);
	until = sk_until(state->sk);
	msg.body.manage.id = sk_state_wire_id(state, step);
	/* One that was lost is no reason to refuse for ever. */
	r = sk_conn_again(state->sk->socket_path, until, &state->sk->conn,
			  &err);
	if (r >= 0)
		r = sk_conn_call(&state->sk->conn, &msg, NULL, 0, NULL, NULL,
				 until, &err);
	return sk_say(r, &err);
}

static int check_keep(const int64_t steps[2], const struct sk_kept *ret_kept,
		      struct sk_err *err)
{
	if (steps[0] < -1 || steps[1] < -1)
		return sk_err_set(err, -EINVAL, "step %lld cannot be kept: "
				  "it is negative, and not -1, which is none",
				  (long long)(steps[0] < -1 ? steps[0] :
							      steps[1]));
	return sk_check_result(ret_kept, "what is kept", err);
}

/* Apart from what a snapshot asks: the store may take its time. */
static int ask_keep(struct sk_state *state, struct sk_msg *msg,
		    struct sk_err *err)
{
	msg->body.keep.id = sk_state_wire_id(state, 0);
	if (!msg->body.keep.id.run_id)
		return sk_err_set(err, -ENOENT, "rank %d of job \"%s\" is in "
				  "no run yet: it has neither restored nor taken "
				  "a snapshot", state->job.rank,
				  state->job.name);
	return sk_call_apart(state->sk, msg, NULL, 0, NULL, NULL,
			     sk_until(state->sk), err);
}

SK_API int sk_keep(struct sk_state *state, int64_t step, int64_t next,
		   struct sk_kept *ret_kept)
{
	struct sk_msg msg = { .type = SK_MSG_KEEP,
			      .body.keep.steps = { step, next } };
	const struct sk_wire_keep_reply *reply = &msg.body.keep_reply;
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = check_keep(msg.body.keep.steps, ret_kept, &err);
	if (r < 0)
		return sk_say(r, &err);
	pthread_mutex_lock(&state->lock);
	/* Whichever agent it registers with hears it. */
	state->keep_id = state->run_id;
	state->keep[0] = step;
	state->keep[1] = next;
	pthread_mutex_unlock(&state->lock);
	r = ask_keep(state, &msg, &err);
	if (r < 0)
		return sk_say(r, &err);
	*ret_kept = (struct sk_kept){ .written = reply->written,
				      .next = reply->has_next ? 1 :
					      reply->written > next ? -1 : 0 };
	return 0;
}

SK_API int sk_status(struct sk_state *state, struct sk_status *ret_status)
{
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = sk_check_result(ret_status, "a status", &err);
	if (r < 0)
		return sk_say(r, &err);
	sk_fences_lock(&state->fences);
	*ret_status = state->status;
	if (ret_status->step < 0)
		ret_status->run = state->run;
	sk_fences_unlock(&state->fences);
	ret_status->device_bytes =
		__atomic_load_n(&state->device_slot.bytes, __ATOMIC_RELAXED);
	ret_status->locked_bytes = __atomic_load_n(&state->gpus.locked_bytes,
						   __ATOMIC_RELAXED);
	return 0;
}
