/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The images of one snapshot: found in the list, opened, their headers read,
 * their data mapped when it is needed.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "checksum.h"
#include "restore.h"
#include "slot.h"

/* More images than this, and data stays closed until it is needed. */
#define OPEN_MAX_IMAGES 256

static const uint32_t place_numbers[2] = { SK_PLACE_MEMORY, SK_PLACE_DISK };

/* ---- finding ---- */

static bool usable(const struct sk_restoring *rs,
		   const struct sk_restore_offer *offer,
		   const struct sk_wire_image *w)
{
	if (w->id.run != offer->run || w->id.step != offer->step)
		return false;
	if (w->state == SK_IMAGE_FILLING || w->state == SK_IMAGE_BAD)
		return false;
	if (w->place == SK_PLACE_MEMORY)
		return !(rs->flags & SK_RESTORE_DISK_ONLY);
	return w->place == SK_PLACE_DISK &&
	       !(rs->flags & SK_RESTORE_MEMORY_ONLY);
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

static int find(struct sk_restoring *rs, const struct sk_restore_offer *offer)
{
	size_t n = rs->n_listed;

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

static int call_open(struct sk_restoring *rs, const struct sk_restore_image *i,
		     uint32_t place, int ret_fds[2], uint64_t *ret_header)
{
	struct sk_msg msg = {
		.type = SK_MSG_OPEN,
		.body.open = {
			.image = i->places[place].id,
			.place = place_numbers[place],
		},
	};
	int fds[SK_MSG_FDS], n_fds = 0, r;

	r = sk_conn_call(&rs->conn, &msg, NULL, 0, fds, &n_fds,
			 rs->sk->timeout_ms, &rs->err);
	if (r < 0)
		return r;
	if (n_fds == 2 && msg.body.open_reply.image_bytes == i->bytes) {
		ret_fds[0] = fds[0];
		ret_fds[1] = fds[1];
		*ret_header = msg.body.open_reply.header_bytes;
		return 0;
	}
	for (int k = 0; k < n_fds; k++)
		sk_close_fd(fds[k]);
	return sk_err_set(&rs->err, -EPROTO, "the agent opened an image of %"
			  PRIu64 " bytes as one of %" PRIu64 " bytes with %d "
			  "descriptors", i->bytes,
			  msg.body.open_reply.image_bytes, n_fds);
}

static int read_header(struct sk_restoring *rs, int fd, char *header,
		       uint64_t bytes)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = rs->sk->os->pread(rs->sk->os, fd, header + done,
					      bytes - done, done);

		if (n < 0)
			return sk_err_errno(&rs->err, (int)n, "cannot read a "
					    "header of %" PRIu64 " bytes",
					    bytes);
		if (!n)
			return sk_err_set(&rs->err, -EBADMSG, "a header of %"
					  PRIu64 " bytes ends after %" PRIu64,
					  bytes, done);
		done += (uint64_t)n;
	}
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

	if (bytes > image->bytes)
		return sk_err_set(&rs->err, -EBADMSG, "a header of %" PRIu64
				  " bytes in an image of %" PRIu64 " bytes",
				  bytes, image->bytes);
	header = malloc(bytes ? bytes : 1);
	if (!header)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for a header "
				  "of %" PRIu64 " bytes", bytes);
	r = read_header(rs, fd, header, bytes);
	if (r < 0)
		return r;
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
	_cleanup_close_ int data = -1;
	_cleanup_close_ int header = -1;
	uint64_t bytes;
	int fds[2], r;

	r = call_open(rs, image, place, fds, &bytes);
	if (r < 0)
		return r;
	data = fds[0];
	header = fds[1];
	if (!image->layout) {
		r = parse(rs, offer, image, header, bytes);
		if (r < 0)
			return r;
	}
	if (rs->n_images <= OPEN_MAX_IMAGES)
		image->places[place].fd = sk_take_fd(&data);
	return 0;
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

	r = find(rs, offer);
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
	uint64_t bytes;
	int fds[2], r;

	if (p->fd < 0) {
		r = call_open(rs, i, place, fds, &bytes);
		if (r < 0)
			return r;
		sk_close_fd(fds[1]);
		p->fd = fds[0];
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

	rs->images[image].places[place].there = false;
	rs->report.damaged++;
	/* The agent will find it itself where it cannot be told. */
	if (tell)
		(void)sk_conn_call(&rs->conn, &msg, NULL, 0, NULL, NULL,
				   rs->sk->timeout_ms, &ignored);
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

		sk_close_fd(image->places[0].fd);
		sk_close_fd(image->places[1].fd);
		sk_layout_free(image->layout);
		free(image->sums);
	}
	free(rs->images);
	rs->images = NULL;
	rs->n_images = 0;
	rs->n_sums = 0;
}
