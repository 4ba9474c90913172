/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The images of one snapshot: found in the list, opened, their headers read,
 * their data mapped when it is needed.
 */
#include "restore/images.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "conn/list.h"
#include "conn/memfd.h"
#include "memory/slot.h"

/* More images than this, and data stays closed until it is needed. */
#define OPEN_MAX_IMAGES 256

static const enum sk_place place_numbers[2] = {
	SK_PLACE_MEMORY, SK_PLACE_DISK
};

/* ---- those of the list ---- */

static bool is_of(const struct sk_wire_image *w, uint64_t run, uint64_t run_id,
		  int64_t step)
{
	return w->id.run == run && w->id.run_id == run_id &&
	       w->id.step == step;
}

static bool is_allowed(const struct sk_restoring *rs,
		       const struct sk_wire_image *w)
{
	if (w->state == SK_IMAGE_FILLING)
		return false;
	if (w->place == SK_PLACE_MEMORY)
		return !(rs->flags & SK_RESTORE_DISK_ONLY);
	return w->place == SK_PLACE_DISK &&
	       !(rs->flags & SK_RESTORE_MEMORY_ONLY);
}

static bool usable(const struct sk_restoring *rs,
		   const struct sk_restore_offer *offer,
		   const struct sk_wire_image *w)
{
	return is_of(w, offer->run, offer->run_id, offer->step) &&
	       is_allowed(rs, w) && w->state != SK_IMAGE_BAD;
}

const struct sk_wire_image *sk_restore_damaged(const struct sk_restoring *rs,
					       uint64_t run, uint64_t run_id,
					       int64_t step)
{
	for (size_t i = 0; i < rs->n_listed; i++) {
		const struct sk_wire_image *w = &rs->listed[i];

		if (w->state == SK_IMAGE_BAD && is_allowed(rs, w) &&
		    is_of(w, run, run_id, step))
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
	for (size_t i = 0; i < rs->n_listed; i++)
		if (rs->listed[i].image == id &&
		    rs->listed[i].place == place_numbers[place])
			rs->listed[i].state = SK_IMAGE_BAD;
}

static struct sk_restore_image *image_of(struct sk_restoring *rs,
					 const struct sk_wire_image *w)
{
	struct sk_restore_image *image;

	for (uint32_t i = rs->n_images; i-- > 0;) {
		image = &rs->images[i];
		if (image->rank != w->id.rank)
			break;	/* the list is by rank */
		if (image->kind == w->kind &&
		    sk_digest_equal(&image->digest, &w->digest))
			return image;
	}
	assert(rs->n_images < rs->n_listed);
	image = &rs->images[rs->n_images++];
	*image = (struct sk_restore_image){
		.rank = w->id.rank,
		.kind = w->kind,
		.digest = w->digest,
		.bytes = w->bytes,
		.places = { { .fd = -1 }, { .fd = -1 } },
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
	const struct sk_wire_image *x = a, *y = b;

	if (x->id.rank != y->id.rank)
		return x->id.rank < y->id.rank ? -1 : 1;
	return memcmp(&x->digest, &y->digest, sizeof(x->digest));
}

/* The store was looked at when the snapshots were listed. */
static int list(struct sk_restoring *rs, const struct sk_restore_offer *offer)
{
	struct sk_wire_id id = { .run = offer->run, .run_id = offer->run_id,
				 .step = offer->step, .rank = -1 };
	int r;

	assert(!rs->listed);
	strcpy(id.job, rs->state->job.name);
	r = sk_list_images(&rs->conn, &id, SK_LIST_KNOWN, sk_until(rs->sk),
			   &rs->listed, &rs->n_listed, &rs->err);
	if (r >= 0)
		qsort(rs->listed, rs->n_listed, sizeof(*rs->listed),
		      by_listed_rank);
	return r;
}

static int take_listed(struct sk_restoring *rs,
		       const struct sk_restore_offer *offer)
{
	size_t n = rs->n_listed;

	assert(!rs->images && !rs->n_images);
	rs->images = calloc(n ? n : 1, sizeof(*rs->images));
	if (!rs->images)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu "
				  "images", n);
	for (size_t i = 0; i < n; i++) {
		const struct sk_wire_image *w = &rs->listed[i];
		struct sk_restore_place *place;

		if (!usable(rs, offer, w))
			continue;
		place = &image_of(rs, w)->places[w->place == SK_PLACE_DISK];
		place->id = w->image;
		place->there = true;
		rs->world = w->id.world;
	}
	qsort(rs->images, rs->n_images, sizeof(*rs->images),
	      by_rank_and_kind);
	return 0;
}

/* ---- opening ---- */

static void close_fd(const struct sk_restoring *rs, int fd)
{
	if (fd >= 0)
		(void)rs->sk->os->close(rs->sk->os, fd);
}

static int call_open(struct sk_restoring *rs, const struct sk_restore_image *i,
		     uint32_t place, struct sk_opened_image *ret)
{
	struct sk_opened_image o;
	int r = sk_image_open(&rs->conn, i->places[place].id,
			      place_numbers[place], sk_until(rs->sk), &o,
			      &rs->err);

	assert(place < 2 && i->places[place].there);
	if (r < 0)
		return r;
	if (o.image_bytes != i->bytes) {
		close_fd(rs, o.data);
		close_fd(rs, o.header);
		return sk_err_set(&rs->err, -EPROTO, "the agent opened an "
				  "image of %" PRIu64 " bytes as one of %"
				  PRIu64, i->bytes, o.image_bytes);
	}
	*ret = o;
	return 0;
}

/* The header says what the list said: rank, kind, run and step. */
static int check_header(struct sk_restoring *rs,
			const struct sk_restore_offer *offer,
			const struct sk_restore_image *image,
			const struct sk_layout *layout,
			const struct sk_stamp *stamp)
{
	if (layout->rank == image->rank && layout->kind == image->kind &&
	    layout->world == rs->world && stamp->run == offer->run &&
	    stamp->run_id == offer->run_id &&
	    stamp->step == (uint64_t)offer->step &&
	    sk_digest_equal(&layout->digest, &image->digest))
		return 0;
	return sk_err_set(&rs->err, -EBADMSG, "the header of rank %d's image "
			  "is that of rank %d of %d, step %" PRIu64
			  " of run %" PRIu64, image->rank, layout->rank,
			  layout->world, stamp->step, stamp->run);
}

static int parse(struct sk_restoring *rs, const struct sk_restore_offer *offer,
		 struct sk_restore_image *image, int fd, uint64_t bytes)
{
	_cleanup_layout_ struct sk_layout *layout = NULL;
	_cleanup_free_ char *header = NULL;
	_cleanup_free_ uint64_t *sums = NULL;
	struct sk_stamp stamp;
	int r;

	assert(!image->layout && !image->sums);
	assert(bytes <= image->bytes);
	header = malloc(bytes ? bytes : 1);
	if (!header)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for a header "
				  "of %" PRIu64 " bytes", bytes);
	r = sk_read_all(rs->sk->os, fd, header, bytes, 0);
	if (r < 0)
		return sk_err_errno(&rs->err, r == -ENODATA ? -EBADMSG : r,
				    "cannot read a header of %" PRIu64
				    " bytes", bytes);
	r = sk_recall_get(rs->sk->recall, rs->state->job.name, image->rank,
			  image->kind, header, bytes, image->bytes, &layout,
			  &rs->err);
	if (r < 0)
		return r;
	sums = calloc(layout->n_sums ? layout->n_sums : 1, sizeof(*sums));
	if (!sums)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %u "
				  "checksums", layout->n_sums);
	stamp.sums = sums;
	r = sk_layout_read_stamp(layout, header, &stamp, &rs->err);
	if (r < 0)
		return r;
	r = check_header(rs, offer, image, layout, &stamp);
	if (r < 0)
		return r;
	image->layout = sk_take_ptr(layout);
	image->sums = sk_take_ptr(sums);
	return 0;
}

/* Copies of one image have one header: it is read from the first that
 * opens. */
static int open_place(struct sk_restoring *rs,
		      const struct sk_restore_offer *offer,
		      struct sk_restore_image *image, uint32_t place)
{
	struct sk_opened_image o;
	int r = call_open(rs, image, place, &o);

	assert(place < 2);
	if (r < 0)
		return r;
	if (!image->layout)
		r = parse(rs, offer, image, o.header, o.header_bytes);
	close_fd(rs, o.header);
	if (r >= 0 && rs->n_images <= OPEN_MAX_IMAGES)
		image->places[place].fd = o.data;
	else
		close_fd(rs, o.data);
	return r;
}

/* The connection or memory is gone, or the image alone is. */
static bool is_fatal(int r)
{
	return r == -ENOMEM || r == -ECONNRESET || r == -ETIMEDOUT ||
	       r == -EPROTO || r == -EMFILE || r == -ENFILE;
}

static int open_image(struct sk_restoring *rs,
		      const struct sk_restore_offer *offer,
		      struct sk_restore_image *image)
{
	for (uint32_t place = 0; place < 2; place++) {
		int r;

		if (!image->places[place].there)
			continue;
		r = open_place(rs, offer, image, place);
		if (is_fatal(r))
			return r;
		if (r >= 0)
			continue;
		image->places[place].there = false;
		if (r == -EBADMSG)
			sk_restore_set_aside(rs, (uint32_t)(image - rs->images),
					     place, true);
	}
	return 0;
}

int sk_restore_images(struct sk_restoring *rs,
		      const struct sk_restore_offer *offer)
{
	uint32_t kept = 0;
	int r;

	r = list(rs, offer);
	if (r >= 0)
		r = take_listed(rs, offer);
	for (uint32_t i = 0; i < rs->n_images && r >= 0; i++)
		r = open_image(rs, offer, &rs->images[i]);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < rs->n_images; i++) {
		if (!rs->images[i].layout)
			continue;
		rs->images[kept] = rs->images[i];
		rs->images[kept].first_sum = rs->n_sums;
		rs->n_sums += rs->images[kept++].layout->n_sums;
	}
	rs->n_images = kept;
	if (!kept)
		return sk_err_set(&rs->err, -ENODATA, "no image of step %"
				  PRId64 " of run %" PRIu64 " can be opened",
				  offer->step, offer->run);
	return 0;
}

/* ---- the data ---- */

int sk_restore_reach(struct sk_restoring *rs, uint32_t image, uint32_t place)
{
	struct sk_restore_image *i = &rs->images[image];
	struct sk_restore_place *p = &i->places[place];
	struct sk_opened_image o;
	int r;

	assert(image < rs->n_images && place < 2);
	if (p->fd < 0) {
		r = call_open(rs, i, place, &o);
		if (r < 0)
			return r;
		close_fd(rs, o.header);
		p->fd = o.data;
	}
	if (place || p->map)
		return 0;
	return sk_slot_map_fd(rs->sk->os, p->fd, i->bytes, false, &p->map,
			      &rs->err);
}

void sk_restore_set_aside(struct sk_restoring *rs, uint32_t image,
			  uint32_t place, bool tell)
{
	struct sk_msg msg = {
		.type = SK_MSG_REPORT_BAD,
		.body.open = {
			.image = rs->images[image].places[place].id,
			.place = place_numbers[place],
		},
	};
	struct sk_err ignored;

	assert(image < rs->n_images && place < 2);
	mark_listed(rs, msg.body.open.image, place);
	rs->images[image].places[place].there = false;
	rs->report.damaged++;
	/* The agent will find it itself where it cannot be told. */
	if (tell)
		(void)sk_conn_call(&rs->conn, &msg, NULL, 0, NULL, NULL,
				   sk_until(rs->sk), &ignored);
}

uint64_t sk_restore_view(const struct sk_restoring *rs)
{
	uint64_t view = rs->conn.agent.instance;

	for (uint32_t i = 0; i < rs->n_images; i++) {
		const struct sk_restore_image *image = &rs->images[i];

		view = view * 0x9e3779b97f4a7c15u +
		       sk_xxh3(&image->digest, sizeof(image->digest)) +
		       (uint64_t)(uint32_t)image->rank * 8 + image->kind;
	}
	return view;
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

void sk_restore_release_images(struct sk_restoring *rs)
{
	unmap_all(rs);
	for (uint32_t i = 0; i < rs->n_images; i++) {
		struct sk_restore_image *image = &rs->images[i];

		close_fd(rs, image->places[0].fd);
		close_fd(rs, image->places[1].fd);
		sk_layout_free(image->layout);
		free(image->sums);
	}
	free(rs->images);
	rs->images = NULL;
	rs->n_images = 0;
	rs->n_sums = 0;
}
