/* SPDX-License-Identifier: Apache-2.0 */
/* OPEN, CLOSE, REPORT_BAD: images in the hands of those who restore. */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "agent.h"

static int find(struct call *c, uint64_t id, uint32_t place,
		struct sk_cat_image **ret)
{
	struct sk_cat_image *image = sk_cat_image_by_id(&c->agent->cat, id);

	if (!image || !session_sees(c->session, image->snapshot->job))
		return sk_err_set(&c->err, -ENOENT, "there is no image %"
				  PRIu64 "; list again", id);
	if (place == SK_PLACE_MEMORY ? !image->slot :
	    place != SK_PLACE_DISK || !image->stored.dir[0])
		return sk_err_set(&c->err, -ENOENT, "image %" PRIu64 " is not "
				  "%s any more; list again", id,
				  place == SK_PLACE_MEMORY ? "in memory" :
				  "on disk");
	*ret = image;
	return 0;
}

/* ---- leases ---- */

static int lease(struct call *c, struct sk_cat_image *image, uint32_t place)
{
	struct session *s = c->session;
	struct lease *l;

	if (s->n_leases >= MAX_LEASES)
		return sk_err_set(&c->err, -EDQUOT, "this connection has %u "
				  "images open", s->n_leases);
	l = calloc(1, sizeof(*l));
	if (!l)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a lease");
	l->image = image->id;
	l->place = place;
	sk_link_insert(&s->leases, &l->link);
	s->n_leases++;
	sk_cat_lease(image, 1);
	return 0;
}

static bool unlease(struct session *s, uint64_t id, uint32_t place)
{
	struct sk_cat_image *image;
	struct lease *l;

	sk_link_each(l, &s->leases, link) {
		if (l->image != id || l->place != place)
			continue;
		sk_link_remove(&l->link);
		s->n_leases--;
		free(l);
		image = sk_cat_image_by_id(&s->agent->cat, id);
		if (image)
			sk_cat_lease(image, -1);
		agent_changed(s->agent);
		return true;
	}
	return false;
}

/* ---- opening ---- */

/* The stamped header, from what only the agent can write. */
static int header_fd(const struct sk_cat_image *image, struct sk_err *err)
{
	const struct sk_layout *l = image->layout->layout;
	const struct sk_stamp stamp = {
		.run = image->snapshot->run,
		.step = (uint64_t)image->snapshot->step,
		.sums = image->sums,
	};
	_cleanup_free_ void *header = malloc(l->header_bytes);

	if (!header)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	sk_layout_stamp(l, &stamp, header);
	return bytes_fd("shardkeep:header", header, l->header_bytes, err);
}

struct opening {
	struct work work;
	struct request *request;
	struct sk_stored stored;
	uint64_t bytes;
	uint64_t header_bytes;
	int header;
	int fd;
	struct sk_err err;
};

/* A file of its own for every reader: they differ in how they read it. */
static void open_file(struct work *work)
{
	struct opening *o = sk_link_object(work, struct opening, work);
	struct stat st;

	o->fd = sk_store_open_image(work->agent->store, &o->stored, &o->err);
	if (o->fd < 0)
		return;
	if (fstat(o->fd, &st) == 0 && (uint64_t)st.st_size == o->bytes)
		return;
	sk_close_fd(o->fd);
	o->fd = sk_err_set(&o->err, -EBADMSG, "the image of rank %" PRId32
			   " in %s is not of %" PRIu64 " bytes", o->stored.rank,
			   o->stored.dir, o->bytes);
}

static void opened(struct work *work)
{
	struct opening *o = sk_link_object(work, struct opening, work);
	struct request *q = o->request;
	const struct sk_wire_open *in = &q->msg.body.open;
	int fds[2] = { o->fd, o->header };
	struct sk_msg msg = { 0 };

	q->busy = false;
	msg.body.open_reply.image_bytes = o->bytes;
	msg.body.open_reply.header_bytes = o->header_bytes;
	msg.body.open_reply.place = SK_PLACE_DISK;
	if (o->fd < 0) {
		sk_close_fd(o->header);
		if (q->session)
			(void)unlease(q->session, in->image, in->place);
		request_answer(q, o->fd, NULL, NULL, 0, &o->err);
	} else {
		request_answer(q, 0, &msg, fds, 2, &o->err);
	}
	free(o);
}

static int open_disk(struct call *c, struct sk_cat_image *image, int header)
{
	struct opening *o = calloc(1, sizeof(*o));
	struct request *q = o ? request_new(c, 0) : NULL;

	if (!q) {
		free(o);
		return -EBUSY;
	}
	o->request = q;
	stored_name(image, &o->stored);
	o->bytes = image->layout->layout->image_bytes;
	o->header_bytes = image->layout->layout->header_bytes;
	o->header = header;
	o->work.run = open_file;
	o->work.finish = opened;
	q->busy = true;
	work_submit(c->agent, c->agent->slow, &o->work);
	return CALL_LATER;
}

static int open_memory(struct call *c, struct sk_cat_image *image, int header)
{
	const struct memory *m = image->slot->memory;
	struct sk_wire_open_reply *out = &c->out.body.open_reply;
	int fd;

	fd = sk_slot_reopen_ro(c->agent->os, &m->slots[image->kind], &c->err);
	if (fd < 0)
		return fd;
	c->out_fds[0] = fd;
	c->out_fds[1] = header;
	c->n_out = 2;
	out->image_bytes = image->layout->layout->image_bytes;
	out->header_bytes = image->layout->layout->header_bytes;
	out->place = SK_PLACE_MEMORY;
	return 0;
}

int call_open(struct call *c)
{
	const struct sk_wire_open *in = &c->in->body.open;
	struct sk_cat_image *image;
	int header, r;

	r = find(c, in->image, in->place, &image);
	if (r < 0)
		return r;
	header = header_fd(image, &c->err);
	if (header < 0)
		return header;
	r = lease(c, image, in->place);
	if (r == 0)
		r = in->place == SK_PLACE_DISK ?
		    open_disk(c, image, header) :
		    open_memory(c, image, header);
	if (r >= 0)
		return r;
	sk_close_fd(header);
	(void)unlease(c->session, in->image, in->place);
	return r;
}

int call_close(struct call *c)
{
	const struct sk_wire_open *in = &c->in->body.open;

	if (unlease(c->session, in->image, in->place))
		return 0;
	return sk_err_set(&c->err, -ENOENT, "image %" PRIu64 " is not open",
			  in->image);
}

int call_report_bad(struct call *c)
{
	const struct sk_wire_open *in = &c->in->body.open;
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;
	int r;

	r = find(c, in->image, in->place, &image);
	if (r < 0)
		return r;
	s = image->snapshot;
	log_error(c->agent, "job \"%s\" run %" PRIu64 " step %" PRId64 " rank "
		  "%" PRId32 ": a reader found a bad checksum %s; the image is "
		  "set aside", s->job->name, s->run, s->step, image->rank,
		  in->place == SK_PLACE_DISK ? "on disk" : "in memory");
	sk_cat_image_bad(image, in->place == SK_PLACE_DISK);
	c->agent->counts.bad_reported++;
	agent_changed(c->agent);
	return 0;
}
