/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of slots. Faulted in piece by piece in the background, those of
 * several ranks in turn, and given back in the background as well: the system
 * takes a while for both.
 */
#include <stdio.h>
#include <sys/resource.h>

#include "agent.h"

#define PIECES_IN_FLIGHT 2u
#define POPULATE_NICE 10

struct piece {
	struct work work;
	struct memory *memory;
	struct sk_slot *slot;
	uint64_t from, to;
	int result;
	struct sk_err err;
};

static void destroy(struct work *work);
static void destroyed(struct work *work);

struct burial {
	struct work work;
	struct memory *memory;
};

static void destroy_slots(struct memory *m)
{
	for (int kind = 0; kind < 2; kind++)
		sk_slot_destroy(m->agent->os, &m->slots[kind]);
	free(m);
}

static void destroy(struct work *work)
{
	destroy_slots(sk_link_object(work, struct burial, work)->memory);
}

static void destroyed(struct work *work)
{
	free(sk_link_object(work, struct burial, work));
}

static void bury(struct memory *m)
{
	struct agent *a = m->agent;
	struct burial *b = calloc(1, sizeof(*b));

	if (!b) {	/* then it takes the time here */
		destroy_slots(m);
		return;
	}
	b->memory = m;
	b->work.run = destroy;
	b->work.finish = destroyed;
	work_submit(a, a->populate, &b->work);
}

/* Behind all of its order: they take turns. */
static void line_up(struct agent *a, struct memory *m)
{
	struct memory *next;

	sk_link_each(next, &a->to_populate, link) {
		if (next->order <= m->order)
			continue;
		sk_link_insert(&next->link, &m->link);
		return;
	}
	sk_link_insert(&a->to_populate, &m->link);
}

int memory_new(struct agent *a, const char *name, const uint64_t bytes[2],
	       int numa_node, uint32_t order, struct memory **ret,
	       struct sk_err *err)
{
	struct memory *m = calloc(1, sizeof(*m));
	int r = 0;

	if (!m)
		return sk_err_set(err, -ENOMEM, "no memory for a slot");
	m->agent = a;
	m->slots[0].fd = m->slots[1].fd = -1;
	sk_link_init(&m->link);
	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (!bytes[kind])
			continue;
		r = sk_slot_create(a->os, name, bytes[kind], numa_node,
				   &m->slots[kind], err);
		m->bytes += m->slots[kind].bytes;
	}
	if (r < 0) {
		destroy_slots(m);
		return r;
	}
	m->order = order;
	line_up(a, m);
	*ret = m;
	return 0;
}

void memory_release(struct memory *m)
{
	sk_link_remove(&m->link);
	m->released = true;
	if (!m->busy)
		bury(m);
}

static void populate_piece(struct work *work)
{
	struct piece *p = sk_link_object(work, struct piece, work);

	/* Of this thread: trainers need their CPUs more. */
	(void)setpriority(PRIO_PROCESS, 0, POPULATE_NICE);
	p->result = sk_slot_populate(work->agent->os, p->slot, p->from, p->to,
				     &p->err);
}

static void populated(struct work *work)
{
	struct piece *p = sk_link_object(work, struct piece, work);
	struct agent *a = work->agent;
	struct memory *m = p->memory;

	m->busy--;
	a->populating--;
	if (p->result < 0 && !m->result) {
		m->result = p->result;
		(void)snprintf(m->text, sizeof(m->text), "%s", p->err.text);
		log_warning(a, "%s", p->err.text);
	}
	free(p);
	if (m->released && !m->busy)
		bury(m);
	agent_changed(a);
	memory_populate(a);
}

/* The next piece of the memory; false: none could be made. */
static bool hand_out(struct agent *a, struct memory *m)
{
	struct piece *p = calloc(1, sizeof(*p));
	uint64_t first = m->slots[0].bytes;
	int kind = m->populated >= first;
	uint64_t base = kind ? first : 0;

	if (!p)
		return false;
	p->memory = m;
	p->slot = &m->slots[kind];
	p->from = m->populated - base;
	p->to = p->from + SK_SLOT_PIECE;
	if (p->to > p->slot->bytes)
		p->to = p->slot->bytes;
	p->work.run = populate_piece;
	p->work.finish = populated;
	m->populated = base + p->to;
	m->busy++;
	a->populating++;
	work_submit(a, a->populate, &p->work);
	return true;
}

/* What is being filled is faulted in by its rank. */
static void mark_filling(struct agent *a)
{
	const struct sk_cat_state *state;
	const struct sk_cat_slot *slot;
	const struct sk_cat_run *run;
	const struct sk_cat_job *job;
	struct memory *m;

	a->fill_mark++;
	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
	sk_link_each(slot, &state->slots, link) {
		if (slot->use != SK_CAT_FILLING)
			continue;
		m = slot->memory;
		m->filling = a->fill_mark;
	}
}

static struct memory *next_memory(struct agent *a)
{
	struct memory *m;

	mark_filling(a);
	sk_link_each(m, &a->to_populate, link)
		if (m->filling != a->fill_mark)
			return m;
	return NULL;
}

void memory_populate(struct agent *a)
{
	while (!a->quit && a->populating < PIECES_IN_FLIGHT &&
	       !sk_link_empty(&a->to_populate)) {
		struct memory *m = next_memory(a);

		if (!m || !hand_out(a, m))
			return;
		sk_link_remove(&m->link);
		if (m->populated < m->bytes)
			line_up(a, m);
	}
}
