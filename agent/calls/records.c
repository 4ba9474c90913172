/* SPDX-License-Identifier: Apache-2.0 */
#include "calls/records.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "bytes/checksum.h"
#include "catalogue/pins.h"
#include "disk/flush.h"

size_t records_size(uint32_t what)
{
	static const size_t sizes[] = {
		[SK_LIST_SNAPSHOTS] = sizeof(struct sk_wire_snapshot),
		[SK_LIST_IMAGES] = sizeof(struct sk_wire_image),
		[SK_LIST_PARTS] = sizeof(struct sk_wire_part),
	};

	return sizes[what];
}

static void *next_record(struct records *r)
{
	char *data = sk_array_fit_(r->data, &r->room, r->n + 1, r->size);
	void *record;

	if (!data)
		return NULL;
	r->data = data;
	record = r->data + r->n++ * r->size;
	memset(record, 0, r->size);
	return record;
}

static void fill_id(const struct sk_cat_snapshot *s, int32_t rank,
		    struct sk_wire_id *id)
{
	memcpy(id->job, s->job->name, sizeof(s->job->name));
	id->run = s->run;
	id->run_id = s->run_id;
	id->step = s->step;
	id->rank = rank;
	id->world = s->world;
}

/* ---- snapshots ---- */

/* Names that no image before this one has; good enough to tell people. */
static uint32_t count_names(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;
	uint32_t most = 0;

	sk_link_each(image, &s->images, link) {
		if (image->layout->layout->n_items > most)
			most = image->layout->layout->n_items;
	}
	return most;
}

/* Any agent that has the same images says the same. */
static uint64_t add_to_digest(uint64_t digest, const struct sk_cat_image *image)
{
	const struct sk_digest *of = &image->layout->layout->digest;

	return digest * 0x9e3779b97f4a7c15u + sk_xxh3(of, sizeof(*of)) +
	       (uint64_t)(uint32_t)image->rank;
}

/* Of the first that is damaged, what of it is. */
static void name_damaged(struct sk_wire_snapshot *w,
			 const struct sk_cat_image *image, bool disk)
{
	const char *name = sk_cat_damaged(image, disk);

	if (name && !w->text[0])
		(void)snprintf(w->text, sizeof(w->text), "\"%.100s\" of rank "
			       "%" PRId32 " is damaged %s; ", name,
			       image->rank, disk ? "on disk" : "in memory");
}

/* What readers found bad: the first in each place, by rank. */
static void note_bad(struct sk_wire_snapshot *w,
		     const struct sk_cat_image *image)
{
	if (image->bad_memory && image->slot && w->bad_memory < 0) {
		w->bad_memory = image->rank;
		name_damaged(w, image, false);
	}
	if (image->bad_disk && image->stored.dir[0] && w->bad_disk < 0) {
		w->bad_disk = image->rank;
		name_damaged(w, image, true);
	}
}

/* What its images come to, wherever they lie and in each place. */
static uint32_t whole_flags(const struct sk_cat_snapshot *s)
{
	return (sk_cat_complete(s) ? SK_SNAP_COMPLETE : 0) |
	       (sk_cat_on_disk(s) ? SK_SNAP_DURABLE : 0) |
	       (sk_cat_whole_in_memory(s) ? SK_SNAP_RESIDENT : 0) |
	       (!sk_cat_complete(s) && s->elsewhere ? SK_SNAP_LOCAL : 0);
}

static uint32_t snapshot_flags(const struct sk_cat_snapshot *s,
			       const struct sk_wire_snapshot *w)
{
	bool complete = sk_cat_complete(s);

	return whole_flags(s) |
	       (s->pinned ? SK_SNAP_PINNED : 0) |
	       (s->pinned && !s->pin_stored ? SK_SNAP_PIN_UNSTORED : 0) |
	       (w->bytes_memory ? SK_SNAP_MEMORY : 0) |
	       (w->bytes_disk ? SK_SNAP_DISK : 0) |
	       (s->flushing ? SK_SNAP_FLUSHING : 0) |
	       (sk_cat_goes_to_disk(s) ? SK_SNAP_WANTED : 0) |
	       (complete && s == sk_cat_newest(s->job) ?
		SK_SNAP_NEWEST : 0) |
	       (s->leases ? SK_SNAP_IN_USE : 0) |
	       (s->failed ? SK_SNAP_FAILED : 0);
}

/* Behind what is damaged; of a snapshot that is whole all the same, that is
 * nothing that it lacks. */
static void note_text(struct sk_wire_snapshot *w, const char *text)
{
	size_t at = text[0] ? strlen(w->text) : 0;

	assert(at < sizeof(w->text));
	(void)snprintf(w->text + at, sizeof(w->text) - at, "%s", text);
}

static int add_snapshot(struct agent *a, struct records *records,
			const struct sk_cat_snapshot *s)
{
	struct sk_wire_snapshot *w = next_record(records);
	struct sk_cat_image *image;
	struct sk_err missing = { "" };

	if (!w)
		return -ENOMEM;
	(void)sk_cat_missing(s, &missing);
	fill_id(s, -1, &w->id);
	w->bad_memory = w->bad_disk = -1;
	sk_link_each(image, &s->images, link) {
		uint64_t bytes = image->layout->layout->image_bytes;
		bool there = (image->slot && !image->bad_memory) ||
			     (image->stored.dir[0] && !image->bad_disk);

		w->bytes_memory += image->slot ? bytes : 0;
		w->bytes_disk += image->stored.dir[0] ? bytes : 0;
		w->images += there && image->kind == SK_IMAGE_PRIMARY;
		if (image->kind == SK_IMAGE_PRIMARY)
			w->digest = add_to_digest(w->digest, image);
		note_bad(w, image);
	}
	w->created_ns = s->created_ns;
	w->flushed_bytes = flush_done(a, s);
	w->uid = s->job->uid;
	w->tensors = count_names(s);
	w->flags = snapshot_flags(s, w);
	note_text(w, s->failed ? sk_cat_failure(s) : missing.text);
	return 0;
}

/* ---- images ---- */

static enum sk_image_state state_of(const struct sk_cat_image *image,
				    enum sk_place place)
{
	if (place == SK_PLACE_DISK ? image->bad_disk : image->bad_memory)
		return SK_IMAGE_BAD;
	if (!image->slot)
		return SK_IMAGE_STORED;
	return image->stored.dir[0] ? SK_IMAGE_DURABLE : SK_IMAGE_SEALED;
}

static int add_image(struct records *records, const struct sk_cat_image *image,
		     enum sk_place place)
{
	struct sk_wire_image *w = next_record(records);

	if (!w)
		return -ENOMEM;
	fill_id(image->snapshot, image->rank, &w->id);
	w->image = image->id;
	w->bytes = image->layout->layout->image_bytes;
	w->digest = image->layout->layout->digest;
	w->kind = (uint32_t)image->kind;
	w->place = (uint32_t)place;
	w->state = state_of(image, place);
	return 0;
}

static int add_part(struct records *records, const struct sk_cat_image *image,
		    enum sk_place place)
{
	const struct sk_layout *l = image->layout->layout;
	struct sk_wire_part *w = next_record(records);

	if (!w)
		return -ENOMEM;
	*w = (struct sk_wire_part){
		.image = image->id,
		.bytes = l->image_bytes,
		.digest = l->digest,
		.description = l->description,
		.rank = image->rank,
		.kind = (uint8_t)image->kind,
		.place = (uint8_t)place,
		.state = (uint8_t)state_of(image, place),
	};
	return 0;
}

static int add_filling(struct records *records,
		       const struct sk_cat_snapshot *s, int32_t rank)
{
	struct sk_cat_run *run = sk_cat_run_find(s->job, s->run, s->run_id);
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;

	if (!run || !s->filling)
		return 0;
	sk_link_each(state, &run->states, link)
	sk_link_each(slot, &state->slots, link) {
		const struct sk_layout *l = state->layouts[0]->layout;
		struct sk_wire_image *w;

		if (slot->use != SK_CAT_FILLING || slot->snapshot != s ||
		    (rank >= 0 && rank != state->rank))
			continue;
		w = next_record(records);
		if (!w)
			return -ENOMEM;
		fill_id(s, state->rank, &w->id);
		w->bytes = l->image_bytes;
		w->digest = l->digest;
		w->place = SK_PLACE_MEMORY;
		w->state = SK_IMAGE_FILLING;
	}
	return 0;
}

static int add_images(struct records *records, const struct sk_cat_snapshot *s,
		      const struct sk_wire_list *in)
{
	bool parts = in->what == SK_LIST_PARTS;
	int (*add)(struct records *, const struct sk_cat_image *,
		   enum sk_place) = parts ? add_part : add_image;
	int32_t rank = in->id.rank;
	struct sk_cat_image *image;
	int r;

	records->flags = parts ? whole_flags(s) : 0;
	sk_link_each(image, &s->images, link) {
		if (rank >= 0 && image->rank != rank)
			continue;
		r = image->slot ? add(records, image, SK_PLACE_MEMORY) : 0;
		if (r == 0 && image->stored.dir[0])
			r = add(records, image, SK_PLACE_DISK);
		if (r < 0)
			return r;
	}
	return parts ? 0 : add_filling(records, s, rank);
}

int records_add(struct agent *a, struct records *records,
		const struct sk_cat_snapshot *s, const struct sk_wire_list *in)
{
	return in->what == SK_LIST_SNAPSHOTS ? add_snapshot(a, records, s) :
					       add_images(records, s, in);
}
