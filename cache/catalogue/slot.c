/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, slots: taken, sealed into images, cleared, evicted. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue/pins.h"
#include "catalogue/private.h"
#include "memory/flags.h"

static bool by_cadence(const struct sk_cat_state *state, uint32_t flags)
{
	return !(flags & (SK_SLOT_FLUSH | SK_SLOT_NO_FLUSH)) &&
	       !state->flush_every;
}

static bool step_wanted(const struct sk_cat_snapshot *s,
			const struct sk_cat_slot *slot)
{
	const struct sk_cat_state *state = slot->state;

	if (slot->flags & SK_SLOT_FLUSH)
		return true;
	if (slot->flags & SK_SLOT_NO_FLUSH || state->flush_every == UINT32_MAX)
		return false;
	return state->flush_every ? s->step % state->flush_every == 0 :
				    s->cadence_due;
}

static int check_step(const struct sk_cat_state *state, int64_t step,
		      struct sk_err *err)
{
	const struct sk_cat_run *run = state->run;
	const struct sk_cat_snapshot *s;
	const struct sk_cat_slot *slot;

	s = sk_cat_snapshot_find(run->job, run->number, run->id, step);
	if (s && s->step != step)
		s = NULL;
	if (!s && !sk_cat_run_kept(run, step))
		return 0;
	if (!s || sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY))
		return sk_err_set(err, -EEXIST, "rank %" PRId32 " of job "
				  "\"%s\" has sealed step %" PRId64 " of run %"
				  PRIu64 " already; who goes back to an older "
				  "step begins a run of its own, with a new "
				  "state", state->rank, run->job->name, step,
				  run->number);
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FILLING && slot->snapshot == s)
			return sk_err_set(err, -EEXIST, "rank %" PRId32
					  " of job \"%s\" is filling step %"
					  PRId64 " already", state->rank,
					  run->job->name, step);
	}
	return 0;
}

static bool is_older(const struct sk_cat_snapshot *s,
		     const struct sk_cat_snapshot *than)
{
	return sk_cat_order(s->run, s->run_id, s->step, than) < 0;
}

/* A free slot, else of those that may go first the one with this rank's oldest
 * image. */
static struct sk_cat_slot *choose_slot(const struct sk_cat_state *state)
{
	enum sk_cat_turn turn, first = SK_CAT_STAYS;
	struct sk_cat_slot *slot, *oldest = NULL;

	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FREE)
			return slot;
		turn = slot->use == SK_CAT_SEALED ?
		       sk_cat_turn(slot->snapshot) : SK_CAT_STAYS;
		if (turn == SK_CAT_STAYS)
			continue;
		if (!oldest || turn < first ||
		    (turn == first && is_older(slot->snapshot,
					       oldest->snapshot))) {
			oldest = slot;
			first = turn;
		}
	}
	return oldest;
}

/* Nothing may go, and training goes on: the oldest that is pinned on disk. */
static struct sk_cat_slot *choose_pinned(const struct sk_cat_state *state)
{
	struct sk_cat_slot *slot, *oldest = NULL;

	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_SEALED &&
		    sk_cat_pinned_on_disk(slot->snapshot) &&
		    (!oldest || is_older(slot->snapshot, oldest->snapshot)))
			oldest = slot;
	}
	return oldest;
}

/* Nothing but an operator ends that. */
static int say_held(const struct sk_err *why, struct sk_err *err)
{
	return sk_err_set(err, -EBUSY, "no slot is free: %.*s, skip this "
			  "snapshot, or register more slots", SK_ERR_MAX - 80,
			  why->text);
}

static int say_busy(const struct sk_cat_state *state, struct sk_err *err)
{
	const struct sk_cat_slot *slot;
	struct sk_err held;
	char text[SK_ERR_MAX] = "";
	bool pinned = false;
	size_t at = 0;

	if (sk_cat_state_held(state, &held))
		return say_held(&held, err);
	sk_link_each(slot, &state->slots, link) {
		const char *why = "being filled";

		if (slot->use == SK_CAT_SEALED)
			why = sk_cat_protected(slot->snapshot);
		pinned |= slot->snapshot->pinned;
		if (!why || at >= sizeof(text))
			continue;
		at += (size_t)snprintf(text + at, sizeof(text) - at,
				       "%sstep %" PRId64 " is %s",
				       at ? ", " : "", slot->snapshot->step,
				       why);
	}
	return sk_err_set(err, -EBUSY, "no slot of rank %" PRId32 " of job "
			  "\"%.40s\" is free (%s); skip this snapshot, wait, "
			  "%sor register more slots", state->rank,
			  state->run->job->name, text,
			  pinned ? "unpin some, " : "");
}

void sk_cat_slot_fill(struct sk_cat_slot *slot, struct sk_cat_snapshot *s,
		      uint32_t flags)
{
	struct sk_cat_state *state = slot->state;

	assert(slot->use == SK_CAT_FREE);
	if (by_cadence(state, flags)) {
		s->by_cadence = true;
		s->cadence_due |= sk_cadence_wants(&s->job->cadence, s->step);
	}
	s->filling++;
	slot->use = SK_CAT_FILLING;
	slot->snapshot = s;
	slot->flags = flags;
	slot->fill = s->job->catalogue->next_id++;
	if (s->step > state->last_step)
		state->last_step = s->step;
	if (state->lost_step == s->step)
		state->lost_step = -1;
	sk_cat_slot_noted(slot);
	sk_cat_snapshot_settle(s);
	sk_cat_touch(s);
}

int sk_cat_slot_take(struct sk_cat_state *state, int64_t step, uint32_t flags,
		     bool dry, struct sk_cat_slot **ret_slot,
		     unsigned *ret_evicted, struct sk_err *err)
{
	struct sk_cat_run *run = state->run;
	struct sk_cat_snapshot *s;
	struct sk_cat_slot *slot;
	unsigned evicted;
	int r;

	assert(dry || (ret_slot && ret_evicted));
	r = dry ? 0 : check_step(state, step, err);
	if (r < 0)
		return r;
	slot = choose_slot(state) ? : choose_pinned(state);
	if (!slot && !dry && !(flags & SK_SLOT_WILL_WAIT)) {
		state->lost_step = step;
		sk_cat_changed(run->job);
	}
	if (!slot)
		return say_busy(state, err);
	if (dry)
		return 0;
	s = sk_cat_snapshot_get(run->job, run->number, run->id, step,
				run->world);
	if (!s)
		return sk_err_set(err, -ENOMEM, "no memory for a snapshot");
	assert(slot->use != SK_CAT_FILLING);
	evicted = slot->use == SK_CAT_SEALED;
	s->filling++;
	if (evicted)
		sk_cat_slot_clear(slot);
	s->filling--;
	sk_cat_slot_fill(slot, s, flags);
	*ret_slot = slot;
	*ret_evicted = evicted;
	return 0;
}

/* The image that the slot is to hold; the disk may know it already. */
static struct sk_cat_image *slot_image(struct sk_cat_slot *slot, int kind)
{
	struct sk_cat_layout *layout = slot->state->layouts[kind];
	struct sk_cat_image *image;

	assert(layout && slot->snapshot);
	image = sk_cat_image_find(slot->snapshot, slot->state->rank,
				  (enum sk_image_kind)kind);
	if (image && image->layout != layout) {
		/* The disk has something else under that name: not ours. */
		sk_cat_layout_unref(image->layout);
		image->layout = sk_cat_layout_ref(layout);
		image->stored.dir[0] = 0;
		sk_cat_touch_disk(slot->snapshot);
	}
	if (image)
		return image;
	image = sk_cat_image_new(slot->snapshot, sk_cat_layout_ref(layout));
	if (!image)
		sk_cat_layout_unref(layout);
	return image;
}

int sk_cat_slot_seal(struct sk_cat_slot *slot, uint64_t *const sums[2],
		     uint64_t (*content)[2], uint64_t wall_ns)
{
	struct sk_cat_image *images[2] = { NULL, NULL };
	struct sk_cat_snapshot *s = slot->snapshot;

	assert(slot->use == SK_CAT_FILLING && s->filling);
	assert(!slot->images[0] && !slot->images[1]);
	for (int kind = 0; kind < 2; kind++) {
		if (!slot->state->layouts[kind])
			continue;
		images[kind] = slot_image(slot, kind);
		if (images[kind])
			continue;
		if (kind)
			sk_cat_image_trim(images[0]);
		return -ENOMEM;
	}
	for (int kind = 0; kind < 2; kind++) {
		if (!images[kind])
			continue;
		free(images[kind]->sums);
		images[kind]->sums = sums[kind];
		if (content)
			memcpy(images[kind]->content, content[kind],
			       sizeof(images[kind]->content));
		else
			sk_cat_hash_sums(images[kind]->layout->layout,
					 sums[kind], images[kind]->content);
		images[kind]->slot = slot;
		images[kind]->bad_memory = false;
		slot->images[kind] = images[kind];
	}
	slot->use = SK_CAT_SEALED;
	s->filling--;
	s->sealed++;
	s->known.announce |= !s->known.complete;
	s->hopeless_on_disk = false;
	if (step_wanted(s, slot))
		sk_cat_want(s);
	(void)sk_cat_want_pinned(s);
	if (!s->created_ns)
		s->created_ns = wall_ns;
	sk_cat_slot_noted(slot);
	sk_cat_touch(s);
	return 0;
}

/* Takes the images out of the slot. */
static void empty_slot(struct sk_cat_slot *slot)
{
	for (int kind = 0; kind < 2; kind++) {
		struct sk_cat_image *image = slot->images[kind];

		slot->images[kind] = NULL;
		if (!image)
			continue;
		assert(image->slot == slot);
		image->slot = NULL;
		image->bad_memory = false;
		free(image->sums);
		image->sums = NULL;
		sk_cat_image_trim(image);
	}
}

void sk_cat_slot_clear(struct sk_cat_slot *slot)
{
	struct sk_cat_snapshot *s = slot->snapshot;
	struct sk_cat_state *state = slot->state;
	struct sk_cat_job *job = state->run->job;
	bool was_filling = slot->use == SK_CAT_FILLING;

	if (slot->use == SK_CAT_FREE)
		return;
	assert(s && s->job == job);
	if (was_filling) {
		assert(s->filling);
		s->filling--;
		state->lost_step = s->step;
	} else {
		assert(s->sealed);
		s->sealed--;
	}
	empty_slot(slot);
	slot->use = SK_CAT_FREE;
	slot->snapshot = NULL;
	sk_cat_slot_noted(slot);
	slot->left = slot->detainer && !was_filling;
	if (!state->living && !was_filling && !slot->detainer)
		sk_cat_slot_release(slot);
	sk_cat_changed(job);
	if (!sk_cat_snapshot_trim(s))
		sk_cat_touch(s);
}

unsigned sk_cat_evict_memory(struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;
	unsigned evicted = 0;
	bool more = true;

	while (more) {
		more = false;
		sk_link_each(image, &s->images, link) {
			struct sk_cat_slot *slot = image->slot;

			if (!slot)
				continue;
			evicted++;
			more = true;
			/* Both kinds go with the slot, and with the last
			 * slot the snapshot. */
			s->filling++;
			sk_cat_slot_clear(slot);
			s->filling--;
			break;
		}
	}
	(void)sk_cat_snapshot_trim(s);
	return evicted;
}
