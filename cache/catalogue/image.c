/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the images: found, made and dropped, and the layouts that they
 * share. */
#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "catalogue/private.h"

/* A rank that comes back is asked about so many of its job's snapshots: it
 * restores the newest, or one that failed a few times is behind it. */
#define KNOWN_LAST 8u

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

struct sk_cat_layout *sk_cat_layout_find(const struct sk_catalogue *cat,
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
	struct sk_cat_layout *known = sk_cat_layout_find(cat, layout);

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

static struct sk_layout *if_known(const struct sk_cat_layout *layout,
				  const struct sk_digest *digest)
{
	return layout && layout->layout->header &&
	       sk_digest_equal(&layout->layout->digest, digest) ?
		       layout->layout : NULL;
}

static struct sk_layout *registered(const struct sk_cat_job *job,
				    int32_t rank, enum sk_image_kind kind,
				    const struct sk_digest *digest)
{
	const struct sk_cat_state *state;
	const struct sk_cat_run *run;
	struct sk_layout *l;

	sk_link_each(run, &job->runs, link) {
		state = sk_cat_state_find(run, rank);
		l = state ? if_known(state->layouts[kind], digest) : NULL;
		if (l)
			return l;
	}
	return NULL;
}

struct sk_layout *sk_cat_layout_known(const struct sk_cat_job *job,
				      int32_t rank, enum sk_image_kind kind,
				      const struct sk_digest *digest)
{
	struct sk_layout *l = registered(job, rank, kind, digest);
	const struct sk_cat_snapshot *s;
	const struct sk_cat_image *image;
	unsigned left = KNOWN_LAST;

	sk_link_each(s, &job->snapshots, link) {
		if (l || !left--)
			return l;
		image = sk_cat_image_find(s, rank, kind);
		l = image ? if_known(image->layout, digest) : NULL;
	}
	return l;
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

void sk_cat_image_drop(struct sk_cat_image *image)
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
		sk_cat_image_drop(image);
}
