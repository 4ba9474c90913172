/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the rules: what stays, what goes to disk, what is in use. */
#include <stdlib.h>
#include <string.h>

#include "catalogue/private.h"

/* As good as complete, as far as this agent can ever tell. */
static bool counts(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_run *run;

	if (sk_cat_complete(s))
		return true;
	run = sk_cat_local(s) ? sk_cat_run_of(s) : NULL;
	return run && run->apart;
}

/* ---- what a run began with ---- */

void sk_cat_run_began(const struct sk_cat_run *run,
		      const struct sk_cat_begun *with)
{
	struct sk_cat_job *job = run->job;

	if (!with->run || run->number < job->begun.by)
		return;
	job->begun = *with;
	job->begun.by = run->number;
	sk_cat_changed(job);
}

bool sk_cat_is_begun(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_begun *b = &s->job->begun;

	return b->run && !sk_cat_order(b->run, b->run_id, b->step, s);
}

bool sk_cat_passed_over(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_begun *b = &s->job->begun;

	return b->newest && s->run < b->by &&
	       sk_cat_order(b->run, b->run_id, b->step, s) < 0 &&
	       !sk_cat_complete(s) && !sk_cat_undecided(s);
}

bool sk_cat_begun_with(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest;

	if (!sk_cat_is_begun(s))
		return false;
	newest = sk_cat_newest(s->job);
	return !newest || newest->run < s->job->begun.by;
}

/* ---- the newest ---- */

/* Of what all nodes had, it is the newest that was whole. */
static bool is_whole_elsewhere(const struct sk_cat_snapshot *s)
{
	return s->job->begun.newest && sk_cat_is_begun(s);
}

struct sk_cat_snapshot *sk_cat_newest(const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s, *local = NULL;

	sk_link_each(s, &job->snapshots, link) {
		job->catalogue->visits++;
		if (sk_cat_passed_over(s))
			continue;
		if (counts(s) || is_whole_elsewhere(s))
			return s;
		if (!local && sk_cat_local(s))
			local = s;
	}
	return local;
}

static bool is_newer(const struct sk_cat_snapshot *s,
		     const struct sk_cat_snapshot *than)
{
	return !than || sk_cat_order(s->run, s->run_id, s->step, than) > 0;
}

/* The newest complete one that counts for @s: what a stranger of the same
 * number has on disk is no reason to give up what this run has in memory. */
const struct sk_cat_snapshot *
sk_cat_newest_for(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest = sk_cat_newest(s->job), *own;

	if (!newest || newest->run != s->run || newest->run_id == s->run_id)
		return newest;
	sk_link_each(own, &s->job->snapshots, link) {
		s->job->catalogue->visits++;
		if (own->run < s->run)
			break;
		if (own->run == s->run && own->run_id == s->run_id &&
		    counts(own) && !sk_cat_passed_over(own))
			return own;
	}
	return NULL;
}

bool sk_cat_awaits_disk(const struct sk_cat_snapshot *s)
{
	return s->job->catalogue->has_store && s->wanted &&
	       !s->hopeless_on_disk && !sk_cat_on_disk(s);
}

/* ---- what stays ---- */

static const char newest_complete[] = "the newest complete snapshot";
static const char begun_with[] = "what its job was restored from";

const char *sk_cat_protected(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest;

	if (s->leases)
		return "in use by a restore";
	if (s->flushing)
		return "being flushed";
	if (s->pinned)
		return "pinned";
	newest = sk_cat_newest_for(s);
	if (s == newest)
		return newest_complete;
	/* A disk that fails must not take the slots as well: a newer snapshot
	 * is complete, and is tried in its stead. */
	if (!s->failed && sk_cat_awaits_disk(s)) {
		if (sk_cat_complete(s) || sk_cat_local(s))
			return "not durable yet";
		if (sk_cat_undecided(s))
			return "not known to be complete yet";
	}
	if (sk_cat_passed_over(s))
		return NULL;
	if (is_newer(s, newest) && !sk_cat_hopeless(s))
		return "newer than the newest complete snapshot, and may "
		       "still become complete";
	return sk_cat_begun_with(s) ? begun_with : NULL;
}

/* It is of a life before, and all ranks that this one has here have sealed
 * something: who restored together had all ranks registered. Where slots are
 * as few as that takes, no other would ever follow. */
static bool is_followed(const struct sk_cat_snapshot *newest)
{
	const struct sk_cat_job *job = newest->job;
	const struct sk_cat_snapshot *s;

	if (newest->run >= job->begun.by)
		return false;
	sk_link_each(s, &job->snapshots, link) {
		job->catalogue->visits++;
		if (s->run < job->begun.by)
			break;
		if (sk_cat_local(s))
			return true;
	}
	return false;
}

enum sk_cat_turn sk_cat_turn(const struct sk_cat_snapshot *s)
{
	const char *why = sk_cat_protected(s);

	if (why == begun_with)
		return SK_CAT_LAST;
	if (why)
		return why == newest_complete && is_followed(s) ?
		       SK_CAT_FOLLOWED : SK_CAT_STAYS;
	return sk_cat_passed_over(s) ? SK_CAT_FIRST : SK_CAT_AS_OLD;
}

/* ---- disk, and what is in use ---- */

bool sk_cat_flushable(const struct sk_cat_snapshot *s)
{
	return !s->flushing && sk_cat_awaits_disk(s) &&
	       (sk_cat_complete(s) || sk_cat_local(s)) && !sk_cat_undecided(s);
}

void sk_cat_set_failure(struct sk_cat_snapshot *s, const char *text)
{
	sk_link_remove(&s->failing);
	if (text)
		sk_link_insert(&s->job->catalogue->failing, &s->failing);
	free(s->text);
	s->failed = text;
	s->text = text ? strdup(text) : NULL;
}

const char *sk_cat_failure(const struct sk_cat_snapshot *s)
{
	return s->text ? s->text : s->failed ? "it could not be flushed" : "";
}

void sk_cat_fault_set(struct sk_cat_job *job, int64_t step, const char *text)
{
	struct sk_cat_fault *f = &job->fault;

	if (sk_link_empty(&f->link))
		sk_link_insert(&job->catalogue->faults, &f->link);
	free(f->text);
	f->text = strdup(text);
	f->step = step;
}

void sk_cat_fault_end(struct sk_cat_job *job)
{
	struct sk_cat_fault *f = &job->fault;

	sk_link_remove(&f->link);
	free(f->text);
	*f = (struct sk_cat_fault){ .text = NULL };
	sk_link_init(&f->link);
}

void sk_cat_image_bad(struct sk_cat_image *image, bool disk, uint32_t entry)
{
	if (disk)
		image->bad_disk = true;
	else
		image->bad_memory = true;
	image->bad_entry[disk] = entry;
	if (image->slot)
		sk_cat_slot_noted(image->slot);
	sk_cat_touch_disk(image->snapshot);
}

const char *sk_cat_damaged(const struct sk_cat_image *image, bool disk)
{
	const struct sk_layout *l = image->layout->layout;
	uint32_t entry = image->bad_entry[disk];

	if (!entry || entry > l->n_entries)
		return NULL;
	return l->items[l->entries[entry - 1].item].spec.name;
}

void sk_cat_lease(struct sk_cat_image *image, int count)
{
	struct sk_cat_snapshot *s = image->snapshot;

	image->leases = (unsigned)((int)image->leases + count);
	s->leases = (unsigned)((int)s->leases + count);
	sk_cat_image_trim(image);
	(void)sk_cat_snapshot_trim(s);
}
