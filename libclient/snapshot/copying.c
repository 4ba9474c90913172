/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/copying.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "snapshot/verify.h"
#include "state/slots.h"
#include "state/warm.h"

static uint64_t now(const struct sk_copying *c)
{
	return c->state->sk->os->now_ns(c->state->sk->os);
}

/* ---- making and letting go ---- */

static void release(struct sk_pending *p)
{
	struct sk_copying *c = (struct sk_copying *)p;

	for (int k = 0; k < 2; k++) {
		free(c->sums[k]);
		free(c->before[k]);
	}
	free(p->left);
	free(c);
}

static bool allocate(struct sk_copying *c)
{
	const struct sk_work *w = c->work;
	size_t left_bytes = (w->n_items + 1u) * sizeof(*w->left);
	bool whole;

	c->pending.left = malloc(left_bytes);
	whole = c->pending.left;
	for (int k = 0; k < 2; k++) {
		c->sums[k] = calloc(w->n_sums[k] + 1u, sizeof(uint64_t));
		whole &= c->sums[k] != NULL;
		if (!c->pending.verify)
			continue;
		c->before[k] = calloc(w->n_sums[k] + 1u, sizeof(uint64_t));
		whole &= c->before[k] != NULL;
	}
	if (whole)
		memcpy(c->pending.left, w->left, left_bytes);
	return whole;
}

static void open_slot(struct sk_task *task);
static void copy_unit(struct sk_task *task, size_t i);
static void copy_done(struct sk_task *task);

struct sk_copying *sk_copying_new(struct sk_state *state, int64_t step,
				  uint32_t slot, bool verify)
{
	const struct sk_work *w = state->work;
	struct sk_copying *c = calloc(1, sizeof(*c));

	assert(slot < state->n_slots);
	if (!c)
		return NULL;
	*c = (struct sk_copying){
		.pending = { .refs = 1, .n_items = w->n_items,
			     .units_left = w->n_units, .verify = verify,
			     .judge = sk_verify_judge, .release = release },
		.state = state, .work = w, .slot = slot, .step = step,
		.base = { state->slots[slot].map[0],
			  state->slots[slot].map[1] },
		.run = state->run, .run_id = state->run_id,
		.id = state->id,
		.generation = state->generation,
		.open = { .done = open_slot },
		.copy = { .units = w->n_units, .run = copy_unit,
			  .done = copy_done },
	};
	if (!allocate(c)) {
		release(&c->pending);
		return NULL;
	}
	return c;
}

/* ---- copying ---- */

/* Nothing is copied: the tensors are free, and the fence says why. */
static void give_up(struct sk_copying *c, int r)
{
	struct sk_fences *f = &c->state->fences;
	struct sk_pending *p = &c->pending;

	sk_fences_lock(f);
	memset(p->left, 0, p->n_items * sizeof(*p->left));
	p->units_left = 0;
	p->hashed = p->judged = true;
	(void)pthread_cond_broadcast(&f->changed);
	sk_fences_unlock(f);
	sk_copying_refuse(c, r);
}

/* On a thread of the pool: of small pages it takes a while. */
static void open_slot(struct sk_task *task)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, open));
	int r = sk_slot_unprotect(c->state, c->slot, &c->pending.err);

	if (r < 0)
		give_up(c, r);
	else
		sk_pool_submit(c->state->sk->pool, &c->copy);
}

static void copy_op(const struct sk_copying *c, const struct sk_op *op,
		    const struct sk_unit *u)
{
	struct sk_copy copy = op->copy;
	uint64_t offset = (uintptr_t)op->copy.dst;
	uint64_t from = u->to ? u->from : 0;
	uint64_t to = u->to ? u->to : copy.bytes;

	assert(op->kind < 2 && from <= to && to <= copy.bytes);
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
	struct sk_fences *f = &c->state->fences;
	struct sk_pending *p = &c->pending;
	bool released = false;

	assert(i < c->work->n_units && u->first < u->last);
	for (uint32_t k = u->first; k < u->last; k++)
		copy_op(c, &c->work->ops[k], u);
	sk_stream_fence();
	sk_fences_lock(f);
	for (uint32_t k = u->first; k < u->last; k++) {
		assert(p->left[c->work->ops[k].item]);
		released |= --p->left[c->work->ops[k].item] == 0;
	}
	if (--p->units_left == 0)
		c->state->status.copied_ns = now(c) - c->start_ns;
	/* Whoever is woken takes a CPU from the copy: only for good news. */
	if (!p->units_left || (released && f->item_waiters))
		(void)pthread_cond_broadcast(&f->changed);
	sk_fences_unlock(f);
}

void sk_copying_begin(struct sk_copying *c, uint64_t start_ns)
{
	struct sk_state *state = c->state;
	struct sk_fences *f = &state->fences;

	c->start_ns = start_ns;
	c->pending.refs++;	/* one of the fences', one of the pool's */
	sk_fences_lock(f);
	state->status = (struct sk_status){
		.run = c->run, .step = c->step, .bytes = c->work->bytes,
		.slots = state->n_slots, .slot_bytes = state->slot_bytes,
		.taken = state->status.taken,
		.failed = state->status.failed };
	sk_fences_begin(f, &c->pending);
	sk_fences_unlock(f);
	sk_pool_submit(state->sk->pool, &c->open);
	sk_fences_lock(f);
	if (f->newest == &c->pending)
		state->status.returned_ns = now(c) - start_ns;
	sk_fences_unlock(f);
}

/* ---- checksums ---- */

void sk_copying_sum(const struct sk_copying *c, const struct sk_op *op,
		    const struct sk_unit *u, char *buf, uint64_t *ret)
{
	uint64_t from = u->to ? u->from : 0;
	uint64_t to = u->to ? u->to : op->copy.bytes;
	uint64_t chunk = op->first_sum + from / SK_SUM_CHUNK;
	const char *bytes = c->base[op->kind] + (uintptr_t)op->copy.dst + from;

	assert(from <= to && from % SK_SUM_CHUNK == 0);
	if (buf && to > from) {
		struct sk_copy copy = op->copy;

		/* dst is where byte 0 would be: only [from, to) is written */
		copy.dst = (char *)((uintptr_t)buf - from);
		for (int d = 0; d < copy.ndim; d++)
			assert(copy.dst_stride[d] >= 0);
		sk_copy_run_range(&copy, from, to);
		bytes = buf;
	}
	ret[chunk] = sk_xxh3(bytes, to - from);
}

static void hash_unit(struct sk_task *task, size_t i)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, hash));
	const struct sk_unit *u = &c->work->units[i];

	assert(i < c->work->n_units);
	for (uint32_t k = u->first; k < u->last; k++)
		sk_copying_sum(c, &c->work->ops[k], u, NULL,
			       c->sums[c->work->ops[k].kind]);
}

static void hash_done(struct sk_task *task)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, hash));
	struct sk_fences *f = &c->state->fences;

	if (!c->pending.verify) {
		sk_copying_seal(c);
		return;
	}
	sk_fences_lock(f);
	c->pending.hashed = true;
	(void)pthread_cond_broadcast(&f->changed);
	sk_fences_unlock(f);
}

static void copy_done(struct sk_task *task)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, copy));

	c->hash = (struct sk_task){ .units = c->work->n_units,
				    .run = hash_unit, .done = hash_done };
	sk_pool_submit(c->state->sk->pool, &c->hash);
}

/* ---- the end ---- */

static int tell(struct sk_copying *c, enum sk_msg_type type,
		struct sk_err *err)
{
	struct sk_msg msg = { .type = (uint16_t)type, .body.seal = {
		.state = c->id, .step = c->step, .slot = c->slot } };
	struct sk *sk = c->state->sk;

	/* The next connection's agent may know another state by that id. */
	return sk_conn_call_in(&sk->conn, c->generation, &msg, sk_until(sk),
			       err);
}

static void finish(struct sk_copying *c, int r)
{
	struct sk_state *state = c->state;
	struct sk_fences *f = &state->fences;

	sk_fences_lock(f);
	if (r < 0)
		state->status.failed++;
	else
		state->status.taken++;
	if (f->newest == &c->pending) {	/* else the next one has begun */
		state->status.result = r;
		state->status.sealed_ns = r < 0 ? 0 : now(c) - c->start_ns;
	}
	sk_fences_finish(f, &c->pending, r);
	sk_fences_unlock(f);
}

void sk_copying_seal(struct sk_copying *c)
{
	int r;

	for (int k = 0; k < 2; k++) {
		const struct sk_layout *l = c->state->layouts[k];
		const struct sk_stamp stamp = { .run = c->run,
						.run_id = c->run_id,
						.step = (uint64_t)c->step,
						.sums = c->sums[k] };

		if (l)
			sk_layout_stamp(l, &stamp, c->base[k]);
	}
	r = tell(c, SK_MSG_SEAL, &c->pending.err);
	if (r >= 0)
		sk_slot_protect(c->state, c->slot);
	finish(c, r);
}

void sk_copying_refuse(struct sk_copying *c, int r)
{
	assert(r < 0);
	(void)tell(c, SK_MSG_DISCARD, NULL);
	finish(c, r);
}

void sk_copying_free(struct sk_copying *c)
{
	if (!c)
		return;
	assert(c->pending.refs == 1);
	sk_pending_unref(&c->pending);
}
