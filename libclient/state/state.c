/* SPDX-License-Identifier: Apache-2.0 */
/* The state: made, and let go. */
#include "state/state.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "conn/check.h"
#include "conn/say.h"
#include "state/names.h"
#include "state/register.h"
#include "tensor/mesh.h"

int sk_state_check(const struct sk_state *state, struct sk_err *err)
{
	if (!state)
		return sk_err_set(err, -EINVAL, "the state is NULL");
	return sk_check(state->sk, err);
}

struct sk_wire_id sk_state_wire_id(struct sk_state *state, int64_t step)
{
	struct sk_wire_id id = {
		.step = step,
		.rank = state->job.rank,
		.world = state->job.world,
	};

	assert(strlen(state->job.name) <= SK_JOB_MAX);
	strcpy(id.job, state->job.name);
	/* Who waits for a step may do so while another thread registers. */
	sk_fences_lock(&state->fences);
	id.run = state->run;
	id.run_id = state->run_id;
	sk_fences_unlock(&state->fences);
	return id;
}

void sk_state_set_run(struct sk_state *state, uint64_t run, uint64_t run_id)
{
	sk_fences_lock(&state->fences);
	state->run = run;
	state->run_id = run_id;
	sk_fences_unlock(&state->fences);
}

void sk_state_set_nodes(struct sk_state *state, struct sk_nodes *nodes)
{
	if (!(state->job.flags & SK_JOB_NODE_REPLICAS) ||
	    sk_nodes_equal(state->nodes, nodes))
		return;
	sk_nodes_unref(state->nodes);
	state->nodes = sk_nodes_ref(nodes);
	state->changed = true;
}

static int check_reserved(const struct sk_job *job, struct sk_err *err)
{
	const uint32_t which = SK_JOB_NO_REPLICAS | SK_JOB_NODE_REPLICAS;
	const uint32_t how = SK_COPY_FAST | SK_COPY_OVERLAP;
	int r = sk_check_flags(job->flags, which | how | SK_JOB_VERIFY |
			       SK_JOB_READER, "sk_job.flags", err);

	if (r >= 0 && (job->flags & which) == which)
		r = sk_err_set(err, -EINVAL, "sk_job.flags: replicas are kept "
			       "nowhere (SK_JOB_NO_REPLICAS) or once per node "
			       "(SK_JOB_NODE_REPLICAS), not both");
	if (r >= 0 && (job->flags & how) == how)
		r = sk_err_set(err, -EINVAL, "sk_job.flags: copies are fast "
			       "(SK_COPY_FAST) or beside the trainer's kernels "
			       "(SK_COPY_OVERLAP), not both");
	if (r >= 0)
		r = sk_check_zero(&job->reserved_, sizeof(job->reserved_),
				  "sk_job.reserved_", err);
	return r < 0 ? r : sk_check_zero(job->reserved, sizeof(job->reserved),
					 "sk_job.reserved", err);
}

static int check_retention(const struct sk_job *job, struct sk_err *err)
{
	if (job->keep_age_s <= INT64_MAX && job->keep_bytes <= INT64_MAX)
		return 0;
	return sk_err_set(err, -EINVAL, "keep_age_s and keep_bytes are at most "
			  "2^63 - 1");
}

static int check_rank(const struct sk_job *job, struct sk_err *err)
{
	if (job->world < 1)
		return sk_err_set(err, -EINVAL, "a job of %d ranks: "
				  "sk_job.world is at least 1", job->world);
	if (job->world > SK_MESH_MAX_RANKS)
		return sk_err_set(err, -EINVAL, "a job of %d ranks: there may "
				  "be at most %d", job->world,
				  SK_MESH_MAX_RANKS);
	if (job->rank < 0 || job->rank >= job->world)
		return sk_err_set(err, -EINVAL, "rank %d of %d ranks: they "
				  "are 0 to %d", job->rank, job->world,
				  job->world - 1);
	return 0;
}

static int check_job(const struct sk_job *job, struct sk_err *err)
{
	if (!job || !job->name)
		return sk_err_set(err, -EINVAL, "a job needs a name");
	if (sk_job_check(job->name, err) < 0)
		return -EINVAL;
	if (check_rank(job, err) < 0)
		return -EINVAL;
	if (job->slots == 1)
		return sk_err_set(err, -EINVAL, "a rank needs at least 2 "
				  "slots: one stands while the other fills");
	if (job->slots > SK_STATE_SLOTS_MAX)
		return sk_err_set(err, -EINVAL, "%u slots: a rank may have %u",
				  job->slots, SK_STATE_SLOTS_MAX);
	if (job->run > SK_RUN_GIVEN_MAX)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job "
				  "\"%.100s\" is out of range; runs are 1 to %"
				  PRIu64, job->run, job->name,
				  SK_RUN_GIVEN_MAX);
	if (check_retention(job, err) < 0)
		return -EINVAL;
	return check_reserved(job, err);
}

/* The run that the environment says; 0 where it says none. */
static int run_of_environment(uint64_t *ret_run, struct sk_err *err)
{
	const char *text = getenv("SHARDKEEP_RUN");
	unsigned long long run;
	char *end;

	*ret_run = 0;
	if (!text || !*text)
		return 0;
	errno = 0;
	run = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno ||
	    run > SK_RUN_GIVEN_MAX)
		return sk_err_set(err, -EINVAL, "SHARDKEEP_RUN=%.100s is not "
				  "a run; runs are numbers from 1 to %" PRIu64,
				  text, SK_RUN_GIVEN_MAX);
	*ret_run = run;
	return 0;
}

static void take_job(struct sk_state *state, const struct sk_job *job,
		     uint64_t run)
{
	const char *name = state->job.name;

	state->job = *job;
	state->job.name = name;
	state->job.run = run;
	if (!state->job.slots)
		state->job.slots = 2;
}

static struct sk_state *state_new(struct sk *sk, const struct sk_job *job,
				  uint64_t run)
{
	struct sk_state *state = calloc(1, sizeof(*state));

	if (!state)
		return NULL;
	state->job.name = strdup(job->name);
	state->said = calloc((size_t)job->world, SK_SAID_BYTES);
	if (!state->job.name || !state->said) {
		free((char *)state->job.name);
		free(state->said);
		free(state);
		return NULL;
	}
	state->sk = sk;
	take_job(state, job, run);
	state->status.step = -1;
	state->changed = true;
	(void)pthread_mutex_init(&state->lock, NULL);
	sk_fences_init(&state->fences, sk->os);
	sk_gpus_init(state);
	__atomic_add_fetch(&sk->states, 1, __ATOMIC_RELAXED);
	return state;
}

SK_API int sk_state_create(struct sk *sk, const struct sk_job *job,
			   struct sk_state **ret_state)
{
	struct sk_err err = { "" };
	struct sk_state *state;
	uint64_t run = 0;
	int r = sk_check(sk, &err);

	if (r >= 0)
		r = sk_check_result(ret_state, "a state", &err);
	if (r >= 0)
		r = check_job(job, &err);
	if (r >= 0)
		run = job->run;
	if (r >= 0 && !run)
		r = run_of_environment(&run, &err);
	if (r < 0)
		return sk_say(r, &err);
	state = state_new(sk, job, run);
	if (!state)
		return sk_say(sk_err_set(&err, -ENOMEM, "out of memory"),
			      &err);
	*ret_state = state;
	return 0;
}

SK_API void sk_state_free(struct sk_state *state)
{
	if (!state)
		return;
	if (state->sk->pid == getpid()) {
		/* Copies end by themselves, and requests by their timeout. */
		(void)sk_fences_settle(&state->fences, SK_FOREVER);
		sk_state_unregister(state);
		sk_fences_drop(&state->fences);
		sk_fences_destroy(&state->fences);
		sk_gpus_free(state);
	}
	while (state->n_locals)
		sk_local_clear(&state->locals[--state->n_locals]);
	free(state->locals);
	sk_names_clear(state);
	sk_nodes_unref(state->nodes);
	free((char *)state->job.name);
	free(state->said);
	(void)pthread_mutex_destroy(&state->lock);
	__atomic_sub_fetch(&state->sk->states, 1, __ATOMIC_RELAXED);
	free(state);
}
