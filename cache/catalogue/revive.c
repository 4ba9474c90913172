/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue: what outlived the agent that knew it. */
#include <assert.h>
#include <inttypes.h>

#include "catalogue/private.h"
#include "catalogue/revive.h"
#include "memory/flags.h"

static void count_unread(struct sk_cat_job *job, bool more)
{
	job->is_unread = more;
	job->user->n_unread += more ? 1 : -1u;
	job->catalogue->n_unread += more ? 1 : -1u;
}

void sk_cat_job_unread(struct sk_cat_job *job,
		       const struct sk_cat_amount *slots)
{
	assert(!job->is_unread);
	job->unread = *slots;
	sk_cat_charge(job, slots, true);
	count_unread(job, true);
}

void sk_cat_job_was_read(struct sk_cat_job *job)
{
	assert(job->is_unread);
	count_unread(job, false);
	sk_cat_charge(job, &job->unread, false);
	job->unread = (struct sk_cat_amount){ 0 };
	sk_cat_wake(job);
}

int sk_cat_run_revive(struct sk_cat_job *job, uint64_t number, uint64_t id,
		      int32_t world, struct sk_cat_run **ret_run,
		      struct sk_err *err)
{
	const struct sk_cat_ask ask = { .run_id = id, .world = world };
	struct sk_cat_run *run;
	int r;

	if (!number || number > SK_RUN_MAX || !id || world < 1)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job "
				  "\"%s\" cannot be", number, job->name);
	run = sk_cat_run_find(job, number, id);
	if (run && run->world != world)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job "
				  "\"%s\" has %" PRId32 " ranks, not %"
				  PRId32, number, job->name, run->world,
				  world);
	r = run ? 0 : sk_cat_run_new(job, &ask, number, &run, err);
	if (r < 0)
		return r;
	*ret_run = run;
	return 0;
}

struct sk_cat_state *sk_cat_state_revive(struct sk_cat_run *run, int32_t rank,
					 uint64_t serial,
					 struct sk_cat_layout *const layouts[2])
{
	struct sk_cat_state *state = sk_cat_state_new(run, rank, layouts);

	if (!state)
		return NULL;
	assert(serial);
	/* What it has sealed nobody else may go on from in its number. */
	run->ended = true;
	(void)sk_cat_state_name(state, 0);
	state->serial = serial;
	sk_cat_state_live(state, false);
	state->awaited = true;
	return state;
}

/* An image of the rank is. */
static bool in_memory(const struct sk_cat_snapshot *s, int32_t rank)
{
	for (int kind = 0; kind < 2; kind++) {
		const struct sk_cat_image *image =
			sk_cat_image_find(s, rank, (enum sk_image_kind)kind);

		if (image && image->slot)
			return true;
	}
	return false;
}

int sk_cat_slot_revive(struct sk_cat_slot *slot, int64_t step,
		       uint64_t *const sums[2], uint64_t (*content)[2],
		       uint64_t wall_ns)
{
	struct sk_cat_state *state = slot->state;
	struct sk_cat_run *run = state->run;
	struct sk_cat_snapshot *s;
	int r;

	assert(slot->use == SK_CAT_FREE && step >= 0);
	s = sk_cat_snapshot_get(run->job, run->number, run->id, step,
				run->world);
	if (!s)
		return -ENOMEM;
	s->revived = true;
	s->filling++;
	slot->use = SK_CAT_FILLING;
	slot->flags = SK_SLOT_NO_FLUSH;	/* the caller knows what is wanted */
	slot->snapshot = s;
	if (in_memory(s, state->rank)) {
		sk_cat_slot_clear(slot);
		return -EEXIST;
	}
	sk_cat_snapshot_settle(s);
	r = sk_cat_slot_seal(slot, sums, content, wall_ns);
	if (r < 0)
		sk_cat_slot_clear(slot);
	/* What happened before is no news. */
	else
		s->known.announce = false;
	if (step > state->last_step)
		state->last_step = step;
	return r;
}

int sk_cat_slot_resume(struct sk_cat_slot *slot, int64_t step, uint32_t flags)
{
	const struct sk_cat_state *state = slot->state;
	struct sk_cat_run *run = state->run;
	struct sk_cat_snapshot *s;

	assert(slot->use == SK_CAT_FREE && step >= 0);
	s = sk_cat_snapshot_get(run->job, run->number, run->id, step,
				run->world);
	if (!s)
		return -ENOMEM;
	if (in_memory(s, state->rank))
		return -EEXIST;
	sk_cat_slot_fill(slot, s, flags);
	return 0;
}

struct sk_cat_slot *
sk_cat_slot_return(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		   bool (*usable)(const struct sk_cat_slot *slot))
{
	struct sk_cat_state *old;
	struct sk_cat_slot *slot;

	sk_link_each(old, &state->run->states, link) {
		if (!old->awaited || old->rank != state->rank)
			continue;
		sk_link_each(slot, &old->slots, link) {
			if (slot->kind_bytes[0] != kind_bytes[0] ||
			    slot->kind_bytes[1] != kind_bytes[1] ||
			    slot->detainer || slot->use == SK_CAT_FILLING ||
			    (usable && !usable(slot)))
				continue;
			if (old->last_step > state->last_step)
				state->last_step = old->last_step;
			return sk_cat_slot_move(slot, state);
		}
	}
	return NULL;
}

unsigned sk_cat_await_no_more(struct sk_cat_job *job)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	unsigned n = 0;

	sk_link_each(run, &job->runs, link) {
		unsigned before = n;

		sk_link_each(state, &run->states, link) {
			n += state->awaited && !state->replaced;
			state->awaited = false;
		}
		run->awaited = false;
		if (n != before)
			sk_cat_touch_run(run);
	}
	sk_cat_wake(job);
	return n;
}

bool sk_cat_run_awaited(const struct sk_cat_run *run)
{
	const struct sk_cat_state *state;

	sk_link_each(state, &run->states, link) {
		if (state->living || (state->awaited && !state->replaced))
			return true;
	}
	return false;
}
