/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives the agent of a device slot: its memory, what a worker needs to
 * drain it, and a record that says for which slot something is sealed there.
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
	if (!give(d, 0) || !give(d, 1)) {
		record_unkept(a, "a device slot", "the keeper does not take "
			      "it");
		device_forget(d);
		return;
	}
	device_note(d);
}

void device_note(const struct device_slot *d)
{
	struct table_record r = { .use = TABLE_DEVICE, .step = -1 };
	const struct sk_cat_slot *slot = d->sealed;

	if (d->record == TABLE_NONE || d->agent->quit)
		return;
	record_state(d->state, &r);
	r.serial = d->serial;
	r.kind_bytes[0] = d->bytes;
	r.n_extents = d->n_extents;
	memcpy(r.uuid, d->uuid, sizeof(r.uuid));
	if (slot) {
		const struct memory *m = slot->memory;

		r.step = slot->snapshot->step;
		r.flags = slot->flags;
		r.stands_for = m->record == TABLE_NONE ? 0 : m->serial;
	}
	table_put(&d->agent->table, d->record, &r);
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

int device_revive(struct agent *a, const struct table_record *record,
		  uint32_t at, int fds[2], struct sk_cat_slot *slot)
{
	struct device_slot *d = calloc(1, sizeof(*d));

	assert(slot->use == SK_CAT_FILLING);
	if (!d)
		return -ENOMEM;
	*d = (struct device_slot){
		.agent = a, .state = slot->state, .sealed = slot,
		.fd = fds[0], .data = fds[1], .bytes = record->kind_bytes[0],
		.n_extents = record->n_extents, .record = at,
		.serial = record->serial,
	};
	memcpy(d->uuid, record->uuid, sizeof(d->uuid));
	for (int k = 0; k < 2; k++)
		if (slot->state->layouts[k])
			d->extents_at += slot->state->layouts[k]
						 ->layout->header_bytes;
	fds[0] = fds[1] = -1;
	sk_link_init(&d->link);
	sk_link_insert(&a->device_slots, &d->link);
	return 0;
}
