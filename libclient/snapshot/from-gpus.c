/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/from-gpus.h"

#include <assert.h>

#include "state/device-slot.h"
#include "state/slots.h"
#include "state/warm.h"

/* Calls of the driver, some us each, that the trainer's thread makes itself:
 * to wake another takes as long as ten. */
#define FEW_ASKS 8u

typedef int ask_fn(const struct sk_copying *c, const struct sk_op *op,
		   struct sk_err *err);

static int set_mark(struct sk_gpu *gpu, struct sk_err *err)
{
	return sk_cuda_mark_set(gpu->copied, gpu->lane, err);
}

static int wait_mark(struct sk_gpu *gpu, struct sk_err *err)
{
	return sk_cuda_mark_wait(gpu->copied, err);
}

/* A mark that could not be set is that of another snapshot, and one that could
 * not be waited for tells nothing. */
static int finish_lane(struct sk_gpu *gpu, struct sk_err *err)
{
	return sk_cuda_lane_finish(gpu->lane, err);
}

/* Of all the snapshot's GPUs, whatever came of the ones before: what was asked
 * for writes to the slot. Returns @r, or else the first error. */
static int on_gpus(struct sk_copying *c, int r,
		   int (*fn)(struct sk_gpu *gpu, struct sk_err *err))
{
	for (int i = 0; i < SK_GPUS_MAX; i++) {
		int one;

		if (!(c->work->gpus >> i & 1))
			continue;
		one = fn(&c->state->gpus.v[i], r < 0 ? NULL : &c->pending.err);
		r = r < 0 ? r : one;
	}
	return r;
}

bool sk_copying_reach(struct sk_pending *p)
{
	struct sk_copying *c = (struct sk_copying *)p;
	bool reached = true;

	for (int i = 0; i < SK_GPUS_MAX && reached; i++)
		reached = !(c->gpus >> i & 1) ||
			  sk_cuda_mark_wait(c->state->gpus.v[i].copied,
					    NULL) >= 0;
	if (reached)
		sk_copying_gpus_done(c);
	return reached;
}

/* From here on streams can wait for the marks. */
static void all_asked(struct sk_copying *c)
{
	struct sk_fences *f = &c->state->fences;

	sk_fences_lock(f);
	c->pending.asked = true;
	sk_fences_unlock(f);
	/* Who is woken wants the lock at once. */
	(void)pthread_cond_broadcast(&f->changed);
}

/* Asks for all by @ask. */
static int ask_ops(struct sk_copying *c, ask_fn *ask)
{
	const struct sk_work *w = c->work;
	int r = 0;

	for (uint32_t k = 0; k < w->n_asks && r >= 0; k++)
		r = ask(c, &w->asks[k], &c->pending.err);
	return on_gpus(c, r, set_mark);
}

/* The same but for the small ones, which are asked for. To look at each of
 * thousands takes as long as the device does to copy them. */
static int ask_long_ops(struct sk_copying *c, ask_fn *ask)
{
	const struct sk_work *w = c->work;
	int r = 0;

	for (uint32_t k = 0; k < w->n_asks - w->n_small && r >= 0; k++)
		r = ask(c, &w->asks[w->longs[k]], &c->pending.err);
	return on_gpus(c, r, set_mark);
}

/* @r is what came of asking. Waits until all is where that has it: then it is
 * safe to overwrite. */
static int await_ops(struct sk_copying *c, int r)
{
	if (r >= 0)
		all_asked(c);
	if (r >= 0)
		r = on_gpus(c, r, wait_mark);
	if (r < 0)
		(void)on_gpus(c, r, finish_lane);
	if (r >= 0)
		sk_copying_gpus_done(c);
	return r;
}

/* ---- straight into the slot ---- */

/* Locking takes the pages one by one: they are huge before. */
static void lock_in_a_hurry(const struct sk_copying *c)
{
	for (int k = 0; k < 2; k++)
		if (c->state->layouts[k])
			sk_warm_range(c->state->warming, c->slot, k, 0,
				      c->state->layouts[k]->image_bytes);
	sk_gpus_lock_slot(c->state, c->slot);
}

/* All of it stands on the device: the trainer goes on. */
static void lock_at_leisure(const struct sk_copying *c)
{
	sk_warm_slot(c->state->warming, c->slot);
	sk_gpus_lock_slot(c->state, c->slot);
	sk_gpus_lock_again(c->state, c->slot);
}

static int ask_for_slot(const struct sk_copying *c, const struct sk_op *op,
			struct sk_err *err)
{
	const struct sk_slot_map *slot = &c->state->slots[c->slot];
	struct sk_copy copy = op->copy;
	uint64_t offset = (uintptr_t)op->copy.dst;

	sk_warm_range(c->state->warming, c->slot, op->kind, offset,
		      offset + copy.bytes);
	copy.dst = c->base[op->kind] + offset;
	return sk_cuda_lane_out(c->state->gpus.v[op->gpu].lane, &copy, 0,
				copy.bytes, slot->lock[op->kind], err);
}

/* ---- by the device slot ---- */

static int ask_for_device(const struct sk_copying *c, const struct sk_op *op,
			  struct sk_err *err)
{
	struct sk_copy copy = op->copy;

	copy.dst = (char *)(uintptr_t)sk_device_slot_at(&c->state->device_slot,
							op);
	return sk_cuda_lane_across(c->state->gpus.v[op->gpu].lane, &copy, 0,
				   copy.bytes, err);
}

/* They lie as they did at the snapshot before, and go where they went. */
static bool is_as_before(const struct sk_copying *c)
{
	return c->work->small->stamp &&
	       c->work->small->stamp == c->state->device_slot.stamp;
}

static bool ask_for_small(const struct sk_copying *c)
{
	struct sk_device_slot *d = &c->state->device_slot;
	struct sk_cuda_lane *lane = c->state->gpus.v[d->gpu].lane;
	const struct sk_work *w = c->work;
	uint32_t n = 0;
	bool asked;

	if (is_as_before(c) &&
	    sk_cuda_lane_table_again(lane, w->small->stamp))
		return true;
	for (uint32_t k = 0; k < w->n_asks; k++) {
		const struct sk_op *op = &w->asks[k];

		if (sk_op_is_small(op))
			w->small->v[n++] = (struct sk_cuda_table_copy){
				.dst = sk_device_slot_at(d, op),
				.src = (uintptr_t)op->copy.src,
				.bytes = op->copy.bytes };
	}
	assert(n == w->n_small);
	asked = sk_cuda_lane_table(lane, w->small->v, n, &w->small->stamp);
	d->stamp = w->small->stamp;
	return asked;
}

static int ask_for_all(struct sk_copying *c)
{
	return ask_for_small(c) ? ask_long_ops(c, ask_for_device) :
				  ask_ops(c, ask_for_device);
}

/* A verified one is compared with what is in the slot. */
static bool goes_by_device(const struct sk_copying *c)
{
	return !c->pending.verify && !c->no_device &&
	       sk_device_slot_serves(c->state, c->work);
}

/* Whether that is a few calls, of which none waits for what the device does, as
 * the first launch of a kernel of ours may. */
static bool is_soon_asked(const struct sk_copying *c)
{
	const struct sk_device_slot *d = &c->state->device_slot;
	const struct sk_work *w = c->work;
	bool known = is_as_before(c) &&
		     sk_cuda_lane_has_table(c->state->gpus.v[d->gpu].lane,
					    w->small->stamp);

	/* Else a table is made first, or a batch's. */
	if (w->n_strided_asks || (!known && w->n_small >= SK_CUDA_TABLE_LEAST))
		return false;
	return w->n_asks - (known ? w->n_small : 0) <= FEW_ASKS;
}

/* Restores, which nobody trains beside, have the same lanes. */
static void set_policy(const struct sk_copying *c, bool snapshot)
{
	bool overlap = snapshot && c->state->job.flags & SK_COPY_OVERLAP;

	for (int i = 0; i < SK_GPUS_MAX; i++)
		if (c->work->gpus >> i & 1)
			sk_cuda_lane_overlap(c->state->gpus.v[i].lane,
					     overlap);
}

void sk_copying_ask_ahead(struct sk_copying *c)
{
	set_policy(c, true);
	if (!goes_by_device(c) || !is_soon_asked(c))
		return;
	c->ahead = true;
	c->failed = ask_for_all(c);
	c->pending.asked = c->failed >= 0;
}

static void wait_for_host(struct sk_copying *c)
{
	struct sk_fences *f = &c->state->fences;

	sk_fences_lock(f);
	while (c->pending.host_left)
		(void)pthread_cond_wait(&f->changed, &f->lock);
	sk_fences_unlock(f);
}

static int bring_out(struct sk_copying *c, struct sk_err *err)
{
	const struct sk_device_slot *d = &c->state->device_slot;
	const struct sk_slot_map *slot = &c->state->slots[c->slot];
	struct sk_cuda_lane *lane = c->state->gpus.v[d->gpu].lane;
	int finished, r = 0;

	for (uint32_t i = 0; i < d->n_extents && r >= 0; i++) {
		const struct sk_extent *p = &d->extents[i];
		const struct sk_copy copy = {
			.dst = c->base[p->kind] + p->from,
			.src = (const char *)(uintptr_t)
			       (sk_cuda_share_ptr(d->share) + d->at[i]),
			.run = p->to - p->from, .bytes = p->to - p->from };

		r = sk_cuda_lane_out(lane, &copy, 0, copy.bytes,
				     slot->lock[p->kind], err);
	}
	/* Whatever failed: what was asked for writes to the slot. */
	finished = sk_cuda_lane_finish(lane, r < 0 ? NULL : err);
	r = r < 0 ? r : finished;
	if (r >= 0 && !sk_cuda_share_lives(d->share))
		r = sk_err_set(err, -EIO, "the process that held the device "
			       "slot has ended; what stood there is lost");
	return r;
}

static int by_device(struct sk_copying *c)
{
	int r = await_ops(c, c->ahead ? c->failed : ask_for_all(c));

	/* Beside that the slot was made ready. */
	if (r >= 0)
		r = sk_copying_await_open(c);
	if (r < 0)
		return r;
	wait_for_host(c);
	/* An agent that is gone hears it when it is asked to seal. */
	(void)sk_copying_tell(c, SK_MSG_DEVICE_SEAL, NULL);
	lock_at_leisure(c);
	return bring_out(c, &c->pending.err);
}

/* ---- all of it ---- */

static int copy_all(struct sk_copying *c)
{
	int r;

	assert(c->work->n_gpu_units);
	/* What was asked for there is what the fence is for. */
	if (c->ahead || goes_by_device(c))
		return by_device(c);
	r = sk_copying_await_open(c);
	if (r < 0)
		return r;
	lock_in_a_hurry(c);
	r = await_ops(c, ask_ops(c, ask_for_slot));
	if (r >= 0)
		sk_gpus_lock_again(c->state, c->slot);
	if (r >= 0)
		sk_device_slot_ask(c->state, c->work, c->id, c->generation);
	return r;
}

int sk_copying_from_gpus(struct sk_copying *c)
{
	int r;

	set_policy(c, true);
	r = copy_all(c);
	set_policy(c, false);
	return r;
}
