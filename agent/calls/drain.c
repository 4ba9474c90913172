/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DEVICE_SEAL, and what follows where the rank dies before SEAL: a worker
 * brings the extents into the slot, and it is sealed in the rank's place. Its
 * connection stays, marked, until then, and so does what the rank was.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "calls/call.h"
#include "calls/device.h"
#include "calls/seal.h"
#include "memory/memory.h"
#include "session/session.h"

#define PATIENCE_NS UINT64_C(5000000000)	/* as a registration has */

/* ---- sealed on the device ---- */

int call_device_seal(struct call *c)
{
	const struct sk_wire_seal *in = &c->in->body.seal;
	struct sk_cat_slot *slot = NULL;
	struct device_slot *d;
	int r = call_slot_of(c, in->state, in->slot, &slot);

	if (r == 0)
		r = call_check_filling(c, slot, in->step);
	if (r < 0)
		return r;
	d = device_slot_of(c->agent, slot->state);
	if (!d || d->result < 0 || d->sealed || d->copies[0] || d->copies[1])
		return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " has no "
				  "device slot that is free",
				  slot->state->rank);
	d->sealed = slot;
	device_note(d);
	session_hold(c->session);
	c->agent->counts.device_seals++;
	return 0;
}

void device_drain_end(struct device_slot *d)
{
	if (!d->sealed)
		return;
	order_take_back(d->agent, &d->order);
	if (d->reading)
		seal_give_up(d->reading);
	d->reading = NULL;
	timer_clear(&d->agent->loop.timers, &d->patience);
	if (d->draining)
		memory_unhold(d->sealed->memory);
	d->sealed = NULL;
	d->draining = false;
	device_note(d);
	if (d->session)
		session_unhold(d->session);
}

/* ---- draining ---- */

static void lost(struct device_slot *d, struct sk_cat_slot *slot,
		 const char *why)
{
	log_warning(d->agent, "what rank %" PRId32 " of job \"%s\" left of "
		    "step %" PRId64 " on a GPU is lost: %s", slot->state->rank,
		    slot->state->run->job->name, slot->snapshot->step, why);
	d->agent->counts.device_lost++;
	/* Else its rank ends, and the slot with it. */
	if (!d->session)
		sk_cat_slot_clear(slot);
}

/* The image is in memory, or lost. */
static void is_over(struct device_slot *d)
{
	struct agent *a = d->agent;

	device_drain_end(d);
	if (!d->session)
		device_slot_leave(d);
	agent_changed(a);
}

static void was_read(void *ctx)
{
	is_over(ctx);
}

/* False: the header of what is there now is being read. */
static bool rescued(struct device_slot *d, struct sk_cat_slot *slot)
{
	log_info(d->agent, "%s of job \"%s\" died when step %" PRId64
		 " of rank %" PRId32 " stood on a GPU: it is in memory now",
		 d->session ? "a rank" : "the agent",
		 slot->state->run->job->name, slot->snapshot->step,
		 slot->state->rank);
	d->agent->counts.device_drains++;
	d->reading = seal_for_dead(d->agent, slot, was_read, d);
	return !d->reading;
}

static void drained(struct order *order, int status,
		    const struct sk_wire_worker *answer, int *fd,
		    const struct sk_err *err)
{
	struct device_slot *d = sk_link_object(order, struct device_slot,
					       order);
	struct agent *a = d->agent;
	struct sk_cat_slot *slot = d->sealed;

	(void)answer;
	(void)fd;
	assert(d->draining && slot && slot->use == SK_CAT_FILLING);
	/* The next agent has it still. */
	if (status < 0 && a->quit && d->record != TABLE_NONE) {
		device_drain_end(d);
		return;
	}
	if (status < 0)
		lost(d, slot, err->text);
	else if (!rescued(d, slot))
		return;
	is_over(d);
}

static void fill_order(struct device_slot *d)
{
	struct sk_cat_layout *const *layouts = d->state->layouts;
	const struct memory *m = d->sealed->memory;
	const struct sk_cat_snapshot *s = d->sealed->snapshot;
	struct order *o = &d->order;
	struct sk_wire_worker *w = &o->msg.body.worker;

	*o = (struct order){ .done = drained, .msg.type = SK_MSG_DRAIN,
			     .fds = { d->fd, d->data }, .n_fds = 2 };
	sk_link_init(&o->link);
	*w = (struct sk_wire_worker){
		.bytes = d->bytes, .run = s->run, .run_id = s->run_id,
		.step = s->step, .n_extents = d->n_extents };
	memcpy(w->uuid, d->uuid, sizeof(w->uuid));
	for (int k = 0; k < 2; k++) {
		if (!layouts[k])
			continue;
		w->header_bytes[k] = layouts[k]->layout->header_bytes;
		w->image_bytes[k] = layouts[k]->layout->image_bytes;
		o->fds[o->n_fds++] = m->slots[k].fd;
	}
}

static void begin(struct device_slot *d)
{
	struct sk_err err = { "" };
	int none = -1, r;

	fill_order(d);
	/* It was for the process to end; this takes what it takes. */
	timer_clear(&d->agent->loop.timers, &d->patience);
	d->draining = true;
	memory_hold(d->sealed->memory);
	r = order_submit(d->agent, &d->order);
	if (r < 0)
		drained(&d->order, r, NULL, &none, &err);
}

static void wait_no_more(struct timer *timer)
{
	struct device_slot *d = sk_link_object(timer, struct device_slot,
					       patience);
	const struct sk_cat_slot *slot = d->sealed;

	log_warning(d->agent, "what rank %" PRId32 " of job \"%s\" left of "
		    "step %" PRId64 " on a GPU is lost: its process, pid %d, "
		    "has not ended and may still write to it",
		    slot->state->rank, slot->state->run->job->name,
		    slot->snapshot->step, (int)d->session->pid);
	d->agent->counts.device_lost++;
	device_drain_end(d);
	agent_changed(d->agent);
}

/* Its process may still have the GPU write, there and into the slot. */
static void await_end(struct device_slot *d)
{
	if (d->waits)
		return;
	d->waits = true;
	d->patience.fire = wait_no_more;
	timer_set(&d->agent->loop.timers, &d->patience,
		  agent_now(d->agent) + PATIENCE_NS);
}

/* Of a rank that is dead, or that only the agent before this one knew. Such a
 * one may live, and bring the same bytes out itself: it writes nothing else
 * there before it has registered here, which waits until this is over. */
static bool is_left(const struct device_slot *d)
{
	return d->sealed && (!d->session || d->session->closing);
}

void device_drain_dead(struct agent *a)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link) {
		if (!is_left(d) || d->draining)
			continue;
		if (!d->session || session_is_gone(d->session))
			begin(d);
		else
			await_end(d);
	}
}

const struct sk_cat_job *
device_draining_which(const struct agent *a,
		      bool (*is)(const void *ctx, const struct sk_cat_job *job),
		      const void *ctx)
{
	const struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (is_left(d) && is(ctx, d->state->run->job))
			return d->state->run->job;
	return NULL;
}

bool device_draining(const struct agent *a, const struct sk_cat_job *job)
{
	const struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (is_left(d) &&
		    (!job || d->state->run->job == job))
			return true;
	return false;
}
