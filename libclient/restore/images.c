/* SPDX-License-Identifier: Apache-2.0 */
/* The images of one snapshot: found in the list, set aside, let go. */
#include "restore/images.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "conn/list.h"
#include "memory/slot.h"
#include "restore/others.h"
#include "restore/sums.h"

static const enum sk_place place_numbers[2] = {
	SK_PLACE_MEMORY, SK_PLACE_DISK
};

/* ---- those of the list ---- */

bool sk_restore_allowed(const struct sk_restoring *rs,
			const struct sk_wire_part *w)
{
	if (w->place == SK_PLACE_MEMORY)
		return !(rs->flags & SK_RESTORE_DISK_ONLY);
	return w->place == SK_PLACE_DISK &&
	       !(rs->flags & SK_RESTORE_MEMORY_ONLY);
}

const struct sk_wire_part *sk_restore_damaged(const struct sk_restoring *rs)
{
	for (size_t i = 0; i < rs->n_everywhere; i++) {
		const struct sk_wire_part *w = &rs->everywhere[i].part;

		if (w->state == SK_IMAGE_BAD && sk_restore_allowed(rs, w))
			return w;
	}
	return NULL;
}

const char *sk_restore_where(bool disk)
{
	return disk ? "on disk" : "in memory";
}

/* What has been set aside since the list came is damaged there too. */
static void mark_listed(struct sk_restoring *rs, uint64_t id, uint32_t place)
{
	for (size_t i = 0; i < rs->n_everywhere; i++) {
		struct sk_restore_listed *l = &rs->everywhere[i];

		if (l->node == rs->node && l->part.image == id &&
		    l->part.place == place_numbers[place])
			l->part.state = SK_IMAGE_BAD;
	}
}

static struct sk_restore_image *image_of(struct sk_restoring *rs,
					 const struct sk_wire_part *w)
{
	struct sk_restore_image *image;

	for (uint32_t i = rs->n_images; i-- > 0;) {
		image = &rs->images[i];
		if (image->rank != w->rank)
			break;	/* the list is by rank */
		if (image->kind == w->kind &&
		    sk_digest_equal(&image->digest, &w->digest))
			return image;
	}
	assert(rs->n_images < rs->n_everywhere);
	image = &rs->images[rs->n_images++];
	*image = (struct sk_restore_image){
		.rank = w->rank,
		.kind = w->kind,
		.digest = w->digest,
		.description = w->description,
		.bytes = w->bytes,
		.places = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 },
			    { .fd = -1 } },
	};
	return image;
}

static int by_rank_and_kind(const void *a, const void *b)
{
	const struct sk_restore_image *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return memcmp(&x->digest, &y->digest, sizeof(x->digest));
}

static int by_listed_rank(const void *a, const void *b)
{
	const struct sk_wire_part *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return memcmp(&x->digest, &y->digest, sizeof(x->digest));
}

uint32_t sk_restore_whole_flag(const struct sk_restoring *rs)
{
	if (rs->flags & SK_RESTORE_MEMORY_ONLY)
		return SK_SNAP_RESIDENT;
	return rs->flags & SK_RESTORE_DISK_ONLY ? SK_SNAP_DURABLE :
						  SK_SNAP_COMPLETE;
}

/* Where the restore may look. */
static bool has_any(const struct sk_restoring *rs)
{
	for (size_t i = 0; i < rs->n_listed; i++) {
		bool disk = rs->listed[i].place == SK_PLACE_DISK;

		if (!(rs->flags & (disk ? SK_RESTORE_MEMORY_ONLY :
					  SK_RESTORE_DISK_ONLY)))
			return true;
	}
	return false;
}

/* Whether what was listed a moment ago has gone since: it was complete, or all
 * of it where it may be read; of several nodes, this one had some of it. */
static bool has_gone(const struct sk_restoring *rs,
		     const struct sk_restore_offer *offer, uint32_t flags)
{
	uint32_t all = SK_SNAP_COMPLETE | (rs->local ? SK_SNAP_LOCAL : 0);

	if (rs->apart)
		return offer->flags & SK_OFFER_MINE && !has_any(rs);
	return !(flags & all) ||
	       (offer->flags & SK_OFFER_THERE && !rs->whole);
}

/* The store was looked at when the snapshots were listed. */
static int list(struct sk_restoring *rs, const struct sk_restore_offer *offer)
{
	struct sk_wire_id id = { .run = offer->run, .run_id = offer->run_id,
				 .step = offer->step, .rank = -1 };
	uint32_t flags = 0;
	int r;

	assert(!rs->listed);
	strcpy(id.job, rs->state->job.name);
	r = sk_list_parts(&rs->conn, &id, sk_until(rs->sk), &rs->listed,
			  &rs->n_listed, &flags, &rs->err);
	rs->whole = flags & sk_restore_whole_flag(rs);
	rs->stale |= (r >= 0 || !rs->apart) && has_gone(rs, offer, flags);
	if (r >= 0 && rs->n_listed)
		qsort(rs->listed, rs->n_listed, sizeof(*rs->listed),
		      by_listed_rank);
	return r;
}

/* Of a rank whose images this node has: where. */
static void note_place(const struct sk_wire_part *w,
		       struct sk_restore_image *image)
{
	struct sk_restore_place *place =
		&image->places[w->place == SK_PLACE_DISK];

	place->id = w->image;
	place->listed = true;
	/* Of one that is damaged the names count. */
	place->there = w->state != SK_IMAGE_BAD;
}

/* Of one node, all is what it listed. */
static int take_alone(struct sk_restoring *rs)
{
	rs->everywhere = calloc(rs->n_listed + 1, sizeof(*rs->everywhere));
	if (!rs->everywhere)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu "
				  "images", rs->n_listed);
	for (size_t i = 0; i < rs->n_listed; i++)
		rs->everywhere[rs->n_everywhere++] =
			(struct sk_restore_listed){ rs->listed[i], rs->node,
						    0 };
	return 0;
}

static int take_listed(struct sk_restoring *rs)
{
	size_t n = rs->n_everywhere;

	assert(!rs->images && !rs->n_images);
	rs->images = calloc(n ? n : 1, sizeof(*rs->images));
	if (!rs->images)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu "
				  "images", n);
	for (size_t i = 0; i < n; i++) {
		const struct sk_restore_listed *l = &rs->everywhere[i];
		struct sk_restore_image *image;

		if (!sk_restore_allowed(rs, &l->part))
			continue;
		image = image_of(rs, &l->part);
		if (l->node == rs->node)
			note_place(&l->part, image);
	}
	qsort(rs->images, rs->n_images, sizeof(*rs->images),
	      by_rank_and_kind);
	return sk_restore_note_holders(rs);
}

/* Those that memory has images of, each once: images are by rank. */
static int note_memory_ranks(struct sk_restoring *rs)
{
	assert(!rs->memory_ranks && !rs->n_memory_ranks);
	rs->memory_ranks = calloc(rs->n_images + 1u,
				  sizeof(*rs->memory_ranks));
	if (!rs->memory_ranks)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %u "
				  "images", rs->n_images);
	for (uint32_t i = 0; i < rs->n_images; i++) {
		int32_t rank = rs->images[i].rank, n = rs->n_memory_ranks;

		if (rs->images[i].places[0].there &&
		    (!n || rs->memory_ranks[n - 1] != rank))
			rs->memory_ranks[rs->n_memory_ranks++] = rank;
	}
	return 0;
}

/* Collective where there are several nodes. */
static int list_all(struct sk_restoring *rs,
		    const struct sk_restore_offer *offer)
{
	int r = list(rs, offer);

	if (rs->apart)
		return sk_restore_merge(rs, offer, r);
	return r < 0 ? r : take_alone(rs);
}

int sk_restore_images(struct sk_restoring *rs,
		      const struct sk_restore_offer *offer)
{
	int r;

	rs->world = offer->world;
	r = list_all(rs, offer);
	if (r >= 0)
		r = take_listed(rs);
	if (r >= 0)
		r = note_memory_ranks(rs);
	if (r < 0)
		return r;
	return rs->n_images ? 0 :
	       sk_err_set(&rs->err, -ENODATA, "no image of step %" PRId64
			  " of run %" PRIu64 " can be opened", offer->step,
			  offer->run);
}

uint64_t sk_restore_images_digest(const struct sk_restoring *rs)
{
	struct {
		uint64_t before;
		int32_t rank;
		uint32_t kind;
		struct sk_digest digest;
	} one = { 0 };

	/* All else about one follows from its layout's digest. */
	static_assert(sizeof(one) == 16 + sizeof(one.digest), "no padding");
	for (uint32_t i = 0; i < rs->n_images; i++) {
		const struct sk_restore_image *image = &rs->images[i];

		one.rank = image->rank;
		one.kind = image->kind;
		one.digest = image->digest;
		one.before = sk_xxh3(&one, sizeof(one));
	}
	return one.before;
}

uint32_t sk_restore_first_of(const struct sk_restoring *rs, int32_t rank)
{
	return (uint32_t)sk_count_before(rs->n_images, i,
					 rs->images[i].rank < rank);
}

enum sk_place sk_restore_place_number(uint32_t place)
{
	assert(place < 2);
	return place_numbers[place];
}

void sk_restore_set_aside(struct sk_restoring *rs, uint32_t image,
			  uint32_t place, bool tell)
{
	struct sk_msg msg = {
		.type = SK_MSG_REPORT_BAD,
		.body.bad = {
			.image = rs->images[image].places[place].id,
			.place = place_numbers[place],
			.entry = rs->images[image].places[place].bad_entry,
		},
	};
	struct sk_err ignored;
	int r = 0;

	assert(image < rs->n_images && place < 2);
	mark_listed(rs, msg.body.bad.image, place);
	rs->images[image].places[place].there = false;
	rs->report.damaged++;
	/* The agent will find it itself where it cannot be told. */
	if (tell)
		r = sk_conn_call(&rs->conn, &msg, NULL, 0, NULL, NULL,
				 sk_until(rs->sk), &ignored);
	/* It is gone, and so is what kept the slot for us: this may be a newer
	 * image by now, and the next agent has a newer snapshot. */
	rs->stale |= r == -ECONNRESET && place_numbers[place] ==
					 SK_PLACE_MEMORY;
}

/* ---- letting go ---- */

/* Giving pages of gigabytes back takes long; nobody needs to wait for it. */
struct unmapping {
	struct sk_task task;
	const struct sk_os *os;
	size_t n;
	struct {
		void *map;
		uint64_t bytes;
	} maps[];
};

static void unmap(struct sk_task *task)
{
	struct unmapping *u = (struct unmapping *)task;

	for (size_t i = 0; i < u->n; i++)
		sk_slot_unmap(u->os, u->maps[i].map, u->maps[i].bytes);
	free(u);
}

static void unmap_all(struct sk_restoring *rs)
{
	struct unmapping *u = calloc(1, sizeof(*u) +
				     rs->n_images * sizeof(u->maps[0]));

	for (uint32_t i = 0; i < rs->n_images; i++) {
		void *map = rs->images[i].places[0].map;

		if (!map)
			continue;
		if (!u) {
			sk_slot_unmap(rs->sk->os, map, rs->images[i].bytes);
			continue;
		}
		u->maps[u->n].map = map;
		u->maps[u->n++].bytes = rs->images[i].bytes;
	}
	if (!u)
		return;
	if (!u->n) {
		free(u);
		return;
	}
	u->os = rs->sk->os;
	u->task.done = unmap;
	sk_pool_submit(rs->sk->pool, &u->task);
}

static void close_fd(const struct sk_restoring *rs, int fd)
{
	if (fd >= 0)
		(void)rs->sk->os->close(rs->sk->os, fd);
}

void sk_restore_release_images(struct sk_restoring *rs)
{
	unmap_all(rs);
	for (uint32_t i = 0; i < rs->n_images; i++) {
		struct sk_restore_image *image = &rs->images[i];

		close_fd(rs, image->places[0].fd);
		close_fd(rs, image->places[1].fd);
		sk_layout_free(image->layout);
		sk_layout_free(image->whole);
		sk_restore_free_sums(image);
		free(image->turns);
		free(image->verified);
	}
	free(rs->images);
	free(rs->memory_ranks);
	free(rs->listed);
	free(rs->everywhere);
	free(rs->holders);
	rs->listed = NULL;
	rs->n_listed = 0;
	rs->everywhere = NULL;
	rs->n_everywhere = 0;
	rs->holders = NULL;
	rs->n_holders = 0;
	rs->images = NULL;
	rs->memory_ranks = NULL;
	rs->n_images = rs->n_open = rs->n_asked = 0;
	rs->n_memory_ranks = 0;
}
