/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the runs: who is let into which. */
#include <assert.h>
#include <inttypes.h>

#include "catalogue/private.h"

void sk_cat_run_seen(struct sk_cat_job *job, uint64_t number)
{
	if (number <= job->newest_run)
		return;
	job->newest_run = number;
	sk_cat_wake(job);	/* of those before it nothing may be left */
}

int sk_cat_run_new(struct sk_cat_job *job, const struct sk_cat_ask *ask,
		   uint64_t number, struct sk_cat_run **ret_run,
		   struct sk_err *err)
{
	struct sk_cat_run *run = calloc(1, sizeof(*run)), *other;
	struct sk_link *at = &job->runs;
	struct sk_cat_snapshot *s;

	if (!run)
		return sk_err_set(err, -ENOMEM, "no memory for a new run");
	run->job = job;
	run->number = number;
	run->id = ask->run_id ? ask->run_id : ask->fresh_id;
	run->world = ask->world;
	assert(number && run->id);
	sk_link_init(&run->states);
	sk_link_each(other, &job->runs, link) {
		if (other->number <= number) {
			at = &other->link;
			break;
		}
	}
	sk_link_insert(at, &run->link);
	sk_cat_wake(job);
	/* Newest first. */
	sk_link_each(s, &job->snapshots, link) {
		job->catalogue->visits++;
		if (s->run < number)
			break;
		run->n_snapshots += sk_cat_is_of(s, run);
	}
	sk_cat_run_seen(job, number);
	*ret_run = run;
	return 0;
}

static struct sk_cat_run *newest_run(const struct sk_cat_job *job)
{
	if (sk_link_empty(&job->runs))
		return NULL;
	return sk_link_object(job->runs.next, struct sk_cat_run, link);
}

/* The newest run with a living rank, or NULL. */
static struct sk_cat_run *newest_living(const struct sk_cat_job *job)
{
	struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link) {
		if (sk_cat_run_living(run))
			return run;
	}
	return NULL;
}

#define TWICE "two jobs of one name? Or a state that was left open? "
#define READS "Who reads beside it is no rank of it (SK_JOB_READER, in " \
	"Python load_tensors())"

/* A rank that lives in a run is never run over, numbered or not: two jobs of
 * one name must not take turns. */
static int check_alone(const struct sk_cat_run *run, int32_t rank,
		       struct sk_err *err)
{
	const struct sk_cat_state *state = sk_cat_state_find(run, rank);

	if (!state || !state->living)
		return 0;
	return sk_err_set(err, -EEXIST, "rank %" PRId32 " of job \"%s\" lives "
			  "already in run %" PRIu64 "; " TWICE READS, rank,
			  run->job->name, run->number);
}

/* ---- a rank that names no run ---- */

static int number_on(struct sk_cat_job *job, const struct sk_cat_ask *ask,
		     struct sk_cat_run **ret_run, struct sk_err *err)
{
	if (job->newest_run >= SK_RUN_MAX)
		return sk_err_set(err, -EOVERFLOW, "job \"%s\" has used up "
				  "its run numbers with run %" PRIu64
				  "; choose another name", job->name,
				  job->newest_run);
	return sk_cat_run_new(job, ask, job->newest_run + 1, ret_run, err);
}

/* As long as none of its ranks has gone, a run is the job: who is not one of
 * its ranks is of another job. */
static int join_or_number(struct sk_cat_job *job, const struct sk_cat_ask *ask,
			  struct sk_cat_run **ret_run, struct sk_err *err)
{
	struct sk_cat_run *run = newest_run(job);
	int r;

	assert(!ask->run);
	if (!run || run->ended || (!sk_cat_run_living(run) &&
				   (run->number != job->newest_run ||
				    run->world != ask->world)))
		return number_on(job, ask, ret_run, err);
	if (run->world != ask->world)
		return sk_err_set(err, -EEXIST, "a job \"%s\" of %" PRId32
				  " ranks lives already in run %" PRIu64
				  ", this one has %" PRId32 "; " TWICE READS,
				  job->name, run->world, run->number,
				  ask->world);
	r = check_alone(run, ask->rank, err);
	if (r < 0)
		return r;
	*ret_run = run;
	return 0;
}

/* ---- a rank that names one ---- */

static int check_number(const struct sk_cat_job *job,
			const struct sk_cat_ask *ask, struct sk_err *err)
{
	const struct sk_cat_run *living = newest_living(job);
	/* Who comes back may have been numbered on from a number that was
	 * given, but by no more restarts than there can be. */
	uint64_t most = SK_RUN_GIVEN_MAX + (ask->run_id ? UINT32_MAX : 0);

	if (ask->run > most)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job \"%s\" "
				  "is out of range; runs are 1 to %" PRIu64,
				  ask->run, job->name, most);
	if (living && ask->run < living->number)
		return sk_err_set(err, -ESTALE, "run %" PRIu64 " of job "
				  "\"%s\" is older than run %" PRIu64 ", "
				  "which has living ranks; start with a newer "
				  "run, or end that one", ask->run, job->name,
				  living->number);
	/* Unless its ranks are on their way to the run that is asked for. */
	if (living && !living->ended && ask->run == living->number &&
	    ask->run_id && ask->run_id != living->id)
		return sk_err_set(err, -EEXIST, "another run %" PRIu64
				  " of job \"%s\" has living ranks; two jobs "
				  "of one name?", ask->run, job->name);
	return 0;
}

static int check_member(const struct sk_cat_run *run,
			const struct sk_cat_ask *ask, struct sk_err *err)
{
	if (run->world != ask->world)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job "
				  "\"%s\" has %" PRId32 " ranks, not %" PRId32,
				  run->number, run->job->name, run->world,
				  ask->world);
	/* Whoever knows the id was in it, and has only been away. */
	if (run->ended && !ask->run_id)
		return sk_err_set(err, -ESTALE, "run %" PRIu64 " of job \"%s\" "
				  "has lost a rank; who starts now is of a "
				  "newer run", run->number, run->job->name);
	return check_alone(run, ask->rank, err);
}

static int join_named(struct sk_cat_job *job, const struct sk_cat_ask *ask,
		      struct sk_cat_run **ret_run, struct sk_err *err)
{
	struct sk_cat_run *run = sk_cat_run_find(job, ask->run, ask->run_id);
	int r = check_number(job, ask, err);

	assert(ask->run);
	if (r < 0)
		return r;
	if (!run && !ask->run_id && ask->run <= job->newest_run)
		return sk_err_set(err, -ESTALE, "run %" PRIu64 " of job \"%s\" "
				  "is not newer than run %" PRIu64 ", which "
				  "has been; start with a newer run, or let "
				  "the agent number it", ask->run, job->name,
				  job->newest_run);
	if (!run)
		return sk_cat_run_new(job, ask, ask->run, ret_run, err);
	r = check_member(run, ask, err);
	if (r < 0)
		return r;
	*ret_run = run;
	return 0;
}

int sk_cat_run_open(struct sk_cat_job *job, const struct sk_cat_ask *ask,
		    struct sk_cat_run **ret_run, struct sk_err *err)
{
	assert(ask->fresh_id);
	return ask->run ? join_named(job, ask, ret_run, err) :
			  join_or_number(job, ask, ret_run, err);
}
