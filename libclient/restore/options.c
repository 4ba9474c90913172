/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/options.h"

#include <inttypes.h>

#include "comm/nccl.h"
#include "conn/check.h"

#define AGREE_MS 60000u

/* ---- the comm ---- */

static int other_ranks(const struct sk_job *job, const struct sk_comm *comm,
		       struct sk_err *err)
{
	return sk_err_set(err, -EINVAL, "job \"%s\": the state is rank %d of "
			  "%d, and the comm has it as rank %d of %d", job->name,
			  job->rank, job->world, comm->rank, comm->world);
}

/* Whether it is said, and means anything: who is alone gathers nothing. */
static bool says_ranks(const struct sk_job *job, const struct sk_comm *comm)
{
	return job->world > 1 && comm->world;
}

/* What others gather would else be written beyond what this rank has. */
static bool fits(const struct sk_job *job, const struct sk_comm *comm)
{
	return !says_ranks(job, comm) ||
	       (comm->world == job->world && comm->rank >= 0 &&
		comm->rank < comm->world);
}

/* The others need not wait for who does not come. */
static int break_off(const struct sk_comm *comm, int r)
{
	if (comm->abort)
		comm->abort(comm->ctx);
	return r;
}

/* Of one that was not zeroed only what is needed is called, and not where
 * what it says of ranks is no more than what was there before. */
static int refuse_reserved(struct sk_restoring *rs,
			   const struct sk_comm *comm, int r)
{
	if (comm->allgather && fits(&rs->state->job, comm))
		rs->comm = (struct sk_comm){
			.ctx = comm->ctx, .allgather = comm->allgather,
			.world = comm->world, .rank = comm->rank };
	return r;
}

static bool is_device(const struct sk_comm_device *device)
{
	return device->begin && device->exchange && device->end;
}

int sk_restore_take_comm(struct sk_restoring *rs, const struct sk_comm *comm)
{
	const struct sk_job *job = &rs->state->job;
	int r;

	rs->comm = (struct sk_comm){ .ctx = NULL };
	if (!comm)
		return 0;
	r = sk_check_zero(comm->reserved, sizeof(comm->reserved),
			  "sk_comm.reserved", &rs->err);
	if (r < 0)
		return refuse_reserved(rs, comm, r);
	if (!fits(job, comm))
		return break_off(comm, other_ranks(job, comm, &rs->err));
	if (!comm->allgather)
		return break_off(comm, sk_err_set(&rs->err, -EINVAL, "sk_comm."
						  "allgather is NULL"));
	rs->comm = *comm;
	sk_comm_nccl_note(comm, NULL);
	if (comm->device && !is_device(comm->device)) {
		rs->comm.device = NULL;
		return sk_err_set(&rs->err, -EINVAL, "sk_comm.device lacks a "
				  "function");
	}
	return says_ranks(job, comm) && comm->rank != job->rank ?
		       other_ranks(job, comm, &rs->err) : 0;
}

/* ---- what is asked for ---- */

static int check_options(const struct sk_restore_options *o,
			 struct sk_err *err)
{
	int r = sk_check_flags(o->flags, SK_RESTORE_PARTIAL |
			       SK_RESTORE_MEMORY_ONLY | SK_RESTORE_DISK_ONLY |
			       SK_RESTORE_NO_VERIFY,
			       "sk_restore_options.flags", err);

	if (r >= 0)
		r = sk_check_zero(o->reserved, sizeof(o->reserved),
				  "sk_restore_options.reserved", err);
	if (r < 0)
		return r;
	if (o->flags & SK_RESTORE_MEMORY_ONLY &&
	    o->flags & SK_RESTORE_DISK_ONLY)
		return sk_err_set(err, -EINVAL, "a restore from memory only "
				  "and from disk only has nowhere to restore "
				  "from");
	if (o->n_names && !o->names)
		return sk_err_set(err, -EINVAL, "%zu names to restore, and no "
				  "list of them", o->n_names);
	return 0;
}

int sk_restore_take_options(struct sk_restoring *rs, int64_t step,
			    const struct sk_restore_options *o, int r)
{
	static const struct sk_restore_options none;

	o = o ? o : &none;
	rs->timeout_ms = o->timeout_ms ? o->timeout_ms : AGREE_MS;
	if (r >= 0 && step < SK_LATEST)
		r = sk_err_set(&rs->err, -EINVAL, "step %" PRId64 " is "
			       "neither a step nor SK_LATEST", step);
	if (r >= 0)
		r = check_options(o, &rs->err);
	if (r < 0)
		return r;
	rs->step = step;
	rs->run = o->run;
	rs->run_id = o->run_id;
	rs->flags = o->flags | (o->names ? SK_RESTORE_EXTRA_OK : 0);
	rs->names = o->names;
	rs->n_names = o->n_names;
	return 0;
}
