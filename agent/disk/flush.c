/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flusher: one snapshot at a time, image by image, on a thread of its
 * own, out of the slots. A snapshot under way is protected, so what the thread
 * reads stays where it is; what is written is compared with its checksums.
 */
#include "disk/flush.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "catalogue/queue.h"
#include "disk/earlier.h"
#include "disk/flushing.h"
#include "disk/index.h"
#include "disk/outcome.h"
#include "disk/retain.h"
#include "disk/settle.h"
#include "disk/watch.h"
#include "disk/wrote.h"
#include "layout/sums.h"
#include "memory/memory.h"
#include "memory/record.h"

#define SECOND_NS UINT64_C(1000000000)
#define RACES_MOST 16u	/* lost in a row to another agent on the store */

int flush_open(struct agent *a, struct sk_err *err)
{
	const struct sk_io_opts opts = {
		.backend = a->opts->backend, .no_direct = a->opts->no_direct,
	};

	if (!a->store)
		return 0;
	return sk_io_new(a->os, &opts, &a->io, err);
}

void flush_close(struct agent *a)
{
	a->io = sk_io_free(a->io);
}

/* ---- in the background ---- */

static int progress(void *ctx, uint64_t done)
{
	struct flush *f = ctx;

	atomic_store_explicit(&f->current, done, memory_order_relaxed);
	return atomic_load_explicit(&f->agent->abort,
				    memory_order_relaxed);
}

/* Durable is said of what was sealed, and of nothing else: a client may still
 * reach the memory. */
static int see(void *ctx, const void *bytes, size_t n, struct sk_err *err)
{
	struct flush *f = ctx;
	int r = sk_sums_add(f->sums, bytes, n, err);

	f->bad = r == -EBADMSG;
	f->bad_entry = sk_sums_wrong(f->sums);
	return r;
}

/* A job that is new there may count on what is not said of it: nobody has
 * put anything into it yet that was to stay. */
static int claim_new(struct flush *f, uid_t *ret_owner)
{
	const struct sk_retention none = { 0 };
	struct sk_store *store = f->agent->store;
	bool is_new = !sk_store_has_job(store, f->put.job);
	int r = sk_store_claim(store, f->put.job, f->uid, ret_owner, &f->err);

	if (r == 0 && is_new && *ret_owner == f->uid)
		r = sk_store_set_retention(store, f->put.job,
					   SK_RETENTION_DEFAULT, &none,
					   &f->err);
	return r;
}

/* The store's directory of a job says whose it is. */
static int claim(struct flush *f)
{
	struct sk_store *store = f->agent->store;
	uid_t owner;
	int r;

	r = sk_store_owner(store, f->put.job, &owner, &f->err);
	if (r == -ENOENT)
		r = claim_new(f, &owner);
	else if (r < 0)
		sk_err_prefix(&f->err, r, "cannot tell whose job \"%s\" on the "
			      "store is", f->put.job);
	if (r < 0)
		return r;
	f->lost = owner != f->uid;
	if (f->lost)
		return sk_err_set(&f->err, -EACCES, "the store holds a job "
				  "\"%s\" of another user", f->put.job);
	return 0;
}

/* What is being flushed keeps its layout and its checksums. */
static int make_head(struct flush *f)
{
	const struct sk_layout *l = f->image->layout->layout;
	const struct sk_stamp stamp = {
		.run = f->put.run.number, .run_id = f->put.run.id,
		.step = f->put.step, .sums = f->image->sums,
	};

	f->head = malloc(l->header_bytes);
	f->sums = sk_sums_new(l, f->image->sums);
	if (!f->head || !f->sums)
		return sk_err_set(&f->err, -ENOMEM, "no memory to write an "
				  "image");
	sk_layout_stamp(l, &stamp, f->head);
	f->put.head = f->head;
	return 0;
}

static void put_image(struct flush *f)
{
	struct agent *a = f->agent;

	f->result = claim(f);
	if (f->result == 0)
		f->result = make_head(f);
	if (f->result < 0)
		return;
	f->result = sk_store_put_image(a->store, a->io, &f->put, &f->err);
	f->lost = f->result == -ESTALE;
	if (f->result == 0)
		f->result = earlier_look(&f->earlier, &f->file, a->store,
					 &f->err);
}

/* Who is told that it found no room is told how much there is. */
static void write_image(struct work *work)
{
	struct flush *f = sk_link_object(work, struct flush, work);
	struct agent *a = f->agent;
	struct sk_store_place place;

	put_image(f);
	place = sk_store_place(a->store);
	f->has_found = watch_measure(a->os, sk_store_path(a->store), &place,
				     &f->found) == 0;
}

/* ---- one snapshot ---- */

static bool needs_writing(const struct sk_cat_image *image)
{
	return image->kind == SK_IMAGE_PRIMARY && image->slot &&
	       !image->bad_memory &&
	       (!image->stored.dir[0] || image->bad_disk);
}

uint64_t flush_left(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_image *image;
	uint64_t bytes = 0;

	sk_link_each(image, &s->images, link) {
		if (needs_writing(image))
			bytes += image->layout->layout->image_bytes;
	}
	return bytes;
}

static struct sk_cat_image *next_image(const struct sk_cat_snapshot *s,
				       bool *ret_last)
{
	struct sk_cat_image *image, *next = NULL;

	*ret_last = true;
	sk_link_each(image, &s->images, link) {
		if (!needs_writing(image))
			continue;
		*ret_last = !next;
		if (next)
			break;
		next = image;
	}
	return next;
}

static void image_written(struct work *work);

static void let_go(struct flush *f)
{
	free(f->head);
	f->head = NULL;
	f->sums = sk_sums_free(f->sums);
	earlier_free(&f->earlier);
}

/* False: f->result says why not. */
static bool submit_image(struct agent *a, struct flush *f,
			struct sk_cat_image *image, bool last)
{
	const struct sk_layout *l = image->layout->layout;
	const struct sk_cat_snapshot *s = f->snapshot;

	assert(!f->head && !f->sums && !f->earlier.images && image->slot);
	if (last && earlier_list(&f->earlier, image) < 0) {
		f->result = sk_err_set(&f->err, -ENOMEM, "no memory to write "
				       "an image");
		return false;
	}
	f->image = image;
	f->memory = image->slot->memory;
	f->uid = s->job->uid;
	f->put = (struct sk_store_put){
		.job = s->job->name, .run = { s->run, s->run_id },
		.step = (uint64_t)s->step,
		.rank = image->rank, .world = s->world,
		.head_bytes = l->header_bytes,
		.data = f->memory->slots[0].map, .bytes = l->image_bytes,
		.max_rate = a->now.flush_rate,
		.progress = progress, .see = see, .ctx = f,
		.ret_file = &f->file,
		.owner = a->uid == 0 && f->uid != 0 ? &f->uid : NULL,
		.ret_owned = &f->owned, .ret_displaced = &f->displaced,
	};
	atomic_store(&f->current, 0);
	f->work.run = write_image;
	f->work.finish = image_written;
	work_submit(&a->loop.works, a->flusher, &f->work);
	return true;
}

static void finish_flush(struct agent *a, struct flush *f)
{
	uint64_t took_ns = agent_now(a) - f->started_ns;

	assert(a->flush == f && f->snapshot->flushing && !f->head);
	a->counts.flush_ns += took_ns;
	f->snapshot->job->figures.flush_ns += took_ns;
	sk_cat_flushing(f->snapshot, false);
	a->flush = NULL;
	index_changed(a, f->snapshot->job->name);
	/* What was to be kept is not; the newest one is another now. */
	f->snapshot->job->flush_due |= f->bad;
	sk_cat_wake(f->snapshot->job);
	if (f->result < 0)
		outcome_failed(a, f);
	else
		outcome_durable(a, f);
	if (f->result == 0)
		retain_due(a, f->snapshot->job);
	else if (flush_found_no_room(f))
		retain_due(a, NULL);	/* all that need not stay goes */
	free(f);
	agent_changed(a);
}

/* Whether all of it is on disk is being told; nobody can tell without
 * memory. */
static bool is_asked(const struct agent *a, struct flush *f)
{
	const struct sk_cat_snapshot *s = f->snapshot;

	if (sk_cat_on_disk(s) || !s->known.disk_undecided)
		return false;
	if (!sk_cat_asking(s->job))
		f->result = sk_err_set(&f->err, -ENOMEM, "no memory to tell "
				       "whether all of it is on disk");
	return f->result == 0 && !a->quit;
}

static void next_step(struct agent *a, struct flush *f)
{
	bool last;
	struct sk_cat_image *image = next_image(f->snapshot, &last);

	f->deciding = !image && f->result == 0 && is_asked(a, f);
	if (f->deciding)
		return;		/* until flush_go_on() */
	if (image && f->result == 0 && a->quit)
		f->result = sk_err_set(&f->err, -ECANCELED, "the agent ends");
	/* From there on the thread in the background has f->result. */
	if (!image || f->result < 0 || !submit_image(a, f, image, last))
		finish_flush(a, f);
}

/* The names are those that the store gives. */
static void add_stored(struct agent *a, struct flush *f)
{
	const struct sk_layout *l = f->image->layout->layout;
	struct sk_cat_snapshot *s = f->snapshot;
	char dir[SK_CAT_DIR_MAX];
	struct sk_cat_found found = {
		.run = s->run, .run_id = s->run_id, .step = s->step,
		.dir = dir, .file = f->file,
	};

	settle_name(dir, s->step);
	memcpy(found.content, f->image->content, sizeof(found.content));
	f->result = sk_cat_stored_add(s->job, &found,
				      sk_cat_layout_ref(f->image->layout),
				      &f->err);
	if (f->result == 0)
		wrote_add(a, f->image);
	f->done += l->image_bytes;
	a->counts.bytes_flushed += l->image_bytes;
	s->job->figures.bytes_flushed += l->image_bytes;
}

/* As on a network's filesystem that takes root for nobody: on each file. */
static void warn_not_owned(struct agent *a, const struct flush *f)
{
	struct sk_err err = { "" };

	if (a->not_owned_said)
		return;
	a->not_owned_said = true;
	(void)sk_err_errno(&err, f->owned, "the files of job \"%s\" cannot be "
			   "given to user %u, who can restore from them but "
			   "not open them; this is said once", f->put.job,
			   (unsigned)f->uid);
	log_warning(a, "%s", err.text);
}

/* The directory was taken away meanwhile: whose the step is now, the next try
 * tells, which is due at once. */
static bool try_again(struct flush *f)
{
	if (f->result != -EAGAIN || f->races == RACES_MOST)
		return false;
	f->races++;
	f->result = 0;
	return true;
}

/* They are written once more, if memory has them still. */
static void forget_gone(struct flush *f)
{
	struct sk_cat_snapshot *s = f->snapshot;

	if (earlier_forget(&f->earlier, s) && f->rounds++ >= RACES_MOST)
		f->result = sk_err_set(&f->err, -EIO, "files of step %"
				       PRId64 " of job \"%s\" go while others "
				       "are written", s->step, s->job->name);
}

static void image_written(struct work *work)
{
	struct flush *f = sk_link_object(work, struct flush, work);
	struct agent *a = f->agent;

	assert(a->flush == f);
	atomic_store(&f->current, 0);
	f->snapshot->displaced |= f->displaced;
	if (f->has_found)
		watch_seen(a, &f->found);
	forget_gone(f);
	let_go(f);
	if (try_again(f)) {
		next_step(a, f);
		return;
	}
	f->races = 0;
	if (f->result == 0 && f->owned < 0)
		warn_not_owned(a, f);
	if (f->result == 0)
		add_stored(a, f);
	/* Nobody shall have it. */
	if (f->bad)
		sk_cat_image_bad(f->image, false, f->bad_entry);
	next_step(a, f);
}

void flush_go_on(struct agent *a)
{
	if (a->flush && a->flush->deciding)
		next_step(a, a->flush);
}

/* ---- the next one ---- */

/* It is tried again as after any other failure. */
static void no_memory(struct agent *a, struct sk_cat_snapshot *s)
{
	struct flush f = { .agent = a, .snapshot = s };

	f.result = sk_err_set(&f.err, -ENOMEM, "no memory for a flush");
	outcome_failed(a, &f);
	agent_changed(a);
}

void flush_kick(struct agent *a)
{
	uint64_t now = agent_now(a);
	struct sk_cat_snapshot *s;
	struct flush *f;

	if (!a->store || a->flush)
		return;
	s = flush_next(a, now);
	if (!s)
		return;
	f = calloc(1, sizeof(*f));
	if (!f) {
		no_memory(a, s);
		return;
	}
	f->agent = a;
	f->snapshot = s;
	f->started_ns = now;
	f->bytes = flush_left(s);
	sk_cat_flushing(s, true);
	retain_flush_begins(s->job);
	s->job->flushed_ns = now;
	s->job->flush_turn = s->job->user->flush_turn = ++a->flush_turns;
	sk_cat_queue_leave(s->job);
	a->flush = f;
	next_step(a, f);
}

uint64_t flush_done(const struct agent *a, const struct sk_cat_snapshot *s)
{
	const struct flush *f = a->flush;

	if (!f || f->snapshot != s)
		return 0;
	return f->done + atomic_load(&f->current);
}

uint64_t flush_eta(const struct agent *a)
{
	const struct flush *f = a->flush;
	double seconds, rate = a->flush_pace, left;
	uint64_t done;

	if (!f)
		return 0;
	done = flush_done(a, f->snapshot);
	seconds = (double)(agent_now(a) - f->started_ns) / 1e9;
	if (done && seconds > 0.1)
		rate = (double)done / seconds;
	if (rate <= 0)
		return 0;
	left = done < f->bytes ? (double)(f->bytes - done) : 0;
	return 1 + (uint64_t)(left / rate * 1e9);
}
