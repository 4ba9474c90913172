/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device slot holds when the image that it was on the way to is sealed:
 * a copy of it, which a restore on that GPU may read instead. DEVICE_OPEN
 * leases it. It ends where the rank is given a slot for its next snapshot;
 * while somebody reads it, that one goes by without the device slot.
 *
 * A copy is found by its image's id. Of a rank that has died it stays,
 * nobody's, until its next life takes the memory over, somebody else needs it,
 * the image is gone, or the time for coming back is.
 */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "calls/call.h"
#include "calls/device.h"
#include "session/lease.h"
#include "session/rights.h"
#include "session/session.h"

#define LEFT_NS (UINT64_C(600) * 1000000000)	/* what a restart may take */
#define SAYS_WHO_READS 6u	/* the wire's version that SLOT does since */

/* ---- what there is ---- */

static bool is_copy(const struct device_slot *d)
{
	return d->copies[0] || d->copies[1];
}

static struct sk_cat_image *image_of(const struct device_slot *d, int kind)
{
	return d->copies[kind] ? sk_cat_image_by_id(&d->agent->cat,
						    d->copies[kind]) : NULL;
}

static bool is_read(const struct device_slot *d)
{
	bool read = false;

	for (int kind = 0; kind < 2; kind++) {
		const struct sk_cat_image *image = image_of(d, kind);

		read |= image && image->device_leases;
	}
	return read;
}

const struct sk_cat_slot *device_copied_slot(const struct device_slot *d)
{
	const struct sk_cat_slot *slot = NULL;

	for (int kind = 0; kind < 2 && !slot; kind++) {
		const struct sk_cat_image *image = image_of(d, kind);

		slot = image ? image->slot : NULL;
	}
	return slot;
}

static void end_copy(struct device_slot *d)
{
	d->copies[0] = d->copies[1] = 0;
	device_note(d);
}

static void is_copy_of(struct device_slot *d, const struct sk_cat_slot *slot)
{
	for (int kind = 0; kind < 2; kind++)
		d->copies[kind] = slot->images[kind] ?
				  slot->images[kind]->id : 0;
}

void device_stands(struct device_slot *d, const struct sk_cat_slot *slot)
{
	const struct sk_cat_slot *other;

	assert(slot->use == SK_CAT_SEALED && !is_read(d));
	/* An older library does not ask before it writes there again. */
	if (d->session && d->session->version &&
	    d->session->version < SAYS_WHO_READS)
		return;
	/* Nor does one that was answered already. */
	sk_link_each(other, &slot->state->slots, link)
		if (other->use == SK_CAT_FILLING)
			return;
	d->dropped = false;
	is_copy_of(d, slot);
	device_note(d);
}

bool device_keeps_out(struct agent *a, const struct sk_cat_state *state)
{
	struct device_slot *d = device_slot_of(a, state);

	if (!d || !is_copy(d))
		return false;
	if (is_read(d))
		return true;
	end_copy(d);
	return false;
}

/* ---- left by its rank ---- */

static bool is_left(const struct device_slot *d)
{
	return !d->state && !d->detainer;
}

static void time_is_over(struct timer *timer)
{
	struct device_slot *d = sk_link_object(timer, struct device_slot,
					       patience);

	d->dropped = true;
	agent_changed(d->agent);
}

static void leave(struct device_slot *d)
{
	d->state = NULL;
	d->session = NULL;
	d->detainer = NULL;
	d->waits = false;
	d->patience.fire = time_is_over;
	timer_set(&d->agent->loop.timers, &d->patience,
		  agent_now(d->agent) + LEFT_NS);
	device_note(d);
}

void device_left_as_copy(struct device_slot *d,
			 const struct sk_cat_slot *slot)
{
	is_copy_of(d, slot);
	leave(d);
}

void device_slot_leave(struct device_slot *d)
{
	device_drain_end(d);
	if (is_copy(d) && !d->agent->quit)
		leave(d);
	else
		device_slot_free(d);
}

void device_slot_drop(struct device_slot *d)
{
	if (is_read(d)) {
		d->dropped = true;
		device_slot_leave(d);
	} else {
		device_slot_free(d);
	}
}

/* Whether anybody may still ask for it: on disk it is read as a file. */
static bool is_of_use(const struct device_slot *d)
{
	bool use = false;

	for (int kind = 0; kind < 2; kind++) {
		const struct sk_cat_image *image = image_of(d, kind);

		use |= image && image->slot;
	}
	return use && !d->dropped;
}

/* The agent before this one could have more of its GPU. */
static bool is_too_much(const struct device_slot *d)
{
	return device_bytes(d->agent, d->uuid) > d->agent->opts->device_memory;
}

void device_copies_tidy(struct agent *a)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link) {
		if (is_left(d) && !is_read(d) &&
		    (!is_of_use(d) || is_too_much(d)))
			device_slot_free(d);
	}
}

bool device_make_room(struct agent *a, const uint8_t *uuid)
{
	struct device_slot *d, *first = NULL;

	/* The one that was left longest. */
	sk_link_each(d, &a->device_slots, link)
		if (is_left(d) && !is_read(d) &&
		    !memcmp(d->uuid, uuid, sizeof(d->uuid)) &&
		    (!first || d->patience.at_ns < first->patience.at_ns))
			first = d;
	if (first)
		device_slot_free(first);
	return first != NULL;
}

/* ---- handed down ---- */

static bool is_predecessors(const struct device_slot *d,
			    const struct sk_cat_state *state,
			    const uint8_t *uuid)
{
	const struct sk_cat_image *image = image_of(d, SK_IMAGE_PRIMARY);

	return is_left(d) && image && image->rank == state->rank &&
	       image->snapshot->job == state->run->job &&
	       !memcmp(d->uuid, uuid, sizeof(d->uuid));
}

/* One that a worker drained has none here, and is made anew. */
static bool has_extents(const struct device_slot *d,
			const struct sk_extent *extents, uint32_t n)
{
	return d->extents && d->n_extents == n &&
	       !memcmp(d->extents, extents, n * sizeof(*extents));
}

struct device_slot *device_inherit(struct agent *a,
				   struct sk_cat_state *state,
				   const uint8_t *uuid,
				   const struct sk_extent *extents, uint32_t n)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link) {
		if (d->dropped || is_read(d) ||
		    !is_predecessors(d, state, uuid))
			continue;
		if (has_extents(d, extents, n)) {
			timer_clear(&a->loop.timers, &d->patience);
			/* It is kept anew, as what it is now. */
			device_forget(d);
			end_copy(d);
			d->state = state;
			return d;
		}
		device_slot_free(d);
	}
	return NULL;
}

/* ---- DEVICE_OPEN ---- */

static struct device_slot *find(const struct agent *a, uint64_t image,
				const uint8_t *uuid)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if ((d->copies[0] == image || d->copies[1] == image) &&
		    !d->detainer && !d->dropped &&
		    !memcmp(d->uuid, uuid, sizeof(d->uuid)))
			return d;
	return NULL;
}

static int hand_out(struct call *c, const struct device_slot *d)
{
	const struct sk_os *os = c->agent->os;
	const int fds[2] = { d->fd, d->data };

	for (int i = 0; i < 2; i++) {
		int copy = os->fcntl(os, fds[i], F_DUPFD_CLOEXEC, 3);

		if (copy < 0)
			return sk_err_errno(&c->err, copy, "cannot hand a "
					    "device slot out");
		c->out_fds[c->n_out++] = copy;
	}
	c->out.body.device_open_reply = (struct sk_wire_device_open_reply){
		.bytes = d->bytes, .extents_at = d->extents_at,
		.n_extents = d->n_extents };
	return 0;
}

int call_device_open(struct call *c)
{
	const struct sk_wire_device_open *in = &c->in->body.device_open;
	struct sk_cat_image *image;
	struct device_slot *d;
	int r;

	image = sk_cat_image_by_id(&c->agent->cat, in->image);
	d = in->image ? find(c->agent, in->image, in->uuid) : NULL;
	if (!image || !image->slot || !d || image->bad_memory ||
	    !session_sees(c->session, image->snapshot->job))
		return sk_err_set(&c->err, -ENOENT, "there is no copy of "
				  "image %" PRIu64 " on that device",
				  in->image);
	r = lease_new(c->session, image, SK_PLACE_DEVICE, &c->err);
	if (r < 0)
		return r;
	r = hand_out(c, d);
	if (r >= 0) {
		c->agent->counts.device_reads++;
		return 0;
	}
	while (c->n_out)
		sk_close_fd(c->out_fds[--c->n_out]);
	(void)lease_end(c->session, in->image, SK_PLACE_DEVICE);
	return r;
}

bool device_copy_bad(struct agent *a, uint64_t image)
{
	struct device_slot *d;

	/* Whoever reads it still ends before anybody writes there. */
	sk_link_each(d, &a->device_slots, link)
		if (image && (d->copies[0] == image || d->copies[1] == image)) {
			d->dropped = true;
			device_note(d);
			return true;
		}
	return false;
}
