/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One snapshot: copy, hash, stamp, seal, on the pool's threads.
 *
 * The copy runs alone, so that the trainer goes on as soon as it may; the
 * checksums are taken from the slot right after it.
 */
#include <string.h>

#include "checksum.h"
#include "internal.h"

struct sk_copying {
	struct sk_task copy, hash;
	unsigned refs;			/* under the state's copy_lock */
	struct sk_state *state;
	const struct sk_work *work;
	char *base[2];			/* of the slot, by kind */
	uint32_t slot;
	int64_t step;
	uint64_t run, start_ns;
	uint64_t id, generation;	/* of the state, and the connection */
	uint32_t *left;			/* units to go, by item */
	uint32_t units_left;
	unsigned item_waiters;		/* fences for one tensor */
	uint64_t *sums[2];		/* of the slot */
	uint64_t *before[2];		/* verification: of the tensors */
	bool verify, hashed, judged, finished;
	int result;
	struct sk_err err;
};

static uint64_t now(const struct sk_state *state)
{
	return state->sk->os->now_ns(state->sk->os);
}

static void lock(struct sk_state *state)
{
	(void)pthread_mutex_lock(&state->copy_lock);
}

static void unlock(struct sk_state *state)
{
	(void)pthread_mutex_unlock(&state->copy_lock);
}

/* With copy_lock held. */
static void unref(struct sk_copying *c)
{
	if (!c || --c->refs)
		return;
	for (int k = 0; k < 2; k++) {
		free(c->sums[k]);
		free(c->before[k]);
	}
	free(c->left);
	free(c);
}

void sk_copying_drop(struct sk_state *state)
{
	lock(state);
	unref(state->copying);
	state->copying = NULL;
	unlock(state);
}

/* ---- copying ---- */

static void copy_op(const struct sk_copying *c, const struct sk_op *op,
		    const struct sk_unit *u)
{
	struct sk_copy copy = op->copy;
	uint64_t offset = (uintptr_t)op->copy.dst;
	uint64_t from = u->to ? u->from : 0;
	uint64_t to = u->to ? u->to : copy.bytes;

	sk_warm_range(c->state->warming, c->slot, op->kind, offset + from,
		      offset + to);
	copy.dst = c->base[op->kind] + offset;
	sk_copy_run_unfenced(&copy, from, to);
}

static void copy_unit(struct sk_task *task, size_t i)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, copy));
	const struct sk_unit *u = &c->work->units[i];
	struct sk_state *state = c->state;
	bool released = false;

	for (uint32_t k = u->first; k < u->last; k++)
		copy_op(c, &c->work->ops[k], u);
	sk_stream_fence();
	lock(state);
	for (uint32_t k = u->first; k < u->last; k++)
		released |= --c->left[c->work->ops[k].item] == 0;
	if (--c->units_left == 0)
		state->status.copied_ns = now(state) - c->start_ns;
	/* Whoever is woken takes a CPU from the copy: only for good news. */
	if (!c->units_left || (released && c->item_waiters))
		(void)pthread_cond_broadcast(&state->copy_cond);
	unlock(state);
}

/* ---- checksums ---- */

/* Sums of the part of @op that unit @u covers, from the slot, or gathered
 * from the trainer's memory through @buf. */
static void sum_op(const struct sk_copying *c, const struct sk_op *op,
		   const struct sk_unit *u, char *buf, uint64_t *ret)
{
	uint64_t from = u->to ? u->from : 0;
	uint64_t to = u->to ? u->to : op->copy.bytes;
	uint64_t chunk = op->first_sum + from / SK_SUM_CHUNK;
	const char *slot = c->base[op->kind] + (uintptr_t)op->copy.dst;

	if (buf && to > from) {
		struct sk_copy copy = op->copy;

		/* dst is where byte 0 would be: only [from, to) is written */
		copy.dst = (char *)((uintptr_t)buf - from);
		for (int d = 0; d < copy.ndim; d++)
			assert(copy.dst_stride[d] >= 0);
		sk_copy_run_range(&copy, from, to);
		slot = copy.dst;
	}
	ret[chunk] = sk_xxh3(buf && to == from ? buf : slot + from, to - from);
}

static void hash_unit(struct sk_task *task, size_t i)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, hash));
	const struct sk_unit *u = &c->work->units[i];

	for (uint32_t k = u->first; k < u->last; k++)
		sum_op(c, &c->work->ops[k], u, NULL,
		       c->sums[c->work->ops[k].kind]);
}

/* Verification mode: the tensors as they are now. */
struct look {
	struct sk_task task;
	const struct sk_copying *c;
	uint64_t *sums[2];
	bool no_memory;
};

static void look_unit(struct sk_task *task, size_t i)
{
	struct look *l = (struct look *)task;
	const struct sk_unit *u = &l->c->work->units[i];
	char *buf = malloc(SK_SUM_CHUNK + SK_PAGE);

	if (!buf) {
		__atomic_store_n(&l->no_memory, true, __ATOMIC_RELAXED);
		return;
	}
	for (uint32_t k = u->first; k < u->last; k++)
		sum_op(l->c, &l->c->work->ops[k], u, buf,
		       l->sums[l->c->work->ops[k].kind]);
	free(buf);
}

static int look_at_tensors(struct sk_copying *c, uint64_t *sums[2],
			   struct sk_err *err)
{
	struct look l = {
		.task = { .units = c->work->n_units, .run = look_unit },
		.c = c, .sums = { sums[0], sums[1] },
	};

	sk_pool_run(c->state->sk->pool, &l.task);
	return l.no_memory ? sk_err_set(err, -ENOMEM, "out of memory for "
					"verification") : 0;
}

/* The first tensor whose sums differ, or NULL. */
static const char *changed(const struct sk_copying *c, uint64_t *const a[2],
			   uint64_t *const b[2])
{
	for (uint32_t i = 0; i < c->work->n_ops; i++) {
		const struct sk_op *op = &c->work->ops[i];

		if (memcmp(&a[op->kind][op->first_sum],
			   &b[op->kind][op->first_sum],
			   op->n_sums * sizeof(uint64_t)))
			return c->state->locals[op->item].item.spec.name;
	}
	return NULL;
}

/* ---- sealing ---- */

static int ask_seal(struct sk_copying *c, enum sk_msg_type type,
		    struct sk_err *err)
{
	struct sk_msg msg = { .type = type, .body.seal = {
		.state = c->id, .step = c->step, .slot = c->slot } };

	/* The next connection's agent may know another state by that id. */
	return sk_conn_call_in(&c->state->sk->conn, c->generation, &msg,
			       c->state->sk->timeout_ms, err);
}

static void finish(struct sk_copying *c, int r)
{
	struct sk_state *state = c->state;

	lock(state);
	c->result = r;
	c->finished = true;
	state->running--;
	if (r < 0)
		state->status.failed++;
	else
		state->status.taken++;
	if (state->copying == c) {	/* else the next one has begun */
		state->status.result = r;
		state->status.sealed_ns = r < 0 ? 0 :
					  now(state) - c->start_ns;
	}
	(void)pthread_cond_broadcast(&state->copy_cond);
	unref(c);
	unlock(state);
}

static void seal(struct sk_copying *c)
{
	int r;

	for (int k = 0; k < 2; k++) {
		const struct sk_layout *l = c->state->layouts[k];
		const struct sk_stamp stamp = { .run = c->run,
						.step = (uint64_t)c->step,
						.sums = c->sums[k] };

		if (l)
			sk_layout_stamp(l, &stamp, c->base[k]);
	}
	r = ask_seal(c, SK_MSG_SEAL, &c->err);
	finish(c, r);
}

static void hash_done(struct sk_task *task)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, hash));

	if (!c->verify) {
		seal(c);
		return;
	}
	lock(c->state);
	c->hashed = true;
	(void)pthread_cond_broadcast(&c->state->copy_cond);
	unlock(c->state);
}

static void copy_done(struct sk_task *task)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, copy));

	c->hash = (struct sk_task){ .units = c->work->n_units,
				    .run = hash_unit, .done = hash_done };
	sk_pool_submit(c->state->sk->pool, &c->hash);
}

/* Verification mode: looks a last time, then seals or refuses. */
static void judge(struct sk_copying *c)
{
	uint64_t *after[2] = { NULL, NULL };
	const char *name;
	int r = 0;

	name = changed(c, c->before, c->sums);
	for (int k = 0; k < 2; k++)
		after[k] = calloc(c->work->n_sums[k] + 1u, sizeof(uint64_t));
	if (!after[0] || !after[1])
		r = sk_err_set(&c->err, -ENOMEM, "out of memory");
	else if (!name)
		r = look_at_tensors(c, after, &c->err);
	if (r >= 0 && !name)
		name = changed(c, after, c->sums);
	free(after[0]);
	free(after[1]);
	if (r >= 0 && !name) {
		seal(c);
		return;
	}
	if (name)
		r = sk_err_set(&c->err, -ECANCELED, "tensor \"%s\" changed "
			       "before the fence of step %lld; the snapshot is "
			       "refused", name, (long long)c->step);
	(void)ask_seal(c, SK_MSG_DISCARD, NULL);
	finish(c, r);
}

/* ---- fences ---- */

/* The newest snapshot with a reference, or NULL. */
static struct sk_copying *hold(struct sk_state *state)
{
	struct sk_copying *c = state->copying;

	if (c)
		c->refs++;
	return c;
}

static int fence(struct sk_state *state, int64_t item, struct sk_err *err)
{
	struct sk_copying *c;
	bool mine = false;
	int r;

	lock(state);
	c = hold(state);
	if (!c) {
		unlock(state);
		return 0;
	}
	c->item_waiters += item >= 0;
	while (item >= 0 && !c->verify ? c->left[item] != 0 :
	       c->units_left != 0 || (c->verify && !c->hashed))
		(void)pthread_cond_wait(&state->copy_cond, &state->copy_lock);
	c->item_waiters -= item >= 0;
	if (c->verify && !c->finished && !c->judged)
		mine = c->judged = true;
	unlock(state);
	if (mine)
		judge(c);
	lock(state);
	while (c->verify && !c->finished)
		(void)pthread_cond_wait(&state->copy_cond, &state->copy_lock);
	r = c->finished ? c->result : 0;
	if (r < 0 && err)
		*err = c->err;
	unref(c);
	unlock(state);
	return r;
}

int sk_snapshot_fence(struct sk_state *state, struct sk_err *err)
{
	return fence(state, -1, err);
}

void sk_snapshot_settle(struct sk_state *state)
{
	(void)fence(state, -1, NULL);
	lock(state);
	while (state->running)
		(void)pthread_cond_wait(&state->copy_cond, &state->copy_lock);
	unlock(state);
}

SK_API int sk_fence(struct sk_state *state)
{
	struct sk_err err = { "" };
	int r = sk_check(state->sk, &err);

	return sk_say(r < 0 ? r : fence(state, -1, &err), &err);
}

SK_API int sk_fence_tensor(struct sk_state *state, const char *name)
{
	struct sk_err err = { "" };
	int64_t item;
	int r = sk_check(state->sk, &err);

	if (r < 0)
		return sk_say(r, &err);
	item = sk_state_find(state, name);
	if (item < 0)
		return sk_say(sk_err_set(&err, -ENOENT, "nothing named \"%s\" "
					 "is described", name), &err);
	return sk_say(fence(state, item, &err), &err);
}

/* ---- taking ---- */

static int ask_slot(struct sk_state *state, int64_t step, uint32_t flags,
		    bool will_wait, uint32_t *ret_slot, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT, .body.slot = {
		.state = state->id, .step = step,
		.flags = (flags & SK_SNAPSHOT_FLUSH ? SK_SLOT_FLUSH : 0) |
			 (flags & SK_SNAPSHOT_NO_FLUSH ? SK_SLOT_NO_FLUSH :
							 0) |
			 (will_wait ? SK_SLOT_WILL_WAIT : 0) } };
	int r = sk_conn_call_in(&state->sk->conn, state->generation, &msg,
				state->sk->timeout_ms, err);

	if (r >= 0 && msg.body.slot_reply.slot >= state->n_slots)
		return sk_err_set(err, -EPROTO, "the agent gave slot %u of %u",
				  msg.body.slot_reply.slot, state->n_slots);
	if (r >= 0)
		*ret_slot = msg.body.slot_reply.slot;
	return r;
}

static int wait_slot(struct sk_state *state, uint32_t ms, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_SLOT_WAIT };

	strcpy(msg.body.slot_wait.id.job, state->job.name);
	msg.body.slot_wait.id.run = state->run;
	msg.body.slot_wait.id.rank = state->job.rank;
	msg.body.slot_wait.timeout_ms = ms;
	return sk_call_deferred(state->sk, &msg, NULL, 0, NULL, NULL, ms, err);
}

int sk_snapshot_prepare(struct sk_state *state, struct sk_err *err)
{
	int r;

	if (state->work && !state->moved)
		return 0;
	sk_snapshot_settle(state);
	sk_copying_drop(state);
	state->work = sk_work_free(state->work);
	r = sk_work_make(state, &state->work, err);
	state->moved = r < 0;
	return r;
}

/* Registered, with work prepared, and a slot of the agent. */
static int get_slot(struct sk_state *state, int64_t step,
		    const struct sk_snapshot_options *o, uint32_t *ret_slot,
		    struct sk_err *err)
{
	int r = 0;

	for (int tries = 0; tries < 2; tries++) {
		r = sk_state_register(state, true, err);
		if (r >= 0)
			r = sk_snapshot_prepare(state, err);
		if (r >= 0)
			r = ask_slot(state, step, o->flags, o->wait_ms,
				     ret_slot, err);
		if (r == -EBUSY && o->wait_ms) {
			/* In vain or not: what is said now is the last word. */
			(void)wait_slot(state, o->wait_ms, NULL);
			r = ask_slot(state, step, o->flags, false, ret_slot,
				     err);
		}
		/* A lost agent may be back: once more, from the start. */
		if (r != -ECONNRESET)
			break;
	}
	return r;
}

static struct sk_copying *copying_new(struct sk_state *state, int64_t step,
				      uint32_t slot, bool verify)
{
	const struct sk_work *w = state->work;
	struct sk_copying *c = calloc(1, sizeof(*c));
	bool failed = !c;

	if (!c)
		return NULL;
	*c = (struct sk_copying){
		.refs = 2, .state = state, .work = w, .slot = slot,
		.step = step, .run = state->run, .verify = verify,
		.id = state->id, .generation = state->generation,
		.units_left = w->n_units,
		.copy = { .units = w->n_units, .run = copy_unit,
			  .done = copy_done },
	};
	c->left = malloc((w->n_items + 1u) * sizeof(*c->left));
	failed = !c->left;
	for (int k = 0; k < 2; k++) {
		c->base[k] = state->slots[slot].map[k];
		c->sums[k] = calloc(w->n_sums[k] + 1u, sizeof(uint64_t));
		failed |= !c->sums[k];
		if (verify) {
			c->before[k] = calloc(w->n_sums[k] + 1u,
					      sizeof(uint64_t));
			failed |= !c->before[k];
		}
	}
	if (failed) {
		c->refs = 1;
		unref(c);
		return NULL;
	}
	memcpy(c->left, w->left, (w->n_items + 1u) * sizeof(*c->left));
	return c;
}

static void start(struct sk_state *state, struct sk_copying *c,
		  uint64_t start_ns)
{
	uint64_t taken, failed;

	lock(state);
	taken = state->status.taken;
	failed = state->status.failed;
	unref(state->copying);
	state->copying = c;
	state->running++;
	c->start_ns = start_ns;
	state->status = (struct sk_status){
		.run = c->run, .step = c->step, .bytes = c->work->bytes,
		.slots = state->n_slots, .slot_bytes = state->slot_bytes,
		.taken = taken, .failed = failed };
	unlock(state);
	sk_pool_submit(state->sk->pool, &c->copy);
	lock(state);
	if (state->copying == c)
		state->status.returned_ns = now(state) - start_ns;
	unlock(state);
}

static int snapshot(struct sk_state *state, int64_t step,
		    const struct sk_snapshot_options *o, struct sk_err *err)
{
	uint64_t start_ns = now(state);
	bool verify = o->flags & SK_SNAPSHOT_VERIFY ||
		      state->job.flags & SK_JOB_VERIFY;
	struct sk_copying *c;
	uint32_t slot;
	int r;

	if (step < 0)
		return sk_err_set(err, -EINVAL, "step %lld is negative",
				  (long long)step);
	if (!state->n_locals)
		return sk_err_set(err, -EINVAL, "rank %d has described no "
				  "tensor and no blob", state->job.rank);
	r = fence(state, -1, err);
	if (r == -ECANCELED) {	/* told once */
		sk_copying_drop(state);
		return r;
	}
	r = get_slot(state, step, o, &slot, err);
	if (r < 0)
		return r;
	c = copying_new(state, step, slot, verify);
	if (!c)
		return sk_err_set(err, -ENOMEM, "out of memory");
	if (verify) {
		r = look_at_tensors(c, c->before, err);
		if (r < 0) {
			(void)ask_seal(c, SK_MSG_DISCARD, NULL);
			c->refs = 1;
			unref(c);
			return r;
		}
	}
	start(state, c, start_ns);
	return 0;
}

SK_API int sk_snapshot(struct sk_state *state, int64_t step,
		       const struct sk_snapshot_options *opts)
{
	const struct sk_snapshot_options none = { 0 };
	struct sk_err err = { "" };
	int r = sk_check(state->sk, &err);

	if (r < 0)
		return sk_say(r, &err);
	(void)pthread_mutex_lock(&state->lock);
	r = snapshot(state, step, opts ? opts : &none, &err);
	(void)pthread_mutex_unlock(&state->lock);
	return sk_say(r, &err);
}
