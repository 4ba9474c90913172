/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers as a pairing heap: every node fires no later than its children, so
 * the root is the first. Setting is one comparison, and clearing costs
 * log(n) on average.
 */
#include "loop/timer.h"

#include <assert.h>
#include <stddef.h>

#include "base/os.h"

/* One heap of two; either may be empty. */
static struct timer *meld(struct timer *a, struct timer *b)
{
	if (!a || !b)
		return a ? a : b;
	if (b->at_ns < a->at_ns) {
		struct timer *swap = a;

		a = b;
		b = swap;
	}
	b->prev = a;
	b->next = a->child;
	if (a->child)
		a->child->prev = b;
	a->child = b;
	a->next = a->prev = NULL;
	return a;
}

/* Takes the first two of a row of siblings and melds them. */
static struct timer *meld_pair(struct timer **row)
{
	struct timer *a = *row, *b = a->next;

	*row = b ? b->next : NULL;
	a->next = a->prev = NULL;
	if (b)
		b->next = b->prev = NULL;
	return meld(a, b);
}

/* In pairs from the left, then those from the right: that keeps the heap
 * flat enough for log(n). Not by recursion, for a row may be long. */
static struct timer *meld_row(struct timer *row)
{
	struct timer *pairs = NULL, *all = NULL;

	while (row) {
		struct timer *pair = meld_pair(&row);

		pair->next = pairs;
		pairs = pair;
	}
	while (pairs) {
		struct timer *rest = pairs->next;

		pairs->next = NULL;
		all = meld(all, pairs);
		pairs = rest;
	}
	return all;
}

/* Takes it, with all below it, out of the row that it stands in. */
static void cut(struct timer *t)
{
	assert(t->prev);
	if (t->prev->child == t)
		t->prev->child = t->next;
	else
		t->prev->next = t->next;
	if (t->next)
		t->next->prev = t->prev;
	t->next = t->prev = NULL;
}

void timer_clear(struct timers *ts, struct timer *t)
{
	struct timer *below;

	if (!t->set)
		return;
	assert(ts->first);
	t->set = false;
	below = meld_row(t->child);
	t->child = NULL;
	if (t == ts->first) {
		ts->first = below;
		return;
	}
	cut(t);
	ts->first = meld(ts->first, below);
}

void timer_set(struct timers *ts, struct timer *t, uint64_t at_ns)
{
	assert(t->fire);
	timer_clear(ts, t);
	t->at_ns = at_ns;
	t->set = true;
	t->child = t->next = t->prev = NULL;
	ts->first = meld(ts->first, t);
}

void timer_set_by(struct timers *ts, struct timer *t, uint64_t at_ns)
{
	if (!t->set || t->at_ns > at_ns)
		timer_set(ts, t, at_ns);
}

uint64_t timers_next(const struct timers *ts)
{
	return ts->first ? ts->first->at_ns : SK_FOREVER;
}

void timers_run(struct timers *ts, uint64_t now_ns)
{
	while (ts->first && ts->first->at_ns <= now_ns) {
		struct timer *t = ts->first;

		timer_clear(ts, t);
		t->fire(t);
	}
}
