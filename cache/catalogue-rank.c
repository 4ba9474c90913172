/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the ranks: how they come and go, and what memory they have. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue-private.h"
#include "util.h"

/* ---- runs ---- */

static struct sk_cat_run *run_new(struct sk_cat_job *job, uint64_t number,
				  int32_t world)
{
	struct sk_cat_run *run = calloc(1, sizeof(*run)), *other;
	struct sk_link *at = &job->runs;

	if (!run)
		return NULL;
	run->job = job;
	run->number = number;
	run->world = world;
	sk_link_init(&run->states);
	sk_link_each(other, &job->runs, link) {
		if (other->number < number) {
			at = &other->link;
			break;
		}
	}
	sk_link_insert(at, &run->link);
	if (number > job->newest_run)
		job->newest_run = number;
	return run;
}

static struct sk_cat_run *newest_run(const struct sk_cat_job *job)
{
	if (sk_link_empty(&job->runs))
		return NULL;
	return sk_link_object(job->runs.next, struct sk_cat_run, link);
}

/* Which run a rank that does not say belongs to. */
static uint64_t number_for(const struct sk_cat_job *job, int32_t rank,
			   int32_t world)
{
	const struct sk_cat_run *run = newest_run(job);

	if (run && run->number == job->newest_run && run->world == world &&
	    !run->ended && !sk_cat_state_find(run, rank))
		return run->number;
	return job->newest_run + 1;
}

/* The newest run with a living rank; 0: none lives. */
static uint64_t newest_living(const struct sk_cat_job *job)
{
	struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link) {
		if (sk_cat_run_living(run))
			return run->number;
	}
	return 0;
}

/* A rank that still lives in the newest run is never run over, numbered or
 * not: two jobs of one name must not take turns. */
static int check_alone(const struct sk_cat_job *job,
		       const struct sk_cat_run *run, int32_t rank,
		       struct sk_err *err)
{
	const struct sk_cat_state *state;

	state = run ? sk_cat_state_find(run, rank) : NULL;
	if (!state || !state->living)
		return 0;
	return sk_err_set(err, -EEXIST, "rank %" PRId32 " of job \"%s\" lives "
			  "already in run %" PRIu64 "; two jobs of one name?",
			  rank, job->name, run->number);
}

int sk_cat_run_open(struct sk_cat_job *job, uint64_t number, int32_t rank,
		    int32_t world, struct sk_cat_run **ret_run,
		    struct sk_err *err)
{
	uint64_t living = newest_living(job);
	struct sk_cat_run *run;
	int r;

	if (!number) {
		run = newest_run(job);
		if (run && run->world == world && !run->ended) {
			r = check_alone(job, run, rank, err);
			if (r < 0)
				return r;
		}
		number = number_for(job, rank, world);
	}
	if (number < living)
		return sk_err_set(err, -ESTALE, "run %" PRIu64 " of job "
				  "\"%s\" is older than run %" PRIu64 ", "
				  "which has living ranks; start with a newer "
				  "run, or end that one", number, job->name,
				  living);
	run = sk_cat_run_find(job, number);
	if (run && run->world != world)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " of job "
				  "\"%s\" has %" PRId32 " ranks, not %" PRId32,
				  number, job->name, run->world, world);
	r = check_alone(job, run, rank, err);
	if (r < 0)
		return r;
	if (!run)
		run = run_new(job, number, world);
	if (!run)
		return sk_err_set(err, -ENOMEM, "no memory for a new run");
	*ret_run = run;
	return 0;
}

/* ---- states ---- */

struct sk_cat_state *sk_cat_state_new(struct sk_cat_run *run, int32_t rank,
				      struct sk_cat_layout *const layouts[2])
{
	struct sk_cat_state *state = calloc(1, sizeof(*state)), *old;

	if (!state)
		return NULL;
	/* The one of this rank that tells what the run must cover. */
	sk_link_each(old, &run->states, link) {
		if (old->rank == rank)
			old->replaced = true;
	}
	state->run = run;
	state->rank = rank;
	state->id = run->job->catalogue->next_id++;
	state->living = true;
	state->numa_node = -1;
	state->layouts[0] = layouts[0];
	state->layouts[1] = layouts[1];
	state->last_step = state->lost_step = -1;
	sk_link_init(&state->slots);
	sk_link_insert(&run->states, &state->link);
	sk_cat_update_run(run->job, run->number);
	return state;
}

/* What it was filling is lost; says how many images. */
static unsigned drop_filling(struct sk_cat_state *state)
{
	struct sk_cat_slot *slot;
	unsigned lost = 0;

	sk_link_each(slot, &state->slots, link) {
		if (slot->use != SK_CAT_FILLING)
			continue;
		sk_cat_slot_clear(slot);
		lost++;
	}
	return lost;
}

unsigned sk_cat_state_end(struct sk_cat_state *state)
{
	struct sk_cat_run *run = state->run;
	unsigned lost = drop_filling(state);

	state->living = false;
	state->owner = NULL;
	state->id = 0;
	run->ended = true;
	sk_cat_update_run(run->job, run->number);
	return lost;
}

void sk_cat_state_cancel(struct sk_cat_state *state)
{
	struct sk_cat_run *run = state->run;
	struct sk_cat_slot *slot;

	state->living = false;
	state->replaced = true;
	state->owner = NULL;
	state->id = 0;
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FREE)
			sk_cat_slot_release(slot);
	}
	if (!state->n_slots)
		sk_cat_state_free(state);
	sk_cat_update_run(run->job, run->number);
}

unsigned sk_cat_state_replace(struct sk_cat_state *state,
			      struct sk_cat_state *next)
{
	unsigned lost = drop_filling(state);
	struct sk_cat_slot *slot;

	next->id = state->id;
	next->last_step = state->last_step;
	next->lost_step = state->lost_step;
	state->id = 0;
	state->living = false;
	state->replaced = true;
	state->owner = NULL;
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FREE)
			sk_cat_slot_release(slot);
	}
	return lost;
}

/* ---- slots ---- */

uint64_t sk_cat_slot_bytes(const uint64_t image_bytes[2],
			   uint64_t ret_kind_bytes[2])
{
	ret_kind_bytes[0] = sk_round_up(image_bytes[0], SK_PAGE);
	ret_kind_bytes[1] = sk_round_up(image_bytes[1], SK_PAGE);
	return ret_kind_bytes[0] + ret_kind_bytes[1];
}

struct sk_cat_slot *sk_cat_slot_add(struct sk_cat_state *state,
				    const uint64_t kind_bytes[2], void *memory)
{
	struct sk_cat_slot *slot = calloc(1, sizeof(*slot));

	if (!slot)
		return NULL;
	slot->state = state;
	slot->number = state->next_number++;
	slot->kind_bytes[0] = kind_bytes[0];
	slot->kind_bytes[1] = kind_bytes[1];
	slot->bytes = kind_bytes[0] + kind_bytes[1];
	slot->memory = memory;
	sk_link_insert(&state->slots, &slot->link);
	state->n_slots++;
	state->run->job->catalogue->used += slot->bytes;
	return slot;
}

static struct sk_cat_slot *move_slot(struct sk_cat_slot *slot,
				     struct sk_cat_state *state)
{
	sk_link_remove(&slot->link);
	slot->state->n_slots--;
	slot->state = state;
	slot->number = state->next_number++;
	sk_link_insert(&state->slots, &slot->link);
	state->n_slots++;
	return slot;
}

static bool same_sizes(const struct sk_cat_slot *slot,
		       const uint64_t kind_bytes[2])
{
	return slot->kind_bytes[0] == kind_bytes[0] &&
	       slot->kind_bytes[1] == kind_bytes[1];
}

/* A slot that the rank's earlier lives left behind. */
static struct sk_cat_slot *
find_left(const struct sk_cat_state *state, const uint64_t kind_bytes[2],
	  enum sk_cat_slot_use use,
	  bool (*usable)(const struct sk_cat_slot *slot))
{
	struct sk_cat_state *old;
	struct sk_cat_slot *slot;
	struct sk_cat_run *run;

	sk_link_each(run, &state->run->job->runs, link) {
		sk_link_each(old, &run->states, link) {
			if (old->living || old->rank != state->rank)
				continue;
			sk_link_each(slot, &old->slots, link) {
				if (slot->use == use &&
				    same_sizes(slot, kind_bytes) &&
				    (!usable || usable(slot)))
					return slot;
			}
		}
	}
	return NULL;
}

struct sk_cat_slot *
sk_cat_slot_inherit(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		    bool (*usable)(const struct sk_cat_slot *slot))
{
	struct sk_cat_slot *slot;

	slot = find_left(state, kind_bytes, SK_CAT_FREE, usable);
	return slot ? move_slot(slot, state) : NULL;
}

struct sk_cat_slot *
sk_cat_slot_adopt(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		  bool (*usable)(const struct sk_cat_slot *slot))
{
	struct sk_cat_slot *slot;

	slot = find_left(state, kind_bytes, SK_CAT_SEALED, usable);
	return slot ? move_slot(slot, state) : NULL;
}

/* ---- room ---- */

static uint64_t trim_state(struct sk_cat_state *state)
{
	struct sk_cat_slot *slot;
	uint64_t bytes = 0;

	if (state->living)
		return 0;
	sk_link_each(slot, &state->slots, link) {
		if (slot->use != SK_CAT_FREE)
			continue;
		bytes += slot->bytes;
		sk_cat_slot_release(slot);
	}
	return bytes;
}

uint64_t sk_cat_trim_free(struct sk_catalogue *cat, struct sk_cat_job *only)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_cat_job *job;
	uint64_t bytes = 0;

	sk_link_each(job, &cat->jobs, link) {
		if (only && job != only)
			continue;
		sk_link_each(run, &job->runs, link)
			sk_link_each(state, &run->states, link)
				bytes += trim_state(state);
	}
	return bytes;
}

/* May this slot of a dead rank be given to somebody else? */
static bool reclaimable(const struct sk_cat_slot *slot)
{
	return !slot->state->living &&
	       (slot->use == SK_CAT_FREE ||
		(slot->use == SK_CAT_SEALED &&
		 !sk_cat_protected(slot->snapshot)));
}

/* The bytes of all such slots, and the one with the oldest image. */
static uint64_t survey(struct sk_catalogue *cat,
		       struct sk_cat_slot **ret_oldest)
{
	struct sk_cat_state *state;
	struct sk_cat_slot *slot, *oldest = NULL;
	struct sk_cat_run *run;
	struct sk_cat_job *job;
	uint64_t bytes = 0;

	sk_link_each(job, &cat->jobs, link)
	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
	sk_link_each(slot, &state->slots, link) {
		if (!reclaimable(slot))
			continue;
		bytes += slot->bytes;
		if (slot->use == SK_CAT_SEALED &&
		    (!oldest || slot->snapshot->created_ns <
				oldest->snapshot->created_ns))
			oldest = slot;
	}
	*ret_oldest = oldest;
	return bytes;
}

#define HOLDERS 3

/* The largest holders, largest first; other users' jobs have no name here. */
static void name_holders(struct sk_catalogue *cat,
			 const struct sk_cat_job *asker, char *buf,
			 size_t size)
{
	const struct sk_cat_job *top[HOLDERS] = { NULL };
	uint64_t bytes[HOLDERS] = { 0 };
	struct sk_cat_job *job;
	size_t at = 0;
	char text[32];

	sk_link_each(job, &cat->jobs, link) {
		const struct sk_cat_job *j = job;
		uint64_t b = sk_cat_job_bytes(job);

		for (int i = 0; i < HOLDERS && b; i++) {
			const struct sk_cat_job *lower = top[i];
			uint64_t less = bytes[i];

			if (b <= less)
				continue;
			top[i] = j;
			bytes[i] = b;
			j = lower;
			b = less;
		}
	}
	buf[0] = 0;
	for (int i = 0; i < HOLDERS && bytes[i] && at < size; i++)
		at += (size_t)snprintf(buf + at, size - at, "%s%.40s %s",
				       i ? ", " : "",
				       top[i]->uid == asker->uid ?
				       top[i]->name : "another user's job",
				       sk_cat_bytes(bytes[i], text,
						    sizeof(text)));
	if (!at)
		(void)snprintf(buf, size, "nobody");
}

static int say_full(struct sk_catalogue *cat, uint64_t bytes, uint64_t room,
		    const struct sk_cat_job *job, struct sk_err *err)
{
	char asked[32], budget[32], left[32], holders[200];

	name_holders(cat, job, holders, sizeof(holders));
	return sk_err_set(err, -ENOMEM, "job \"%.40s\" asked for %s more, "
			  "but of the budget of %s only %s can be had; held by: "
			  "%s; use fewer slots or give the agent more "
			  "--memory", job->name,
			  sk_cat_bytes(bytes, asked, sizeof(asked)),
			  sk_cat_bytes(cat->budget, budget, sizeof(budget)),
			  sk_cat_bytes(room, left, sizeof(left)), holders);
}

int sk_cat_make_room(struct sk_catalogue *cat, uint64_t bytes,
		     const struct sk_cat_job *job, struct sk_err *err)
{
	uint64_t left = cat->used < cat->budget ? cat->budget - cat->used : 0;
	struct sk_cat_slot *oldest;
	uint64_t room;
	int evicted = 0;

	if (bytes <= left)
		return 0;
	room = left + survey(cat, &oldest);
	if (bytes > room)
		return say_full(cat, bytes, room, job, err);
	(void)sk_cat_trim_free(cat, NULL);
	while (cat->used > cat->budget || cat->budget - cat->used < bytes) {
		(void)survey(cat, &oldest);
		if (!oldest)
			return say_full(cat, bytes, cat->budget - cat->used,
					job, err);
		sk_cat_slot_clear(oldest);
		evicted++;
	}
	return evicted;
}

char *sk_cat_bytes(uint64_t bytes, char *buf, size_t size)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB",
					     "PiB" };
	double value = (double)bytes;
	size_t u = 0;

	while (value >= 1024 && u + 1 < SK_ARRAY_SIZE(units)) {
		value /= 1024;
		u++;
	}
	(void)snprintf(buf, size, u ? "%.1f %s" : "%.0f %s", value, units[u]);
	return buf;
}
