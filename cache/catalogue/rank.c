/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the ranks: how they come and go, and what memory they have. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue/private.h"
#include "base/util.h"

/* ---- states ---- */

void sk_cat_state_live(struct sk_cat_state *state, bool living)
{
	struct sk_cat_job *job = state->run->job;
	unsigned one = living ? 1 : -1u;

	assert(state->living != living && (living || job->n_living));
	state->living = living;
	job->n_living += one;
	job->user->n_living += one;
	job->catalogue->n_living += one;
	if (living)
		return;
	state->owner = NULL;
	sk_link_remove(&state->owned);
}

void sk_cat_state_own(struct sk_cat_state *state, void *owner,
		      struct sk_link *list)
{
	assert(state->living && !state->owner);
	state->owner = owner;
	sk_link_insert(list, &state->owned);
}

struct sk_cat_state *sk_cat_state_new(struct sk_cat_run *run, int32_t rank,
				      struct sk_cat_layout *const layouts[2])
{
	struct sk_cat_state *state = calloc(1, sizeof(*state)), *old;

	if (!state)
		return NULL;
	state->run = run;
	state->serial = run->job->catalogue->next_id++;
	if (sk_cat_state_name(state, state->serial) < 0) {
		free(state);
		return NULL;
	}
	assert(layouts[0] && rank >= 0 && rank < run->world);
	/* The one of this rank that tells what the run must cover. */
	sk_link_each(old, &run->states, link) {
		if (old->rank == rank)
			old->replaced = true;
	}
	state->rank = rank;
	sk_link_init(&state->owned);
	sk_cat_state_live(state, true);
	state->numa_node = -1;
	state->layouts[0] = layouts[0];
	state->layouts[1] = layouts[1];
	state->last_step = state->lost_step = -1;
	sk_link_init(&state->slots);
	sk_link_insert(&run->states, &state->link);
	sk_cat_touch_run(run);
	return state;
}

/* What it was filling is lost; says how many images. */
static unsigned drop_filling(struct sk_cat_state *state)
{
	struct sk_cat_slot *slot;
	unsigned lost = 0;

	sk_link_each(slot, &state->slots, link) {
		if (slot->use != SK_CAT_FILLING)
			continue;
		sk_cat_slot_clear(slot);
		lost++;
	}
	return lost;
}

unsigned sk_cat_state_end(struct sk_cat_state *state)
{
	struct sk_cat_run *run = state->run;
	unsigned lost = drop_filling(state);

	assert(state->living);
	sk_cat_state_live(state, false);
	(void)sk_cat_state_name(state, 0);
	run->ended = true;
	sk_cat_touch_run(run);
	return lost;
}

void sk_cat_state_waits(struct sk_cat_state *state)
{
	state->lost_step = -1;
	sk_cat_changed(state->run->job);
}

void sk_cat_state_empty(struct sk_cat_state *state)
{
	struct sk_cat_slot *slot;

	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FREE)
			sk_cat_slot_release(slot);
	}
}

void sk_cat_state_cancel(struct sk_cat_state *state)
{
	struct sk_cat_run *run = state->run;

	sk_cat_state_live(state, false);
	state->replaced = true;
	(void)sk_cat_state_name(state, 0);
	sk_cat_state_empty(state);
	if (!state->n_slots)
		sk_cat_state_free(state);
	sk_cat_touch_run(run);
}

/* Who registers anew between a slot and its seal has more to save in that step
 * and will ask for it again: it is not lost to others. */
static void hand_on_steps(const struct sk_cat_state *state,
			  struct sk_cat_state *next)
{
	const struct sk_cat_slot *slot;

	next->last_step = state->last_step;
	next->lost_step = state->lost_step;
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FILLING &&
		    slot->snapshot->step == state->last_step)
			next->last_step--;
	}
}

unsigned sk_cat_state_replace(struct sk_cat_state *state,
			      struct sk_cat_state *next)
{
	uint64_t id = state->id;
	unsigned lost;
	int r;

	assert(state != next && state->run == next->run);
	assert(state->living && state->rank == next->rank);
	(void)sk_cat_state_name(state, 0);
	r = sk_cat_state_name(next, id);
	assert(r == 0);
	(void)r;
	hand_on_steps(state, next);
	lost = drop_filling(state);
	sk_cat_changed(state->run->job);
	sk_cat_state_live(state, false);
	state->replaced = true;
	sk_cat_state_empty(state);
	return lost;
}

/* ---- slots ---- */

static void add_to(struct sk_cat_amount *used, const struct sk_cat_amount *by,
		   bool more)
{
	assert(more || (used->bytes >= by->bytes && used->fds >= by->fds));
	used->bytes += more ? by->bytes : -by->bytes;
	used->fds += more ? by->fds : -by->fds;
}

void sk_cat_charge(struct sk_cat_job *job, const struct sk_cat_amount *by,
		   bool more)
{
	struct sk_catalogue *cat = job->catalogue;
	struct sk_cat_amount all = { cat->used, cat->used_fds };

	add_to(&all, by, more);
	cat->used = all.bytes;
	cat->used_fds = all.fds;
	add_to(&job->user->used, by, more);
	sk_cat_told_remove(job);
	add_to(&job->used, by, more);
	sk_cat_told_add(job);
}

static void charge(const struct sk_cat_slot *slot, bool more)
{
	const struct sk_cat_amount by = { slot->bytes, slot->fds };

	sk_cat_charge(slot->state->run->job, &by, more);
}

void sk_cat_slot_release(struct sk_cat_slot *slot)
{
	struct sk_catalogue *cat = slot->state->run->job->catalogue;

	assert(slot->state->n_slots);
	sk_cat_wake(slot->state->run->job);
	sk_link_remove(&slot->link);
	sk_link_remove(&slot->detained);
	slot->state->n_slots--;
	charge(slot, false);
	if (cat->release)
		cat->release(cat->ctx, slot);
	free(slot);
}

void sk_cat_slot_noted(const struct sk_cat_slot *slot)
{
	const struct sk_catalogue *cat = slot->state->run->job->catalogue;

	if (cat->noted)
		cat->noted(cat->ctx, slot);
}

uint64_t sk_cat_slot_bytes(const uint64_t image_bytes[2],
			   uint64_t ret_kind_bytes[2])
{
	ret_kind_bytes[0] = sk_round_up(image_bytes[0], SK_PAGE);
	ret_kind_bytes[1] = sk_round_up(image_bytes[1], SK_PAGE);
	return ret_kind_bytes[0] + ret_kind_bytes[1];
}

struct sk_cat_slot *sk_cat_slot_add(struct sk_cat_state *state,
				    const uint64_t kind_bytes[2], void *memory)
{
	struct sk_cat_slot *slot = calloc(1, sizeof(*slot));

	assert(kind_bytes[0] % SK_PAGE == 0 && kind_bytes[1] % SK_PAGE == 0);
	if (!slot)
		return NULL;
	slot->state = state;
	slot->number = state->next_number++;
	slot->kind_bytes[0] = kind_bytes[0];
	slot->kind_bytes[1] = kind_bytes[1];
	slot->bytes = kind_bytes[0] + kind_bytes[1];
	slot->fds = !!kind_bytes[0] + !!kind_bytes[1];
	slot->memory = memory;
	sk_link_init(&slot->detained);
	sk_link_insert(&state->slots, &slot->link);
	state->n_slots++;
	charge(slot, true);
	sk_cat_slot_noted(slot);
	return slot;
}

struct sk_cat_slot *sk_cat_slot_move(struct sk_cat_slot *slot,
				     struct sk_cat_state *state)
{
	assert(slot->state->run->job == state->run->job);
	sk_link_remove(&slot->link);
	sk_cat_wake(state->run->job);
	slot->state->n_slots--;
	slot->state = state;
	slot->number = state->next_number++;
	sk_link_insert(&state->slots, &slot->link);
	state->n_slots++;
	sk_cat_slot_noted(slot);
	return slot;
}

static bool same_sizes(const struct sk_cat_slot *slot,
		       const uint64_t kind_bytes[2])
{
	return slot->kind_bytes[0] == kind_bytes[0] &&
	       slot->kind_bytes[1] == kind_bytes[1];
}

/* A slot that the rank's earlier lives left behind. */
static struct sk_cat_slot *
find_left(const struct sk_cat_state *state, const uint64_t kind_bytes[2],
	  enum sk_cat_slot_use use,
	  bool (*usable)(const struct sk_cat_slot *slot))
{
	struct sk_cat_state *old;
	struct sk_cat_slot *slot;
	struct sk_cat_run *run;

	sk_link_each(run, &state->run->job->runs, link) {
		sk_link_each(old, &run->states, link) {
			if (old->living || old->rank != state->rank)
				continue;
			sk_link_each(slot, &old->slots, link) {
				if (slot->use == use && !slot->detainer &&
				    same_sizes(slot, kind_bytes) &&
				    (!usable || usable(slot)))
					return slot;
			}
		}
	}
	return NULL;
}

struct sk_cat_slot *
sk_cat_slot_inherit(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		    bool (*usable)(const struct sk_cat_slot *slot))
{
	struct sk_cat_slot *slot;

	slot = find_left(state, kind_bytes, SK_CAT_FREE, usable);
	return slot ? sk_cat_slot_move(slot, state) : NULL;
}

struct sk_cat_slot *
sk_cat_slot_adopt(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		  bool (*usable)(const struct sk_cat_slot *slot))
{
	struct sk_cat_slot *slot;

	slot = find_left(state, kind_bytes, SK_CAT_SEALED, usable);
	return slot ? sk_cat_slot_move(slot, state) : NULL;
}
