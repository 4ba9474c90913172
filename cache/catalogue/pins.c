/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue, pins: what is pinned in memory alone is to be on disk, and a rank
 * whose slots are all held by pins is told so.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue/pins.h"
#include "catalogue/private.h"

/* All that memory has of it, but for replicas, which others have as well. */
static bool is_written(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->kind == SK_IMAGE_PRIMARY && !sk_cat_on_store(image))
			return false;
	}
	return true;
}

/* All of it, or all that there ever is of it here. */
static bool is_on_disk(const struct sk_cat_snapshot *s)
{
	return sk_cat_on_disk(s) || (sk_cat_local(s) && is_written(s));
}

bool sk_cat_pinned_on_disk(const struct sk_cat_snapshot *s)
{
	return s->pin_stored && !s->leases && !s->flushing && !s->filling &&
	       s != sk_cat_newest_for(s) && is_on_disk(s);
}

bool sk_cat_pin_missing(const struct sk_cat_snapshot *s)
{
	return s->pinned && !s->pin_stored && !s->pin_settling &&
	       !s->pinning && !s->unpinning && !s->flushing && is_on_disk(s);
}

/* ---- to disk ---- */

bool sk_cat_goes_to_disk(const struct sk_cat_snapshot *s)
{
	return !sk_link_empty(&s->live) && sk_cat_awaits_disk(s) &&
	       !sk_cat_hopeless(s);
}

void sk_cat_want(struct sk_cat_snapshot *s)
{
	s->wanted = true;
	s->wanted_by_pin = false;
	sk_cat_wake(s->job);
}

/* What memory has of it, if it is anything, nobody's policy keeps there. */
static bool may_be_written(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_image *image;
	bool any = false;

	sk_link_each(image, &s->images, link) {
		if (!image->slot)
			continue;
		if (image->slot->state->flush_every == UINT32_MAX)
			return false;
		any = true;
	}
	return any;
}

bool sk_cat_want_pinned(struct sk_cat_snapshot *s)
{
	if (!s->pinned || s->unpinning)
		return false;
	/* It may hold a slot for good from now on. */
	sk_cat_wake(s->job);
	if (s->wanted || !s->job->catalogue->has_store || !may_be_written(s) ||
	    is_on_disk(s))
		return false;
	sk_cat_want(s);
	s->wanted_by_pin = true;
	return true;
}

void sk_cat_unwant_pinned(struct sk_cat_snapshot *s)
{
	if (!s->pinned && s->wanted_by_pin)
		s->wanted = s->wanted_by_pin = false;
	s->pin_failed &= s->pinned;
	sk_cat_wake(s->job);
}

/* ---- what holds a rank's slots ---- */

enum hold {
	HOLD_NONE,		/* it is to be had, now or once what is under
				 * way has ended */
	HOLD_NEWEST,
	HOLD_PIN
};

/* The disk will have it and its pin, as far as one can tell. */
static bool is_under_way(const struct sk_cat_snapshot *s)
{
	if (s->failed || s->pin_failed)
		return false;
	return s->flushing || s->pin_settling || s->pinning ||
	       sk_cat_goes_to_disk(s);
}

static enum hold hold_of(const struct sk_cat_slot *slot)
{
	const struct sk_cat_snapshot *s = slot->snapshot;

	if (slot->use != SK_CAT_SEALED || sk_cat_undecided(s) ||
	    sk_cat_turn(s) != SK_CAT_STAYS)
		return HOLD_NONE;
	if (s == sk_cat_newest_for(s))
		return HOLD_NEWEST;
	return s->pinned && !(s->pin_stored && is_on_disk(s)) &&
	       !is_under_way(s) ? HOLD_PIN : HOLD_NONE;
}

struct held {
	unsigned slots, pinned;
	const struct sk_cat_snapshot *first;	/* the oldest that is pinned */
	char steps[80];				/* "3, 4", as many as fit */
};

static void note_pinned(struct held *h, const struct sk_cat_snapshot *s)
{
	size_t at = strlen(h->steps);
	const char *cut = at + 24 > sizeof(h->steps) ? "..." : NULL;

	if (!h->first || s->run < h->first->run ||
	    (s->run == h->first->run && s->step < h->first->step))
		h->first = s;
	h->pinned++;
	if (cut && at > 3 && strcmp(h->steps + at - 3, cut) == 0)
		return;
	if (cut)
		(void)snprintf(h->steps + at, sizeof(h->steps) - at, ", %s",
			       cut);
	else
		(void)snprintf(h->steps + at, sizeof(h->steps) - at,
			       "%s%" PRId64, at ? ", " : "", s->step);
}

static const char *why_not_written(const struct sk_cat_snapshot *s)
{
	return s->failed ? sk_cat_failure(s) :
	       s->pin_failed ? "its pin cannot be written" :
	       sk_cat_hopeless(s) ? "it will not be complete" : "";
}

/* What else than to unpin it; a step that will not be complete no disk gets. */
static const char *remedy_of(const struct sk_cat_snapshot *s)
{
	return sk_cat_hopeless(s) ? " (cachectl)" :
	       s->job->catalogue->has_store ? " or flush it (cachectl)" :
	       " (cachectl), or give the agent a store";
}

static void say_held(const struct sk_cat_state *state, const struct held *h,
		     struct sk_err *why)
{
	const struct sk_cat_job *job = state->run->job;
	const char *failed = why_not_written(h->first);

	(void)sk_err_set(why, 0, "%u of the %u slots of rank %" PRId32
			 " of job \"%.40s\" %s what is pinned in memory alone "
			 "(step%s %s)%s%.90s; unpin step %" PRId64 "%s",
			 h->pinned, h->slots, state->rank, job->name,
			 h->pinned == 1 ? "has" : "have",
			 h->pinned == 1 ? "" : "s", h->steps,
			 *failed ? ", which is not written: " : "", failed,
			 h->first->step, remedy_of(h->first));
}

unsigned sk_cat_state_held(const struct sk_cat_state *state,
			   struct sk_err *why)
{
	const struct sk_cat_slot *slot;
	struct held h = { 0 };

	sk_link_each(slot, &state->slots, link) {
		enum hold hold = hold_of(slot);

		state->run->job->catalogue->visits++;
		if (hold == HOLD_NONE)
			return 0;
		h.slots++;
		if (hold == HOLD_PIN)
			note_pinned(&h, slot->snapshot);
	}
	if (h.pinned)
		say_held(state, &h, why);
	return h.pinned;
}
