/* SPDX-License-Identifier: Apache-2.0 */
/* sk_wait, sk_flush, sk_status. */
#include <string.h>

#include "internal.h"

static void fill_id(const struct sk_state *state, int64_t step,
		    struct sk_wire_id *id)
{
	strcpy(id->job, state->job.name);
	id->run = state->run;
	id->step = step;
	id->rank = state->job.rank;
	id->world = state->job.world;
}

/* Of our own snapshot we know first what became of it. */
static int wait_own(struct sk_state *state, int64_t step,
		    const struct timespec *until, struct sk_err *err)
{
	int r = 0;

	(void)pthread_mutex_lock(&state->copy_lock);
	while (state->status.step == step && state->running && !r)
		r = pthread_cond_timedwait(&state->copy_cond,
					   &state->copy_lock, until);
	if (state->status.step == step && state->status.result < 0)
		r = -state->status.result;
	(void)pthread_mutex_unlock(&state->copy_lock);
	return r ? sk_err_set(err, -r, "step %lld is not sealed: %s",
			      (long long)step, strerror(r)) : 0;
}

SK_API int sk_wait(struct sk_state *state, int64_t step, int until,
		   uint32_t timeout_ms)
{
	struct sk_msg msg = { .type = SK_MSG_WAIT };
	struct sk_err err = { "" };
	struct timespec at;
	int r = sk_check(state->sk, &err);

	if (r >= 0 && (until < SK_SEALED || until > SK_DURABLE || step < 0))
		r = sk_err_set(&err, -EINVAL, "waiting for %d of step %lld",
			       until, (long long)step);
	if (r < 0)
		return sk_say(r, &err);
	(void)clock_gettime(CLOCK_REALTIME, &at);
	at.tv_sec += timeout_ms / 1000;
	at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	at.tv_sec += at.tv_nsec / 1000000000;
	at.tv_nsec %= 1000000000;
	r = sk_snapshot_fence(state, &err);
	if (r >= 0)
		r = wait_own(state, step, &at, &err);
	if (r >= 0) {
		fill_id(state, step, &msg.body.wait.id);
		msg.body.wait.until = (uint32_t)until;
		msg.body.wait.timeout_ms = timeout_ms;
		r = sk_call_deferred(state->sk, &msg, NULL, 0, NULL, NULL,
				     timeout_ms, &err);
	}
	return sk_say(r, &err);
}

SK_API int sk_flush(struct sk_state *state, int64_t step)
{
	struct sk_msg msg = { .type = SK_MSG_FLUSH };
	struct sk_err err = { "" };
	int r = sk_check(state->sk, &err);

	if (r >= 0) {
		fill_id(state, step, &msg.body.manage.id);
		r = sk_conn_call(&state->sk->conn, &msg, NULL, 0, NULL, NULL,
				 state->sk->timeout_ms, &err);
	}
	return sk_say(r, &err);
}

SK_API int sk_status(struct sk_state *state, struct sk_status *ret_status)
{
	struct sk_err err = { "" };
	int r = sk_check(state->sk, &err);

	if (r < 0)
		return sk_say(r, &err);
	(void)pthread_mutex_lock(&state->copy_lock);
	*ret_status = state->status;
	(void)pthread_mutex_unlock(&state->copy_lock);
	return 0;
}
