/* SPDX-License-Identifier: Apache-2.0 */
#include "growth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

/* Jobs of one process, which has a connection and slots for each. */
#define JOBS_AT_ONCE 50
#define JOB_BYTES 4096

/* Lies in memory that all share, as its figures do; made once. */
static struct world *job;

static struct world *job_of(struct bench *b)
{
	if (job)
		return job;
	job = share(sizeof(*job));
	if (!job)
		return NULL;
	*job = (struct world){
		.bench = b, .job = "growth", .keep_last = SK_KEEP_ALL,
		.model = { .kind = MODEL_LLAMA, .mesh = MESH_FSDP,
			   .world = GROWTH_RANKS, .tensors = b->o.tensors,
			   .bytes = b->o.bytes } };
	if (world_open(job))
		return NULL;
	*job->run = (struct world_run){ 1, 1 };
	return job;
}

void growth_keep(int steps)
{
	job->keep_last = (uint32_t)steps;
}

/* ---- steps ---- */

static int simulate(struct world *w, int steps)
{
	w->steps = steps;
	return world_simulate(w);
}

int growth_add_steps(struct bench *b, int steps)
{
	struct world *w = job_of(b);

	if (w && !world_apart(w, simulate, steps))
		return 0;
	note("%s", w ? w->figures->failed : "no memory");
	return -1;
}

/* ---- ranks of the job ---- */

static int come_back(struct bench *b, int rank, struct world_member *m,
		     struct sk_report *report)
{
	struct sk_restore_options o = { .timeout_ms = WORLD_WAIT_MS };
	int r;

	if (world_member_open(job, rank, GROWTH_RANKS, m))
		return fail(b, rank, "%s", job->figures->failed);
	r = sk_restore(m->state, SK_LATEST, NULL, &o, report);
	return r ? fail(b, rank, "restore: %s", sk_error()) : 0;
}

static int rank_restart(struct bench *b, int rank)
{
	struct sk_report report = { 0 };
	struct world_member m = { 0 };

	meet(b);
	mark_start(b, rank);
	if (come_back(b, rank, &m, &report))
		return -1;
	mark_end(b, rank);
	meet(b);
	world_member_close(&m);
	return 0;
}

/* @durable: each is to be on disk before the next one. */
static int snapshots(struct bench *b, int rank, struct sk_state *state,
		     int n, bool durable, int64_t *step)
{
	struct sk_snapshot_options o = { .flags = SK_SNAPSHOT_NO_FLUSH,
					 .wait_ms = WORLD_WAIT_MS };

	if (durable)
		o.flags = 0;
	meet(b);
	mark_start(b, rank);
	for (int i = 0; i < n; i++)
		if (sk_snapshot(state, ++*step, &o) ||
		    (durable && sk_flush(state, *step)) ||
		    sk_wait(state, *step, durable ? SK_DURABLE : SK_COMPLETE,
			    WORLD_WAIT_MS))
			return fail(b, rank, "snapshot: %s", sk_error());
	mark_end(b, rank);
	meet(b);
	return 0;
}

static int rank_train(struct bench *b, int rank)
{
	struct sk_report report = { 0 };
	struct world_member m = { 0 };
	int64_t step;

	if (come_back(b, rank, &m, &report))
		return -1;
	step = report.step;
	for (int i = 0; i < b->o.rounds; i++)
		if (snapshots(b, rank, m.state, GROWTH_SNAPSHOTS, false,
			      &step) ||
		    snapshots(b, rank, m.state, GROWTH_DURABLE, true, &step))
			return -1;
	world_member_close(&m);
	return 0;
}

/* ---- beside them ---- */

static void add_cost(struct bench *b, int ranks, int of,
		     struct growth_cost *ret)
{
	uint64_t cpu = agent_cpu_ns(b);

	meet(b);
	meet(b);
	series_add(&ret->agent, (double)(agent_cpu_ns(b) - cpu) / of);
	series_add(&ret->passed, marked(b, ranks) / of);
}

static struct growth_cost *restarting;

static void lead_restart(struct bench *b, int ranks)
{
	add_cost(b, ranks, 1, restarting);
}

int growth_restart(struct bench *b, struct growth_cost *ret)
{
	if (!job_of(b))
		return -1;
	restarting = ret;
	return run_ranks(b, GROWTH_RANKS, rank_restart, lead_restart);
}

static struct growth *training;

static void lead_train(struct bench *b, int ranks)
{
	for (int i = 0; i < b->o.rounds; i++) {
		add_cost(b, ranks, GROWTH_SNAPSHOTS, &training->memory);
		add_cost(b, ranks, GROWTH_DURABLE, &training->durable);
	}
}

int growth_train(struct bench *b, struct growth *ret)
{
	if (!job_of(b))
		return -1;
	training = ret;
	return run_ranks(b, GROWTH_RANKS, rank_train, lead_train);
}

/* ---- other jobs ---- */

static int have_a_step(struct sk *sk, int number, char *data)
{
	const struct sk_tensor t = { .name = "weight", .dtype = SK_U8,
				     .ndim = 1, .shape = { JOB_BYTES },
				     .data = data };
	char name[64];
	const struct sk_job other = { .name = name, .world = 1 };
	struct sk_state *state;
	int r;

	(void)snprintf(name, sizeof(name), "other-%d", number);
	r = sk_state_create(sk, &other, &state);
	if (r)
		return r;
	r = sk_state_tensor(state, &t);
	if (!r)
		r = sk_snapshot(state, 1, NULL);
	if (!r)
		r = sk_wait(state, 1, SK_DURABLE, WORLD_WAIT_MS);
	sk_state_free(state);
	return r;
}

/* Their rank is gone after that; what it had stays. */
static int add_some(struct world *w, int first)
{
	struct sk_options o = { .socket = w->bench->socket, .threads = 1,
				.timeout_ms = WORLD_WAIT_MS };
	char data[JOB_BYTES] = "a job";
	struct sk *sk;
	int r = sk_open(&o, &sk);

	for (int i = first; !r && i < first + JOBS_AT_ONCE && i < w->steps; i++)
		r = have_a_step(sk, i, data);
	if (r)
		return world_fail(w, "a job beside it: %s", sk_error());
	sk_close(sk);
	return 0;
}

int growth_add_jobs(struct bench *b, int jobs)
{
	struct world *w = job_of(b);

	if (!w)
		return -1;
	w->steps = jobs;
	for (int i = 0; i < jobs; i += JOBS_AT_ONCE)
		if (world_apart(w, add_some, i)) {
			note("%s", w->figures->failed);
			return -1;
		}
	return 0;
}
