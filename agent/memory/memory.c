/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of slots: made, faulted in, given back.
 *
 * A few pieces at a time are in the background, so that a rank which asks
 * for its first slot does not wait behind whole slots of others.
 */
#include "memory/memory.h"

#include <assert.h>
#include <stdio.h>
#include <sys/resource.h>

#include "agent.h"
#include "memory/collapse.h"
#include "memory/record.h"

#define POPULATE_NICE 10

static void destroy_slots(struct memory *m)
{
	for (int kind = 0; kind < 2; kind++)
		sk_slot_destroy(m->agent->os, &m->slots[kind]);
}

static void destroy(struct work *work)
{
	destroy_slots(sk_link_object(work, struct memory, burial));
}

static void destroyed(struct work *work)
{
	free(sk_link_object(work, struct memory, burial));
}

static void bury(struct memory *m)
{
	struct agent *a = m->agent;

	assert(m->released && !m->busy && !m->held &&
	       sk_link_empty(&m->link));
	/* What takes long is the mapping; descriptors are short, and were
	 * counted as free when it was released. */
	for (int kind = 0; kind < 2; kind++)
		m->slots[kind].fd = sk_close_fd(m->slots[kind].fd);
	m->burial.run = destroy;
	m->burial.finish = destroyed;
	work_submit(&a->loop.works, a->populate, &m->burial);
}

/* The last that comes back, or lets go, does it. */
static void bury_unused(struct memory *m)
{
	if (m->released && !m->busy && !m->held)
		bury(m);
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

static struct memory *blank(struct agent *a)
{
	struct memory *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->agent = a;
	m->record = TABLE_NONE;
	m->slots[0].fd = m->slots[1].fd = -1;
	sk_link_init(&m->link);
	return m;
}

/* Both kinds: made, or where there are descriptors those, which are the
 * caller's still if it fails. */
static int open_slots(struct memory *m, const char *name,
		      const uint64_t bytes[2], const int *fds, int numa_node,
		      struct sk_err *err)
{
	const struct sk_os *os = m->agent->os;
	int r = 0;

	for (int kind = 0; kind < 2 && r == 0; kind++) {
		struct sk_slot *slot = &m->slots[kind];

		if (!bytes[kind])
			continue;
		r = fds ? sk_slot_adopt(os, fds[kind], bytes[kind], numa_node,
					slot, err) :
			  sk_slot_create(os, name, bytes[kind], numa_node,
					 slot, err);
		m->bytes += slot->bytes;
	}
	for (int kind = 0; kind < 2 && fds && r < 0; kind++)
		m->slots[kind].fd = -1;
	return r;
}

static int make(struct agent *a, const char *name, const uint64_t bytes[2],
		const int *fds, int numa_node, struct memory **ret,
		struct sk_err *err)
{
	struct memory *m = blank(a);
	int r;

	if (!m)
		return sk_err_set(err, -ENOMEM, "no memory for a slot");
	r = open_slots(m, name, bytes, fds, numa_node, err);
	if (r < 0) {
		destroy_slots(m);
		free(m);
		return r;
	}
	*ret = m;
	return 0;
}

int memory_new(struct agent *a, const char *name, const uint64_t bytes[2],
	       int numa_node, uint32_t order, struct memory **ret,
	       struct sk_err *err)
{
	int r = make(a, name, bytes, NULL, numa_node, ret, err);

	if (r < 0)
		return r;
	(*ret)->order = order;
	line_up(a, *ret);
	record_keep(a, *ret);
	return 0;
}

int memory_adopt(struct agent *a, const uint64_t bytes[2], int fds[2],
		 int numa_node, struct memory **ret, struct sk_err *err)
{
	int r = make(a, NULL, bytes, fds, numa_node, ret, err);

	if (r < 0)
		return r;
	fds[0] = fds[1] = -1;
	(*ret)->populated = (*ret)->bytes;
	collapse_add(*ret);
	return 0;
}

/* Of its slots some lie in small pages, as long as they are there. */
void memory_count_small(struct memory *m, bool small)
{
	struct agent *a = m->agent;

	if (m->small == small)
		return;
	m->small = small;
	a->small_memories += small ? 1 : -1u;
	degraded_is(a, DEGRADED_SMALL_PAGES, a->small_memories, NULL);
}

void memory_release(struct memory *m)
{
	assert(!m->released);
	record_forget(m);
	m->of = NULL;
	sk_link_remove(&m->link);
	memory_count_small(m, false);
	m->released = true;
	bury_unused(m);
}

void memory_hold(struct memory *m)
{
	assert(!m->released);
	m->held++;
}

void memory_unhold(struct memory *m)
{
	assert(m->held);
	m->held--;
	bury_unused(m);
}

static void populate_piece(struct work *work)
{
	struct memory_piece *p = sk_link_object(work, struct memory_piece,
						work);
	const struct sk_os *os = p->memory->agent->os;

	/* Of this thread: trainers need their CPUs more. */
	(void)os->setpriority(os, PRIO_PROCESS, 0, POPULATE_NICE);
	p->result = sk_slot_populate(os, p->slot, p->from, p->to, &p->err);
}

static void see_pages(struct memory *m)
{
	bool small = false;

	for (int kind = 0; kind < 2; kind++)
		small |= __atomic_load_n(&m->slots[kind].small,
					 __ATOMIC_RELAXED);
	if (!m->released)
		memory_count_small(m, small);
}

static void piece_populated(struct work *work)
{
	struct memory_piece *p = sk_link_object(work, struct memory_piece,
						work);
	struct memory *m = p->memory;
	struct agent *a = m->agent;

	assert(m->busy && a->populating);
	p->memory = NULL;
	m->busy--;
	a->populating--;
	if (p->result < 0 && !m->result) {
		m->result = p->result;
		(void)snprintf(m->text, sizeof(m->text), "%s", p->err.text);
		log_warning(a, "%s", p->err.text);
	}
	if (p->result == 0)
		see_pages(m);
	bury_unused(m);
	agent_changed(a);
	memory_populate(a);
}

/* Fewer pieces are under way than a memory has. */
static struct memory_piece *unused_piece(struct memory *m)
{
	struct memory_piece *p = m->pieces;

	while (p->memory)
		p++;
	assert(p < m->pieces + MEMORY_PIECES);
	return p;
}

/* The next piece of the memory. */
static void hand_out(struct agent *a, struct memory *m)
{
	struct memory_piece *p = unused_piece(m);
	uint64_t first = m->slots[0].bytes;
	int kind = m->populated >= first;
	uint64_t base = kind ? first : 0;

	assert(m->populated < m->bytes && !m->released);
	*p = (struct memory_piece){
		.memory = m, .slot = &m->slots[kind],
		.from = m->populated - base,
		.work = { .run = populate_piece, .finish = piece_populated },
	};
	p->to = p->from + SK_SLOT_PIECE;
	if (p->to > p->slot->bytes)
		p->to = p->slot->bytes;
	m->populated = base + p->to;
	m->busy++;
	a->populating++;
	work_submit(&a->loop.works, a->populate, &p->work);
}

void memory_serves(struct memory *m, const struct sk_cat_slot *slot)
{
	assert(!m->released && slot->memory == m);
	m->of = slot;
}

bool memory_filling(const struct memory *m)
{
	return m->of && m->of->use == SK_CAT_FILLING;
}

bool memory_flushing(const struct memory *m)
{
	return m->of && m->of->use == SK_CAT_SEALED &&
	       m->of->snapshot->flushing;
}

/* What is being filled is faulted in by its rank, which touches it anyway:
 * two that fault in the same pages only wait for each other. Where that would
 * be charged to the rank, it waits for us instead. */
static struct memory *next_memory(struct agent *a)
{
	struct memory *m;

	sk_link_each(m, &a->to_populate, link)
		if (m->alone || !memory_filling(m))
			return m;
	return NULL;
}

void memory_populate(struct agent *a)
{
	while (!a->quit && a->populating < MEMORY_PIECES &&
	       !sk_link_empty(&a->to_populate)) {
		struct memory *m = next_memory(a);

		if (!m)
			return;
		hand_out(a, m);
		sk_link_remove(&m->link);
		if (m->populated < m->bytes)
			line_up(a, m);
		else
			collapse_add(m);
	}
}
