/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"
#include "base/table.h"
#include "disk/histories.h"
#include "disk/prove.h"
#include "disk/stored.h"
#include "disk/wrote.h"

#define SECOND_NS UINT64_C(1000000000)
/* Until what has changed is past by any filesystem's ticks; and between two
 * times that it is written. */
#define SETTLE_NS (5 * SECOND_NS)
#define BETWEEN_NS (30 * SECOND_NS)

struct job_name {
	char name[SK_JOB_MAX + 1];
};

/* None twice. */
struct job_names {
	struct job_name *jobs;
	size_t n, room;
	struct sk_table by_name;	/* of them */
};

/* While its work is out the background has looked, failed and err. */
struct index {
	struct work work;
	struct timer timer;
	struct agent *agent;
	struct job_names noted;	/* whose steps came or went */
	struct job_names looked;	/* those that are looked at again */
	struct wrote_list wrote;	/* of all jobs */
	bool changed;		/* since it was begun */
	bool due, out, last;
	uint64_t written_ns;	/* 0: never */
	bool unproved;		/* some steps are, yet */
	bool failed, said;
	struct sk_err err;	/* the first of the errors */
};

/* ---- in the background ---- */

static void look_again(struct agent *a, const struct index *x, const char *job)
{
	struct sk_history *h = histories_get(a, job);

	if (h)
		wrote_doubt(&x->wrote, h);
	/* What cannot be looked at now is when somebody asks. */
	if (h && sk_history_look(h, a->store, NULL) == 0)
		histories_trim(a, h);
}

static void note_wrote(void *ctx, struct sk_history *h)
{
	struct index *x = ctx;

	wrote_note(&x->wrote, h);
	x->unproved |= sk_history_unproved(h) > 0;
}

static void save_one(void *ctx, struct sk_history *h)
{
	struct index *x = ctx;
	struct sk_err err = { "" };

	if (!sk_history_unsaved(h) ||
	    sk_history_save(h, x->agent->store, &err) == 0)
		return;
	if (!x->failed)
		x->err = err;
	x->failed = true;
}

static void write_index(struct work *work)
{
	struct index *x = sk_link_object(work, struct index, work);

	for (size_t i = 0; i < x->looked.n; i++)
		look_again(x->agent, x, x->looked.jobs[i].name);
	histories_each(x->agent, note_wrote, x);
	histories_each(x->agent, save_one, x);
	wrote_free(&x->wrote);
}

/* ---- when ---- */

static void time_to_write(struct timer *timer)
{
	struct index *x = sk_link_object(timer, struct index, timer);

	x->due = true;
	stored_go_on(x->agent);
}

static void wait_to_write(struct index *x)
{
	struct agent *a = x->agent;
	uint64_t at = agent_now(a) + SETTLE_NS;

	if (x->written_ns && at < x->written_ns + BETWEEN_NS)
		at = x->written_ns + BETWEEN_NS;
	x->timer.fire = time_to_write;
	if (!x->changed)
		timer_set(&a->loop.timers, &x->timer, at);
	x->changed = true;
}

static bool is_noted(const struct job_names *names, const char *job,
		     uint64_t hash)
{
	struct sk_table_walk walk = sk_table_find(&names->by_name, hash);
	uintptr_t at;

	while (sk_table_next(&walk, &at))
		if (strcmp(names->jobs[at].name, job) == 0)
			return true;
	return false;
}

static void note_job(struct job_names *names, const char *job)
{
	uint64_t hash = sk_hash_bytes(sk_hash_seed(), job, strlen(job));

	if (is_noted(names, job, hash))
		return;
	/* Without it, it is looked at when somebody asks. */
	if (sk_array_fit(names->jobs, names->room, names->n + 1) < 0 ||
	    sk_table_add(&names->by_name, hash, names->n) < 0)
		return;
	strcpy(names->jobs[names->n++].name, job);
}

static void forget_jobs(struct job_names *names)
{
	sk_table_free(&names->by_name);
	names->n = 0;
}

void index_changed(struct agent *a, const char *job)
{
	struct index *x = a->index;

	if (!x)
		return;
	wait_to_write(x);
	if (job)
		note_job(&x->noted, job);
}

static void written(struct work *work)
{
	struct index *x = sk_link_object(work, struct index, work);
	struct agent *a = x->agent;

	x->out = a->scanning = false;
	x->written_ns = agent_now(a);
	if (x->failed && !x->said)
		log_info(a, "%s; later starts take longer for it, which is "
			 "said once", x->err.text);
	x->said |= x->failed;
	if (x->unproved)
		prove_later(a);
	x->failed = x->unproved = false;
	stored_go_on(a);
}

bool index_is_due(const struct agent *a)
{
	return a->index && a->index->due;
}

void index_begin(struct agent *a)
{
	struct index *x = a->index;
	struct job_names looked = x->looked;

	assert(x->due && !x->out && !a->scanning);
	a->scanning = true;
	timer_clear(&a->loop.timers, &x->timer);
	x->looked = x->noted;
	x->noted = looked;
	forget_jobs(&x->noted);
	x->due = x->changed = false;
	x->out = true;
	wrote_take(a, "", &x->wrote);
	x->work.run = write_index;
	x->work.finish = written;
	work_submit(&a->loop.works, a->slow, &x->work);
}

bool index_pending(struct agent *a)
{
	struct index *x = a->index;

	if (!x)
		return false;
	if (!x->last && !x->out) {
		x->last = true;
		x->due |= x->changed;
		stored_go_on(a);
	}
	return x->due || x->out;
}

int index_open(struct agent *a)
{
	a->index = calloc(1, sizeof(*a->index));
	if (!a->index)
		return -ENOMEM;
	a->index->agent = a;
	return 0;
}

void index_close(struct agent *a)
{
	struct index *x = a->index;

	if (!x)
		return;
	assert(!x->out);
	timer_clear(&a->loop.timers, &x->timer);
	forget_jobs(&x->noted);
	forget_jobs(&x->looked);
	free(x->noted.jobs);
	free(x->looked.jobs);
	free(x);
	a->index = NULL;
}
