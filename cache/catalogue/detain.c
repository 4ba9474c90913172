/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, slots whose writer may not be gone yet: nobody else gets them, and
 * the budget counts them, until their owner says that it is. */
#include <assert.h>

#include "catalogue/private.h"

static void detain(struct sk_cat_slot *slot, void *detainer)
{
	struct sk_catalogue *cat = slot->state->run->job->catalogue;

	assert(detainer);
	slot->detainer = detainer;
	sk_link_remove(&slot->detained);
	sk_link_insert(&cat->detained, &slot->detained);
}

void sk_cat_state_detain(struct sk_cat_state *state, void *detainer)
{
	struct sk_cat_slot *slot;

	sk_link_each(slot, &state->slots, link)
		detain(slot, detainer);
}

bool sk_cat_filling_detain(struct sk_cat_state *state, void *detainer)
{
	struct sk_cat_slot *slot;
	bool any = false;

	sk_link_each(slot, &state->slots, link) {
		if (slot->use != SK_CAT_FILLING)
			continue;
		detain(slot, detainer);
		any = true;
	}
	return any;
}

static void let_go(struct sk_cat_slot *slot)
{
	slot->detainer = NULL;
	sk_link_remove(&slot->detained);
	sk_cat_changed(slot->state->run->job);
	if (slot->left && slot->use == SK_CAT_FREE && !slot->state->living)
		sk_cat_slot_release(slot);
	else
		slot->left = false;
}

void sk_cat_detain_end(struct sk_catalogue *cat, const void *detainer)
{
	struct sk_cat_slot *slot;

	sk_link_each(slot, &cat->detained, detained) {
		cat->visits++;
		if (slot->detainer == detainer)
			let_go(slot);
	}
}

uint64_t sk_cat_detained(const struct sk_catalogue *cat, const void *detainer)
{
	const struct sk_cat_slot *slot;
	uint64_t bytes = 0;

	sk_link_each(slot, &cat->detained, detained) {
		if (!detainer || slot->detainer == detainer)
			bytes += slot->bytes;
	}
	return bytes;
}

static bool any_detained(const struct sk_cat_state *state)
{
	const struct sk_cat_slot *slot;

	sk_link_each(slot, &state->slots, link) {
		if (slot->detainer)
			return true;
	}
	return false;
}

bool sk_cat_rank_detained(const struct sk_cat_job *job, int32_t rank)
{
	const struct sk_cat_state *state;
	const struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link)
		sk_link_each(state, &run->states, link)
			if (state->rank == rank && any_detained(state))
				return true;
	return false;
}
