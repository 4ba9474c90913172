/* SPDX-License-Identifier: Apache-2.0 */
/* DEVICE_SLOT: memory of a GPU for a rank. drain.c has DEVICE_SEAL,
 * device-copy.c DEVICE_OPEN. */
#include "calls/device.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "base/size.h"
#include "calls/call.h"
#include "memory/bytes.h"

/* ---- those that there are ---- */

void device_slot_free(struct device_slot *d)
{
	device_drain_end(d);
	device_forget(d);
	order_take_back(d->agent, &d->order);
	timer_clear(&d->agent->loop.timers, &d->patience);
	sk_link_remove(&d->link);
	d->fd = sk_close_fd(d->fd);
	d->data = sk_close_fd(d->data);
	free(d->extents);
	free(d);
}

void device_slots_drop(struct agent *a, const struct sk_cat_state *state)
{
	struct device_slot *d = device_slot_of(a, state);

	if (d)
		device_slot_drop(d);
}

void device_slots_leave(struct agent *a, const struct sk_cat_state *state)
{
	struct device_slot *d = device_slot_of(a, state);

	if (d)
		device_slot_leave(d);
}

void device_slots_close(struct agent *a)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		device_slot_free(d);
}

void device_slots_detain(struct agent *a, const struct sk_cat_state *state,
			 const void *detainer)
{
	struct device_slot *d = device_slot_of(a, state);

	if (!d)
		return;
	if (d->fd < 0) {
		device_slot_free(d);
		return;
	}
	device_drain_end(d);
	if (!d->copies[0] && !d->copies[1]) {
		device_forget(d);
		d->fd = sk_close_fd(d->fd);
		d->data = sk_close_fd(d->data);
	}
	d->state = NULL;
	d->session = NULL;
	/* Of a copy the record stands: its rank was let write to it no more. */
	d->detainer = detainer;
}

void device_slots_let_go(struct agent *a, const void *detainer)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (!d->state && d->detainer == detainer)
			device_slot_leave(d);
}

struct device_slot *device_sealed_for(const struct agent *a,
				      const struct sk_cat_slot *slot)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (d->sealed == slot)
			return d;
	return NULL;
}

void device_seal_over(struct agent *a, const struct sk_cat_slot *slot)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (d->sealed == slot)
			device_drain_end(d);
}

/* ---- making one ---- */

/* Templates, and extents, as a worker reads them. */
int device_put_data(struct device_slot *d, struct sk_err *err)
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
	d->extents_at = at;
	d->data = sk_close_fd(d->data);
	d->data = bytes_fd(d->agent->os, "shardkeep:drain", data, bytes, err);
	return d->data;
}

static void made(struct order *order, int status,
		 const struct sk_wire_worker *answer, int *fd,
		 const struct sk_err *err)
{
	struct device_slot *d = sk_link_object(order, struct device_slot,
					       order);

	/* -EAGAIN stands for one that is being made still. */
	d->result = status == -EAGAIN ? -EIO : status;
	d->err = *err;
	if (status >= 0 && *fd < 0)
		d->result = sk_err_set(&d->err, -EIO, "the worker of a GPU "
				       "gave no memory");
	if (d->result >= 0)
		d->result = device_put_data(d, &d->err);
	if (d->result >= 0) {
		d->fd = sk_take_fd(fd);
		d->bytes = answer->bytes;
		d->instance = answer->instance != 0;
		device_keep(d);
		return;
	}
	d->bytes = 0;
	d->agent->counts.device_failed++;
	log_warning(d->agent, "no device slot for rank %" PRId32 " of job "
		    "\"%s\": %s", d->state->rank, d->state->run->job->name,
		    d->err.text);
}

static int read_extents(struct call *c, struct device_slot *d)
{
	const struct sk_wire_device_slot *in = &c->in->body.device_slot;
	size_t bytes = in->n_extents * sizeof(*d->extents);
	uint64_t from[2] = { 0 }, to[2] = { 0 };
	ssize_t n;

	d->n_extents = in->n_extents;
	d->extents = malloc(bytes + 1);
	if (!d->extents)
		return sk_err_set(&c->err, -ENOMEM, "no memory for extents");
	n = c->agent->os->pread(c->agent->os, c->fds[0], d->extents, bytes, 0);
	if (n < 0)
		return sk_err_errno(&c->err, (int)n, "cannot read the extents "
				    "of a device slot");
	if (n != (ssize_t)bytes)
		return sk_err_set(&c->err, -EINVAL, "the extents of a device "
				  "slot are %zd bytes, not %zu", n, bytes);
	for (int k = 0; k < 2; k++) {
		const struct sk_cat_layout *l = d->state->layouts[k];

		from[k] = l ? l->layout->header_bytes : 0;
		to[k] = l ? l->layout->image_bytes : 0;
	}
	return sk_extents_check(d->extents, d->n_extents, from, to, &d->bytes,
			       &c->err);
}

/* What ranks have left makes room for what one needs. */
static int check_room(struct call *c, const struct device_slot *d)
{
	uint64_t used = device_bytes(c->agent, d->uuid);
	uint64_t all = c->agent->opts->device_memory;
	char want[32], left[32];

	while (d->bytes <= all && used > all - d->bytes &&
	       device_make_room(c->agent, d->uuid))
		used = device_bytes(c->agent, d->uuid);
	if (d->bytes <= all && used <= all - d->bytes)
		return 0;
	c->agent->counts.device_refused++;
	return sk_err_set(&c->err, -EDQUOT, "a device slot of %s does not fit: "
			  "%s of --device-memory are left",
			  sk_size_format(d->bytes, want, sizeof(want)),
			  sk_size_format(all > used ? all - used : 0, left,
					 sizeof(left)));
}

static int submit(struct call *c, struct device_slot *d)
{
	struct order *o = &d->order;

	o->done = made;
	o->msg.type = SK_MSG_MAKE_DEVICE_SLOT;
	o->msg.body.worker.bytes = d->bytes;
	memcpy(o->msg.body.worker.uuid, d->uuid, sizeof(d->uuid));
	return order_submit(c->agent, o) >= 0 ? 0 :
	       sk_err_set(&c->err, -ENOMEM, "no memory for a worker");
}

/* What the rank's last life had, if it fits; NULL: nothing. */
static struct device_slot *inherit(struct call *c, struct sk_cat_state *state,
				   const struct device_slot *want)
{
	struct device_slot *d;

	d = device_inherit(c->agent, state, want->uuid, want->extents,
			   want->n_extents);
	if (!d)
		return NULL;
	d->session = c->session;
	if (device_put_data(d, &c->err) < 0) {
		device_slot_free(d);
		return NULL;
	}
	device_keep(d);
	return d;
}

static bool wants_anew(const struct call *c)
{
	return c->in->body.device_slot.flags & SK_DEVICE_SLOT_ANEW;
}

/* From here on it is asked for again until it is there. */
static int begin(struct call *c, struct sk_cat_state *state)
{
	struct device_slot *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a device "
				  "slot");
	*d = (struct device_slot){ .agent = c->agent, .session = c->session,
				   .state = state, .fd = -1, .data = -1,
				   .result = -EAGAIN,
				   .record = TABLE_NONE };
	memcpy(d->uuid, c->in->body.device_slot.uuid, sizeof(d->uuid));
	r = read_extents(c, d);
	if (r >= 0 && !wants_anew(c) && inherit(c, state, d)) {
		free(d->extents);
		free(d);
		return 0;
	}
	if (r >= 0 && c->agent->unread_devices)
		r = sk_err_set(&c->err, -EAGAIN, "what the last agent left on "
			       "GPUs is still being read");
	if (r >= 0 && workers_rest(c->agent))
		r = sk_err_set(&c->err, -EAGAIN, "the worker of a GPU has just "
			       "failed");
	if (r >= 0)
		r = check_room(c, d);
	if (r >= 0)
		r = submit(c, d);
	if (r < 0) {
		free(d->extents);
		free(d);
		return r;
	}
	sk_link_init(&d->link);
	sk_link_insert(&c->agent->device_slots, &d->link);
	return sk_err_set(&c->err, -EAGAIN, "the device slot is being made");
}

/* ---- the call ---- */

static int check_call(struct call *c, struct sk_cat_state **ret_state)
{
	const struct sk_wire_device_slot *in = &c->in->body.device_slot;
	int r = call_state(c, in->state, ret_state);

	if (r < 0)
		return r;
	if (!device_slots_made(c->agent))
		return sk_err_set(&c->err, -ENODEV, "this agent makes no "
				  "device slots; start it with "
				  "--device-memory");
	if (c->n_fds != 1 || !in->n_extents || in->n_extents > SK_EXTENTS_MAX)
		return sk_err_set(&c->err, -EINVAL, "a device slot has 1 to "
				  "%u extents, in one descriptor, not %u",
				  SK_EXTENTS_MAX, in->n_extents);
	return 0;
}

/* Of those that stand for something the order to drain them ends it. */
static void forget_void(struct agent *a)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (!d->sealed && !d->detainer && device_slot_is_void(d))
			device_slot_drop(d);
}

int call_device_slot(struct call *c)
{
	struct sk_cat_state *state = NULL;
	struct device_slot *d;
	int copy, r = check_call(c, &state);

	if (r < 0)
		return r;
	forget_void(c->agent);
	d = device_slot_of(c->agent, state);
	if (d && d->fd >= 0 && !d->sealed && wants_anew(c))
		device_slot_drop(d);
	if (!device_slot_of(c->agent, state)) {
		r = begin(c, state);
		if (r < 0)
			return r;
	}
	d = device_slot_of(c->agent, state);
	if (d->result == -EAGAIN)
		return sk_err_set(&c->err, -EAGAIN, "the device slot is being "
				  "made");
	if (d->result < 0) {
		c->err = d->err;
		r = d->result;
		device_slot_free(d);
		return r;
	}
	copy = c->agent->os->fcntl(c->agent->os, d->fd, F_DUPFD_CLOEXEC, 3);
	if (copy < 0)
		return sk_err_errno(&c->err, copy, "cannot hand a device slot "
				    "out");
	c->out_fds[c->n_out++] = copy;
	c->out.body.device_slot_reply.bytes = d->bytes;
	return 0;
}
