/* SPDX-License-Identifier: Apache-2.0 */
/* Timers against a reference: an array that is searched. */
#include "loop/timer.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "base/link.h"
#include "base/os.h"

#define TIMERS 64
#define STEPS 20000
#define SPAN 500	/* of times: so that many are equal */

struct clock {
	struct timers timers;
	struct alarm {
		struct timer timer;
		struct clock *clock;
		bool set;		/* the reference */
		uint64_t at;
	} alarms[TIMERS];
	uint64_t now, last;		/* last: what fired */
	unsigned fired;
};

static uint64_t first_of(const struct clock *c)
{
	uint64_t first = SK_FOREVER;

	for (int i = 0; i < TIMERS; i++) {
		if (c->alarms[i].set && c->alarms[i].at < first)
			first = c->alarms[i].at;
	}
	return first;
}

static void ring(struct timer *timer)
{
	struct alarm *a = sk_link_object(timer, struct alarm, timer);
	struct clock *c = a->clock;

	cr_assert(a->set);
	cr_assert_leq(a->at, c->now, "too early");
	cr_assert_geq(a->at, c->last, "not the earliest first");
	cr_assert_eq(a->at, first_of(c));
	c->last = a->at;
	a->set = false;
	c->fired++;
}

static void set(struct clock *c, struct alarm *a)
{
	a->set = true;
	a->at = c->now + 1 + (uint64_t)random() % SPAN;
	timer_set(&c->timers, &a->timer, a->at);
}

static void set_by(struct clock *c, struct alarm *a)
{
	uint64_t at = c->now + 1 + (uint64_t)random() % SPAN;

	if (!a->set || a->at > at)
		a->at = at;
	a->set = true;
	timer_set_by(&c->timers, &a->timer, at);
}

static void step(struct clock *c)
{
	struct alarm *a = &c->alarms[random() % TIMERS];

	switch (random() % 5) {
	case 0:
		timer_clear(&c->timers, &a->timer);
		a->set = false;
		break;
	case 1:
		c->now += (uint64_t)random() % (SPAN / 16);
		c->last = 0;
		timers_run(&c->timers, c->now);
		cr_assert_gt(first_of(c), c->now, "one did not fire");
		break;
	case 2:
		set_by(c, a);
		break;
	default:
		set(c, a);
	}
	cr_assert_eq(timers_next(&c->timers), first_of(c));
}

Test(timer, fires_as_a_searched_array_would)
{
	struct clock c = { .now = 1000 };

	srandom(7);
	for (int i = 0; i < TIMERS; i++) {
		c.alarms[i].clock = &c;
		c.alarms[i].timer.fire = ring;
	}
	for (int i = 0; i < STEPS; i++)
		step(&c);
	cr_assert_gt(c.fired, 100u);
}

static void ring_again(struct timer *timer)
{
	struct alarm *a = sk_link_object(timer, struct alarm, timer);

	if (++a->clock->fired < 3)
		timer_set(&a->clock->timers, timer, timer->at_ns + 10);
}

Test(timer, may_be_set_anew_where_it_fires)
{
	struct clock c = { .now = 0 };

	c.alarms[0].clock = &c;
	c.alarms[0].timer.fire = ring_again;
	timer_set(&c.timers, &c.alarms[0].timer, 5);
	timers_run(&c.timers, 15);
	cr_assert_eq(c.fired, 2u);
	cr_assert_eq(timers_next(&c.timers), 25u);
	timer_clear(&c.timers, &c.alarms[0].timer);
	timer_clear(&c.timers, &c.alarms[0].timer);
	cr_assert_eq(timers_next(&c.timers), SK_FOREVER);
}
