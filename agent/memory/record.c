/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "keeper/kept.h"
#include "memory/memory.h"

void record_name(uint64_t serial, int kind, char *ret, size_t size)
{
	(void)snprintf(ret, size, "slot-%" PRIx64 "-%d", serial, kind);
}

void record_content(const struct sk_cat_image *image, struct sk_digest *ret)
{
	_Static_assert(sizeof(image->content) == sizeof(ret->bytes), "a hash");
	memcpy(ret->bytes, image->content, sizeof(ret->bytes));
}

/* ---- the memory ---- */

void record_unkept(struct agent *a, const char *what, const char *why)
{
	a->counts.unkept++;
	if (!a->unkept_said)
		log_warning(a, "%s will not outlive this agent: %s", what,
			    why);
	a->unkept_said = true;
}

static bool give(struct agent *a, struct memory *m, int kind)
{
	char name[KEPT_NAME];

	if (m->slots[kind].fd < 0 || m->kept & 1u << kind)
		return true;
	record_name(m->serial, kind, name, sizeof(name));
	if (!keeper_give(a->os, &a->keeper, name, m->slots[kind].fd))
		return false;
	m->kept |= 1u << kind;
	return true;
}

/* The record stays where the keeper has not all: who takes over has it from
 * this agent itself, and who comes after a kill says what was lost. */
void record_keep(struct agent *a, struct memory *m)
{
	m->record = TABLE_NONE;
	m->kept = 0;
	if (a->keeper.kind == KEEPER_NONE || !a->table.map)
		return;
	m->record = table_take(&a->table, &m->serial);
	if (m->record == TABLE_NONE) {
		record_unkept(a, "a slot", "the table of slots is full");
		return;
	}
	if (give(a, m, 0) && give(a, m, 1))
		return;
	record_unkept(a, "a slot", a->keeper.lost ?
		      "the keeper is gone" : "the keeper does not take it");
	a->unkept = true;
}

static bool keep_all(struct agent *a, struct sk_cat_state *state)
{
	struct sk_cat_slot *slot;

	sk_link_each(slot, &state->slots, link) {
		struct memory *m = slot->memory;

		if (m->record == TABLE_NONE)
			continue;
		if (!give(a, m, 0) || !give(a, m, 1))
			return false;
	}
	return true;
}

/* All are looked at, in this one case. */
void record_look(struct agent *a)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_cat_job *job;
	bool all = true;

	if (!a->unkept || a->keeper.lost)
		return;
	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
		all = all && keep_all(a, state);
	a->unkept = !all;
}

bool record_drop(struct agent *a, uint32_t *record)
{
	if (*record == TABLE_NONE || a->quit)
		return false;
	table_drop(&a->table, *record);
	*record = TABLE_NONE;
	return true;
}

void record_forget(struct memory *m)
{
	struct agent *a = m->agent;
	char name[KEPT_NAME];

	if (!record_drop(a, &m->record))
		return;
	for (int kind = 0; kind < 2; kind++) {
		if (m->slots[kind].fd < 0)
			continue;
		record_name(m->serial, kind, name, sizeof(name));
		keeper_forget(a->os, &a->keeper, name);
	}
}

/* ---- the record ---- */

/* One that is being written is there, or nobody was told that it is. */
static bool pin_is_stored(const struct sk_cat_snapshot *s)
{
	return s->pin_stored || (s->pinning && !s->was_pinned);
}

static uint32_t flags_of(const struct sk_cat_slot *slot)
{
	const struct sk_cat_snapshot *s = slot->snapshot;
	const struct memory *m = slot->memory;
	uint32_t flags = m->sealed_writes ? TABLE_NO_WRITES : 0;

	if (slot->use != SK_CAT_SEALED)
		return flags;
	for (int kind = 0; kind < 2; kind++) {
		if (slot->images[kind] && slot->images[kind]->bad_memory)
			flags |= TABLE_BAD << kind;
	}
	if (s->wanted && !slot->images[0]->stored.dir[0])
		flags |= TABLE_WANTED | (s->wanted_by_pin ? TABLE_BY_PIN : 0);
	return flags | (s->pinned ? TABLE_PINNED : 0) |
	       (pin_is_stored(s) ? TABLE_PIN_STORED : 0);
}

void record_state(const struct sk_cat_state *state,
		  struct table_record *r)
{
	const struct sk_cat_run *run = state->run;

	r->state = state->serial;
	r->run = run->number;
	r->run_id = run->id;
	r->world = run->world;
	r->uid = run->job->uid;
	memcpy(r->job, run->job->name, sizeof(run->job->name));
	r->rank = state->rank;
	r->numa_node = state->numa_node;
	r->flush_every = state->flush_every;
	r->last_step = state->last_step;
	for (int kind = 0; kind < 2; kind++) {
		const struct sk_layout *l;

		if (!state->layouts[kind])
			continue;
		l = state->layouts[kind]->layout;
		r->digests[kind] = l->digest;
		r->header_bytes[kind] = l->header_bytes;
		r->image_bytes[kind] = l->image_bytes;
	}
}

void record_note(void *ctx, const struct sk_cat_slot *slot)
{
	const struct memory *m = slot->memory;
	struct table_record r = { .use = (uint32_t)slot->use + TABLE_FREE,
				  .step = -1 };
	struct agent *a = ctx;

	/* What it holds at the end is the next agent's. */
	if (m->record == TABLE_NONE || a->quit)
		return;
	r.serial = m->serial;
	r.kind_bytes[0] = slot->kind_bytes[0];
	r.kind_bytes[1] = slot->kind_bytes[1];
	r.flags = flags_of(slot);
	record_state(slot->state, &r);
	r.process = slot->state->process;
	if (slot->snapshot) {
		r.step = slot->snapshot->step;
		r.created_ns = slot->snapshot->created_ns;
	}
	for (int kind = 0; kind < 2; kind++) {
		const struct sk_cat_image *image = slot->images[kind];

		if (image)
			record_content(image, &r.content[kind]);
	}
	table_put(&a->table, m->record, &r);
}

void record_snapshot(struct agent *a, const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->slot)
			record_note(a, image->slot);
	}
}

/* ---- runs ---- */

void record_run(struct agent *a, struct sk_cat_run *run)
{
	struct table_record r = { .use = TABLE_RUN, .step = -1,
				  .run = run->number, .run_id = run->id,
				  .world = run->world,
				  .uid = run->job->uid,
				  .process = run->process };
	uint32_t at;

	if (run->note || run->ended || a->keeper.kind == KEEPER_NONE ||
	    !a->table.map)
		return;
	at = table_take(&a->table, &r.serial);
	if (at == TABLE_NONE) {
		record_unkept(a, "a run", "the table of slots is full");
		return;
	}
	memcpy(r.job, run->job->name, sizeof(run->job->name));
	table_put(&a->table, at, &r);
	run->note = at + 1;
}

void record_run_over(void *ctx, struct sk_cat_run *run)
{
	uint32_t at = run->note - 1;

	if (run->note && record_drop(ctx, &at))
		run->note = 0;
}
