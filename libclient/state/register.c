/* SPDX-License-Identifier: Apache-2.0 */
#include "state/register.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "conn/memfd.h"
#include "conn/say.h"
#include "memory/slot.h"
#include "state/ahead.h"
#include "state/layout.h"
#include "state/slots.h"
#include "state/warm.h"
#include "state/work.h"

static void forget(struct sk_state *state)
{
	sk_slots_unmap(state);
	sk_device_slot_free(state);
	state->work = sk_work_free(state->work);
	for (int k = 0; k < 2; k++)
		state->layouts[k] = sk_layout_free(state->layouts[k]);
}

void sk_state_unregister(struct sk_state *state)
{
	struct sk_msg msg = { .type = SK_MSG_UNREGISTER,
			      .body.state = state->id };

	sk_ahead_drop(state);
	/* An agent that is gone needs no good-bye. */
	if (state->id)
		(void)sk_conn_call_in(&state->sk->conn, state->generation,
				      &msg, sk_until(state->sk), NULL);
	state->id = 0;
	forget(state);
}

/* What is kept once per node is nothing where all ranks share one. */
static bool keeps_replicas(const struct sk_state *state)
{
	if (state->job.flags & SK_JOB_NODE_REPLICAS)
		return state->nodes != NULL;
	return !(state->job.flags & SK_JOB_NO_REPLICAS);
}

/* Of what is described now. On an error some may be there. */
static int make_layouts(const struct sk_state *state,
			struct sk_layout *layouts[2], struct sk_err *err)
{
	int r = sk_state_layout(state, &layouts[0], err);

	if (r >= 0 && keeps_replicas(state))
		r = sk_layout_other(layouts[0], SK_IMAGE_REPLICA, &layouts[1],
				    err);
	if (r >= 0 && layouts[1] && !layouts[1]->n_entries)
		layouts[1] = sk_layout_free(layouts[1]);
	return r;
}

/* Both headers, one behind the other. */
static int headers(const struct sk_state *state, int *ret, struct sk_err *err)
{
	struct iovec parts[2] = { 0 };
	int fd, n = 0;

	assert(state->layouts[0]);
	for (int k = 0; k < 2; k++)
		if (state->layouts[k])
			parts[n++] = (struct iovec){
				(void *)state->layouts[k]->header,
				state->layouts[k]->header_bytes };
	fd = sk_memfd_with(state->sk->os, "shardkeep:layout", parts, n);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot hand over a layout");
	*ret = fd;
	return 0;
}

static void put_retention(const struct sk_job *job, struct sk_wire_register *q)
{
	if (!job->keep_last && !job->keep_every && !job->keep_age_s &&
	    !job->keep_bytes)
		return;
	q->flags |= SK_REGISTER_RETAIN;
	q->retention = (struct sk_wire_retention){
		.keep_last = job->keep_last == SK_KEEP_ALL ? 0 : job->keep_last,
		.keep_every = job->keep_every,
		.keep_age_s = job->keep_age_s, .keep_bytes = job->keep_bytes,
	};
}

/* With the first slots since it restored; later in the same run, for the agent
 * may be another one that was not told. */
static void put_begun(const struct sk_state *state, bool slots,
		      struct sk_wire_register *q)
{
	const struct sk_begun *b = &state->begun;

	if (!b->run || (b->by_id ? b->by_id != state->run_id : !slots))
		return;
	q->flags |= SK_REGISTER_BEGUN | (b->newest ? SK_REGISTER_NEWEST : 0);
	q->begun = (struct sk_wire_begun){ b->run, b->run_id, b->step };
}

static void put_keep(const struct sk_state *state, struct sk_wire_register *q)
{
	if (!state->keep_id || state->keep_id != state->run_id)
		return;
	q->flags |= SK_REGISTER_KEEP;
	for (int i = 0; i < 2; i++)
		q->keep[i] = state->keep[i];
}

static void fill_request(struct sk_state *state, bool slots,
			 struct sk_wire_register *q)
{
	assert(state->layouts[0]);
	q->id = sk_state_wire_id(state, 0);
	/* Once it was let into a run, it is that very run that it means. */
	q->id.run = state->run ? state->run : state->job.run;
	q->state = state->id;
	q->slots = state->job.slots;
	q->flush_every = state->job.flush_every;
	/* Its tensors come from there: the thread may be anywhere. */
	q->numa_node = sk_gpus_numa_node(state);
	if (q->numa_node < 0)
		q->numa_node = sk_numa_node_here();
	q->flags = slots ? 0 : SK_REGISTER_LATER;
	if (__atomic_load_n(&state->gpus.n, __ATOMIC_ACQUIRE))
		q->flags |= SK_REGISTER_DEVICES;
	put_retention(&state->job, q);
	put_begun(state, slots, q);
	put_keep(state, q);
	for (int k = 0; k < 2; k++)
		if (state->layouts[k]) {
			q->header_bytes[k] = state->layouts[k]->header_bytes;
			q->image_bytes[k] = state->layouts[k]->image_bytes;
		}
}

/* By what the agent has of the rank, as a rule: who came back describes what
 * it had saved, and whoever restored registers twice. */
static int say_known(struct sk_state *state, struct sk_msg *msg,
		     uint64_t until_ns, struct sk_err *err)
{
	struct sk_wire_register *q = &msg->body.reg;

	q->flags |= SK_REGISTER_KNOWN;
	for (int k = 0; k < 2; k++)
		if (state->layouts[k])
			q->known[k] = state->layouts[k]->digest;
	return sk_conn_call(&state->sk->conn, msg, NULL, 0, NULL, NULL,
			    until_ns, err);
}

static int say_all(struct sk_state *state, struct sk_msg *msg,
		   uint64_t until_ns, struct sk_err *err)
{
	const struct sk_os *os = state->sk->os;
	int fd, r = headers(state, &fd, err);

	if (r < 0)
		return r;
	r = sk_conn_call(&state->sk->conn, msg, &fd, 1, NULL, NULL, until_ns,
			 err);
	(void)os->close(os, fd);
	return r;
}

/* An agent that has not got it asks for all of it, and so has an older one. */
static int say(struct sk_state *state, bool slots, uint64_t until_ns,
	       struct sk_msg *msg, struct sk_err *err)
{
	int r;

	*msg = (struct sk_msg){ .type = SK_MSG_REGISTER };
	fill_request(state, slots, &msg->body.reg);
	r = say_known(state, msg, until_ns, err);
	if (r != -ENODATA && r != -EOPNOTSUPP)
		return r;
	*msg = (struct sk_msg){ .type = SK_MSG_REGISTER };
	fill_request(state, slots, &msg->body.reg);
	return say_all(state, msg, until_ns, err);
}

/* *ret_slots: how many to map. */
static int ask_register(struct sk_state *state, bool slots, uint64_t until_ns,
			uint32_t *ret_slots, struct sk_err *err)
{
	bool named = state->run_id;
	struct sk_msg msg;
	int r;

	/* Lost in between, it is not taken for registered. */
	(void)sk_conn_is_open(&state->sk->conn, &state->generation,
			      &state->instance);
	r = say(state, slots, until_ns, &msg, err);
	if (r < 0)
		return r;
	state->id = msg.body.reg_reply.state;
	state->fresh |= !named;
	sk_state_set_run(state, msg.body.reg_reply.run,
			 msg.body.reg_reply.run_id);
	if (slots && !state->begun.by_id)
		state->begun.by_id = state->run_id;
	state->slot_bytes = msg.body.reg_reply.slot_bytes;
	/* Inherited ones are not asked for, and may be there all the same. */
	*ret_slots = slots ? msg.body.reg_reply.slots : 0;
	return 0;
}

/* Again where its last life's place is not free yet, or its job not read, of
 * which the agent says so after some seconds each time. */
static int ask_patiently(struct sk_state *state, bool slots,
			 uint64_t until_ns, uint32_t *ret_slots,
			 struct sk_err *err)
{
	const struct sk_os *os = state->sk->os;
	struct sk_err said = { "" };
	int r;

	do {
		r = ask_register(state, slots, until_ns, ret_slots, err);
		if (r == -EAGAIN)
			said = *err;
	} while (r == -EAGAIN && os->now_ns(os) < until_ns);
	/* That no time was left for the last one says less. */
	if (r == -ETIMEDOUT && said.text[0]) {
		*err = said;
		r = -EAGAIN;
	}
	return r == -EAGAIN ? sk_err_prefix(err, -ETIMEDOUT, "rank %d of job "
					    "\"%s\"", state->job.rank,
					    state->job.name) : r;
}

/* An id that the agent does not know, for whatever reason, is forgotten:
 * nothing is known by it, and to insist would be to fail for ever. */
static int ask_as_known(struct sk_state *state, bool slots, uint64_t until_ns,
			uint32_t *ret_slots, struct sk_err *err)
{
	int r = ask_patiently(state, slots, until_ns, ret_slots, err);

	if (r != -ENOENT || !state->id)
		return r;
	state->id = 0;
	return ask_patiently(state, slots, until_ns, ret_slots, err);
}

static int ask_and_map(struct sk_state *state, bool slots, uint64_t until_ns,
		       struct sk_err *err)
{
	uint32_t n;
	int r = ask_as_known(state, slots, until_ns, &n, err);

	return r >= 0 && slots ? sk_slots_map(state, n, until_ns, err) : r;
}

/* Another agent, or another connection, knows nothing of this state. */
static bool is_registered(const struct sk_state *state)
{
	uint64_t generation, instance;

	return sk_conn_is_open(&state->sk->conn, &generation, &instance) &&
	       state->id && state->instance == instance &&
	       state->generation == generation;
}

/* Which tensors lie on which GPU, or on none: no layout says so. What the agent
 * made on a device has room for those of then, and what it does when the rank
 * dies depends on whether a GPU is to write to its slots. */
static uint64_t devices_of(const struct sk_state *state)
{
	struct sk_xxh3_stream sum;

	sk_xxh3_begin(&sum);
	for (uint32_t i = 0; i < state->n_locals; i++)
		sk_xxh3_add(&sum, &state->locals[i].gpu,
			    sizeof(state->locals[i].gpu));
	return sk_xxh3_end(&sum);
}

/* From nothing: layouts, an id, slots. */
static int register_anew(struct sk_state *state, bool slots,
			 uint64_t until_ns, struct sk_err *err)
{
	int r;

	state->ahead.vain = true;
	(void)sk_fences_settle(&state->fences, SK_FOREVER);
	forget(state);
	r = make_layouts(state, state->layouts, err);
	if (r >= 0)
		r = ask_and_map(state, slots, until_ns, err);
	if (r < 0) {
		sk_ahead_drop(state);
		/* Nor is it registered by that layout. */
		forget(state);
		return r;
	}
	sk_ahead_forget(state);
	state->devices = devices_of(state);
	state->changed = false;
	state->moved = false;
	return 0;
}

static bool is_same(const struct sk_layout *a, const struct sk_layout *b)
{
	return a && b ? sk_digest_equal(&a->digest, &b->digest) : a == b;
}

/* Something was described, or dropped, and what there is now may be as it was:
 * a restore that describes what was saved finds its slots as they are then, and
 * what is page-locked. */
static bool is_as_it_was(struct sk_state *state)
{
	struct sk_layout *now[2] = { NULL, NULL };
	bool same = state->layouts[0] &&
		    make_layouts(state, now, NULL) >= 0;

	for (int k = 0; k < 2; k++) {
		same = same && is_same(now[k], state->layouts[k]);
		(void)sk_layout_free(now[k]);
	}
	return same;
}

static int add_slots(struct sk_state *state, uint64_t until_ns,
		     struct sk_err *err)
{
	int r = ask_and_map(state, true, until_ns, err);

	if (r < 0) {
		forget(state);
		state->changed = true;
	}
	return r;
}

int sk_state_register(struct sk_state *state, bool slots, uint64_t until_ns,
		      struct sk_err *err)
{
	int r;

	if (state->job.flags & SK_JOB_READER)
		return !slots ? 0 :
		       sk_err_set(err, -EROFS, "rank %d of job \"%s\" is a "
				  "reader: it restores and takes no snapshots",
				  state->job.rank, state->job.name);
	r = sk_conn_again(state->sk->socket_path, until_ns, &state->sk->conn,
			  err);
	if (r < 0)
		return r;
	if (!is_registered(state)) {
		state->id = 0;
		state->changed = true;
	} else if (state->moved && devices_of(state) != state->devices) {
		state->changed = true;
	} else if (state->changed && !slots && is_as_it_was(state)) {
		state->changed = false;
	}
	if (state->changed)
		return register_anew(state, slots, until_ns, err);
	return slots && !state->n_slots ? add_slots(state, until_ns, err) : 0;
}

int sk_state_register_bare(struct sk_state *state, uint64_t until_ns)
{
	uint32_t described = state->n_locals;
	int r;

	state->n_locals = 0;
	state->changed = true;
	r = sk_state_register(state, false, until_ns, NULL);
	state->n_locals = described;
	/* What is kept of it is of nothing. */
	state->changed = true;
	return r;
}

/* ---- sk_prepare ---- */

/* Until the agent has faulted in what is its, and we what we map. */
static int wait_prepared(struct sk_state *state, uint64_t until_ns,
			 struct sk_err *err)
{
	int r = sk_warm_ask(state, until_ns, err);

	if (r < 0)
		return r;
	r = sk_warm_finish(state->warming, until_ns);
	return r < 0 ? sk_err_set(err, r, "the slots of rank %d are not "
				  "faulted in yet", state->job.rank) : 0;
}

static int prepare(struct sk_state *state, uint32_t timeout_ms,
		   struct sk_err *err)
{
	uint64_t until = sk_until(state->sk);
	int r = sk_state_register(state, true, until, err);

	if (r >= 0 && timeout_ms)
		r = wait_prepared(state, sk_until_ms(state->sk->os,
						     timeout_ms), err);
	/* A target without data restores nothing, but may be prepared. */
	if (r >= 0)
		(void)sk_work_prepare(state, NULL);
	return r;
}

SK_API int sk_prepare(struct sk_state *state, uint32_t timeout_ms)
{
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r < 0)
		return sk_say(r, &err);
	(void)pthread_mutex_lock(&state->lock);
	r = prepare(state, timeout_ms, &err);
	(void)pthread_mutex_unlock(&state->lock);
	return sk_say(r, &err);
}
