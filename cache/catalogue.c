/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue.h"

#include <assert.h>
#include <string.h>

#include "util.h"

static void image_free(struct sk_cat_image *image)
{
	sk_layout_free(image->layout);
	free(image->sums);
	free(image);
}

static void snapshot_free(struct sk_cat_snapshot *s)
{
	while (s->images) {
		struct sk_cat_image *next = s->images->next;

		image_free(s->images);
		s->images = next;
	}
	free(s);
}

void sk_cat_free(struct sk_cat *cat)
{
	while (cat->jobs) {
		struct sk_cat_job *job = cat->jobs;

		cat->jobs = job->next;
		while (job->snapshots) {
			struct sk_cat_snapshot *next = job->snapshots->next;

			snapshot_free(job->snapshots);
			job->snapshots = next;
		}
		free(job);
	}
}

struct sk_cat_job *sk_cat_find_job(const struct sk_cat *cat, const char *name)
{
	struct sk_cat_job *job = cat->jobs;

	while (job && strcmp(job->name, name))
		job = job->next;
	return job;
}

struct sk_cat_job *sk_cat_job(struct sk_cat *cat, const char *name, uid_t uid)
{
	struct sk_cat_job *job = sk_cat_find_job(cat, name);

	if (job)
		return job;
	job = calloc(1, sizeof(*job));
	if (!job)
		return NULL;
	assert(strlen(name) <= SK_JOB_MAX);
	strcpy(job->name, name);
	job->uid = uid;
	job->next = cat->jobs;
	cat->jobs = job;
	return job;
}

static bool newer(const struct sk_cat_snapshot *s, uint64_t run, uint64_t step)
{
	return s->run > run || (s->run == run && s->step > step);
}

struct sk_cat_snapshot *sk_cat_find(const struct sk_cat_job *job, uint64_t run,
				    uint64_t step)
{
	struct sk_cat_snapshot *s = job->snapshots;

	while (s && (s->run != run || s->step != step))
		s = s->next;
	return s;
}

struct sk_cat_snapshot *sk_cat_snapshot(struct sk_cat_job *job, uint64_t run,
					uint64_t step, int32_t world)
{
	struct sk_cat_snapshot *s = sk_cat_find(job, run, step), **at;

	if (s)
		return s;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->job = job;
	s->run = run;
	s->step = step;
	s->world = world;
	if (run > job->newest_run)
		job->newest_run = run;
	for (at = &job->snapshots; *at && newer(*at, run, step);)
		at = &(*at)->next;
	s->next = *at;
	*at = s;
	return s;
}

struct sk_cat_image *sk_cat_find_image(const struct sk_cat_snapshot *s,
				       int32_t rank, enum sk_image_kind kind)
{
	struct sk_cat_image *image = s->images;

	while (image && (image->rank != rank || image->kind != kind))
		image = image->next;
	return image;
}

struct sk_cat_image *sk_cat_image_by_id(const struct sk_cat *cat, uint64_t id)
{
	for (struct sk_cat_job *job = cat->jobs; job; job = job->next)
		for (struct sk_cat_snapshot *s = job->snapshots; s; s = s->next)
			for (struct sk_cat_image *i = s->images; i; i = i->next)
				if (i->id == id)
					return i;
	return NULL;
}

struct sk_cat_image *sk_cat_add(struct sk_cat *cat, struct sk_cat_snapshot *s,
				struct sk_layout *layout, const uint64_t *sums)
{
	size_t bytes = layout->n_sums * sizeof(*sums);
	struct sk_cat_image *image, **at = &s->images;

	if (sk_cat_find_image(s, layout->rank, layout->kind)) {
		errno = EEXIST;
		return NULL;
	}
	image = calloc(1, sizeof(*image));
	if (image)
		image->sums = malloc(bytes ? bytes : 1);
	if (!image || !image->sums) {
		free(image);
		errno = ENOMEM;
		return NULL;
	}
	memcpy(image->sums, sums, bytes);
	image->id = ++cat->next_id;
	image->snapshot = s;
	image->rank = layout->rank;
	image->kind = layout->kind;
	image->layout = sk_layout_ref(layout);
	while (*at && ((*at)->kind < image->kind ||
		       ((*at)->kind == image->kind &&
			(*at)->rank < image->rank)))
		at = &(*at)->next;
	image->next = *at;
	*at = image;
	return image;
}

bool sk_cat_drop_image(struct sk_cat_image *image)
{
	struct sk_cat_snapshot *s = image->snapshot, **at;
	struct sk_cat_image **link = &s->images;

	assert(!image->slot && !image->on_disk && !image->leases);
	while (*link != image)
		link = &(*link)->next;
	*link = image->next;
	image_free(image);
	if (s->images)
		return false;
	for (at = &s->job->snapshots; *at != s;)
		at = &(*at)->next;
	*at = s->next;
	snapshot_free(s);
	return true;
}

bool sk_cat_image_good(const struct sk_cat_image *image)
{
	return (image->slot && !image->bad_memory) ||
	       (image->on_disk && !image->bad_disk);
}

bool sk_cat_in_memory(const struct sk_cat_snapshot *s)
{
	for (struct sk_cat_image *i = s->images; i; i = i->next)
		if (i->slot)
			return true;
	return false;
}

bool sk_cat_in_use(const struct sk_cat_snapshot *s)
{
	for (struct sk_cat_image *i = s->images; i; i = i->next)
		if (i->leases)
			return true;
	return false;
}

bool sk_cat_durable(const struct sk_cat_snapshot *s)
{
	if (!s->complete)
		return false;
	for (struct sk_cat_image *i = s->images; i; i = i->next)
		if (i->kind == SK_IMAGE_PRIMARY &&
		    (!i->on_disk || i->bad_disk))
			return false;
	return true;
}

struct sk_cat_snapshot *sk_cat_newest_complete(const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s = job->snapshots;

	while (s && !s->complete)
		s = s->next;
	return s;
}

void sk_cat_cover(struct sk_cat_snapshot *s, struct sk_layout *const *known,
		  size_t n_known)
{
	_cleanup_free_ struct sk_coverage_image *list = NULL;
	struct sk_err err = { "" };
	size_t n = 0;
	int r;

	for (struct sk_cat_image *i = s->images; i; i = i->next)
		n++;
	list = calloc(n + n_known + 1, sizeof(*list));
	if (!list)
		return;		/* it stays what it was */
	n = 0;
	for (struct sk_cat_image *i = s->images; i; i = i->next)
		list[n++] = (struct sk_coverage_image){
			i->layout, sk_cat_image_good(i) };
	for (size_t k = 0; k < n_known; k++)
		if (!sk_cat_find_image(s, known[k]->rank, known[k]->kind))
			list[n++] = (struct sk_coverage_image){ known[k],
								false };
	r = sk_coverage_check(list, n, s->world, &err);
	s->complete = r == 0;
	if (!s->failed)
		memcpy(s->text, err.text, sizeof(s->text));
}

int sk_cat_may_evict(const struct sk_cat_snapshot *s, bool has_store,
		     struct sk_err *err)
{
	const struct sk_cat_snapshot *newest = sk_cat_newest_complete(s->job);
	const char *why = NULL;

	if (sk_cat_in_use(s))
		why = "a restore is using it";
	else if (s->flushing)
		why = "it is being flushed";
	else if (s->pinned)
		why = "it is pinned";
	else if (s == newest)
		why = "it is the newest complete snapshot of its job";
	else if (has_store && s->wanted && !sk_cat_durable(s))
		why = "it is not yet durable";
	if (!why)
		return 0;
	return sk_err_set(err, -EBUSY, "snapshot %s@%llu/%llu stays: %s",
			  s->job->name, (unsigned long long)s->run,
			  (unsigned long long)s->step, why);
}
