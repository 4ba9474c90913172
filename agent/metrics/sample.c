/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics/sample.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"
#include "catalogue/told.h"

enum { SEALED, COMPLETE, DURABLE, STATES };

/* How far a job is. */
struct progress {
	bool known;
	int64_t step;
	double age;		/* seconds */
};

/* Of one job, looked at once. */
struct told {
	const struct sk_cat_job *job;
	uint64_t device;
	struct progress progress[STATES];
};

/* All that is looked at once. */
struct seen {
	struct told told[SAMPLES_JOBS];
	size_t n_told, seen;		/* jobs */
	uint64_t now_ns;
	struct device_use gpus[SAMPLES_GPUS];
	unsigned n_gpus;
};

static struct sample *add(struct samples *s, const struct metric *m,
			  double value)
{
	struct sample *one;

	if (sk_array_fit(s->v, s->room, s->n + 1) < 0) {
		s->failed = true;
		return NULL;
	}
	one = &s->v[s->n++];
	*one = (struct sample){ .metric = m, .value = value };
	return one;
}

static void add_job(struct samples *s, const struct metric *m,
		    const struct sk_cat_job *job, const char *state,
		    double value)
{
	struct sample *one = add(s, m, value);

	if (!one)
		return;
	memcpy(one->job, job->name, sizeof(one->job));
	one->uid = job->uid;
	one->key = state ? "state" : NULL;
	one->word = state;
}

/* ---- one look ---- */

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* A clock may have been set back. */
static struct progress progress_of(const struct agent *a,
				   const struct sk_cat_snapshot *s)
{
	uint64_t wall = a->os->wall_ns(a->os);

	return (struct progress){ true, s->step, wall > s->created_ns ?
				  seconds(wall - s->created_ns) : 0 };
}

/* What this agent saw happen, at @at_ns of its clock. */
static struct progress seen_at(const struct agent *a, uint64_t at_ns,
			       int64_t step)
{
	return (struct progress){ true, step, seconds(agent_now(a) - at_ns) };
}

/* The newest snapshots that are so, which an agent before may have seen. */
static void newest_of(const struct agent *a, const struct sk_cat_job *job,
		      struct progress newest[STATES])
{
	const struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		job->catalogue->visits++;
		if (!s->created_ns)
			continue;
		if (!newest[SEALED].known && s->n_images)
			newest[SEALED] = progress_of(a, s);
		if (!newest[COMPLETE].known && sk_cat_complete(s))
			newest[COMPLETE] = progress_of(a, s);
		if (!newest[DURABLE].known && sk_cat_on_disk(s))
			newest[DURABLE] = progress_of(a, s);
		if (newest[COMPLETE].known && newest[DURABLE].known)
			return;
	}
}

/* What was seen, unless that is so no more: evicted, or found damaged. */
static void stands(const struct agent *a, uint64_t at_ns, int64_t step,
		   struct progress *newest)
{
	if (at_ns && newest->known && newest->step == step)
		*newest = seen_at(a, at_ns, step);
}

static void tell_progress(const struct agent *a, struct told *t)
{
	const struct sk_cat_figures *f = &t->job->figures;
	struct progress *p = t->progress;

	newest_of(a, t->job, p);
	/* That the job goes on is told by what was sealed, gone or not. */
	if (f->sealed_ns)
		p[SEALED] = seen_at(a, f->sealed_ns, f->sealed_step);
	stands(a, f->completed_ns, f->completed_step, &p[COMPLETE]);
	stands(a, f->durable_ns, f->durable_step, &p[DURABLE]);
}

/* Those that take most; the rest is counted as it comes and goes. */
static void look(struct agent *a, const uid_t *only, struct seen *seen)
{
	struct sk_cat_user *user = only ? sk_cat_user_find(&a->cat, *only) :
					  NULL;
	const struct sk_cat_job *job = NULL;

	seen->now_ns = agent_now(a);
	sk_cat_tell(&a->cat);
	seen->seen = user ? user->n_jobs : only ? 0 : a->cat.by_name.count;
	while (seen->n_told < SAMPLES_JOBS && seen->n_told < seen->seen) {
		struct told *t = &seen->told[seen->n_told++];

		t->job = job = sk_cat_largest(&a->cat, user, job);
		t->device = device_bytes_of_job(a, job);
		tell_progress(a, t);
	}
	seen->n_gpus = device_uses(a, seen->gpus, SAMPLES_GPUS);
}

/* ---- values ---- */

static double memory_value(const struct agent *a, enum metric_id id)
{
	uint64_t budget = a->cat.budget, used = a->cat.used;

	switch (id) {
	case METRIC_MEMORY_BUDGET: return (double)budget;
	case METRIC_MEMORY_USED: return (double)used;
	case METRIC_MEMORY_FREE:
		return (double)(used < budget ? budget - used : 0);
	case METRIC_QUARANTINED:
		return (double)sk_cat_detained(&a->cat, NULL);
	case METRIC_DESCRIPTORS_BUDGET: return (double)a->cat.budget_fds;
	case METRIC_DESCRIPTORS_USED: return (double)a->cat.used_fds;
	case METRIC_DESCRIPTORS_IN_FLIGHT: return a->in_flight;
	case METRIC_LAYOUTS: return (double)a->cat.layout_bytes;
	case METRIC_DEVICE_BUDGET:
		return device_slots_made(a) ? (double)a->opts->device_memory :
					      0;
	case METRIC_DEVICE_SLOTS: return device_slots_count(a);
	default: return (double)sk_recall_bytes(a->recall);
	}
}

static double disk_value(const struct agent *a, enum metric_id id,
			 const struct seen *seen)
{
	switch (id) {
	case METRIC_FLUSH_RATE: return a->flush_rate;
	case METRIC_DURABLE_AGE:
		return a->durable_ns ? seconds(seen->now_ns - a->durable_ns) :
				       -1;
	case METRIC_STORE_FREE: return (double)a->store_free;
	case METRIC_STORE_SIZE: return (double)a->store_bytes;
	case METRIC_STORE: return !a->store ? 0 : a->store_volatile ? 2 : 1;
	default: return (double)a->cat.coverage_checks;
	}
}

static double agent_value(const struct agent *a, enum metric_id id,
			  const struct seen *seen)
{
	switch (id) {
	case METRIC_KEEPER:
		return a->keeper.lost ? KEEPER_NONE : a->keeper.kind;
	case METRIC_TURNS: return (double)a->loop.n_turns;
	case METRIC_LONGEST_TURN: return seconds(a->loop.longest_ns);
	case METRIC_VISITS: return (double)a->cat.visits;
	case METRIC_LONGEST_TURN_VISITS: return (double)a->most_visits;
	case METRIC_UPTIME: return seconds(seen->now_ns - a->began_ns);
	case METRIC_JOBS: return (double)a->cat.by_name.count;
	case METRIC_JOBS_UNTOLD: return (double)(seen->seen - seen->n_told);
	case METRIC_RANKS: return a->cat.n_living;
	case METRIC_SNAPSHOTS: return (double)a->cat.n_snapshots;
	case METRIC_TO_FLUSH: return (double)a->cat.n_to_write;
	case METRIC_CLIENTS: return a->n_sessions;
	default:
		return id < METRIC_KEEPER ? memory_value(a, id) :
					    disk_value(a, id, seen);
	}
}

static uint64_t count_at(const void *counts, const struct metric *m)
{
	uint64_t value;

	memcpy(&value, (const char *)counts + m->offset, sizeof(value));
	return value;
}

static double counted(const void *counts, const struct metric *m)
{
	uint64_t value = count_at(counts, m);

	return m->ns ? seconds(value) : (double)value;
}

static double job_value(const struct metric *m, enum metric_id id,
			const struct told *t)
{
	switch (id) {
	case METRIC_JOB_MEMORY: return (double)t->job->used.bytes;
	case METRIC_JOB_DEVICE: return (double)t->device;
	case METRIC_JOB_RANKS: return t->job->n_living;
	case METRIC_JOB_SNAPSHOTS: return (double)t->job->n_snapshots;
	case METRIC_JOB_TO_FLUSH: return t->job->n_to_write;
	default: return counted(&t->job->figures, m);
	}
}

/* ---- the list ---- */

static void add_reasons(struct agent *a, struct samples *s,
			const struct metric *m)
{
	static const char *const words[REFUSED_COUNT] = {
		[REFUSED_BUSY] = "busy", [REFUSED_MEMORY] = "memory",
		[REFUSED_DESCRIPTORS] = "descriptors",
		[REFUSED_SHARE] = "share",
	};

	for (int i = 0; i < REFUSED_COUNT; i++) {
		struct sample *one = add(s, m, (double)a->counts.refused[i]);

		if (!one)
			return;
		one->key = "reason";
		one->word = words[i];
	}
}

static void add_degraded(struct agent *a, struct samples *s,
			 const struct metric *m)
{
	for (int i = 0; i < DEGRADED_COUNT; i++) {
		struct sample *one = add(s, m, a->degraded.v[i].on);

		if (!one)
			return;
		one->key = "state";
		one->word = degraded_infos[i].name;
	}
}

static void add_gpus(struct samples *s, const struct metric *m,
		     const struct seen *seen)
{
	for (unsigned i = 0; i < seen->n_gpus; i++) {
		struct sample *one = add(s, m, (double)seen->gpus[i].bytes);

		if (!one)
			return;
		one->key = "gpu";
		device_name(seen->gpus[i].uuid, seen->gpus[i].instance,
			    one->gpu);
	}
}

static void add_states(struct samples *s, const struct metric *m, bool age,
		       const struct told *t)
{
	static const char *const words[STATES] = { "sealed", "complete",
						   "durable" };

	for (size_t i = 0; i < STATES; i++) {
		const struct progress *p = &t->progress[i];

		if (p->known)
			add_job(s, m, t->job, words[i], age ? p->age :
				(double)p->step);
	}
}

static void add_metric(struct agent *a, struct samples *s,
		       const struct metric *m, const struct seen *seen)
{
	enum metric_id id = (enum metric_id)(m - metrics);

	switch (m->of) {
	case METRIC_OF_AGENT:
		(void)add(s, m, id < METRIC_COMPUTED ?
			  agent_value(a, id, seen) : counted(&a->counts, m));
		return;
	case METRIC_OF_REASON:
		add_reasons(a, s, m);
		return;
	case METRIC_OF_STATE:
		add_degraded(a, s, m);
		return;
	case METRIC_OF_GPU:
		add_gpus(s, m, seen);
		return;
	case METRIC_OF_JOB:
	case METRIC_OF_JOB_STATE:
		break;
	}
	for (size_t i = 0; i < seen->n_told; i++) {
		const struct told *t = &seen->told[i];

		if (m->of == METRIC_OF_JOB)
			add_job(s, m, t->job, NULL, job_value(m, id, t));
		else
			add_states(s, m, id == METRIC_JOB_AGE, t);
	}
}

int samples_take(struct agent *a, const uid_t *only, struct samples *ret)
{
	struct samples s = SAMPLES_NULL;
	struct seen seen = { .n_told = 0 };

	look(a, only, &seen);
	for (size_t i = 0; i < n_metrics; i++) {
		assert(metrics[i].name && metrics[i].help);
		add_metric(a, &s, &metrics[i], &seen);
	}
	if (s.failed) {
		samples_free(&s);
		return -ENOMEM;
	}
	*ret = s;
	return 0;
}

void samples_free(struct samples *s)
{
	free(s->v);
	*s = (struct samples)SAMPLES_NULL;
}
