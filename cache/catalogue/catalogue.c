/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, what its memory is of: jobs, runs, ranks' states and slots. */
#include "catalogue/catalogue.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "catalogue/private.h"
#include "catalogue/queue.h"

void sk_cat_init(struct sk_catalogue *cat)
{
	*cat = (struct sk_catalogue){ .next_id = 1, .next_layout = 1 };
	sk_link_init(&cat->jobs);
	sk_link_init(&cat->users);
	sk_link_init(&cat->detained);
	sk_link_init(&cat->failing);
	sk_link_init(&cat->faults);
	sk_cat_awake_init(cat->awake);
}

/* ---- states ---- */

void sk_cat_state_free(struct sk_cat_state *state)
{
	assert(!state->n_slots && sk_link_empty(&state->slots));
	if (state->living)
		sk_cat_state_live(state, false);
	sk_link_remove(&state->link);
	(void)sk_cat_state_name(state, 0);
	sk_cat_layout_unref(state->layouts[0]);
	sk_cat_layout_unref(state->layouts[1]);
	free(state);
}

struct sk_cat_state *sk_cat_state_find(const struct sk_cat_run *run,
				       int32_t rank)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->rank == rank && !state->replaced)
			return state;
	}
	return NULL;
}

struct sk_cat_state *sk_cat_state_by_id(const struct sk_catalogue *cat,
					uint64_t id)
{
	struct sk_table_walk walk = sk_table_find(&cat->states, id);
	uintptr_t at;

	return sk_table_next(&walk, &at) ? (struct sk_cat_state *)at : NULL;
}

int sk_cat_state_name(struct sk_cat_state *state, uint64_t id)
{
	struct sk_table *states = &state->run->job->catalogue->states;

	if (id && sk_table_reserve(states, states->count + 1) < 0)
		return -ENOMEM;
	if (state->id)
		(void)sk_table_remove(states, state->id, (uintptr_t)state);
	state->id = id;
	return id ? sk_table_add(states, id, (uintptr_t)state) : 0;
}

/* ---- runs and jobs ---- */

struct sk_cat_run *sk_cat_run_find(const struct sk_cat_job *job,
				   uint64_t number, uint64_t id)
{
	struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link) {
		if ((!number || run->number == number) &&
		    (!id || run->id == id))
			return run;
	}
	return NULL;
}

struct sk_cat_run *sk_cat_run_of(const struct sk_cat_snapshot *s)
{
	return sk_cat_run_find(s->job, s->run, s->run_id);
}

bool sk_cat_run_living(const struct sk_cat_run *run)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->living)
			return true;
	}
	return false;
}

uint32_t sk_cat_run_ranks(const struct sk_cat_run *run)
{
	struct sk_cat_state *state;
	uint32_t n = 0;

	sk_link_each(state, &run->states, link)
		n += state->living;
	return n;
}

static uint64_t hash_name(const char *name)
{
	return sk_hash_bytes(sk_hash_seed(), name, strlen(name));
}

struct sk_cat_jobs sk_cat_jobs_named(const struct sk_catalogue *cat,
				     const char *name)
{
	struct sk_cat_jobs walk = { .cat = cat, .at = cat->jobs.next };

	if (!name[0])
		return walk;
	walk.name = name;
	walk.named = sk_table_find(&cat->by_name, hash_name(name));
	return walk;
}

static struct sk_cat_job *next_of_all(struct sk_cat_jobs *w)
{
	const struct sk_link *at = w->at;

	if (at == &w->cat->jobs)
		return NULL;
	w->at = at->next;
	return sk_link_object(at, struct sk_cat_job, link);
}

struct sk_cat_job *sk_cat_jobs_next(struct sk_cat_jobs *w)
{
	uintptr_t at;

	if (!w->name)
		return next_of_all(w);
	while (sk_table_next(&w->named, &at)) {
		struct sk_cat_job *job = (struct sk_cat_job *)at;

		if (strcmp(job->name, w->name) == 0)
			return job;
	}
	return NULL;
}

struct sk_cat_job *sk_cat_job_find(const struct sk_catalogue *cat,
				   const char *name, uid_t uid)
{
	struct sk_cat_jobs walk = sk_cat_jobs_named(cat, name);
	struct sk_cat_job *job;

	while ((job = sk_cat_jobs_next(&walk))) {
		if (job->uid == uid && strcmp(job->name, name) == 0)
			return job;
	}
	return NULL;
}

struct sk_cat_user *sk_cat_user_find(const struct sk_catalogue *cat, uid_t uid)
{
	struct sk_cat_user *user;

	sk_link_each(user, &cat->users, link) {
		if (user->uid == uid)
			return user;
	}
	return NULL;
}

unsigned sk_cat_user_ranks(const struct sk_catalogue *cat, uid_t uid)
{
	const struct sk_cat_user *user = sk_cat_user_find(cat, uid);

	return user ? user->n_living : 0;
}

static struct sk_cat_user *user_get(struct sk_catalogue *cat, uid_t uid)
{
	struct sk_cat_user *user = sk_cat_user_find(cat, uid);

	if (user)
		return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->uid = uid;
	sk_link_insert(&cat->users, &user->link);
	return user;
}

static void user_leave(struct sk_cat_user *user)
{
	if (--user->n_jobs)
		return;
	sk_link_remove(&user->link);
	free(user);
}

static struct sk_cat_job *job_new(struct sk_catalogue *cat, const char *name,
				  uid_t uid)
{
	struct sk_cat_job *job = calloc(1, sizeof(*job));
	struct sk_cat_user *user = job ? user_get(cat, uid) : NULL;

	if (user)
		user->n_jobs++;
	if (!user || sk_table_add(&cat->by_name, hash_name(name),
				  (uintptr_t)job) < 0) {
		if (user)
			user_leave(user);
		free(job);
		return NULL;
	}
	(void)snprintf(job->name, sizeof(job->name), "%s", name);
	job->catalogue = cat;
	job->user = user;
	job->uid = uid;
	return job;
}

struct sk_cat_job *sk_cat_job_get(struct sk_catalogue *cat, const char *name,
				  uid_t uid)
{
	struct sk_cat_job *job = sk_cat_job_find(cat, name, uid);

	assert(strlen(name) < sizeof(job->name));
	if (job)
		return job;
	job = job_new(cat, name, uid);
	if (!job)
		return NULL;
	sk_link_init(&job->runs);
	sk_link_init(&job->snapshots);
	sk_link_init(&job->cursors);
	sk_link_init(&job->live);
	sk_link_init(&job->undecided);
	sk_link_init(&job->verdict_order);
	sk_link_init(&job->fault.link);
	sk_cat_awake_init(job->awake);
	sk_link_insert(&cat->jobs, &job->link);
	sk_cat_order_add(job);
	sk_cat_told_add(job);
	sk_cat_changed(job);
	return job;
}

static bool run_held(const struct sk_cat_run *run)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->living || state->n_slots)
			return true;
	}
	return run->awaited;
}

static void run_free(struct sk_cat_run *run)
{
	const struct sk_catalogue *cat = run->job->catalogue;
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;

	sk_link_each(state, &run->states, link) {
		sk_link_each(slot, &state->slots, link)
			sk_cat_slot_release(slot);
		sk_cat_state_free(state);
	}
	if (cat->forget_run)
		cat->forget_run(cat->ctx, run);
	sk_link_remove(&run->link);
	free(run->kept);
	free(run);
}

/* A run is done with when nothing but its number is left. */
static void run_trim(struct sk_cat_run *run)
{
	/* Its layouts tell what its snapshots must cover. */
	if (!run->n_snapshots && !run_held(run))
		run_free(run);
}

static void job_free(struct sk_cat_job *job)
{
	struct sk_catalogue *cat = job->catalogue;
	struct sk_cat_snapshot *s;
	struct sk_cat_cursor *c;
	struct sk_cat_run *run;

	sk_link_each(c, &job->cursors, link)
		sk_cat_cursor_end(c);
	sk_link_each(run, &job->runs, link)
		run_free(run);
	sk_link_each(s, &job->snapshots, link)
		sk_cat_snapshot_drop(s);
	sk_table_free(&job->by_step);
	sk_cat_verdicts_free(job);
	sk_link_remove(&job->link);
	sk_cat_order_remove(job);
	sk_cat_told_remove(job);
	cat->n_snapshots -= job->n_snapshots;
	cat->n_to_write -= job->n_to_write;
	sk_cat_awake_leave(job);
	sk_cat_queue_leave(job);
	sk_cat_fault_end(job);
	(void)sk_table_remove(&cat->by_name, hash_name(job->name),
			      (uintptr_t)job);
	user_leave(job->user);
	if (cat->forget)
		cat->forget(cat->ctx, job);
	free(job);
}

/* A rank that came back, or registered anew, tells all that the one before it
 * told; without slots that one has nothing more. */
static void forget_replaced(struct sk_cat_run *run)
{
	struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->replaced && !state->living && !state->n_slots)
			sk_cat_state_free(state);
	}
}

bool sk_cat_job_trim(struct sk_cat_job *job)
{
	struct sk_cat_run *run;

	job->catalogue->visits++;
	sk_link_each(run, &job->runs, link)
		forget_replaced(run);
	sk_link_each(run, &job->runs, link) {
		/* The newest one tells who joins whom. */
		if (run->number != job->newest_run)
			run_trim(run);
	}
	sk_link_each(run, &job->runs, link) {
		if (run_held(run))
			return false;
	}
	if (!sk_link_empty(&job->snapshots) || job->is_unread)
		return false;
	job_free(job);
	return true;
}

void sk_cat_destroy(struct sk_catalogue *cat)
{
	struct sk_cat_job *job;

	sk_link_each(job, &cat->jobs, link)
		job_free(job);
	assert(!cat->images.count && !cat->states.count);
	sk_table_free(&cat->images);
	sk_table_free(&cat->states);
	sk_table_free(&cat->by_name);
	sk_table_free(&cat->layouts);
}
