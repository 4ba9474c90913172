/* SPDX-License-Identifier: Apache-2.0 */
#include "base/staying.h"

static bool is(const struct sk_stay *s, uint64_t run, uint64_t run_id,
	       int64_t step)
{
	return s->run == run && s->run_id == run_id && s->step == step;
}

bool sk_staying_has(const struct sk_staying *st, uint64_t run,
		    uint64_t run_id, int64_t step)
{
	if (step < 0)
		return false;
	if (st->run == run && st->run_id == run_id &&
	    (st->steps[0] == step || st->steps[1] == step))
		return true;
	for (uint32_t i = 0; i < st->n_before; i++) {
		if (is(&st->before[i], run, run_id, step))
			return true;
	}
	return false;
}

/* Where there is no room the last one goes: what all had is among the first. */
static void put_before(struct sk_staying *st, int64_t step)
{
	uint32_t at = st->n_before < SK_STAY_MOST ? st->n_before :
						    SK_STAY_MOST - 1;

	if (step < 0 || !st->run)
		return;
	for (uint32_t i = 0; i < st->n_before; i++) {
		if (is(&st->before[i], st->run, st->run_id, step))
			return;
	}
	st->before[at] = (struct sk_stay){ st->run, st->run_id, step };
	st->n_before = at + 1;
}

void sk_staying_say(struct sk_staying *st, uint64_t run, uint64_t run_id,
		    const int64_t steps[2])
{
	/* Its number may be smaller, where all that was before is gone; and of
	 * one run who speaks may have begun anew. */
	if (run != st->run || run_id != st->run_id ||
	    (st->steps[0] >= 0 && steps[0] < 0)) {
		for (int i = 0; i < 2; i++)
			put_before(st, st->steps[i]);
		st->run = run;
		st->run_id = run_id;
	}
	for (int i = 0; i < 2; i++)
		st->steps[i] = steps[i];
	if (steps[0] >= 0)
		st->n_before = 0;
}

bool sk_staying_equal(const struct sk_staying *a, const struct sk_staying *b)
{
	if (a->run != b->run || a->run_id != b->run_id ||
	    a->steps[0] != b->steps[0] || a->steps[1] != b->steps[1] ||
	    a->n_before != b->n_before)
		return false;
	for (uint32_t i = 0; i < a->n_before; i++) {
		if (!is(&a->before[i], b->before[i].run, b->before[i].run_id,
			b->before[i].step))
			return false;
	}
	return true;
}
