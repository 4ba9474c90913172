/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the objects: finding, making and dropping them. */
#include "catalogue/catalogue.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "catalogue/private.h"

void sk_cat_init(struct sk_catalogue *cat)
{
	*cat = (struct sk_catalogue){ .next_id = 1, .next_layout = 1 };
	sk_link_init(&cat->jobs);
}

/* ---- layouts ---- */

/* Sketches have no headers. */
static bool same_layout(const struct sk_layout *a, const struct sk_layout *b)
{
	return sk_digest_equal(&a->digest, &b->digest) &&
	       a->header_bytes == b->header_bytes &&
	       (!a->header || !b->header ||
		memcmp(a->header, b->header, a->header_bytes) == 0);
}

static uint64_t hash_layout(const struct sk_layout *layout)
{
	return sk_hash_bytes(sk_hash_seed(), layout->digest.bytes,
			     sizeof(layout->digest.bytes));
}

static struct sk_cat_layout *find_layout(const struct sk_catalogue *cat,
					 const struct sk_layout *layout)
{
	struct sk_table_walk walk = sk_table_find(&cat->layouts,
						  hash_layout(layout));
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		struct sk_cat_layout *known = (struct sk_cat_layout *)at;

		if (same_layout(known->layout, layout))
			return known;
	}
	return NULL;
}

/* Of two equal ones a sketch goes first. */
static void prefer_whole(struct sk_cat_layout *known, struct sk_layout *layout)
{
	struct sk_layout *other = layout;

	if (layout->header && !known->layout->header) {
		other = known->layout;
		known->layout = layout;
		known->catalogue->layout_bytes += sk_layout_memory(layout) -
						  sk_layout_memory(other);
	}
	sk_layout_free(other);
}

struct sk_cat_layout *sk_cat_layout_take(struct sk_catalogue *cat,
					 struct sk_layout *layout)
{
	struct sk_cat_layout *known = find_layout(cat, layout);

	if (known) {
		prefer_whole(known, layout);
		return sk_cat_layout_ref(known);
	}
	known = calloc(1, sizeof(*known));
	if (!known || sk_table_add(&cat->layouts, hash_layout(layout),
				   (uintptr_t)known) < 0) {
		free(known);
		sk_layout_free(layout);
		return NULL;
	}
	known->catalogue = cat;
	known->layout = layout;
	known->refs = 1;
	known->id = cat->next_layout++;
	sk_cat_layout_mark(known);
	cat->layout_bytes += sk_layout_memory(layout);
	return known;
}

struct sk_cat_layout *sk_cat_layout_ref(struct sk_cat_layout *layout)
{
	assert(!layout || layout->refs);
	if (layout)
		layout->refs++;
	return layout;
}

void sk_cat_layout_unref(struct sk_cat_layout *layout)
{
	assert(!layout || layout->refs);
	if (!layout || --layout->refs)
		return;
	layout->catalogue->layout_bytes -= sk_layout_memory(layout->layout);
	(void)sk_table_remove(&layout->catalogue->layouts,
			      hash_layout(layout->layout), (uintptr_t)layout);
	sk_layout_free(layout->layout);
	free(layout);
}

/* ---- images ---- */

static bool is_before(const struct sk_cat_image *image, int32_t rank,
		      enum sk_image_kind kind)
{
	return image->rank < rank ||
	       (image->rank == rank && image->kind < kind);
}

/* Where the image of that rank and kind stands in by_rank, or would: by rank,
 * then kind. */
static size_t image_place(const struct sk_cat_snapshot *s, int32_t rank,
			  enum sk_image_kind kind)
{
	return sk_count_before(s->n_images, i,
			       is_before(s->by_rank[i], rank, kind));
}

struct sk_cat_image *sk_cat_image_find(const struct sk_cat_snapshot *s,
				       int32_t rank, enum sk_image_kind kind)
{
	size_t at = image_place(s, rank, kind);

	if (at == s->n_images || s->by_rank[at]->rank != rank ||
	    s->by_rank[at]->kind != kind)
		return NULL;
	return s->by_rank[at];
}

/* There is room. Moving pointers up is next to nothing beside what each image
 * costs otherwise, and from the disk they come in order. */
static void insert_image(struct sk_cat_snapshot *s, struct sk_cat_image *image)
{
	size_t at = image_place(s, image->rank, image->kind);

	assert(s->n_images < s->room_images);
	sk_link_insert(at < s->n_images ? &s->by_rank[at]->link : &s->images,
		       &image->link);
	memmove(&s->by_rank[at + 1], &s->by_rank[at],
		(s->n_images++ - at) * sizeof(*s->by_rank));
	s->by_rank[at] = image;
}

static void remove_image(struct sk_cat_snapshot *s, struct sk_cat_image *image)
{
	size_t at = image_place(s, image->rank, image->kind);

	assert(at < s->n_images && s->by_rank[at] == image);
	memmove(&s->by_rank[at], &s->by_rank[at + 1],
		(--s->n_images - at) * sizeof(*s->by_rank));
	sk_link_remove(&image->link);
}

struct sk_cat_image *sk_cat_image_by_id(const struct sk_catalogue *cat,
					uint64_t id)
{
	/* Ids are never given twice: each is a hash of its own. */
	struct sk_table_walk walk = sk_table_find(&cat->images, id);
	uintptr_t at;

	return sk_table_next(&walk, &at) ? (struct sk_cat_image *)at : NULL;
}

struct sk_cat_image *sk_cat_image_new(struct sk_cat_snapshot *snapshot,
				      struct sk_cat_layout *layout)
{
	struct sk_catalogue *cat = snapshot->job->catalogue;
	struct sk_cat_image *image = calloc(1, sizeof(*image));

	assert(layout && layout->refs);
	assert(!sk_cat_image_find(snapshot, layout->layout->rank,
				  layout->layout->kind));
	if (!image ||
	    sk_array_fit(snapshot->by_rank, snapshot->room_images,
			 snapshot->n_images + 1) < 0 ||
	    sk_table_add(&cat->images, cat->next_id, (uintptr_t)image) < 0) {
		free(image);
		return NULL;
	}
	image->snapshot = snapshot;
	image->layout = layout;
	image->rank = layout->layout->rank;
	image->kind = layout->layout->kind;
	image->id = cat->next_id++;
	insert_image(snapshot, image);
	return image;
}

static void image_free(struct sk_cat_image *image)
{
	bool known = sk_table_remove(&image->snapshot->job->catalogue->images,
				     image->id, (uintptr_t)image);

	assert(known);
	(void)known;
	remove_image(image->snapshot, image);
	sk_cat_layout_unref(image->layout);
	free(image->sums);
	free(image);
}

void sk_cat_image_trim(struct sk_cat_image *image)
{
	if (!image->slot && !image->stored.dir[0] && !image->leases)
		image_free(image);
}

/* ---- snapshots ---- */

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
		if (!first)
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
	(void)sk_table_remove(&job->by_step, hash_step(s->step),
			      (uintptr_t)s);
	sk_link_remove(&s->link);
}

static void count_snapshot(const struct sk_cat_snapshot *s, int count)
{
	struct sk_cat_run *run = sk_cat_run_of(s);

	s->job->n_snapshots += (size_t)count;
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
	assert(!s->n_images && !s->sealed);
	count_snapshot(s, -1);
	leave_snapshot(s);
	sk_link_remove(&s->live);
	sk_link_remove(&s->undecided);
	free(s->by_rank);
	free(s->text);
	free(s);
	return true;
}

/* ---- slots and states ---- */

void sk_cat_slot_release(struct sk_cat_slot *slot)
{
	struct sk_catalogue *cat = slot->state->run->job->catalogue;

	assert(slot->state->n_slots);
	assert(cat->used >= slot->bytes && cat->used_fds >= slot->fds);
	sk_link_remove(&slot->link);
	slot->state->n_slots--;
	cat->used -= slot->bytes;
	cat->used_fds -= slot->fds;
	if (cat->release)
		cat->release(cat->ctx, slot);
	free(slot);
}

void sk_cat_state_free(struct sk_cat_state *state)
{
	assert(!state->n_slots && sk_link_empty(&state->slots));
	sk_link_remove(&state->link);
	sk_cat_layout_unref(state->layouts[0]);
	sk_cat_layout_unref(state->layouts[1]);
	free(state);
}

struct sk_cat_state *sk_cat_state_find(const struct sk_cat_run *run,
				       int32_t rank)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->rank == rank && !state->replaced)
			return state;
	}
	return NULL;
}

/* ---- runs and jobs ---- */

struct sk_cat_run *sk_cat_run_find(const struct sk_cat_job *job,
				   uint64_t number, uint64_t id)
{
	struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link) {
		if ((!number || run->number == number) &&
		    (!id || run->id == id))
			return run;
	}
	return NULL;
}

struct sk_cat_run *sk_cat_run_of(const struct sk_cat_snapshot *s)
{
	return sk_cat_run_find(s->job, s->run, s->run_id);
}

bool sk_cat_run_living(const struct sk_cat_run *run)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->living)
			return true;
	}
	return false;
}

uint32_t sk_cat_run_ranks(const struct sk_cat_run *run)
{
	struct sk_cat_state *state;
	uint32_t n = 0;

	sk_link_each(state, &run->states, link)
		n += state->living;
	return n;
}

struct sk_cat_job *sk_cat_job_find(struct sk_catalogue *cat, const char *name,
				   uid_t uid)
{
	struct sk_cat_job *job;

	sk_link_each(job, &cat->jobs, link) {
		if (job->uid == uid && strcmp(job->name, name) == 0)
			return job;
	}
	return NULL;
}

struct sk_cat_job *sk_cat_job_get(struct sk_catalogue *cat, const char *name,
				  uid_t uid)
{
	struct sk_cat_job *job = sk_cat_job_find(cat, name, uid);

	assert(strlen(name) < sizeof(job->name));
	if (job)
		return job;
	job = calloc(1, sizeof(*job));
	if (!job)
		return NULL;
	job->catalogue = cat;
	job->uid = uid;
	(void)snprintf(job->name, sizeof(job->name), "%s", name);
	sk_link_init(&job->runs);
	sk_link_init(&job->snapshots);
	sk_link_init(&job->cursors);
	sk_link_init(&job->live);
	sk_link_init(&job->undecided);
	sk_link_init(&job->verdict_order);
	job->changes = 1;
	sk_link_insert(&cat->jobs, &job->link);
	return job;
}

uint64_t sk_cat_job_bytes(const struct sk_cat_job *job)
{
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;
	struct sk_cat_run *run;
	uint64_t bytes = 0;

	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
	sk_link_each(slot, &state->slots, link)
		bytes += slot->bytes;
	return bytes;
}

static bool run_held(const struct sk_cat_run *run)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->living || state->n_slots)
			return true;
	}
	return false;
}

static void run_free(struct sk_cat_run *run)
{
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;

	sk_link_each(state, &run->states, link) {
		sk_link_each(slot, &state->slots, link)
			sk_cat_slot_release(slot);
		sk_cat_state_free(state);
	}
	sk_link_remove(&run->link);
	free(run->kept);
	free(run);
}

/* A run is done with when nothing but its number is left. */
static void run_trim(struct sk_cat_run *run)
{
	/* Its layouts tell what its snapshots must cover. */
	if (!run->n_snapshots && !run_held(run))
		run_free(run);
}

static void job_free(struct sk_cat_job *job)
{
	struct sk_catalogue *cat = job->catalogue;
	struct sk_cat_snapshot *s;
	struct sk_cat_cursor *c;
	struct sk_cat_run *run;

	sk_link_each(c, &job->cursors, link)
		sk_cat_cursor_end(c);
	sk_link_each(run, &job->runs, link)
		run_free(run);
	sk_link_each(s, &job->snapshots, link) {
		while (s->n_images)	/* from the end nothing moves */
			image_free(s->by_rank[s->n_images - 1]);
		leave_snapshot(s);
		free(s->by_rank);
		free(s->text);
		free(s);
	}
	sk_table_free(&job->by_step);
	sk_cat_verdicts_free(job);
	sk_link_remove(&job->link);
	if (cat->forget)
		cat->forget(cat->ctx, job);
	free(job);
}

/* A rank that came back, or registered anew, tells all that the one before it
 * told; without slots that one has nothing more. */
static void forget_replaced(struct sk_cat_run *run)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->replaced && !state->living && !state->n_slots)
			sk_cat_state_free(state);
	}
}

bool sk_cat_job_trim(struct sk_cat_job *job)
{
	struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link)
		forget_replaced(run);
	sk_link_each(run, &job->runs, link) {
		/* The newest one tells who joins whom. */
		if (run->number != job->newest_run)
			run_trim(run);
	}
	sk_link_each(run, &job->runs, link) {
		if (run_held(run))
			return false;
	}
	if (!sk_link_empty(&job->snapshots))
		return false;
	job_free(job);
	return true;
}

void sk_cat_destroy(struct sk_catalogue *cat)
{
	struct sk_cat_job *job;

	sk_link_each(job, &cat->jobs, link)
		job_free(job);
	assert(!cat->images.count);
	sk_table_free(&cat->images);
	sk_table_free(&cat->layouts);
}
