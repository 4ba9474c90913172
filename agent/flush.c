/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flusher: one thread with one ring writes images, one after another.
 * What it is handed stays as it is until its result was taken: the slot is
 * protected by snapshot->flushing.
 */
#include "agent.h"

#include <stdio.h>
#include <string.h>

#define RETRY_FIRST_NS 1000000000ull
#define RETRY_LAST_NS 60000000000ull

struct write {
	struct write *next;
	uint64_t image;			/* id */
	char job[SK_JOB_MAX + 1];
	uint64_t run, step;
	struct sk_store_put put;
	char *head;
	struct sk_slot memory;		/* whose mapping is written */
	int result;
	uint64_t ns;
	struct sk_err err;
	struct flusher *flusher;
};

struct flusher {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct write *todo, *done;
	struct write *now;		/* being written */
	uint64_t now_bytes;		/* of it, written; atomic */
	uint64_t queued_bytes;
	bool stop;
	struct agent *agent;
	struct sk_io *io;
};

static int progress(void *ctx, uint64_t done)
{
	struct write *w = ctx;

	__atomic_store_n(&w->flusher->now_bytes, done, __ATOMIC_RELAXED);
	return 0;
}

static void run_write(struct flusher *f, struct write *w)
{
	struct agent *a = f->agent;
	uint64_t start = now_ns(a);

	w->result = sk_store_put_image(a->store, f->io, &w->put, &w->err);
	w->ns = now_ns(a) - start;
}

static void *flusher_run(void *arg)
{
	struct flusher *f = arg;

	(void)pthread_mutex_lock(&f->lock);
	for (;;) {
		struct write *w = f->todo;

		if (!w && f->stop)
			break;
		if (!w) {
			(void)pthread_cond_wait(&f->cond, &f->lock);
			continue;
		}
		f->todo = w->next;
		f->now = w;
		f->now_bytes = 0;
		(void)pthread_mutex_unlock(&f->lock);
		run_write(f, w);
		(void)pthread_mutex_lock(&f->lock);
		f->now = NULL;
		f->queued_bytes -= w->put.bytes;
		w->next = f->done;
		f->done = w;
		wake(f->agent);
	}
	(void)pthread_mutex_unlock(&f->lock);
	return NULL;
}

int flush_start(struct agent *a, struct sk_err *err)
{
	const struct sk_io_opts opts = { .backend = a->o.backend,
					 .no_direct = a->o.no_direct };
	struct flusher *f;
	int r;

	if (!a->store)
		return 0;
	f = calloc(1, sizeof(*f));
	if (!f)
		return sk_err_set(err, -ENOMEM, "out of memory");
	f->agent = a;
	(void)pthread_mutex_init(&f->lock, NULL);
	(void)pthread_cond_init(&f->cond, NULL);
	r = sk_io_new(a->os, &opts, &f->io, err);
	if (r >= 0 && (r = -pthread_create(&f->thread, NULL, flusher_run, f)))
		(void)sk_err_errno(err, r, "cannot start the flusher");
	if (r < 0) {
		sk_io_free(f->io);
		free(f);
		return r;
	}
	a->flusher = f;
	return 0;
}

static void write_free(struct write *w)
{
	free(w->head);
	free(w);
}

void flush_stop(struct agent *a)
{
	struct flusher *f = a->flusher;

	if (!f)
		return;
	(void)pthread_mutex_lock(&f->lock);
	f->stop = true;
	(void)pthread_cond_signal(&f->cond);
	(void)pthread_mutex_unlock(&f->lock);
	(void)pthread_join(f->thread, NULL);
	flush_results(a);
	sk_io_free(f->io);
	free(f);
	a->flusher = NULL;
}

/* ---- queueing ---- */

static struct write *write_new(struct agent *a, struct sk_cat_image *image)
{
	const struct rank_slot *slot = image->slot;
	struct sk_cat_snapshot *s = image->snapshot;
	const struct sk_layout *l = image->layout;
	const struct sk_stamp stamp = { .run = s->run, .step = s->step,
					.sums = image->sums };
	struct write *w = calloc(1, sizeof(*w));

	if (w)
		w->head = aligned_alloc(SK_PAGE, l->header_bytes);
	if (!w || !w->head) {
		free(w);
		return NULL;
	}
	/* The header comes from our own copy, never from shared memory. */
	sk_layout_stamp(l, &stamp, w->head);
	w->image = image->id;
	strcpy(w->job, s->job->name);
	w->run = s->run;
	w->step = s->step;
	w->flusher = a->flusher;
	w->memory = slot->memory[image->kind];
	w->put = (struct sk_store_put){
		.job = w->job, .run = s->run, .step = s->step,
		.rank = image->rank, .world = s->world,
		.head = w->head, .head_bytes = l->header_bytes,
		.data = w->memory.map, .bytes = l->image_bytes,
		.max_rate = a->o.flush_rate,
		.progress = progress, .ctx = w };
	return w;
}

static void push(struct flusher *f, struct write *w)
{
	struct write **at;

	(void)pthread_mutex_lock(&f->lock);
	for (at = &f->todo; *at; at = &(*at)->next)
		;
	*at = w;
	f->queued_bytes += w->put.bytes;
	(void)pthread_cond_signal(&f->cond);
	(void)pthread_mutex_unlock(&f->lock);
}

static void queue_snapshot(struct agent *a, struct sk_cat_snapshot *s)
{
	for (struct sk_cat_image *i = s->images; i; i = i->next) {
		struct write *w;

		if (i->kind != SK_IMAGE_PRIMARY || i->on_disk || !i->slot ||
		    i->bad_memory)
			continue;
		w = write_new(a, i);
		if (!w)
			return;		/* tried again at the next event */
		s->flushing++;
		push(a->flusher, w);
	}
}

void flush_queue(struct agent *a)
{
	uint64_t now = now_ns(a);

	if (!a->flusher)
		return;
	for (struct sk_cat_job *j = a->cat.jobs; j; j = j->next)
		for (struct sk_cat_snapshot *s = j->snapshots; s; s = s->next)
			if (s->wanted && s->complete && !s->flushing &&
			    s->retry_ns <= now && !sk_cat_durable(s))
				queue_snapshot(a, s);
}

uint64_t flush_next_ns(const struct agent *a)
{
	uint64_t next = 0;

	for (struct sk_cat_job *j = a->cat.jobs; j; j = j->next)
		for (struct sk_cat_snapshot *s = j->snapshots; s; s = s->next)
			if (s->wanted && s->complete && s->retry_ns &&
			    !s->flushing && !sk_cat_durable(s) &&
			    (!next || s->retry_ns < next))
				next = s->retry_ns;
	return next;
}

uint64_t flush_eta_ns(const struct agent *a)
{
	struct flusher *f = a->flusher;
	uint64_t bytes;

	if (!f || a->count.flush_rate <= 0)
		return 0;
	(void)pthread_mutex_lock(&f->lock);
	bytes = f->now ? f->now->put.bytes - f->now_bytes :
		f->todo ? f->todo->put.bytes : 0;
	(void)pthread_mutex_unlock(&f->lock);
	return (uint64_t)((double)bytes / a->count.flush_rate * 1e9);
}

bool flush_idle(const struct agent *a)
{
	for (struct sk_cat_job *j = a->cat.jobs; j; j = j->next)
		for (struct sk_cat_snapshot *s = j->snapshots; s; s = s->next)
			if (s->flushing)
				return false;
	return true;
}

/* ---- results ---- */

static void succeeded(struct agent *a, struct sk_cat_image *image,
		      const struct write *w)
{
	struct sk_cat_snapshot *s = image->snapshot;

	image->on_disk = true;
	image->bad_disk = false;
	(void)snprintf(image->dir, sizeof(image->dir), "step-%012llu",
		       (unsigned long long)s->step);
	s->flushed_bytes += w->put.bytes;
	a->count.bytes_flushed += w->put.bytes;
	if (w->ns)
		a->count.flush_rate = (double)w->put.bytes * 1e9 /
				      (double)w->ns;
	if (!sk_cat_durable(s))
		return;
	s->failed = false;
	s->text[0] = 0;
	s->tries = 0;
	a->count.durable++;
	a->count.durable_ns = now_ns(a);
	(void)sk_store_settle(a->store, s->job->name, s->step, NULL);
	say(a, 2, "job \"%s\", run %llu, step %llu is durable", s->job->name,
	    (unsigned long long)s->run, (unsigned long long)s->step);
}

static void failed(struct agent *a, struct sk_cat_snapshot *s,
		   const struct write *w)
{
	uint64_t wait = RETRY_FIRST_NS << (s->tries < 6 ? s->tries : 6);

	a->count.flush_errors++;
	s->failed = true;
	s->tries++;
	s->retry_ns = now_ns(a) + (wait < RETRY_LAST_NS ? wait :
				   RETRY_LAST_NS);
	memcpy(s->text, w->err.text, sizeof(s->text));
	if (w->result == -ESTALE)	/* a newer run has this step */
		s->wanted = false;
	say(a, 0, "flushing job \"%s\", run %llu, step %llu: %s",
	    s->job->name, (unsigned long long)s->run,
	    (unsigned long long)s->step, w->err.text);
}

void flush_results(struct agent *a)
{
	struct flusher *f = a->flusher;
	struct write *w;

	if (!f)
		return;
	(void)pthread_mutex_lock(&f->lock);
	w = f->done;
	f->done = NULL;
	(void)pthread_mutex_unlock(&f->lock);
	while (w) {
		struct sk_cat_image *i = sk_cat_image_by_id(&a->cat, w->image);
		struct write *next = w->next;

		assert(i && i->snapshot->flushing);
		i->snapshot->flushing--;
		if (w->result < 0)
			failed(a, i->snapshot, w);
		else
			succeeded(a, i, w);
		write_free(w);
		w = next;
	}
	flush_queue(a);
}
