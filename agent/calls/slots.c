/* SPDX-License-Identifier: Apache-2.0 */
/* MAP, SLOT, DISCARD: the life of a slot. seal.c has SEAL. */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>

#include "calls/call.h"
#include "calls/device.h"
#include "disk/cadence.h"
#include "disk/flush.h"
#include "memory/memory.h"

static int dup_fd(struct call *c, int fd)
{
	const struct sk_os *os = c->agent->os;
	int copy = os->fcntl(os, fd, F_DUPFD_CLOEXEC, 3);

	assert(c->n_out < SK_MSG_FDS);
	if (copy < 0)
		return sk_err_errno(&c->err, copy, "cannot hand a slot out; "
				    "raise the agent's limit of open files");
	c->out_fds[c->n_out++] = copy;
	return 0;
}

int call_map(struct call *c)
{
	const struct sk_wire_map *in = &c->in->body.map;
	struct sk_cat_slot *slot;
	struct memory *m;
	int r;

	r = call_slot_of(c, in->state, in->slot, &slot);
	if (r < 0)
		return r;
	m = slot->memory;
	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (m->slots[kind].fd >= 0)
			r = dup_fd(c, m->slots[kind].fd);
	}
	while (r < 0 && c->n_out)
		sk_close_fd(c->out_fds[--c->n_out]);
	return r;
}

/* Who waits, or has asked ahead, asks again: it is refused if there is none
 * then. */
static void count_busy(struct agent *a, struct sk_cat_state *state,
		       uint32_t flags)
{
	if (flags & SK_SLOT_WILL_WAIT)
		return;
	a->counts.refused_busy++;
	a->counts.refused[REFUSED_BUSY]++;
	state->run->job->figures.refused_slots++;
}

static void say_busy(struct call *c)
{
	struct agent *a = c->agent;
	struct sk_err why;

	c->out.body.slot_reply.eta_ns = flush_eta(a);
	if (!a->flush || c->out.body.slot_reply.eta_ns)
		return;
	why = c->err;
	(void)sk_err_set(&c->err, -EBUSY, "%.*s; a flush is under way, and "
			 "how long it needs is not known yet",
			 SK_ERR_MAX - 80, why.text);
}

static void say_slot(struct call *c, struct sk_cat_state *state,
		     struct sk_cat_slot *slot)
{
	((struct memory *)slot->memory)->alone = c->session->faults_nothing;
	c->out.body.slot_reply.slot = slot->number;
	c->out.body.slot_reply.ranks = sk_cat_run_ranks(state->run);
	c->out.body.slot_reply.no_device = device_keeps_out(c->agent, state);
}

int call_slot(struct call *c)
{
	const struct sk_wire_slot *in = &c->in->body.slot;
	struct agent *a = c->agent;
	struct sk_cat_state *state = NULL;
	struct sk_cat_slot *slot;
	unsigned evicted;
	int r;

	r = call_state(c, in->state, &state);
	if (r < 0)
		return r;
	if (in->step < 0)
		return sk_err_set(&c->err, -EINVAL, "step %" PRId64 " is "
				  "negative", in->step);
	if (a->stopping)
		return sk_err_set(&c->err, -ESHUTDOWN, "the agent is stopping; "
				  "go on when another one serves");
	/* What is in the way may turn out to be none: nothing is lost by
	 * then. */
	r = sk_cat_slot_take(state, in->step, in->flags, true, NULL, NULL,
			     &c->err);
	if (r == -EBUSY && sk_cat_asking(state->run->job))
		return call_when_told(c, state->run->job);
	if (!state->flush_every)
		cadence_step(a, state, in->step);
	r = sk_cat_slot_take(state, in->step, in->flags, false, &slot,
			     &evicted, &c->err);
	if (r == -EBUSY) {
		count_busy(a, state, in->flags);
		say_busy(c);
	}
	if (r < 0)
		return r;
	a->counts.evictions += evicted;
	say_slot(c, state, slot);
	agent_changed(a);
	return 0;
}

int call_discard(struct call *c)
{
	const struct sk_wire_seal *in = &c->in->body.seal;
	struct sk_cat_slot *slot;
	int r;

	r = call_slot_of(c, in->state, in->slot, &slot);
	if (r < 0)
		return r;
	r = call_check_filling(c, slot, in->step);
	if (r < 0)
		return r;
	log_info(c->agent, "job \"%s\" step %" PRId64 " rank %" PRId32
		 ": discarded by the client", slot->state->run->job->name,
		 in->step, slot->state->rank);
	device_seal_over(c->agent, slot);
	sk_cat_slot_clear(slot);
	c->agent->counts.discarded_client++;
	agent_changed(c->agent);
	return 0;
}
