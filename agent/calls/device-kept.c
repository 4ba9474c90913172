/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives the agent of a device slot: its memory, what a worker needs to
 * drain it, and a record that says for which slot something is sealed there,
 * or which slot's image it has a copy of.
 */
#include <assert.h>
#include <string.h>

#include "calls/device.h"
#include "keeper/kept.h"
#include "memory/memory.h"
#include "memory/record.h"

static const int *fd_of(const struct device_slot *d, int which)
{
	return which ? &d->data : &d->fd;
}

static bool give(const struct device_slot *d, int which)
{
	struct agent *a = d->agent;
	char name[KEPT_NAME];

	record_name(d->serial, which, name, sizeof(name));
	return keeper_give(a->os, &a->keeper, name, *fd_of(d, which));
}

void device_keep(struct device_slot *d)
{
	struct agent *a = d->agent;

	assert(d->record == TABLE_NONE && d->fd >= 0 && d->data >= 0);
	if (a->keeper.kind == KEEPER_NONE || !a->table.map)
		return;
	d->record = table_take(&a->table, &d->serial);
	if (d->record == TABLE_NONE) {
		record_unkept(a, "a device slot", "the table of slots is full");
		return;
	}
	/* Who takes over has it from this agent itself. */
	if (!give(d, 0) || !give(d, 1))
		record_unkept(a, "a device slot", "the keeper does not take "
			      "it");
	device_note(d);
}

static uint64_t serial_of(const struct sk_cat_slot *slot)
{
	const struct memory *m = slot->memory;

	return m->record == TABLE_NONE ? 0 : m->serial;
}

/* As far as others may read it. */
static void note_copy(const struct device_slot *d, struct table_record *r)
{
	const struct sk_cat_slot *slot = device_copied_slot(d);

	if (!slot || d->dropped)
		return;
	r->stands_for = serial_of(slot);
	r->last_step = slot->snapshot->step;
	for (int kind = 0; kind < 2; kind++) {
		const struct sk_cat_image *image = slot->images[kind];

		if (image)
			record_content(image, &r->content[kind]);
	}
}

static void note_sealed(const struct device_slot *d, struct table_record *r)
{
	r->step = d->sealed->snapshot->step;
	r->flags |= d->sealed->flags;
	r->stands_for = serial_of(d->sealed);
}

void device_note(const struct device_slot *d)
{
	struct table_record r = { .use = TABLE_DEVICE, .step = -1 };
	struct agent *a = d->agent;

	if (d->record == TABLE_NONE || a->quit)
		return;
	/* Of a rank that is gone it says what it said. */
	if (d->state)
		record_state(d->state, &r);
	else if (!table_get(&a->table, d->record, &r))
		return;
	r.serial = d->serial;
	r.kind_bytes[0] = d->bytes;
	r.n_extents = d->n_extents;
	r.flags = d->instance ? TABLE_INSTANCE : 0;
	r.stands_for = 0;
	memcpy(r.uuid, d->uuid, sizeof(r.uuid));
	if (d->sealed)
		note_sealed(d, &r);
	else
		note_copy(d, &r);
	table_put(&a->table, d->record, &r);
}

void device_forget(struct device_slot *d)
{
	struct agent *a = d->agent;
	char name[KEPT_NAME];

	if (!record_drop(a, &d->record))
		return;
	for (int which = 0; which < 2; which++) {
		record_name(d->serial, which, name, sizeof(name));
		keeper_forget(a->os, &a->keeper, name);
	}
}

/* ---- another agent's ---- */

static struct device_slot *revived(struct agent *a,
				   const struct table_record *record,
				   uint32_t at, int fds[2])
{
	struct device_slot *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	*d = (struct device_slot){
		.agent = a, .fd = fds[0], .data = fds[1],
		.bytes = record->kind_bytes[0],
		.instance = record->flags & TABLE_INSTANCE,
		.n_extents = record->n_extents, .record = at,
		.serial = record->serial,
		/* Behind the templates. */
		.extents_at = record->header_bytes[0] +
			      record->header_bytes[1],
	};
	memcpy(d->uuid, record->uuid, sizeof(d->uuid));
	fds[0] = fds[1] = -1;
	sk_link_init(&d->link);
	sk_link_insert(&a->device_slots, &d->link);
	return d;
}

int device_revive(struct agent *a, const struct table_record *record,
		  uint32_t at, int fds[2], struct sk_cat_slot *slot)
{
	struct device_slot *d = revived(a, record, at, fds);

	assert(slot->use == SK_CAT_FILLING);
	if (!d)
		return -ENOMEM;
	d->state = slot->state;
	d->sealed = slot;
	return 0;
}

/* By which the rank's next life is known to have the same; without, it is
 * given other memory. */
static void read_extents(struct device_slot *d)
{
	size_t bytes = d->n_extents * sizeof(*d->extents);

	d->extents = malloc(bytes + 1);
	if (d->extents &&
	    d->agent->os->pread(d->agent->os, d->data, d->extents, bytes,
				(off_t)d->extents_at) == (ssize_t)bytes)
		return;
	free(d->extents);
	d->extents = NULL;
}

static bool is_its_image(const struct table_record *record,
			 const struct sk_cat_slot *slot)
{
	struct sk_digest content;

	if (record->last_step != slot->snapshot->step)
		return false;
	for (int kind = 0; kind < 2; kind++) {
		const struct sk_cat_image *image = slot->images[kind];

		if (!image)
			continue;
		record_content(image, &content);
		if (!sk_digest_equal(&content, &record->content[kind]))
			return false;
	}
	return true;
}

int device_revive_copy(struct agent *a, const struct table_record *record,
		       uint32_t at, int fds[2],
		       const struct sk_cat_slot *slot)
{
	struct device_slot *d;

	assert(slot->use == SK_CAT_SEALED);
	if (!device_slots_made(a) || record->n_extents > SK_EXTENTS_MAX ||
	    !is_its_image(record, slot))
		return -EBADMSG;
	d = revived(a, record, at, fds);
	if (!d)
		return -ENOMEM;
	read_extents(d);
	device_left_as_copy(d, slot);
	return 0;
}
