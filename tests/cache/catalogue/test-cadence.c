/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps go to disk where nobody says which. */
#include <criterion/criterion.h>

#include "catalogue/cadence.h"
#include "random.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

/* What becomes of @n snapshots, @stride steps and @apart_ns apart. */
struct walk {
	struct sk_cadence cadence;
	int64_t step;
	uint64_t now_ns, last_ns, most_ns, least_ns, written;
};

static void walk(struct walk *w, unsigned n, int64_t stride, uint64_t apart_ns)
{
	for (unsigned i = 0; i < n; i++) {
		w->step += stride;
		w->now_ns += apart_ns;
		sk_cadence_step(&w->cadence, 1, 1, w->step, w->now_ns,
				30 * SECOND);
		if (!sk_cadence_wants(&w->cadence, w->step))
			continue;
		if (w->last_ns && w->now_ns - w->last_ns > w->most_ns)
			w->most_ns = w->now_ns - w->last_ns;
		if (w->last_ns && (!w->least_ns ||
				   w->now_ns - w->last_ns < w->least_ns))
			w->least_ns = w->now_ns - w->last_ns;
		w->last_ns = w->now_ns;
		w->written++;
	}
}

Test(cadence, a_loop_of_seconds_writes_twice_a_minute)
{
	static const struct { int64_t stride; uint64_t apart_ns; } cases[] = {
		{ 1, SECOND }, { 25, SECOND }, { 10, 300 * MS },
		{ 1, 7 * MS }, { 7, 13 * SECOND }, { 3, 29 * SECOND },
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct walk w = { .now_ns = 1 };

		/* The first one, for nothing is known yet. */
		walk(&w, 1, cases[i].stride, cases[i].apart_ns);
		cr_assert_eq(w.written, 1, "case %u", i);
		w.last_ns = 0;
		walk(&w, 100000, cases[i].stride, cases[i].apart_ns);
		cr_assert_geq(w.least_ns, 30 * SECOND, "case %u", i);
		cr_assert_leq(w.most_ns, 60 * SECOND, "case %u", i);
	}
}

Test(cadence, slow_steps_are_all_written)
{
	struct walk w = { .now_ns = 1 };

	walk(&w, 100, 1, 31 * SECOND);
	cr_assert_eq(w.written, 100);
}

Test(cadence, without_a_time_all_are_written)
{
	struct sk_cadence c = { 0 };

	for (int64_t step = 0; step < 100; step++) {
		sk_cadence_step(&c, 1, 1, step, (uint64_t)step + 1, 0);
		cr_assert(sk_cadence_wants(&c, step));
	}
}

Test(cadence, a_pause_or_a_skipped_one_changes_nothing)
{
	struct walk w = { .now_ns = 1 };
	uint32_t every;

	walk(&w, 200, 10, SECOND);
	every = w.cadence.every;
	walk(&w, 1, 20, 2 * SECOND);
	cr_assert_eq(w.cadence.stride, 10);
	walk(&w, 5, 10, SECOND);
	walk(&w, 1, 10, 600 * SECOND);
	walk(&w, 20, 10, SECOND);
	cr_assert_eq(w.cadence.every, every);
	/* Another pace is one. */
	walk(&w, 100, 10, 4 * SECOND);
	cr_assert_eq(w.cadence.every, 8);
	walk(&w, 3, 5, 4 * SECOND);
	cr_assert_eq(w.cadence.stride, 5);
}

Test(cadence, another_run_begins_anew)
{
	struct walk w = { .now_ns = 1 };

	walk(&w, 200, 1, SECOND);
	sk_cadence_step(&w.cadence, 2, 1, 5, w.now_ns, 30 * SECOND);
	cr_assert(sk_cadence_wants(&w.cadence, 5));
}

/* Agents that do not see each other, each with its own idea of time: of what
 * the slower one writes the other writes all. */
Test(cadence, agents_that_measure_otherwise_write_the_same_steps)
{
	uint64_t state = 77;

	for (int trial = 0; trial < 200; trial++) {
		struct sk_cadence c[2] = { { 0 }, { 0 } };
		uint64_t apart = 1 + draw(&state, 40000), now = 1;
		int64_t stride = 1 + (int64_t)draw(&state, 100);
		unsigned both = 0, one = 0;

		for (int64_t i = 1; i < 3000; i++) {
			bool wants[2];

			now += apart * MS;
			for (int k = 0; k < 2; k++) {
				sk_cadence_step(&c[k], 1, 1, i * stride,
						now + draw(&state, apart) * MS,
						(30 + 25 * (uint64_t)k) *
						SECOND);
				wants[k] = sk_cadence_wants(&c[k], i * stride);
			}
			if (i < 20)
				continue;
			both += wants[0] && wants[1];
			one += wants[0] || wants[1];
		}
		cr_assert_geq(8 * both, one, "%u of %u", both, one);
	}
}
