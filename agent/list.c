/* SPDX-License-Identifier: Apache-2.0 */
/* LIST: what there is, newest first, in a memfd of records. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "agent.h"

int bytes_fd(const char *name, const void *data, size_t bytes,
	     struct sk_err *err)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	const char *from = data;
	size_t at = 0;

	if (fd < 0)
		return sk_err_errno(err, -errno, "cannot make memory for a "
				    "reply");
	while (at < bytes) {
		ssize_t n = write(fd, from + at, bytes - at);

		if (n < 0) {
			int r = -errno;

			close(fd);
			return sk_err_errno(err, r, "cannot fill a reply of "
					    "%zu bytes", bytes);
		}
		at += (size_t)n;
	}
	(void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW |
		    F_SEAL_WRITE | F_SEAL_SEAL);
	return fd;
}

/* Records of one kind, as many as there are. */
struct records {
	char *data;
	size_t n, room, size;
};

static void *next_record(struct records *r)
{
	void *record;

	if (r->n == r->room) {
		size_t room = r->room ? 2 * r->room : 64;
		char *data = reallocarray(r->data, room, r->size);

		if (!data)
			return NULL;
		r->data = data;
		r->room = room;
	}
	record = r->data + r->n++ * r->size;
	memset(record, 0, r->size);
	return record;
}

static void fill_id(const struct sk_cat_snapshot *s, int32_t rank,
		    struct sk_wire_id *id)
{
	memcpy(id->job, s->job->name, sizeof(s->job->name));
	id->run = s->run;
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

static uint32_t snapshot_flags(const struct sk_cat_snapshot *s,
			       const struct sk_wire_snapshot *w)
{
	return (s->complete ? SK_SNAP_COMPLETE : 0) |
	       (s->on_disk ? SK_SNAP_DURABLE : 0) |
	       (s->pinned ? SK_SNAP_PINNED : 0) |
	       (w->bytes_memory ? SK_SNAP_MEMORY : 0) |
	       (w->bytes_disk ? SK_SNAP_DISK : 0) |
	       (s->flushing ? SK_SNAP_FLUSHING : 0) |
	       (s->wanted && !s->on_disk && !s->hopeless_on_disk ?
		SK_SNAP_WANTED : 0) |
	       (s->complete && s == sk_cat_newest(s->job) ?
		SK_SNAP_NEWEST : 0) |
	       (s->leases ? SK_SNAP_IN_USE : 0) |
	       (s->failed ? SK_SNAP_FAILED : 0);
}

static int add_snapshot(struct agent *a, struct records *records,
			const struct sk_cat_snapshot *s)
{
	struct sk_wire_snapshot *w = next_record(records);
	struct sk_cat_image *image;

	if (!w)
		return -ENOMEM;
	fill_id(s, -1, &w->id);
	sk_link_each(image, &s->images, link) {
		uint64_t bytes = image->layout->layout->image_bytes;
		bool there = (image->slot && !image->bad_memory) ||
			     (image->stored.dir[0] && !image->bad_disk);

		w->bytes_memory += image->slot ? bytes : 0;
		w->bytes_disk += image->stored.dir[0] ? bytes : 0;
		w->images += there && image->kind == SK_IMAGE_PRIMARY;
	}
	w->created_ns = s->created_ns;
	w->flushed_bytes = flush_done(a, s);
	w->uid = s->job->uid;
	w->tensors = count_names(s);
	w->flags = snapshot_flags(s, w);
	(void)snprintf(w->text, sizeof(w->text), "%s",
		       s->failed ? s->text : s->missing);
	return 0;
}

/* ---- images ---- */

static int add_image(struct records *records, const struct sk_cat_image *image,
		     enum sk_place place)
{
	struct sk_wire_image *w = next_record(records);
	bool bad = place == SK_PLACE_DISK ? image->bad_disk :
					    image->bad_memory;

	if (!w)
		return -ENOMEM;
	fill_id(image->snapshot, image->rank, &w->id);
	w->image = image->id;
	w->bytes = image->layout->layout->image_bytes;
	w->digest = image->layout->layout->digest;
	w->kind = (uint32_t)image->kind;
	w->place = (uint32_t)place;
	w->state = bad ? SK_IMAGE_BAD :
		   place == SK_PLACE_DISK && !image->slot ? SK_IMAGE_STORED :
		   image->stored.dir[0] && image->slot ? SK_IMAGE_DURABLE :
		   SK_IMAGE_SEALED;
	return 0;
}

static int add_filling(struct records *records,
		       const struct sk_cat_snapshot *s, int32_t rank)
{
	struct sk_cat_run *run = sk_cat_run_find(s->job, s->run);
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
		      int32_t rank)
{
	struct sk_cat_image *image;
	int r;

	sk_link_each(image, &s->images, link) {
		if (rank >= 0 && image->rank != rank)
			continue;
		r = image->slot ? add_image(records, image, SK_PLACE_MEMORY) :
				  0;
		if (r == 0 && image->stored.dir[0])
			r = add_image(records, image, SK_PLACE_DISK);
		if (r < 0)
			return r;
	}
	return add_filling(records, s, rank);
}

/* ---- the call ---- */

static int add_job(struct agent *a, struct records *records,
		   const struct sk_wire_list *in, const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;
	int r;

	sk_link_each(s, &job->snapshots, link) {
		if ((in->id.run && s->run != in->id.run) ||
		    (in->id.step >= 0 && s->step != in->id.step))
			continue;
		r = in->what == SK_LIST_SNAPSHOTS ?
		    add_snapshot(a, records, s) :
		    add_images(records, s, in->id.rank);
		if (r < 0)
			return r;
	}
	return 0;
}

/* By name, descending; within a job they come newest first already. */
static struct sk_cat_job *next_job(struct session *session,
				   const struct sk_cat_job *last)
{
	struct sk_cat_job *job, *best = NULL;

	sk_link_each(job, &session->agent->cat.jobs, link) {
		int order = last ? strcmp(job->name, last->name) : -1;

		if (!session_sees(session, job) || order > 0 ||
		    (order == 0 && job->uid >= last->uid))
			continue;
		order = best ? strcmp(job->name, best->name) : 1;
		if (order > 0 || (order == 0 && job->uid > best->uid))
			best = job;
	}
	return best;
}

static int collect(struct request *q, struct records *records)
{
	const struct sk_wire_list *in = &q->msg.body.list;
	struct sk_cat_job *job = NULL;
	int r = 0;

	while (r == 0 && (job = next_job(q->session, job))) {
		if (!in->id.job[0] || strcmp(job->name, in->id.job) == 0)
			r = add_job(q->agent, records, in, job);
	}
	return r;
}

static void scanned(struct request *q, int r, const struct sk_err *why)
{
	bool snapshots = q->msg.body.list.what == SK_LIST_SNAPSHOTS;
	struct records records = {
		.size = snapshots ? sizeof(struct sk_wire_snapshot) :
				    sizeof(struct sk_wire_image),
	};
	struct sk_msg msg = { 0 };
	struct sk_err err = { "" };
	int fd = -1;

	/* A store that cannot be read hides nothing of what memory holds. */
	if (r < 0)
		log_warning(q->agent, "%s", why->text);
	r = q->session ? collect(q, &records) : -ECONNRESET;
	if (r < 0)
		sk_err_errno(&err, r, "cannot list");
	else
		fd = r = bytes_fd("shardkeep:list", records.data,
				  records.n * records.size, &err);
	msg.body.list_reply.n = records.n;
	msg.body.list_reply.record_bytes = (uint32_t)records.size;
	request_answer(q, r < 0 ? r : 0, r < 0 ? NULL : &msg, &fd, r >= 0,
		       &err);
	free(records.data);
}

int call_list(struct call *c)
{
	const struct sk_wire_list *in = &c->in->body.list;
	struct sk_cat_job *job = NULL;
	struct request *q;
	int r;

	r = sk_wire_check_id(&in->id, &c->err);
	if (r < 0)
		return r;
	if (in->what != SK_LIST_SNAPSHOTS && in->what != SK_LIST_IMAGES)
		return sk_err_set(&c->err, -EINVAL, "there is no list %u",
				  in->what);
	q = request_new(c, 0);
	if (!q)
		return -EBUSY;
	q->scanned = scanned;
	if (in->id.job[0])
		job = session_job(c->session, in->id.job);
	stored_scan(c->agent, q, in->id.job,
		    job ? job->uid : c->session->uid, true);
	return CALL_LATER;
}
