/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/collapse.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "agent.h"

/* The one piece that is under way. */
struct collapsing {
	struct work work;
	struct agent *agent;
	bool can;			/* the system can */
	struct timer timer;		/* of the next one */
	uint64_t rest_until_ns;
	uint64_t none_until_ns;		/* is due */
	struct memory *memory;		/* held; NULL: none is */
	const struct sk_slot *slot;
	uint64_t from, to;		/* bytes within the slot */
	uint64_t took_ns;
	int result;
};

#define NICE 10
#define REST 3u				/* times what a piece took */

/* Of pages that are set aside there may have been enough for one alone. */
static bool may_be_small(const struct sk_slot *slot)
{
	return !slot->huge && slot->bytes >= SK_HUGE_PAGE;
}

void collapse_add(struct memory *m)
{
	if (!m->agent->collapsing->can ||
	    (!may_be_small(&m->slots[0]) && !may_be_small(&m->slots[1])))
		return;
	sk_link_insert(&m->agent->to_collapse, &m->link);
	m->agent->collapsing->none_until_ns = 0;
}

/* ---- in the background ---- */

static void collapse_piece(struct work *work)
{
	struct collapsing *c = sk_link_object(work, struct collapsing, work);
	const struct sk_os *os = c->memory->agent->os;
	uint64_t began = os->now_ns(os);

	/* Of this thread: trainers need their CPUs more. */
	(void)os->setpriority(os, PRIO_PROCESS, 0, NICE);
	c->result = sk_slot_collapse(os, c->slot, c->from, c->to);
	c->took_ns = os->now_ns(os) - began;
}

/* ---- what came of it ---- */

static bool is_over(const struct memory *m)
{
	return m->collapse.done == m->bytes ||
	       m->collapse.roomless == SK_SLOT_ROOMLESS;
}

static void pass_is_over(struct memory *m)
{
	struct memory_collapse *mc = &m->collapse;

	memory_count_small(m, mc->refused);
	sk_link_remove(&m->link);
	if (!mc->refused)
		return;
	mc->done = 0;
	mc->roomless = 0;
	mc->refused = false;
	sk_again_refused(&mc->again, agent_now(m->agent));
	sk_link_insert(&m->agent->to_collapse, &m->link);
	m->agent->collapsing->none_until_ns = 0;
}

static void piece_collapsed(struct work *work)
{
	struct collapsing *c = sk_link_object(work, struct collapsing, work);
	struct memory *m = c->memory;
	struct agent *a = m->agent;

	c->memory = NULL;
	c->rest_until_ns = agent_now(a) + REST * c->took_ns;
	m->collapse.done += c->to - c->from;
	m->collapse.refused |= c->result < 0;
	m->collapse.roomless += sk_slot_has_no_room(c->result);
	if (!m->released && is_over(m))
		pass_is_over(m);
	memory_unhold(m);
	collapse_go_on(a);
}

/* ---- the next one ---- */

/* Whether there is any that is due; when the first will be otherwise. */
static bool any_is_due(const struct agent *a, uint64_t now_ns,
		       uint64_t *ret_soonest)
{
	const struct memory *m;

	*ret_soonest = SK_FOREVER;
	sk_link_each(m, &a->to_collapse, link) {
		if (sk_again_is_due(&m->collapse.again, now_ns))
			return true;
		if (m->collapse.again.at_ns < *ret_soonest)
			*ret_soonest = m->collapse.again.at_ns;
	}
	return false;
}

/* One that is in use will not be for ever, and then something has changed. */
static struct memory *next_memory(struct agent *a, uint64_t now_ns)
{
	struct memory *m;

	sk_link_each(m, &a->to_collapse, link)
		if (sk_again_is_due(&m->collapse.again, now_ns) &&
		    memory_ready(m) && !memory_filling(m) &&
		    !memory_flushing(m))
			return m;
	return NULL;
}

static void hand_out(struct agent *a, struct memory *m)
{
	struct collapsing *c = a->collapsing;
	uint64_t first = m->slots[0].bytes, done = m->collapse.done;

	assert(!c->memory && !m->released && done < m->bytes);
	c->memory = m;
	c->slot = &m->slots[done >= first];
	c->from = done >= first ? done - first : done;
	c->to = c->from + SK_SLOT_PIECE;
	if (c->to > c->slot->bytes)
		c->to = c->slot->bytes;
	c->work.run = collapse_piece;
	c->work.finish = piece_collapsed;
	memory_hold(m);
	work_submit(&a->loop.works, a->populate, &c->work);
}

static void time_to(struct timer *timer)
{
	collapse_go_on(sk_link_object(timer, struct collapsing, timer)->agent);
}

static void come_back(struct agent *a, uint64_t at_ns)
{
	if (at_ns == SK_FOREVER)
		return;
	a->collapsing->timer.fire = time_to;
	timer_set(&a->loop.timers, &a->collapsing->timer, at_ns);
}

void collapse_go_on(struct agent *a)
{
	struct collapsing *c = a->collapsing;
	uint64_t now = agent_now(a), soonest;
	struct memory *m;

	if (c->memory || a->populating || a->stopping || a->quit ||
	    now < c->none_until_ns)
		return;
	if (!any_is_due(a, now, &soonest)) {
		c->none_until_ns = soonest;
		come_back(a, soonest);
		return;
	}
	if (c->rest_until_ns > now) {
		come_back(a, c->rest_until_ns);
		return;
	}
	m = next_memory(a, now);
	if (m)
		hand_out(a, m);
}

int collapse_open(struct agent *a)
{
	a->collapsing = calloc(1, sizeof(*a->collapsing));
	if (!a->collapsing)
		return -ENOMEM;
	a->collapsing->agent = a;
	a->collapsing->can = sk_slots_collapse(a->os);
	return 0;
}

void collapse_close(struct agent *a)
{
	if (a->collapsing)
		timer_clear(&a->loop.timers, &a->collapsing->timer);
}

void collapse_free(struct agent *a)
{
	free(a->collapsing);
	a->collapsing = NULL;
}
