/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of an image, and what opening it brings.
 *
 * Ranks of one description have layouts that follow from each other by
 * arithmetic, and the list has the digests to tell by. So most layouts are
 * known without their headers, and only images that give bytes are opened, for
 * their checksums.
 */
#include "restore/open.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "conn/memfd.h"
#include "memory/slot.h"
#include "restore/images.h"
#include "restore/sums.h"
#include "restore/takes.h"

/* More images than this, and data stays closed until it is needed. */
#define OPEN_MAX_IMAGES 256

/* ---- descriptions ---- */

struct sk_restore_description *
sk_restore_description(const struct sk_restoring *rs, uint64_t hash)
{
	struct sk_table_walk walk = sk_table_find(&rs->by_description, hash);
	uintptr_t i;

	while (sk_table_next(&walk, &i))
		if (rs->descriptions[i].hash == hash)
			return &rs->descriptions[i];
	return NULL;
}

const struct sk_layout *sk_restore_described(const struct sk_restoring *rs,
					     uint64_t description)
{
	const struct sk_restore_description *d =
		sk_restore_description(rs, description);

	return d ? d->layout : NULL;
}

int sk_restore_learn(struct sk_restoring *rs, const struct sk_layout *layout)
{
	size_t n = rs->n_descriptions;

	assert(!sk_restore_described(rs, layout->description));
	if (sk_array_fit(rs->descriptions, rs->room_descriptions, n + 1) < 0 ||
	    sk_table_add(&rs->by_description, layout->description, n) < 0)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu "
				  "descriptions", n);
	rs->descriptions[rs->n_descriptions++] =
		(struct sk_restore_description){
			.hash = layout->description, .layout = layout };
	return 0;
}

void sk_restore_unlearn(struct sk_restoring *rs)
{
	sk_table_free(&rs->by_description);
	for (size_t i = 0; i < rs->n_descriptions; i++)
		free(rs->descriptions[i].locals);
	free(rs->descriptions);
	rs->descriptions = NULL;
	rs->n_descriptions = rs->room_descriptions = 0;
}

/* ---- opening ---- */

static void close_fd(const struct sk_restoring *rs, int fd)
{
	if (fd >= 0)
		(void)rs->sk->os->close(rs->sk->os, fd);
}

static void keep_fd(struct sk_restoring *rs, struct sk_restore_place *place,
		    int fd)
{
	assert(place->fd < 0);
	if (rs->n_open == OPEN_MAX_IMAGES) {
		close_fd(rs, fd);
		return;
	}
	place->fd = fd;
	rs->n_open++;
}

/* It is what the list said: whose, of which snapshot, laid out how. */
static int check_reply(struct sk_restoring *rs,
		       const struct sk_restore_image *image,
		       const struct sk_wire_open_reply *o)
{
	if (o->rank == image->rank && o->kind == image->kind &&
	    o->run == rs->report.run && o->run_id == rs->report.run_id &&
	    o->step == rs->report.step && o->image_bytes == image->bytes &&
	    o->image_bytes == image->layout->image_bytes &&
	    o->n_sums == image->layout->n_sums &&
	    sk_digest_equal(&o->digest, &image->digest))
		return 0;
	return sk_err_set(&rs->err, -EBADMSG, "the image of rank %d is that "
			  "of rank %d, step %" PRId64 " of run %" PRIu64,
			  image->rank, o->rank, o->step, o->run);
}

/* Its data at @fd is kept, and of its checksums those that are not there yet:
 * what this rank takes of it, or @all. Both descriptors are taken over. */
static int take_known(struct sk_restoring *rs, struct sk_restore_image *image,
		      const struct sk_wire_open_reply *reply, int fd, int sums,
		      bool all, int *ret_fd)
{
	int r = check_reply(rs, image, reply);

	if (r >= 0 && (all || !image->sums.values))
		r = sk_restore_read_sums(rs, image, sums, all);
	close_fd(rs, sums);
	if (r < 0) {
		close_fd(rs, fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

static int open_known(struct sk_restoring *rs, struct sk_restore_image *image,
		      uint32_t place, bool all, int *ret_fd)
{
	struct sk_wire_open_reply reply;
	int fd, sums, r;

	assert(image->layout && image->places[place].there);
	r = sk_image_open_sums(&rs->conn, image->places[place].id,
			       sk_restore_place_number(place),
			       sk_until(rs->sk), &reply, &fd, &sums, &rs->err);
	return r < 0 ? r : take_known(rs, image, &reply, fd, sums, all,
				      ret_fd);
}

/* The header says what the list said: rank, kind, run and step. */
static int check_header(struct sk_restoring *rs,
			const struct sk_restore_image *image,
			const struct sk_layout *layout,
			const struct sk_stamp *stamp)
{
	if (layout->rank == image->rank && layout->kind == image->kind &&
	    layout->world == rs->world && stamp->run == rs->report.run &&
	    stamp->run_id == rs->report.run_id &&
	    stamp->step == (uint64_t)rs->report.step &&
	    layout->description == image->description &&
	    sk_digest_equal(&layout->digest, &image->digest))
		return 0;
	return sk_err_set(&rs->err, -EBADMSG, "the header of rank %d's image "
			  "is that of rank %d of %d, step %" PRIu64
			  " of run %" PRIu64, image->rank, layout->rank,
			  layout->world, stamp->step, stamp->run);
}

static int parse(struct sk_restoring *rs, struct sk_restore_image *image,
		 const void *header, uint64_t bytes)
{
	_cleanup_layout_ struct sk_layout *layout = NULL;
	_cleanup_free_ uint64_t *sums = NULL;
	struct sk_stamp stamp;
	int r;

	assert(!image->layout && !image->sums.values);
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
	if (r >= 0)
		r = check_header(rs, image, layout, &stamp);
	if (r < 0)
		return r;
	image->layout = sk_take_ptr(layout);
	return sk_restore_keep_sums(rs, image, sk_take_ptr(sums));
}

static int read_header(struct sk_restoring *rs, struct sk_restore_image *image,
		       const struct sk_opened_image *o)
{
	_cleanup_free_ char *header = NULL;
	uint64_t bytes = o->header_bytes;
	int r;

	if (o->image_bytes != image->bytes || bytes > image->bytes)
		return sk_err_set(&rs->err, -EPROTO, "the agent opened an "
				  "image of %" PRIu64 " bytes as one of %"
				  PRIu64, image->bytes, o->image_bytes);
	header = malloc(bytes ? bytes : 1);
	if (!header)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for a header "
				  "of %" PRIu64 " bytes", bytes);
	r = sk_read_all(rs->sk->os, o->header, header, bytes, 0);
	if (r < 0)
		return sk_err_errno(&rs->err, r == -ENODATA ? -EBADMSG : r,
				    "cannot read a header of %" PRIu64
				    " bytes", bytes);
	return parse(rs, image, header, bytes);
}

static int open_unknown(struct sk_restoring *rs,
			struct sk_restore_image *image, uint32_t place,
			int *ret_fd)
{
	struct sk_opened_image o;
	int r;

	assert(!image->layout && image->places[place].listed);
	r = sk_image_open(&rs->conn, image->places[place].id,
			  sk_restore_place_number(place), sk_until(rs->sk), &o,
			  &rs->err);
	if (r < 0)
		return r;
	r = read_header(rs, image, &o);
	close_fd(rs, o.header);
	if (r >= 0)
		*ret_fd = o.data;
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

/* What came of opening it: its data, or @r. -ENOENT: that image alone is not
 * to be had; others end the restore. */
static int note_opened(struct sk_restoring *rs, uint32_t image,
		       uint32_t place, int r, int fd)
{
	struct sk_restore_place *p = &rs->images[image].places[place];

	if (is_fatal(r))
		return r;
	if (r >= 0) {
		p->checked = true;
		keep_fd(rs, p, fd);
		return 0;
	}
	p->there = false;
	rs->stale |= r == -ENOENT;
	if (r == -EBADMSG)
		sk_restore_set_aside(rs, image, place, true);
	return -ENOENT;
}

int sk_restore_open(struct sk_restoring *rs, uint32_t image, uint32_t place)
{
	struct sk_restore_image *i = &rs->images[image];
	int fd, r;

	assert(image < rs->n_images && place < SK_PLACES);
	if (!i->places[place].there)
		return -ENOENT;
	/* The node that has it opens it. */
	if (place >= SK_PLACE_OTHERS)
		return 0;
	if (i->places[place].checked || i->places[place].asked)
		return 0;
	if (rs->later && i->layout) {
		i->places[place].asked = true;
		rs->n_asked++;
		return 0;
	}
	fd = -1;
	r = i->layout ? open_known(rs, i, place, false, &fd) :
			open_unknown(rs, i, place, &fd);
	return note_opened(rs, image, place, r, fd);
}

/* ---- together ---- */

/* Of those that are to be opened. */
struct together {
	struct sk_conn_request asks[SK_CONN_AT_ONCE];
	uint32_t image[SK_CONN_AT_ONCE], place[SK_CONN_AT_ONCE];
	int n;
};

static int take_answer(struct sk_restoring *rs, struct together *t, int k)
{
	struct sk_conn_request *a = &t->asks[k];
	int fd = -1, sums, r = a->r;

	if (r < 0)
		rs->err = a->err;
	else
		r = sk_image_take_sums(&rs->conn, &a->msg, a->fds, a->n_fds,
				       &fd, &sums, &rs->err);
	a->n_fds = 0;
	if (r >= 0)
		r = take_known(rs, &rs->images[t->image[k]],
			       &a->msg.body.open_reply, fd, sums, false, &fd);
	return note_opened(rs, t->image[k], t->place[k], r, fd);
}

/* One round trip. */
static int open_together(struct sk_restoring *rs, struct together *t,
			 bool *ret_lost)
{
	int r = sk_conn_call_all(&rs->conn, t->asks, t->n, sk_until(rs->sk),
				 &rs->err);

	for (int k = 0; k < t->n && r >= 0; k++) {
		r = take_answer(rs, t, k);
		*ret_lost |= r == -ENOENT;
		r = r == -ENOENT ? 0 : r;
	}
	for (int k = 0; k < t->n; k++)	/* those that were not looked at */
		for (int i = 0; i < t->asks[k].n_fds; i++)
			close_fd(rs, t->asks[k].fds[i]);
	t->n = 0;
	return r;
}

static void ask(struct sk_restoring *rs, struct together *t, uint32_t image,
		uint32_t place)
{
	struct sk_restore_place *p = &rs->images[image].places[place];

	p->asked = false;
	rs->n_asked--;
	t->image[t->n] = image;
	t->place[t->n] = place;
	t->asks[t->n++] = (struct sk_conn_request){
		.msg = sk_image_ask_sums(p->id,
					 sk_restore_place_number(place)) };
}

int sk_restore_open_asked(struct sk_restoring *rs, bool *ret_lost)
{
	_cleanup_free_ struct together *t = NULL;
	int r = 0;

	*ret_lost = false;
	if (!rs->n_asked)
		return 0;
	t = calloc(1, sizeof(*t));
	if (!t)
		return sk_err_set(&rs->err, -ENOMEM, "no memory to open %u "
				  "images", rs->n_asked);
	for (uint32_t i = 0; i < 2 * rs->n_images && r >= 0; i++) {
		if (rs->images[i / 2].places[i % 2].asked)
			ask(rs, t, i / 2, i % 2);
		if (t->n == SK_CONN_AT_ONCE)
			r = open_together(rs, t, ret_lost);
	}
	return r < 0 || !t->n ? r : open_together(rs, t, ret_lost);
}

/* ---- layouts ---- */

/* As it is remembered, or by arithmetic. A rank may read a tensor of thousands
 * of images each, so of those that follow from another one it keeps outlines
 * of what it takes, and has none remembered. */
static int find_layout(struct sk_restoring *rs,
		       const struct sk_restore_image *i,
		       struct sk_layout **ret)
{
	struct sk_layout *base = (struct sk_layout *)sk_restore_described(
		rs, i->description);
	bool boxes = base && sk_layout_says_boxes(base);
	struct sk_restore_taking taking;
	int r;

	r = sk_recall_find(rs->sk->recall, boxes ? base : NULL, i->rank,
			   (enum sk_image_kind)i->kind, &i->digest, ret);
	if (r != -ENOENT || !base || boxes)
		return r;
	r = sk_restore_taking(rs, i, &taking);
	if (r < 0)
		return r;
	return sk_layout_outline(base, i->rank, (enum sk_image_kind)i->kind,
				 &i->digest, sk_restore_takes, &taking, ret);
}

/* By its digest, and it is whose the list said. */
int sk_restore_derive(struct sk_restoring *rs, uint32_t image)
{
	struct sk_restore_image *i = &rs->images[image];
	struct sk_layout *l;
	int r;

	assert(image < rs->n_images);
	if (i->layout)
		return 0;
	r = find_layout(rs, i, &l);
	if (r == -ENOMEM)
		return sk_err_set(&rs->err, r, "no memory for the layout of "
				  "rank %d", i->rank);
	if (r < 0)
		return r;
	if (l->rank != i->rank || l->kind != i->kind ||
	    l->world != rs->world || l->description != i->description) {
		sk_layout_free(l);
		return -ENOENT;
	}
	i->layout = l;
	return 0;
}

static bool keeps_none(const struct sk_layout *layout,
		       const struct sk_entry *entry, void *ctx)
{
	(void)layout;
	(void)entry;
	(void)ctx;
	return false;
}

int sk_restore_follows(struct sk_restoring *rs, uint32_t image)
{
	const struct sk_restore_image *i = &rs->images[image];
	const struct sk_layout *base = sk_restore_described(rs,
							    i->description);
	struct sk_layout *l;
	int r;

	assert(image < rs->n_images);
	if (!base || sk_layout_says_boxes(base))
		return -ENOENT;
	if (i->layout == base)
		return 0;
	r = sk_layout_outline((struct sk_layout *)base, i->rank,
			      (enum sk_image_kind)i->kind, &i->digest,
			      keeps_none, NULL, &l);
	if (r >= 0)
		sk_layout_free(l);
	return r != -ENOMEM ? r :
	       sk_err_set(&rs->err, r, "no memory for the layout of rank %d",
			  i->rank);
}

/* What an image that was set aside describes: the agent has its header. */
static int read_damaged(struct sk_restoring *rs, struct sk_restore_image *i,
			uint32_t place)
{
	int fd, r;

	if (i->places[place].there || !i->places[place].listed)
		return -ENOENT;
	r = open_unknown(rs, i, place, &fd);
	if (r < 0)
		return is_fatal(r) ? r : -ENOENT;
	close_fd(rs, fd);
	return 0;
}

int sk_restore_know(struct sk_restoring *rs, uint32_t image)
{
	struct sk_restore_image *i = &rs->images[image];
	int r;

	assert(image < rs->n_images);
	if (i->layout)
		return 0;
	r = sk_restore_derive(rs, image);
	/* Where nothing gives it, its header does. */
	for (uint32_t place = 0; place < 2 && r == -ENOENT; place++)
		r = sk_restore_open(rs, image, place);
	for (uint32_t place = 0; place < 2 && r == -ENOENT; place++)
		r = read_damaged(rs, i, place);
	return r;
}

/* ---- what others name ---- */

/* An outline has what this rank takes. */
static int have_whole(struct sk_restoring *rs, struct sk_restore_image *i)
{
	int r = i->whole ? 0 : sk_layout_whole(i->layout, &i->whole);

	return r != -ENOMEM ? r :
	       sk_err_set(&rs->err, r, "no memory for the layout of rank %d",
			  i->rank);
}

int sk_restore_named_entry(struct sk_restoring *rs, uint32_t image,
			   uint32_t index, const struct sk_entry **ret)
{
	struct sk_restore_image *i = &rs->images[image];
	int r;

	assert(image < rs->n_images && i->layout);
	*ret = sk_layout_entry(i->layout, index);
	if (*ret || i->layout->header)
		return 0;
	r = have_whole(rs, i);
	if (r == -ENOMEM)
		return r;
	if (r >= 0)
		*ret = sk_layout_entry(i->whole, index);
	return 0;
}

int sk_restore_need_sums(struct sk_restoring *rs, uint32_t image,
			 uint32_t place, const struct sk_entry *entry)
{
	struct sk_restore_image *i = &rs->images[image];
	int fd, r;

	assert(image < rs->n_images && place < 2 && i->places[place].checked);
	if (sk_restore_has_sums(i, entry))
		return 0;
	r = open_known(rs, i, place, true, &fd);
	rs->stale |= r == -ENOENT;
	if (r >= 0)
		close_fd(rs, fd);
	return r;
}

/* ---- the data ---- */

int sk_restore_reach(struct sk_restoring *rs, uint32_t image, uint32_t place)
{
	struct sk_restore_image *i = &rs->images[image];
	struct sk_restore_place *p = &i->places[place];
	int r;

	assert(image < rs->n_images && place < 2 && p->checked);
	if (p->fd < 0) {
		r = open_known(rs, i, place, false, &p->fd);
		rs->stale |= r == -ENOENT;
		if (r < 0)
			return r;
	}
	if (place || p->map)
		return 0;
	return sk_slot_map_fd(rs->sk->os, p->fd, i->bytes, false, &p->map,
			      &rs->err);
}

void sk_restore_leave(struct sk_restoring *rs, uint32_t image)
{
	struct sk_restore_place *p = &rs->images[image].places[1];

	assert(image < rs->n_images);
	close_fd(rs, p->fd);
	p->fd = -1;
}
