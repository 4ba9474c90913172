/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flusher: one snapshot at a time, image by image, on a thread of its
 * own, straight out of the slots. A snapshot under way is protected, so what
 * the thread reads stays where it is.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"

#define SECOND_NS UINT64_C(1000000000)
#define RETRY_MOST_S 60u
#define TRIES_AT_STOP 3u

struct flush {
	struct work work;
	struct sk_cat_snapshot *snapshot;
	struct sk_cat_image *image;	/* being written */
	uint64_t bytes;			/* of all its images */
	uint64_t done;			/* of whole images */
	atomic_uint_fast64_t current;	/* of the one under way */
	uint64_t started_ns;
	struct sk_store_put put;
	struct memory *memory;
	void *head;
	uid_t uid;
	int result;
	struct sk_err err;
};

struct settling {
	struct work work;
	char job[SK_JOB_MAX + 1];
	uint64_t step;
	int result;
	struct sk_err err;
};

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
	return atomic_load_explicit(&f->work.agent->abort,
				    memory_order_relaxed);
}

/* The store's directory of a job says whose it is. */
static int claim(struct flush *f)
{
	struct sk_store *store = f->work.agent->store;
	uid_t owner;
	int r;

	r = sk_store_owner(store, f->put.job, &owner, NULL);
	if (r == -ENOENT)
		return sk_store_set_owner(store, f->put.job, f->uid, &f->err);
	if (r < 0)
		return sk_err_errno(&f->err, r, "cannot tell whose job \"%s\" "
				    "on the store is", f->put.job);
	if (owner != f->uid)
		return sk_err_set(&f->err, -EACCES, "the store holds a job "
				  "\"%s\" of another user", f->put.job);
	return 0;
}

static void write_image(struct work *work)
{
	struct flush *f = sk_link_object(work, struct flush, work);
	struct agent *a = work->agent;

	f->result = claim(f);
	if (f->result == 0)
		f->result = sk_store_put_image(a->store, a->io, &f->put,
					       &f->err);
}

/* ---- one snapshot ---- */

static bool needs_writing(const struct sk_cat_image *image)
{
	return image->kind == SK_IMAGE_PRIMARY && image->slot &&
	       !image->bad_memory &&
	       (!image->stored.dir[0] || image->bad_disk);
}

static struct sk_cat_image *next_image(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (needs_writing(image))
			return image;
	}
	return NULL;
}

static void image_written(struct work *work);

static bool start_image(struct agent *a, struct flush *f,
			struct sk_cat_image *image)
{
	const struct sk_layout *l = image->layout->layout;
	const struct sk_cat_snapshot *s = f->snapshot;
	const struct sk_stamp stamp = { .run = s->run,
					.step = (uint64_t)s->step,
					.sums = image->sums };

	f->head = malloc(l->header_bytes);
	if (!f->head) {
		f->result = sk_err_set(&f->err, -ENOMEM, "no memory for a "
				       "header");
		return false;
	}
	sk_layout_stamp(l, &stamp, f->head);
	f->image = image;
	f->memory = image->slot->memory;
	f->uid = s->job->uid;
	f->put = (struct sk_store_put){
		.job = s->job->name, .run = s->run, .step = (uint64_t)s->step,
		.rank = image->rank, .world = s->world,
		.head = f->head, .head_bytes = l->header_bytes,
		.data = f->memory->slots[0].map, .bytes = l->image_bytes,
		.max_rate = a->opts->flush_rate,
		.progress = progress, .ctx = f,
	};
	atomic_store(&f->current, 0);
	f->work.run = write_image;
	f->work.finish = image_written;
	work_submit(a, a->flusher, &f->work);
	return true;
}

static void settle_run(struct work *work)
{
	struct settling *t = sk_link_object(work, struct settling, work);

	t->result = sk_store_settle(work->agent->store, t->job, t->step,
				    &t->err);
}

static void settled(struct work *work)
{
	struct settling *t = sk_link_object(work, struct settling, work);

	if (t->result < 0)
		log_warning(work->agent, "%s", t->err.text);
	free(t);
}

static void settle(struct agent *a, const struct sk_cat_snapshot *s)
{
	struct settling *t = calloc(1, sizeof(*t));

	if (!t)
		return;		/* the next complete flush does it */
	memcpy(t->job, s->job->name, sizeof(t->job));
	t->step = (uint64_t)s->step;
	t->work.run = settle_run;
	t->work.finish = settled;
	work_submit(a, a->slow, &t->work);
}

static void measure(struct agent *a, const struct flush *f)
{
	double seconds = (double)(agent_now(a) - f->started_ns) / 1e9;

	if (f->done && seconds > 0)
		a->flush_rate = (double)f->done / seconds;
}

static void snapshot_durable(struct agent *a, const struct flush *f)
{
	struct sk_cat_snapshot *s = f->snapshot;
	char bytes[32];

	s->failed = false;
	s->failures = 0;
	s->text[0] = 0;
	measure(a, f);
	if (s->on_disk) {
		a->counts.durable++;
		a->durable_ns = agent_now(a);
		settle(a, s);
	} else {
		/* What is missing is not here to be written. */
		s->hopeless_on_disk = true;
		s->failed = !s->local;
	}
	if (s->failed)
		(void)snprintf(s->text, sizeof(s->text), "memory holds some "
			       "parts as replicas only, which do not go to "
			       "disk");
	log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is %s (%s "
		 "written)", s->job->name, s->run, s->step,
		 s->on_disk ? "durable" : s->local ? "durable as far as it is "
		 "on this node" : "not whole on disk: memory holds some parts "
		 "as replicas only", sk_cat_bytes(f->done, bytes,
						  sizeof(bytes)));
}

static void retry(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, flush_timer);

	agent_changed(a);
}

static void snapshot_failed(struct agent *a, const struct flush *f)
{
	struct sk_cat_snapshot *s = f->snapshot;
	uint64_t wait_s = s->failures < 6 ? UINT64_C(1) << s->failures :
					    RETRY_MOST_S;

	a->counts.flush_errors++;
	s->failed = true;
	s->failures++;
	s->failures_total++;
	(void)snprintf(s->text, sizeof(s->text), "%s", f->err.text);
	/* A newer run has taken the step's name: this one has lost it. */
	s->hopeless_on_disk = f->result == -ESTALE || f->result == -EACCES;
	s->retry_ns = agent_now(a) + wait_s * SECOND_NS;
	log_error(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " could not "
		  "be flushed: %s", s->job->name, s->run, s->step, s->text);
}

static void finish_flush(struct agent *a, struct flush *f)
{
	f->snapshot->flushing = false;
	a->flush = NULL;
	if (f->result < 0)
		snapshot_failed(a, f);
	else
		snapshot_durable(a, f);
	free(f);
	agent_changed(a);
}

static void step_on(struct agent *a, struct flush *f)
{
	struct sk_cat_image *image = next_image(f->snapshot);

	if (image && f->result == 0 && a->quit)
		f->result = sk_err_set(&f->err, -ECANCELED, "the agent ends");
	/* From there on the thread in the background has f->result. */
	if (!image || f->result < 0 || !start_image(a, f, image))
		finish_flush(a, f);
}

/* The names are those that the store gives. */
static void add_stored(struct agent *a, struct flush *f)
{
	const struct sk_layout *l = f->image->layout->layout;
	struct sk_cat_snapshot *s = f->snapshot;
	uint64_t *sums = calloc((size_t)l->n_sums + 1, sizeof(*sums));
	char dir[SK_CAT_DIR_MAX];

	(void)snprintf(dir, sizeof(dir), "step-%012" PRId64, s->step);
	if (!sums) {
		f->result = -ENOMEM;
		return;
	}
	memcpy(sums, f->image->sums, l->n_sums * sizeof(*sums));
	f->result = sk_cat_stored_add(s->job, s->run, s->step,
				      sk_cat_layout_ref(f->image->layout),
				      sums, dir, 0, &f->err);
	sk_cat_refresh(s->job);
	f->done += l->image_bytes;
	a->counts.bytes_flushed += l->image_bytes;
}

static void image_written(struct work *work)
{
	struct flush *f = sk_link_object(work, struct flush, work);
	struct agent *a = work->agent;

	free(f->head);
	f->head = NULL;
	atomic_store(&f->current, 0);
	if (f->result == 0)
		add_stored(a, f);
	step_on(a, f);
}

/* ---- which one ---- */

/* Oldest first, so that slots become free; but at the end newest first. */
static bool goes_before(const struct agent *a, const struct sk_cat_snapshot *s,
			const struct sk_cat_snapshot *than)
{
	if (!than)
		return true;
	return a->stopping ? s->created_ns > than->created_ns :
			     s->created_ns < than->created_ns;
}

static bool given_up(const struct agent *a, const struct sk_cat_snapshot *s)
{
	return a->stopping && s->failures >= TRIES_AT_STOP;
}

static struct sk_cat_snapshot *choose(struct agent *a, uint64_t now)
{
	struct sk_cat_snapshot *s, *best = NULL;
	struct sk_cat_job *job;
	uint64_t soonest = UINT64_MAX;

	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(s, &job->snapshots, link) {
		if (!sk_cat_flushable(s) || given_up(a, s))
			continue;
		if (s->retry_ns > now) {
			if (s->retry_ns < soonest)
				soonest = s->retry_ns;
			continue;
		}
		if (goes_before(a, s, best))
			best = s;
	}
	a->flush_timer.fire = retry;
	if (!best && soonest != UINT64_MAX)
		(void)timer_set(&a->timers, &a->flush_timer, soonest);
	return best;
}

void flush_kick(struct agent *a)
{
	uint64_t now = agent_now(a);
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;
	struct flush *f;

	if (!a->store || a->flush)
		return;
	s = choose(a, now);
	if (!s)
		return;
	f = calloc(1, sizeof(*f));
	if (!f)
		return;
	f->work.agent = a;
	f->snapshot = s;
	f->started_ns = now;
	sk_link_each(image, &s->images, link) {
		if (needs_writing(image))
			f->bytes += image->layout->layout->image_bytes;
	}
	s->flushing = true;
	a->flush = f;
	step_on(a, f);
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
	double seconds, rate = a->flush_rate, left;
	uint64_t done;

	if (!f)
		return 0;
	done = flush_done(a, f->snapshot);
	seconds = (double)(agent_now(a) - f->started_ns) / 1e9;
	if (done && seconds > 0.1)
		rate = (double)done / seconds;
	if (rate <= 0)
		return SECOND_NS;
	left = done < f->bytes ? (double)(f->bytes - done) : 0;
	return 1 + (uint64_t)(left / rate * 1e9);
}

void flush_newest(struct agent *a, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s = sk_cat_newest(job);

	if (!a->store || !s || s->on_disk || s->hopeless_on_disk)
		return;
	s->wanted = true;
	s->retry_ns = 0;
	agent_changed(a);
}

bool flush_pending(struct agent *a)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;

	if (a->flush)
		return true;
	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(s, &job->snapshots, link) {
		if (sk_cat_flushable(s) && !given_up(a, s))
			return true;
	}
	return false;
}

bool flush_all_durable(struct agent *a)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;
	bool all = true;

	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(s, &job->snapshots, link) {
		bool kept = s->wanted || s == sk_cat_newest(job);

		if (!a->store || s->on_disk || !kept || !s->complete)
			continue;
		log_error(a, "job \"%s\" run %" PRIu64 " step %" PRId64
			  " is lost with this agent, it could not be made "
			  "durable: %s", job->name, s->run, s->step,
			  s->text[0] ? s->text : "the time was over");
		all = false;
	}
	return all;
}
