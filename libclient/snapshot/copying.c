/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/copying.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "snapshot/from-gpus.h"
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
static void copy_from_gpus(struct sk_task *task, size_t i);
static void copied_from_gpus(struct sk_task *task);

bool sk_hash_in_step(unsigned cpus, uint32_t ranks)
{
	return cpus < 2u * (uint64_t)(ranks ? ranks : 1);
}

struct sk_copying *sk_copying_new(struct sk_state *state, int64_t step,
				  uint32_t slot, bool verify,
				  enum sk_sums when)
{
	const struct sk_work *w = state->work;
	struct sk_copying *c = calloc(1, sizeof(*c));

	assert(slot < state->n_slots);
	if (!c)
		return NULL;
	*c = (struct sk_copying){
		.pending = { .refs = 1, .step = step, .n_items = w->n_items,
			     .units_left = w->n_units, .verify = verify,
			     .host_left = w->n_units - w->n_gpu_units,
			     .asked = !w->n_gpu_units,
			     .judge = sk_verify_judge,
			     .reach = sk_copying_reach, .release = release },
		.state = state, .work = w, .gpus = w->gpus, .slot = slot,
		.when = when,
		.parts_left = w->n_gpu_units ? 2 : 1,
		.base = { state->slots[slot].map[0],
			  state->slots[slot].map[1] },
		.run = state->run, .run_id = state->run_id,
		.id = state->id,
		.generation = state->generation,
		.open = { .done = open_slot },
		.copy = { .units = w->n_units > w->n_gpu_units ?
				   w->n_units : 0,
			  .run = copy_unit, .done = copy_done },
		.copy_gpu = { .units = 1, .run = copy_from_gpus,
			      .done = copied_from_gpus },
	};
	if (!allocate(c)) {
		release(&c->pending);
		return NULL;
	}
	return c;
}

/* ---- copying ---- */

/* Nothing is copied any more: the tensors are free, and the fence says why. */
static void give_up(struct sk_copying *c, int r)
{
	struct sk_fences *f = &c->state->fences;
	struct sk_pending *p = &c->pending;

	sk_fences_lock(f);
	memset(p->left, 0, p->n_items * sizeof(*p->left));
	p->units_left = p->host_left = 0;
	c->gpus_over = true;
	p->asked = true;
	p->hashed = p->judged = true;
	p->result = r;
	(void)pthread_cond_broadcast(&f->changed);
	sk_fences_unlock(f);
	sk_copying_refuse(c, r);
}

bool sk_copying_in_step(const struct sk_copying *c, const struct sk_op *op)
{
	return op->gpu < 0 && (c->when == SK_SUMS_IN_STEP ||
			       (c->when == SK_SUMS_WHERE_FREE &&
				!op->copy.ndim));
}

static void part_done(struct sk_copying *c);

/* On a thread of the pool: of small pages it takes a while, and an agent that
 * faults in alone may not have done so yet. The thread that waits for GPUs has
 * other things to do meanwhile, where they copy to a device slot first. */
static void open_slot(struct sk_task *task)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, open));
	struct sk_fences *f = &c->state->fences;
	int r = sk_warm_await(c->state, sk_until(c->state->sk),
			      &c->not_opened);

	if (r >= 0)
		r = sk_slot_unprotect(c->state, c->slot, &c->not_opened);
	sk_fences_lock(f);
	c->opened = r < 0 ? r : 1;
	sk_fences_unlock(f);
	(void)pthread_cond_broadcast(&f->changed);
	if (r < 0)
		part_done(c);
	else
		sk_pool_submit(c->state->sk->pool, &c->copy);
}

int sk_copying_await_open(struct sk_copying *c)
{
	struct sk_fences *f = &c->state->fences;
	int r;

	sk_fences_lock(f);
	while (!c->opened)
		(void)pthread_cond_wait(&f->changed, &f->lock);
	r = c->opened;
	sk_fences_unlock(f);
	return r < 0 ? r : 0;
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
	if (sk_copying_in_step(c, op))
		c->sums[op->kind][sk_copying_chunk(op, u).sum] =
			sk_copy_run_hashed(&copy, from, to);
	else
		sk_copy_run_unfenced(&copy, from, to);
}

static bool of_gpu(const struct sk_copying *c, const struct sk_unit *u)
{
	return c->work->ops[u->first].gpu >= 0;
}

/* With the fences' lock held, which it gives up: who is woken wants it at
 * once. The snapshot is not over yet, so all of it is still there. */
static void tell_waiters(struct sk_copying *c, bool released)
{
	struct sk_fences *f = &c->state->fences;
	struct sk_pending *p = &c->pending;
	bool good;

	if (!p->units_left) {
		c->copied_ns = now(c) - c->start_ns;
		c->state->status.copied_ns = c->copied_ns;
	}
	/* Whoever is woken takes a CPU from the copy: only for good news. */
	good = !p->units_left || (!p->host_left && p->asked) ||
	       (released && f->item_waiters);
	sk_fences_unlock(f);
	if (good)
		(void)pthread_cond_broadcast(&f->changed);
}

/* A unit of the host's is copied: what it was the last of is released. */
static void unit_done(struct sk_copying *c, const struct sk_unit *u)
{
	struct sk_fences *f = &c->state->fences;
	struct sk_pending *p = &c->pending;
	bool released = false;

	sk_fences_lock(f);
	for (uint32_t k = u->first; k < u->last; k++) {
		assert(p->left[c->work->ops[k].item]);
		released |= --p->left[c->work->ops[k].item] == 0;
	}
	p->host_left--;
	p->units_left--;
	tell_waiters(c, released);
}

void sk_copying_gpus_done(struct sk_copying *c)
{
	struct sk_fences *f = &c->state->fences;
	struct sk_pending *p = &c->pending;
	const struct sk_work *w = c->work;

	sk_fences_lock(f);
	/* Once that is known, or all is given up, there may be no work. */
	if (c->gpus_over) {
		sk_fences_unlock(f);
		return;
	}
	c->gpus_over = true;
	for (uint32_t i = 0; i < w->n_gpu_items; i++)
		p->left[w->gpu_items[i]] = 0;
	assert(p->units_left >= w->n_gpu_units);
	p->units_left -= w->n_gpu_units;
	tell_waiters(c, true);
}

static void copy_unit(struct sk_task *task, size_t i)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, copy));
	const struct sk_unit *u = &c->work->units[i];

	assert(i < c->work->n_units && u->first < u->last);
	if (of_gpu(c, u))
		return;
	for (uint32_t k = u->first; k < u->last; k++)
		copy_op(c, &c->work->ops[k], u);
	sk_stream_fence();
	unit_done(c, u);
}

/* ---- from GPUs ---- */

/* On the thread that waits for GPUs. */
static void copy_from_gpus(struct sk_task *task, size_t i)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, copy_gpu));

	assert(!i);
	(void)i;
	c->failed = sk_copying_from_gpus(c);
	(void)__atomic_sub_fetch(&c->state->gpus.copying, 1, __ATOMIC_RELEASE);
}

/* The thread that waits for GPUs has one more; the lanes are this one's as long
 * as that has none. */
static void have_gpus(struct sk_copying *c)
{
	unsigned *copying = &c->state->gpus.copying;

	if (!__atomic_load_n(copying, __ATOMIC_ACQUIRE))
		sk_copying_ask_ahead(c);
	(void)__atomic_add_fetch(copying, 1, __ATOMIC_RELAXED);
}

void sk_copying_begin(struct sk_copying *c, uint64_t start_ns)
{
	struct sk_state *state = c->state;
	struct sk_fences *f = &state->fences;

	c->start_ns = start_ns;
	c->pending.refs++;	/* one of the fences', one of the pool's */
	if (c->work->n_gpu_units)
		have_gpus(c);
	sk_fences_lock(f);
	state->status = (struct sk_status){
		.run = c->run, .step = c->pending.step, .bytes = c->work->bytes,
		.slots = state->status.slots,
		.slot_bytes = state->status.slot_bytes,
		.taken = state->status.taken,
		.failed = state->status.failed };
	sk_fences_begin(f, &c->pending);
	sk_fences_unlock(f);
	/* It ends when both are over: between them it is there. */
	if (c->work->n_gpu_units)
		sk_pool_submit(state->gpus.pool, &c->copy_gpu);
	sk_pool_submit(state->sk->pool, &c->open);
	sk_fences_lock(f);
	if (f->newest == &c->pending) {
		c->returned_ns = now(c) - start_ns;
		state->status.returned_ns = c->returned_ns;
	}
	sk_fences_unlock(f);
}

/* ---- checksums ---- */

struct sk_chunk sk_copying_chunk(const struct sk_op *op,
				 const struct sk_unit *u)
{
	struct sk_chunk chunk = { .from = u->to ? u->from : 0,
				  .to = u->to ? u->to : op->copy.bytes };

	assert(chunk.from <= chunk.to && chunk.from % SK_SUM_CHUNK == 0);
	chunk.sum = op->first_sum + (uint32_t)(chunk.from / SK_SUM_CHUNK);
	return chunk;
}

/* Of the slot. */
static void sum(const struct sk_copying *c, const struct sk_op *op,
		const struct sk_unit *u)
{
	struct sk_chunk chunk = sk_copying_chunk(op, u);

	c->sums[op->kind][chunk.sum] =
		sk_xxh3(c->base[op->kind] + (uintptr_t)op->copy.dst +
			chunk.from, chunk.to - chunk.from);
}

static void hash_unit(struct sk_task *task, size_t i)
{
	struct sk_copying *c = (struct sk_copying *)
		((char *)task - offsetof(struct sk_copying, hash));
	const struct sk_unit *u = &c->work->units[i];

	assert(i < c->work->n_units);
	for (uint32_t k = u->first; k < u->last; k++)
		if (!sk_copying_in_step(c, &c->work->ops[k]))
			sum(c, &c->work->ops[k], u);
}

static bool is_hashed(const struct sk_copying *c)
{
	return c->when != SK_SUMS_AFTER && !c->work->n_gpu_units &&
	       (c->when == SK_SUMS_IN_STEP || !c->work->n_strided);
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

/* Of the copy, by the host or by GPUs: after the last the slot is hashed. */
static void part_done(struct sk_copying *c)
{
	struct sk_fences *f = &c->state->fences;
	bool last;

	sk_fences_lock(f);
	assert(c->parts_left);
	last = !--c->parts_left;
	sk_fences_unlock(f);
	if (!last)
		return;
	if (c->opened < 0) {
		c->pending.err = c->not_opened;
		give_up(c, c->opened);
		return;
	}
	if (c->failed < 0) {
		give_up(c, c->failed);
		return;
	}
	c->hash = (struct sk_task){ .units = is_hashed(c) ? 0 :
						     c->work->n_units,
				    .run = hash_unit, .done = hash_done };
	sk_pool_submit(c->state->sk->pool, &c->hash);
}

static void copy_done(struct sk_task *task)
{
	part_done((struct sk_copying *)
		  ((char *)task - offsetof(struct sk_copying, copy)));
}

static void copied_from_gpus(struct sk_task *task)
{
	part_done((struct sk_copying *)
		  ((char *)task - offsetof(struct sk_copying, copy_gpu)));
}

/* ---- the end ---- */

/* For the agent's figures. */
static void say_times(struct sk_copying *c, struct sk_wire_seal *seal)
{
	struct sk_state *state = c->state;

	sk_fences_lock(&state->fences);
	seal->copied_ns = c->copied_ns;
	seal->stalled_ns = c->returned_ns;
	sk_fences_unlock(&state->fences);
	seal->stalled_ns += __atomic_exchange_n(&state->fenced_ns, 0,
						__ATOMIC_RELAXED);
}

int sk_copying_tell(struct sk_copying *c, enum sk_msg_type type,
		    struct sk_err *err)
{
	struct sk_msg msg = { .type = (uint16_t)type, .body.seal = {
		.state = c->id, .step = c->pending.step, .slot = c->slot } };
	struct sk *sk = c->state->sk;

	if (type == SK_MSG_SEAL) {
		say_times(c, &msg.body.seal);
		if (sk_gpus_are_refused_locks(c->state))
			msg.body.seal.flags = SK_SEAL_PAGEABLE;
	}
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
		const struct sk_stamp stamp = {
			.run = c->run, .run_id = c->run_id,
			.step = (uint64_t)c->pending.step,
			.sums = c->sums[k] };

		if (l)
			sk_layout_stamp(l, &stamp, c->base[k]);
	}
	/* Once it is sealed the agent may give it to the next one. */
	sk_slot_protect(c->state, c->slot);
	r = sk_copying_tell(c, SK_MSG_SEAL, &c->pending.err);
	finish(c, r);
}

void sk_copying_refuse(struct sk_copying *c, int r)
{
	assert(r < 0);
	(void)sk_copying_tell(c, SK_MSG_DISCARD, NULL);
	finish(c, r);
}

void sk_copying_free(struct sk_copying *c)
{
	if (!c)
		return;
	assert(c->pending.refs == 1);
	sk_pending_unref(&c->pending);
}
