/* SPDX-License-Identifier: Apache-2.0 */
#include "revive/add.h"

#include <inttypes.h>

#include "agent.h"
#include "calls/device.h"
#include "catalogue/pins.h"
#include "catalogue/revive.h"
#include "disk/flush.h"
#include "disk/stored.h"
#include "memory/memory.h"
#include "memory/record.h"
#include "revive/sealed.h"

/* A rank may take to be back, since the agent began; and where it waits for its
 * job to be read, or is told to come again, since that was. */
#define AWAIT_NS (UINT64_C(120) * 1000000000)
#define AWAIT_READ_NS (UINT64_C(10) * 1000000000)
#define AWAIT_LOOK_NS (UINT64_C(1) * 1000000000)
#define LOOK_MOST 8u		/* steps on disk, of each job */

/* ---- slots ---- */

static int add_state(struct agent *a, const struct left *e,
		     struct sk_cat_state **ret, struct sk_err *err)
{
	const struct table_record *r = &e->record;
	struct sk_cat_layout *layouts[2] = { NULL, NULL };
	struct sk_cat_job *job = sk_cat_job_get(&a->cat, r->job, r->uid);
	struct sk_cat_run *run;
	int result;

	if (!job)
		return sk_err_set(err, -ENOMEM, "no memory for a job");
	result = sk_cat_run_revive(job, r->run, r->run_id, r->world, &run,
				   err);
	if (result < 0)
		return result;
	for (int kind = 0; kind < 2; kind++) {
		if (e->layouts[kind])
			layouts[kind] = sk_cat_layout_take(
				&a->cat, sk_layout_ref(e->layouts[kind]));
	}
	*ret = layouts[0] && !layouts[1] == !e->layouts[1] ?
	       sk_cat_state_revive(run, r->rank, r->state, layouts) : NULL;
	if (*ret) {
		(*ret)->numa_node = r->numa_node;
		(*ret)->flush_every = r->flush_every;
		if (!left_is_device(e))
			(*ret)->process = r->process;
		return 0;
	}
	sk_cat_layout_unref(layouts[0]);
	sk_cat_layout_unref(layouts[1]);
	return sk_err_set(err, -ENOMEM, "no memory for a rank");
}

/* By its pin alone where all say so. */
static void want_again(struct sk_cat_snapshot *s, bool by_pin)
{
	by_pin &= !s->wanted || s->wanted_by_pin;
	sk_cat_want(s);
	s->wanted_by_pin = by_pin;
}

/* What its record says beside: of the snapshot, and of damage. */
static void mark_sealed(struct sk_cat_slot *slot,
			const struct table_record *r)
{
	struct sk_cat_snapshot *s = slot->snapshot;

	s->pinned |= !!(r->flags & TABLE_PINNED);
	s->pin_stored |= !!(r->flags & TABLE_PIN_STORED);
	if (r->flags & TABLE_WANTED)
		want_again(s, r->flags & TABLE_BY_PIN);
	/* An agent that was killed, or of before, may not have asked for it;
	 * the disk has it as well, or is to. */
	if (!s->pin_stored)
		(void)sk_cat_want_pinned(s);
	sk_cat_wake(s->job);
	for (int kind = 0; kind < 2; kind++) {
		if (slot->images[kind] && r->flags & TABLE_BAD << kind)
			sk_cat_image_bad(slot->images[kind], false, 0);
	}
}

static int fill_slot(struct sk_cat_slot *slot, struct left *e)
{
	const struct table_record *r = &e->record;
	int result;

	if (r->last_step > slot->state->last_step)
		slot->state->last_step = r->last_step;
	if (e->device)
		return sk_cat_slot_resume(slot, r->step,
					  e->device->record.flags);
	if (r->use != TABLE_SEALED)
		return 0;
	result = sk_cat_slot_revive(slot, r->step, e->sums, e->content,
				    r->created_ns);
	if (result < 0)
		return result;
	e->sums[0] = e->sums[1] = NULL;
	mark_sealed(slot, r);
	return 0;
}

static int add_slot(struct reviving *v, struct sk_cat_state *state,
		    struct left *e, struct sk_err *err)
{
	struct agent *a = v->agent;
	struct sk_cat_slot *slot;
	struct memory *m;
	int r;

	r = memory_adopt(a, e->record.kind_bytes, e->fds,
			 e->record.numa_node, &m, err);
	if (r < 0)
		return r;
	m->sealed_writes = e->record.flags & TABLE_NO_WRITES;
	/* Until all is there, the record stays as it was. */
	slot = sk_cat_slot_add(state, e->record.kind_bytes, m);
	if (!slot) {
		memory_release(m);
		return sk_err_set(err, -ENOMEM, "no memory for a slot");
	}
	memory_serves(m, slot);
	r = fill_slot(slot, e);
	if (r == 0 && e->device)
		r = device_revive(a, &e->device->record, e->device->at,
				  e->device->fds, slot);
	/* The record is dropped, and not this slot's any more. */
	if (r < 0) {
		sk_cat_slot_clear(slot);
		return sk_err_errno(err, r, "it cannot be taken up");
	}
	m->record = e->at;
	m->serial = e->record.serial;
	m->kept = 3;
	e->slot = slot;
	v->bytes += slot->bytes;
	return r;
}

/* The slots of one registration; what was being filled is free. */
static void add_group(struct reviving *v, struct left *first, uint32_t n)
{
	struct sk_cat_state *state = NULL;
	struct sk_err err = { "no image tells what it holds" };
	int r = -ENODATA;

	for (uint32_t i = 0; i < n; i++) {
		struct left *e = &first[i];

		if (!e->record.serial || left_is_device(e))
			continue;
		/* The first one that is whole: it has the layouts. */
		if (!state && (e->record.use == TABLE_SEALED || e->device))
			r = add_state(v->agent, e, &state, &err);
		if (state)
			r = add_slot(v, state, e, &err);
		if (r < 0)
			left_lose(v, e, err.text);
		else
			v->agent->counts.revived +=
				e->record.use == TABLE_SEALED;
	}
}

/* Those whose slots could not be taken up. */
static void drop_devices(struct reviving *v, struct left *first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (first[i].record.serial && left_is_device(&first[i]) &&
		    !left_is_copy(&first[i]) && first[i].fds[0] >= 0)
			left_forget(v, &first[i]);
}

static struct sk_cat_slot *slot_with(const struct left *first, uint32_t n,
				     uint64_t serial)
{
	for (uint32_t i = 0; i < n; i++)
		if (first[i].record.serial == serial)
			return first[i].slot;
	return NULL;
}

/* When all slots are there: one may be another registration's by now. */
static void add_copies(struct reviving *v, struct left *first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct left *e = &first[i];
		const struct sk_cat_slot *slot;

		if (!e->record.serial || !left_is_copy(e))
			continue;
		slot = slot_with(first, n, e->record.stands_for);
		if (!slot || slot->use != SK_CAT_SEALED ||
		    device_revive_copy(v->agent, &e->record, e->at, e->fds,
				       slot) < 0)
			left_forget(v, e);
	}
}

/* Nothing of it need be sealed: its ranks come back to it all the same, and
 * who had not been told of it yet joins them. */
static void add_run(struct reviving *v, struct left *e)
{
	const struct table_record *r = &e->record;
	struct sk_cat_job *job = sk_cat_job_get(&v->agent->cat, r->job,
						r->uid);
	struct sk_err err = { "no memory for a job" };
	struct sk_cat_run *run;

	if (!job || sk_cat_run_revive(job, r->run, r->run_id, r->world, &run,
				      &err) < 0) {
		record_unkept(v->agent, "a run", err.text);
		left_forget(v, e);
		return;
	}
	run->awaited = true;
	run->note = e->at + 1;
	run->process = r->process;
}

/* ---- waiting for the ranks ---- */

/* None of the job's ranks lives, nor can one that is awaited be back: their
 * processes have ended. */
static bool none_can_come(const struct agent *a, const struct sk_cat_job *job)
{
	const struct sk_cat_state *state;
	const struct sk_cat_run *run;
	unsigned n = 0;

	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link) {
		if (state->replaced || !(state->living || state->awaited))
			continue;
		if (state->living ||
		    !sk_process_gone(a->os, &state->process))
			return false;
		n++;
	}
	return n;
}

/* What a restart needs goes to disk at once then. Their slots stay theirs: a
 * child of theirs may have a GPU write to them for a while. */
static void look_for_ended(struct agent *a, struct sk_cat_job *job)
{
	if (job->ended_unseen || !none_can_come(a, job))
		return;
	job->ended_unseen = true;
	log_info(a, "the ranks of job \"%s\" ended while no agent saw it",
		 job->name);
	flush_newest(a, job);
	agent_changed(a);
}

static void set_await_timer(struct agent *a, const struct sk_cat_job *job)
{
	uint64_t look_ns = agent_now(a) + AWAIT_LOOK_NS;

	timer_set_by(&a->loop.timers, &a->await_timer,
		     !job->ended_unseen && look_ns < job->awaited_ns ?
		     look_ns : job->awaited_ns);
}

static void await_no_more(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, await_timer);
	uint64_t now_ns = agent_now(a);
	struct sk_cat_job *job;
	unsigned n = 0, away;

	sk_link_each(job, &a->cat.jobs, link) {
		if (job->awaited_ns > now_ns) {
			look_for_ended(a, job);
			set_await_timer(a, job);
			continue;
		}
		away = sk_cat_await_no_more(job);
		n += away;
		/* As when the last rank goes. */
		if (away)
			flush_newest(a, job);
	}
	if (n)
		log_info(a, "%u ranks of before the restart did not come "
			 "back", n);
	(void)sk_cat_trim_free(&a->cat, NULL);
	agent_changed(a);
}

/* ---- all of a job ---- */

static void add_groups(struct reviving *v, struct left *first, uint32_t n)
{
	uint32_t from = 0, to;

	for (; from < n && !first[from].record.state; from++)
		if (first[from].record.serial)
			add_run(v, &first[from]);
	for (; from < n; from = to) {
		for (to = from; to < n && first[to].record.state ==
					  first[from].record.state; to++)
			;
		sealed_match(v, &first[from], to - from);
		add_group(v, &first[from], to - from);
		drop_devices(v, &first[from], to - from);
		for (uint32_t i = from; i < to; i++)
			if (!left_is_copy(&first[i]))
				left_free(&first[i]);
	}
	add_copies(v, first, n);
}

static void welcome(struct agent *a, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	/* In full: with what was free, and what is no longer. */
	sk_link_each(s, &job->live, live)
		record_snapshot(a, s);
	/* That some are durable the last agent may have told. */
	stored_foresee(a, job, LOOK_MOST);
	/* As for what was there when that came. */
	if (a->stopping)
		flush_newest(a, job);
}

/* Not anew with each job that is read. */
static void await(struct agent *a, struct sk_cat_job *job)
{
	uint64_t began = a->began_ns + AWAIT_NS;
	uint64_t read = agent_now(a) + AWAIT_READ_NS;

	job->awaited_ns = began > read ? began : read;
	a->await_timer.fire = await_no_more;
	look_for_ended(a, job);
	set_await_timer(a, job);
}

void add_job(struct reviving *v, struct left *first, uint32_t n)
{
	const struct table_record *r = &first->record;
	struct agent *a = v->agent;
	struct sk_cat_job *job;

	add_groups(v, first, n);
	job = sk_cat_job_find(&a->cat, r->job, r->uid);
	if (job) {
		welcome(a, job);
		await(a, job);
	}
	agent_changed(a);
}
