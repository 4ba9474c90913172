/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the objects: finding, making and dropping them. */
#include "catalogue.h"

#include <stdio.h>
#include <string.h>

#include "catalogue-private.h"
#include "util.h"

void sk_cat_init(struct sk_catalogue *cat)
{
	*cat = (struct sk_catalogue){ .next_id = 1, .next_layout = 1 };
	sk_link_init(&cat->jobs);
	sk_link_init(&cat->layouts);
	for (unsigned i = 0; i < SK_CAT_BUCKETS; i++)
		sk_link_init(&cat->buckets[i]);
}

/* ---- layouts ---- */

static bool same_layout(const struct sk_layout *a, const struct sk_layout *b)
{
	return sk_digest_equal(&a->digest, &b->digest) &&
	       a->header_bytes == b->header_bytes &&
	       memcmp(a->header, b->header, a->header_bytes) == 0;
}

struct sk_cat_layout *sk_cat_layout_take(struct sk_catalogue *cat,
					 struct sk_layout *layout)
{
	struct sk_cat_layout *known;

	sk_link_each(known, &cat->layouts, link) {
		if (!same_layout(known->layout, layout))
			continue;
		sk_layout_free(layout);
		return sk_cat_layout_ref(known);
	}
	known = calloc(1, sizeof(*known));
	if (!known) {
		sk_layout_free(layout);
		return NULL;
	}
	known->layout = layout;
	known->refs = 1;
	known->id = cat->next_layout++;
	sk_link_insert(&cat->layouts, &known->link);
	return known;
}

struct sk_cat_layout *sk_cat_layout_ref(struct sk_cat_layout *layout)
{
	if (layout)
		layout->refs++;
	return layout;
}

void sk_cat_layout_unref(struct sk_cat_layout *layout)
{
	if (!layout || --layout->refs)
		return;
	sk_link_remove(&layout->link);
	sk_layout_free(layout->layout);
	free(layout);
}

/* ---- images ---- */

/* By rank, then kind. */
static struct sk_link *image_place(struct sk_cat_snapshot *snapshot,
				   int32_t rank, enum sk_image_kind kind)
{
	struct sk_cat_image *image;

	sk_link_each(image, &snapshot->images, link) {
		if (image->rank > rank ||
		    (image->rank == rank && image->kind >= kind))
			return &image->link;
	}
	return &snapshot->images;
}

struct sk_cat_image *sk_cat_image_find(const struct sk_cat_snapshot *snapshot,
				       int32_t rank, enum sk_image_kind kind)
{
	struct sk_cat_image *image;

	sk_link_each(image, &snapshot->images, link) {
		if (image->rank == rank && image->kind == kind)
			return image;
	}
	return NULL;
}

struct sk_cat_image *sk_cat_image_by_id(const struct sk_catalogue *cat,
					uint64_t id)
{
	const struct sk_link *head = &cat->buckets[id % SK_CAT_BUCKETS];
	struct sk_cat_image *image;

	sk_link_each(image, head, bucket) {
		if (image->id == id)
			return image;
	}
	return NULL;
}

struct sk_cat_image *sk_cat_image_new(struct sk_cat_snapshot *snapshot,
				      struct sk_cat_layout *layout)
{
	struct sk_catalogue *cat = snapshot->job->catalogue;
	struct sk_cat_image *image = calloc(1, sizeof(*image));

	if (!image)
		return NULL;
	image->snapshot = snapshot;
	image->layout = layout;
	image->rank = layout->layout->rank;
	image->kind = layout->layout->kind;
	image->id = cat->next_id++;
	sk_link_insert(image_place(snapshot, image->rank, image->kind),
		       &image->link);
	sk_link_insert(&cat->buckets[image->id % SK_CAT_BUCKETS],
		       &image->bucket);
	return image;
}

static void image_free(struct sk_cat_image *image)
{
	sk_link_remove(&image->link);
	sk_link_remove(&image->bucket);
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

int sk_cat_order(uint64_t run, int64_t step,
		 const struct sk_cat_snapshot *snapshot)
{
	if (run != snapshot->run)
		return run < snapshot->run ? -1 : 1;
	return (step > snapshot->step) - (step < snapshot->step);
}

struct sk_cat_snapshot *sk_cat_snapshot_find(const struct sk_cat_job *job,
					     uint64_t run, int64_t step)
{
	struct sk_cat_snapshot *s, *first = NULL;

	sk_link_each(s, &job->snapshots, link) {
		if (run && s->run != run)
			continue;
		if (step >= 0 && s->step == step)
			return s;
		if (step < 0 && s->complete)
			return s;
		if (step < 0 && !first)
			first = s;
	}
	return first;
}

struct sk_cat_snapshot *sk_cat_snapshot_get(struct sk_cat_job *job,
					    uint64_t run, int64_t step,
					    int32_t world)
{
	struct sk_link *at = &job->snapshots;
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		int order = sk_cat_order(run, step, s);

		if (order == 0)
			return s;
		if (order > 0) {
			at = &s->link;
			break;
		}
	}
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->job = job;
	s->run = run;
	s->step = step;
	s->world = world;
	sk_link_init(&s->images);
	sk_link_insert(at, &s->link);
	return s;
}

bool sk_cat_snapshot_trim(struct sk_cat_snapshot *s)
{
	if (!sk_link_empty(&s->images) || s->filling)
		return false;
	sk_link_remove(&s->link);
	free(s);
	return true;
}

/* ---- slots and states ---- */

void sk_cat_slot_release(struct sk_cat_slot *slot)
{
	struct sk_catalogue *cat = slot->state->run->job->catalogue;

	sk_link_remove(&slot->link);
	slot->state->n_slots--;
	cat->used -= slot->bytes;
	if (cat->release)
		cat->release(cat->ctx, slot);
	free(slot);
}

void sk_cat_state_free(struct sk_cat_state *state)
{
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
				   uint64_t number)
{
	struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link) {
		if (run->number == number)
			return run;
	}
	return NULL;
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
	for (unsigned i = 0; i < SK_CAT_VERDICTS; i++)
		job->verdicts[i].result = 1;
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
	free(run);
}

/* A run is done with when nothing but its number is left. */
static void run_trim(struct sk_cat_run *run)
{
	struct sk_cat_snapshot *s;

	if (run_held(run))
		return;
	/* Its layouts tell what its snapshots must cover. */
	sk_link_each(s, &run->job->snapshots, link) {
		if (s->run == run->number)
			return;
	}
	run_free(run);
}

static void job_free(struct sk_cat_job *job)
{
	struct sk_catalogue *cat = job->catalogue;
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;
	struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link)
		run_free(run);
	sk_link_each(s, &job->snapshots, link) {
		sk_link_each(image, &s->images, link)
			image_free(image);
		sk_link_remove(&s->link);
		free(s);
	}
	sk_link_remove(&job->link);
	if (cat->forget)
		cat->forget(cat->ctx, job);
	free(job);
}

bool sk_cat_job_trim(struct sk_cat_job *job)
{
	struct sk_cat_run *run;

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
}
