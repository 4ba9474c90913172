/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the snapshots: found, put in their order, and places among them.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/util.h"
#include "catalogue/private.h"
#include "catalogue/queue.h"

int sk_cat_order(uint64_t run, uint64_t run_id, int64_t step,
		 const struct sk_cat_snapshot *s)
{
	if (run != s->run)
		return run < s->run ? -1 : 1;
	if (step != s->step)
		return step < s->step ? -1 : 1;
	return (run_id > s->run_id) - (run_id < s->run_id);
}

static uint64_t hash_step(int64_t step)
{
	return sk_hash_bytes(sk_hash_seed(), &step, sizeof(step));
}

static bool is_of(const struct sk_cat_snapshot *s, uint64_t run,
		  uint64_t run_id)
{
	return (!run || s->run == run) && (!run_id || s->run_id == run_id);
}

/* The newest of that step. */
static struct sk_cat_snapshot *find_step(const struct sk_cat_job *job,
					 uint64_t run, uint64_t run_id,
					 int64_t step)
{
	struct sk_table_walk walk = sk_table_find(&job->by_step,
						  hash_step(step));
	struct sk_cat_snapshot *best = NULL;
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		struct sk_cat_snapshot *s = (struct sk_cat_snapshot *)at;

		job->catalogue->visits++;
		if (s->step == step && is_of(s, run, run_id) &&
		    (!best || sk_cat_order(s->run, s->run_id, step, best) > 0))
			best = s;
	}
	return best;
}

struct sk_cat_snapshot *sk_cat_snapshot_find(const struct sk_cat_job *job,
					     uint64_t run, uint64_t run_id,
					     int64_t step)
{
	struct sk_cat_snapshot *s, *first = NULL;

	if (step >= 0)
		return find_step(job, run, run_id, step);
	sk_link_each(s, &job->snapshots, link) {
		job->catalogue->visits++;
		if (s->run < run)
			break;
		if (!is_of(s, run, run_id))
			continue;
		if (sk_cat_complete(s))
			return s;
		if (!first || (sk_cat_passed_over(first) &&
			       !sk_cat_passed_over(s)))
			first = s;
	}
	return first;
}

/* ---- places among them ---- */

void sk_cat_cursor_begin(struct sk_cat_cursor *c, struct sk_cat_job *job)
{
	assert(!c->job);
	c->job = job;
	c->at = job->snapshots.next;
	sk_link_init(&c->link);
	sk_link_insert(&job->cursors, &c->link);
}

void sk_cat_cursor_end(struct sk_cat_cursor *c)
{
	if (c->job)
		sk_link_remove(&c->link);
	c->job = NULL;
}

struct sk_cat_snapshot *sk_cat_cursor_at(const struct sk_cat_cursor *c)
{
	return !c->job || c->at == &c->job->snapshots ? NULL :
	       sk_link_object(c->at, struct sk_cat_snapshot, link);
}

void sk_cat_cursor_next(struct sk_cat_cursor *c)
{
	assert(sk_cat_cursor_at(c));
	c->at = c->at->next;
}

/* It goes; what comes next is where they are. */
static void leave_snapshot(struct sk_cat_snapshot *s)
{
	struct sk_cat_job *job = s->job;
	struct sk_cat_cursor *c;

	sk_link_each(c, &job->cursors, link) {
		if (c->at == &s->link)
			c->at = s->link.next;
	}
	if (job->met == s)
		job->met = NULL;
	if (job->leaves == &s->link)
		job->leaves = s->link.prev;
	if (job->next_out == s)
		sk_cat_queue_leave(job);
	sk_cat_wake(job);
	(void)sk_table_remove(&job->by_step, hash_step(s->step),
			      (uintptr_t)s);
	sk_link_remove(&s->link);
}

void sk_cat_snapshot_drop(struct sk_cat_snapshot *s)
{
	while (s->n_images)	/* from the end nothing moves */
		sk_cat_image_drop(s->by_rank[s->n_images - 1]);
	leave_snapshot(s);
	sk_link_remove(&s->live);
	sk_link_remove(&s->undecided);
	sk_link_remove(&s->failing);
	free(s->by_rank);
	free(s->text);
	free(s);
}

static void count_snapshot(const struct sk_cat_snapshot *s, int count)
{
	struct sk_cat_run *run = sk_cat_run_of(s);

	s->job->n_snapshots += (size_t)count;
	s->job->catalogue->n_snapshots += (size_t)count;
	if (count > 0)
		sk_cat_wake_for(s->job, SK_CAT_LEAVE);
	if (run)
		run->n_snapshots += (size_t)count;
}

/* Where to look from for it: they often come in an order, either way. */
static struct sk_link *start_of(const struct sk_cat_job *job, uint64_t run,
				uint64_t run_id, int64_t step)
{
	struct sk_cat_snapshot *met = job->met;
	struct sk_link *at;

	if (!met || sk_cat_order(run, run_id, step, met) <= 0)
		return met ? &met->link : job->snapshots.next;
	at = met->link.prev;
	if (at == &job->snapshots)
		return &met->link;
	/* Right before it, or anywhere. */
	return sk_cat_order(run, run_id, step,
			    sk_link_object(at, struct sk_cat_snapshot,
					   link)) <= 0 ? at :
	       job->snapshots.next;
}

/* Before what it would stand. */
static struct sk_link *place_of(struct sk_cat_job *job, uint64_t run,
				uint64_t run_id, int64_t step)
{
	struct sk_link *at = start_of(job, run, run_id, step);

	for (; at != &job->snapshots; at = at->next) {
		const struct sk_cat_snapshot *s =
			sk_link_object(at, struct sk_cat_snapshot, link);

		job->catalogue->visits++;
		if (sk_cat_order(run, run_id, step, s) > 0)
			break;
	}
	return at;
}

struct sk_cat_snapshot *sk_cat_snapshot_get(struct sk_cat_job *job,
					    uint64_t run, uint64_t run_id,
					    int64_t step, int32_t world)
{
	struct sk_cat_snapshot *s = find_step(job, run, run_id, step);

	if (s)
		return s;
	s = calloc(1, sizeof(*s));
	if (!s || sk_table_add(&job->by_step, hash_step(step),
			       (uintptr_t)s) < 0) {
		free(s);
		return NULL;
	}
	s->job = job;
	s->run = run;
	s->run_id = run_id;
	s->step = step;
	s->world = world;
	sk_link_init(&s->images);
	sk_link_init(&s->live);
	sk_link_init(&s->undecided);
	sk_link_init(&s->failing);
	sk_link_insert(place_of(job, run, run_id, step), &s->link);
	count_snapshot(s, 1);
	return job->met = s;
}

void sk_cat_snapshot_settle(struct sk_cat_snapshot *s)
{
	bool held = s->filling || s->sealed;

	if (!held)
		sk_link_remove(&s->live);
	else if (sk_link_empty(&s->live))
		sk_link_insert(&s->job->live, &s->live);
}

bool sk_cat_snapshot_trim(struct sk_cat_snapshot *s)
{
	if (!sk_link_empty(&s->images) || s->filling) {
		sk_cat_snapshot_settle(s);
		return false;
	}
	assert(!s->sealed);
	count_snapshot(s, -1);
	sk_cat_snapshot_drop(s);
	return true;
}
