/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines: a heap with the first on top. */
#include <limits.h>

#include "agent.h"

static void put(struct timers *ts, size_t i, struct timer *t)
{
	ts->heap[i] = t;
	t->index = i + 1;
}

static void rise(struct timers *ts, size_t i, struct timer *t)
{
	while (i && ts->heap[(i - 1) / 2]->at > t->at) {
		put(ts, i, ts->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	put(ts, i, t);
}

static void sink(struct timers *ts, size_t i, struct timer *t)
{
	for (;;) {
		size_t child = 2 * i + 1;

		if (child + 1 < ts->n &&
		    ts->heap[child + 1]->at < ts->heap[child]->at)
			child++;
		if (child >= ts->n || ts->heap[child]->at >= t->at)
			break;
		put(ts, i, ts->heap[child]);
		i = child;
	}
	put(ts, i, t);
}

void timer_clear(struct timers *ts, struct timer *t)
{
	struct timer *last;
	size_t i;

	if (!t->index)
		return;
	i = t->index - 1;
	t->index = 0;
	last = ts->heap[--ts->n];
	if (last == t)
		return;
	if (i && ts->heap[(i - 1) / 2]->at > last->at)
		rise(ts, i, last);
	else
		sink(ts, i, last);
}

int timer_set(struct timers *ts, struct timer *t, uint64_t at)
{
	timer_clear(ts, t);
	if (ts->n == ts->room) {
		size_t room = ts->room ? 2 * ts->room : 64;
		struct timer **heap = reallocarray(ts->heap, room,
						   sizeof(struct timer *));

		if (!heap)
			return -ENOMEM;
		ts->heap = heap;
		ts->room = room;
	}
	t->at = at;
	rise(ts, ts->n++, t);
	return 0;
}

int timers_wait(const struct timers *ts, uint64_t now)
{
	uint64_t ms;

	if (!ts->n)
		return -1;
	if (ts->heap[0]->at <= now)
		return 0;
	/* Rounded up: not to come back a moment too early. */
	ms = (ts->heap[0]->at - now + 999999) / 1000000;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

void timers_run(struct timers *ts, uint64_t now)
{
	while (ts->n && ts->heap[0]->at <= now) {
		struct timer *t = ts->heap[0];

		timer_clear(ts, t);
		t->fire(t);
	}
}
