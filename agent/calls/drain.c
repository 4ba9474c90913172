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
#include "memory/bytes.h"
#include "memory/memory.h"
#include "session/session.h"

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
	if (!d || d->result < 0 || d->sealed)
		return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " has no "
				  "device slot that is free",
				  slot->state->rank);
	d->sealed = slot;
	session_hold(c->session);
	c->agent->counts.device_seals++;
	return 0;
}

void device_drain_end(struct device_slot *d)
{
	if (!d->sealed)
		return;
	order_take_back(d->agent, &d->order);
	if (d->draining)
		memory_unhold(d->sealed->memory);
	d->data = sk_close_fd(d->data);
	d->sealed = NULL;
	d->draining = false;
	session_unhold(d->session);
}

/* ---- draining ---- */

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
	if (status < 0) {
		log_warning(a, "what rank %" PRId32 " of job \"%s\" left of "
			    "step %" PRId64 " on a GPU is lost: %s",
			    slot->state->rank, slot->state->run->job->name,
			    slot->snapshot->step, err->text);
		a->counts.device_lost++;
	} else {
		log_info(a, "rank %" PRId32 " of job \"%s\" died when step %"
			 PRId64 " stood on a GPU: it is in memory now",
			 slot->state->rank, slot->state->run->job->name,
			 slot->snapshot->step);
		a->counts.device_drains++;
		seal_for_dead(d->session, slot);
	}
	device_drain_end(d);
	agent_changed(a);
}

/* Templates, and extents, as a worker reads them. */
static int put_data(struct device_slot *d, struct sk_err *err)
{
	struct sk_cat_layout *const *layouts = d->state->layouts;
	_cleanup_free_ char *data = NULL;
	size_t bytes = d->n_extents * sizeof(*d->extents), at = 0;

	for (int k = 0; k < 2; k++)
		if (layouts[k])
			bytes += layouts[k]->layout->header_bytes;
	data = malloc(bytes + 1);
	if (!data)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	for (int k = 0; k < 2; k++) {
		const struct sk_layout *l = layouts[k] ? layouts[k]->layout :
							 NULL;

		if (!l)
			continue;
		memcpy(data + at, l->header, l->header_bytes);
		at += l->header_bytes;
	}
	memcpy(data + at, d->extents, d->n_extents * sizeof(*d->extents));
	return bytes_fd(d->agent->os, "shardkeep:drain", data, bytes, err);
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
	int none = -1, r = d->data = put_data(d, &err);

	if (r >= 0)
		fill_order(d);
	d->draining = true;
	memory_hold(d->sealed->memory);
	if (r >= 0)
		r = order_submit(d->agent, &d->order);
	if (r < 0)
		drained(&d->order, r, NULL, &none, &err);
}

void device_drain_dead(struct agent *a)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (d->sealed && !d->draining && d->session->closing)
			begin(d);
}

bool device_draining(const struct agent *a, const struct sk_cat_job *job)
{
	const struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (d->sealed && d->session->closing &&
		    (!job || d->state->run->job == job))
			return true;
	return false;
}
