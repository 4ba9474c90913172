/* SPDX-License-Identifier: Apache-2.0 */
/* A rank gets its run and its slots. */
#include "calls/enter.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "base/size.h"
#include "calls/device.h"
#include "calls/gather.h"
#include "calls/refusals.h"
#include "catalogue/kept.h"
#include "memory/memory.h"
#include "memory/record.h"
#include "session/rights.h"
#include "session/session.h"

#define MAX_STATES 4096u	/* of one user */

/* ---- the slots ---- */

static bool fit_for_others(const struct sk_cat_slot *slot)
{
	const struct memory *m = slot->memory;

	/* Its writer alone has it mapped, and nobody else can. */
	return !m->sealed_writes && !m->result && !m->stray;
}

static int new_slot(struct agent *a, struct sk_cat_state *state,
		    const uint64_t kind_bytes[2], struct sk_err *err)
{
	struct sk_cat_slot *slot;
	struct memory *m;
	char name[64];
	int r;

	(void)snprintf(name, sizeof(name), "shardkeep:%.40s:%" PRId32,
		       state->run->job->name, state->rank);
	r = memory_new(a, name, kind_bytes, state->numa_node,
		       state->n_slots, &m, err);
	if (r < 0)
		return r;
	slot = sk_cat_slot_add(state, kind_bytes, m);
	if (!slot) {
		memory_release(m);
		return sk_err_set(err, -ENOMEM, "no memory for a slot");
	}
	memory_serves(m, slot);
	return 0;
}

static void count_refused(struct agent *a, int r)
{
	a->counts.refused_memory++;
	a->counts.refused[r == -EMFILE ? REFUSED_DESCRIPTORS :
			  r == -EDQUOT ? REFUSED_SHARE : REFUSED_MEMORY]++;
}

/* Slots that it had in this life, and those of who had its number before. */
static void take_its_own(struct sk_cat_state *state, uint32_t slots,
			 const uint64_t kinds[2])
{
	while (state->n_slots < slots &&
	       sk_cat_slot_return(state, kinds, fit_for_others))
		;
	while (state->n_slots < slots &&
	       sk_cat_slot_inherit(state, kinds, fit_for_others))
		;
}

/* Room for the slots that it still lacks, of @bytes each. */
static int make_room_until(struct agent *a, const struct sk_cat_state *state,
			   uint32_t slots, const uint64_t kinds[2],
			   uint64_t bytes, enum sk_cat_turn until,
			   struct sk_err *err)
{
	uint64_t fds = !!kinds[0] + !!kinds[1];
	uint64_t left = slots - state->n_slots, asked;
	int r;

	if (!sk_mul_u64(bytes, left, &asked))
		asked = UINT64_MAX;
	r = sk_cat_make_room(&a->cat, asked, left * fds, until,
			     state->run->job, err);
	if (r > 0)
		a->counts.evictions += (uint64_t)r;
	return r;
}

/* Where there is none it takes over what dead ranks of its job have, one by
 * one; and only where that does not do, what it began with goes, and last what
 * is pinned on disk. */
static int make_room(struct agent *a, struct sk_cat_state *state,
		     uint32_t slots, const uint64_t kinds[2], uint64_t bytes,
		     struct sk_err *err)
{
	int r = make_room_until(a, state, slots, kinds, bytes, SK_CAT_AS_OLD,
				err);

	while (r < 0 && state->n_slots < slots &&
	       sk_cat_slot_adopt(state, kinds, fit_for_others))
		r = make_room_until(a, state, slots, kinds, bytes,
				    SK_CAT_AS_OLD, err);
	for (enum sk_cat_turn until = SK_CAT_LAST;
	     r < 0 && until <= SK_CAT_PINNED; until++)
		r = make_room_until(a, state, slots, kinds, bytes, until, err);
	return r;
}

/* What the job itself could do about it. */
static void add_remedy(uint64_t replica, struct sk_err *err)
{
	const struct sk_err said = *err;
	char bytes[32];

	(void)sk_err_set(err, 0, "%s; without replicas (SK_JOB_NO_REPLICAS) "
			 "each slot is %s less", said.text,
			 sk_size_format(replica, bytes, sizeof(bytes)));
}

/*
 * Where the agent was lost and not the rank, the slots that it had, as they
 * are. Else free slots of the rank's last life first, then new ones, for which
 * old images must make room, and last of all slots whose old image still stands
 * in them: they serve when newer images are complete.
 */
static int get_slots(struct agent *a, struct sk_cat_state *state,
		     const struct sk_wire_register *reg, struct sk_err *err)
{
	uint64_t kinds[2], bytes = sk_cat_slot_bytes(reg->image_bytes, kinds);
	int r;

	take_its_own(state, reg->slots, kinds);
	r = make_room(a, state, reg->slots, kinds, bytes, err);
	if ((r == -ENOMEM || r == -EDQUOT) && kinds[1])
		add_remedy(kinds[1], err);
	while (r >= 0 && state->n_slots < reg->slots)
		r = new_slot(a, state, kinds, err);
	if (r == -ENOMEM || r == -EMFILE || r == -EDQUOT)
		count_refused(a, r);
	if (r == -ENOMEM || r == -EDQUOT)
		refusal_met(state->owner, reg,
			    bytes * (reg->slots - state->n_slots), err);
	else if (r >= 0)
		refusal_over(state->owner, reg);
	return r < 0 ? r : 0;
}

/* ---- the state ---- */

/* Into the catalogue, which may know them; or freed. */
static int take_layouts(struct agent *a, struct sk_layout *layouts[2],
			struct sk_cat_layout *ret[2], struct sk_err *err)
{
	assert(layouts[0]);
	ret[0] = sk_cat_layout_take(&a->cat, sk_take_ptr(layouts[0]));
	ret[1] = NULL;
	if (ret[0] && layouts[1]) {
		ret[1] = sk_cat_layout_take(&a->cat, sk_take_ptr(layouts[1]));
		if (!ret[1]) {
			sk_cat_layout_unref(ret[0]);
			ret[0] = NULL;
		}
	}
	return ret[0] ? 0 : sk_err_set(err, -ENOMEM, "no memory for a layout");
}

/* A rank of the newest run may have ended while no agent saw it: who comes now
 * is of the job's next life. */
static void see_ended(struct agent *a, const struct sk_cat_job *job)
{
	struct sk_cat_run *run;

	if (sk_link_empty(&job->runs))
		return;
	run = sk_link_object(job->runs.next, struct sk_cat_run, link);
	if (run->ended || sk_cat_run_living(run) ||
	    !sk_process_gone(a->os, &run->process))
		return;
	run->ended = true;
	record_run_over(a, run);
}

/* The id of a run is drawn here, once, and told to all its ranks. */
static int open_run(struct agent *a, struct sk_cat_job *job,
		    const struct sk_wire_id *id, struct sk_cat_run **ret_run,
		    struct sk_err *err)
{
	struct sk_cat_ask ask = {
		.run = id->run, .run_id = id->run_id, .rank = id->rank,
		.world = id->world,
	};
	int r = a->os->random(a->os, &ask.fresh_id, sizeof(ask.fresh_id));

	if (r < 0)
		return sk_err_errno(err, r, "cannot draw an id for a run of "
				    "job \"%s\"", job->name);
	ask.fresh_id += !ask.fresh_id;	/* 0 is none */
	if (!ask.run)
		see_ended(a, job);
	return sk_cat_run_open(job, &ask, ret_run, err);
}

/* The state that the connection registers anew, or a run for a new one. */
static int run_of(struct agent *a, struct session *s,
		  const struct sk_wire_register *reg,
		  struct sk_cat_state **ret_old, struct sk_cat_run **ret_run,
		  struct sk_err *err)
{
	struct sk_cat_state *old = NULL;
	struct sk_cat_job *job;

	if (reg->state) {
		old = session_state(s, reg->state);
		if (!old || old->rank != reg->id.rank ||
		    old->run->world != reg->id.world ||
		    strcmp(old->run->job->name, reg->id.job) != 0)
			return sk_err_set(err, -ENOENT, "state %" PRIu64 " is "
					  "not rank %" PRId32 " of job \"%s\" "
					  "of this connection", reg->state,
					  reg->id.rank, reg->id.job);
		*ret_old = old;
		*ret_run = old->run;
		return 0;
	}
	if (sk_cat_user_ranks(&a->cat, s->uid) >= MAX_STATES)
		return sk_err_set(err, -EDQUOT, "uid %u has %u ranks here "
				  "already", (unsigned)s->uid, MAX_STATES);
	job = sk_cat_job_get(&a->cat, reg->id.job, s->uid);
	if (!job)
		return sk_err_set(err, -ENOMEM, "no memory for a job");
	*ret_old = NULL;
	return open_run(a, job, &reg->id, ret_run, err);
}

/* Takes @layouts over, whatever happens. */
static struct sk_cat_state *new_state(struct session *s,
				      const struct sk_wire_register *reg,
				      struct sk_cat_run *run,
				      struct sk_cat_layout *layouts[2],
				      struct sk_err *err)
{
	struct sk_cat_state *state = sk_cat_state_new(run, reg->id.rank,
						      layouts);

	if (!state) {
		sk_cat_layout_unref(layouts[0]);
		sk_cat_layout_unref(layouts[1]);
		(void)sk_err_set(err, -ENOMEM, "no memory for a rank");
		return NULL;
	}
	sk_cat_state_own(state, s, &s->states);
	state->flush_every = reg->flush_every;
	state->numa_node = reg->numa_node;
	state->on_devices = reg->flags & SK_REGISTER_DEVICES;
	if (s->agent->keeper.kind != KEEPER_NONE)
		sk_process_of(s->agent->os, s->pid, &state->process);
	return state;
}

/* Before anything goes to make room for it. */
static void note_begun(struct sk_cat_run *run,
		       const struct sk_wire_register *reg)
{
	const struct sk_cat_begun begun = {
		.run = reg->begun.run, .run_id = reg->begun.run_id,
		.step = reg->begun.step,
		.newest = reg->flags & SK_REGISTER_NEWEST,
	};

	if (reg->flags & SK_REGISTER_BEGUN)
		sk_cat_run_began(run, &begun);
	if (reg->flags & SK_REGISTER_KEEP)
		sk_staying_say(&run->job->staying, run->number, run->id,
			       reg->keep);
}

int rank_enter(struct session *s, const struct sk_wire_register *reg,
	       struct sk_layout *layouts[2], struct sk_cat_state **ret_state,
	       struct sk_err *err)
{
	struct agent *a = s->agent;
	struct sk_cat_state *old = NULL, *state;
	struct sk_cat_layout *taken[2];
	struct sk_cat_run *run;
	int r;

	if (a->stopping)
		return sk_err_set(err, -ESHUTDOWN, "the agent is stopping; "
				  "go on when another one serves");
	r = sk_cat_room_for_layouts(&a->cat, s->uid,
				    (const struct sk_layout **)layouts, err);
	if (r == 0)
		r = run_of(a, s, reg, &old, &run, err);
	if (r == 0)
		r = take_layouts(a, layouts, taken, err);
	if (r < 0)
		return r;
	state = new_state(s, reg, run, taken, err);
	if (!state)
		return -ENOMEM;
	/* A restore may come next. */
	if (old)
		device_slots_leave(a, old);
	if (old)
		a->counts.discarded_client += sk_cat_state_replace(old, state);
	note_begun(run, reg);
	r = reg->flags & SK_REGISTER_LATER ? 0 :
					     get_slots(a, state, reg, err);
	/* One that was here before stays, by its id and in its run, and may
	 * ask for slots again: that there is no memory now ends nothing. */
	if (r < 0 && old)
		sk_cat_state_empty(state);
	else if (r < 0)
		sk_cat_state_cancel(state);
	if (r < 0)
		return r;
	if (!run->process.pid)
		run->process = state->process;
	record_run(a, run);
	gather_run_entered(a, run);
	*ret_state = state;
	return 0;
}
