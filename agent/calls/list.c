/* SPDX-License-Identifier: Apache-2.0 */
/* LIST: what there is, newest first, in a memfd of records. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "bytes/checksum.h"
#include "calls/call.h"
#include "calls/device.h"
#include "disk/flush.h"
#include "disk/stored.h"
#include "memory/bytes.h"
#include "session/request.h"
#include "session/rights.h"

/* Clients take an agent for dead that says nothing for longer. */
#define DECIDE_MS 5000u
/* How much further back a list looks that found too few. */
#define FURTHER 8u

/* One that waits for the disk to be looked at, and then until it is known what
 * is complete. */
struct listing {
	struct request request;
	struct stored_wish wish;
	int looked;			/* what came of the look */
	struct sk_err err;		/* why not */
};

/* Records of one kind, as many as there are. */
struct records {
	char *data;
	size_t n, room, size;
	uint32_t flags;		/* of the snapshot whose parts they are */
};

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
	       (sk_cat_whole_in_memory(s) ? SK_SNAP_RESIDENT : 0);
}

static uint32_t snapshot_flags(const struct sk_cat_snapshot *s,
			       const struct sk_wire_snapshot *w)
{
	bool complete = sk_cat_complete(s), on_disk = sk_cat_on_disk(s);

	return whole_flags(s) |
	       (s->pinned ? SK_SNAP_PINNED : 0) |
	       (w->bytes_memory ? SK_SNAP_MEMORY : 0) |
	       (w->bytes_disk ? SK_SNAP_DISK : 0) |
	       (s->flushing ? SK_SNAP_FLUSHING : 0) |
	       (s->job->catalogue->has_store && s->wanted && !on_disk &&
		!s->hopeless_on_disk ? SK_SNAP_WANTED : 0) |
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

/* ---- the call ---- */

static bool is_listed(const struct sk_wire_list *in,
		      const struct sk_cat_snapshot *s)
{
	return (!in->id.run || s->run == in->id.run) &&
	       (!in->id.run_id || s->run_id == in->id.run_id) &&
	       (in->id.step < 0 || s->step == in->id.step);
}

/* What the store may have between two that are known was not looked into. */
static bool is_beyond(const struct listing *l, const struct sk_cat_snapshot *s)
{
	const struct stored_end *end = &l->wish.end;

	return end->more && sk_cat_order(end->run.number, end->run.id,
					 (int64_t)end->step, s) > 0;
}

/* The job's next one that is listed, after @s or, if NULL, the first; NULL: no
 * more. *complete counts those that were. */
static struct sk_cat_snapshot *next_listed(const struct listing *l,
					   const struct sk_cat_job *job,
					   struct sk_cat_snapshot *s,
					   uint32_t *complete)
{
	const struct sk_wire_list *in = &l->request.msg.body.list;
	const struct sk_link *at = s ? &s->link : &job->snapshots;

	*complete += s && sk_cat_complete(s);
	if (in->limit && *complete >= in->limit)
		return NULL;
	for (at = at->next; at != &job->snapshots; at = at->next) {
		s = sk_link_object(at, struct sk_cat_snapshot, link);
		if (in->limit && is_beyond(l, s))
			return NULL;
		if (is_listed(in, s))
			return s;
	}
	return NULL;
}

static int add_job(const struct listing *l, struct records *records,
		   const struct sk_cat_job *job)
{
	const struct sk_wire_list *in = &l->request.msg.body.list;
	struct sk_cat_snapshot *s = NULL;
	uint32_t complete = 0;
	int r = 0;

	while (r == 0 && (s = next_listed(l, job, s, &complete)))
		r = in->what == SK_LIST_SNAPSHOTS ?
		    add_snapshot(l->request.agent, records, s) :
		    add_images(records, s, in);
	return r;
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

static bool is_asked(const struct sk_wire_list *in,
		     const struct sk_cat_job *job)
{
	return !in->id.job[0] || strcmp(job->name, in->id.job) == 0;
}

static int collect(struct request *q, struct records *records)
{
	const struct listing *l = sk_link_object(q, struct listing, request);
	const struct sk_wire_list *in = &q->msg.body.list;
	struct sk_cat_job *job = NULL;
	int r = 0;

	while (r == 0 && (job = next_job(q->session, job))) {
		if (is_asked(in, job))
			r = add_job(l, records, job);
	}
	return r;
}

/* Whether memory alone has a snapshot that can be restored: then it answers
 * where the disk does not. */
static bool memory_answers(struct session *session,
			   const struct sk_wire_list *in)
{
	const struct sk_cat_snapshot *s;
	struct sk_cat_job *job = NULL;

	while ((job = next_job(session, job))) {
		sk_link_each(s, &job->snapshots, link) {
			if (is_asked(in, job) && is_listed(in, s) &&
			    sk_cat_whole_in_memory(s))
				return true;
		}
	}
	return false;
}

/* The records, in the reply's memory; its descriptor. */
static int make_list(struct request *q, struct sk_msg *msg, struct sk_err *err)
{
	static const size_t sizes[] = {
		[SK_LIST_SNAPSHOTS] = sizeof(struct sk_wire_snapshot),
		[SK_LIST_IMAGES] = sizeof(struct sk_wire_image),
		[SK_LIST_PARTS] = sizeof(struct sk_wire_part),
	};
	struct records records = { .size = sizes[q->msg.body.list.what] };
	int r = collect(q, &records);

	if (r < 0)
		sk_err_errno(err, r, "cannot list");
	else
		r = bytes_fd(q->agent->os, "shardkeep:list", records.data,
			     records.n * records.size, err);
	msg->body.list_reply.n = records.n;
	msg->body.list_reply.record_bytes = (uint32_t)records.size;
	msg->body.list_reply.flags = records.flags;
	free(records.data);
	return r;
}

/* What the disk may have and nobody could look at is said in the reply. */
static void note_unreadable(struct sk_msg *msg, unsigned n,
			    const struct sk_err *why)
{
	struct sk_wire_list_reply *reply = &msg->body.list_reply;

	reply->unreadable = n;
	if (n)
		(void)snprintf(reply->text, sizeof(reply->text), "%s",
			       why->text);
}

/* The first that is listed and of which it is not known what it covers. */
static const struct sk_cat_snapshot *
find_undecided(const struct listing *l, const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s = NULL;
	uint32_t complete = 0;

	while ((s = next_listed(l, job, s, &complete))) {
		if (sk_cat_undecided(s) && sk_cat_asking(job))
			return s;
	}
	return NULL;
}

/* Whether it is known of all that is listed what it covers. */
static int listing_outcome(struct request *q, struct sk_err *err)
{
	const struct listing *l = sk_link_object(q, struct listing, request);
	const struct sk_wire_list *in = &q->msg.body.list;
	const struct sk_cat_snapshot *s;
	struct sk_cat_job *job = NULL;

	while ((job = next_job(q->session, job))) {
		if (is_asked(in, job) && device_draining(q->agent, job))
			return sk_err_set(err, -EAGAIN, "what a rank of job "
					  "\"%s\" left on a GPU is still "
					  "being brought to memory",
					  job->name);
		s = is_asked(in, job) ? find_undecided(l, job) : NULL;
		if (s)
			return sk_err_set(err, -EAGAIN, "it is still being "
					  "told whether step %" PRId64 " of "
					  "job \"%s\" is complete", s->step,
					  job->name);
	}
	return 0;
}

/* Whether the list ends for no other reason than that what is older was not
 * looked into. */
static bool is_short(const struct listing *l)
{
	const struct request *q = &l->request;
	const struct sk_wire_list *in = &q->msg.body.list;
	struct sk_cat_job *job = NULL;
	struct sk_cat_snapshot *s = NULL;
	uint32_t complete = 0;

	if (!in->limit || !l->wish.end.more)
		return false;
	while ((job = next_job(q->session, job)))
		while (is_asked(in, job) &&
		       (s = next_listed(l, job, s, &complete)))
			;
	return complete < in->limit;
}

static void look_at_store(struct listing *l);

/* @status -EAGAIN: what is not known yet may be there, and is said to be. */
static void listing_answer(struct request *q, int status,
			   const struct sk_err *why)
{
	struct listing *l = sk_link_object(q, struct listing, request);
	struct sk_msg msg = { 0 };
	struct sk_err err = l->err;
	int fd = l->looked;

	if (fd == 0 && status == 0 && is_short(l)) {
		l->wish.range.most *= FURTHER;
		look_at_store(l);
		return;
	}
	note_unreadable(&msg, fd < 0 ? 1 : l->wish.unreadable,
			fd < 0 ? &l->err : &l->wish.first);
	if (status < 0)
		note_unreadable(&msg, l->wish.unreadable + 1, why);
	if (fd == 0 || memory_answers(q->session, &q->msg.body.list))
		fd = make_list(q, &msg, &err);
	request_answer(q, fd < 0 ? fd : 0, fd < 0 ? NULL : &msg, &fd, fd >= 0,
		       &err);
}

static void listing_release(struct request *q)
{
	free(sk_link_object(q, struct listing, request));
}

static const struct request_kind listing_kind = {
	.outcome = listing_outcome,
	.answer = listing_answer,
	.release = listing_release,
};

static void listing_granted(struct stored_wish *wish, int r,
			    const struct sk_err *why)
{
	struct listing *l = sk_link_object(wish, struct listing, wish);
	struct request *q = &l->request;
	struct sk_err err = { "" };

	q->busy = false;
	l->looked = r;
	l->err = *why;
	if (r < 0)
		log_warning(q->agent, "%s", why->text);
	if (!q->session)
		request_answer(q, -ECONNRESET, NULL, NULL, 0, &err);
	else if (listing_outcome(q, &err) == 0)
		listing_answer(q, 0, &err);
	else
		request_await_change_for(q, DECIDE_MS);
}

/* May be answered before it returns. */
static void look_at_store(struct listing *l)
{
	l->request.busy = true;
	stored_scan(l->request.agent, &l->wish);
}

static void look_first(struct call *c, struct listing *l)
{
	const struct sk_wire_list *in = &c->in->body.list;
	struct sk_cat_job *job = NULL;

	if (in->id.job[0])
		job = session_job(c->session, in->id.job);
	l->wish = (struct stored_wish){
		.granted = listing_granted,
		.range = { .most = in->limit ? in->limit : SIZE_MAX,
			   .run = in->id.run, .step = in->id.step },
		.uid = job ? job->uid : c->session->uid,
	};
	/* It was checked: it ends within. */
	memcpy(l->wish.job, in->id.job, sizeof(l->wish.job));
	look_at_store(l);
}

int call_list(struct call *c)
{
	const struct sk_wire_list *in = &c->in->body.list;
	struct sk_err none = { "" };
	struct listing *l;
	int r;

	r = sk_wire_check_id(&in->id, &c->err);
	if (r < 0)
		return r;
	if (in->what < SK_LIST_SNAPSHOTS || in->what > SK_LIST_PARTS)
		return sk_err_set(&c->err, -EINVAL, "there is no list %u",
				  in->what);
	if (in->what == SK_LIST_PARTS && (!in->id.job[0] || !in->id.run ||
					  !in->id.run_id || in->id.step < 0))
		return sk_err_set(&c->err, -EINVAL, "parts are listed of one "
				  "snapshot: job, run, its id and step");
	if (in->limit && !in->id.job[0])
		return sk_err_set(&c->err, -EINVAL, "a list has a limit where "
				  "it is of one job");
	l = calloc(1, sizeof(*l));
	if (!l)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a list");
	r = request_init(&l->request, &listing_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(l);
		return r;
	}
	if (in->flags & SK_LIST_KNOWN)
		listing_granted(&l->wish, 0, &none);
	else
		look_first(c, l);
	return CALL_LATER;
}
