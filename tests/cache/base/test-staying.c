/* SPDX-License-Identifier: Apache-2.0 */
/* What stays as ranks say: through lives that agree on nothing, and then do. */
#include <criterion/criterion.h>

#include "base/staying.h"

static void say(struct sk_staying *st, uint64_t run, int64_t step, int64_t next)
{
	sk_staying_say(st, run, run + 100, (int64_t[]){ step, next });
}

static bool has(const struct sk_staying *st, uint64_t run, int64_t step)
{
	return sk_staying_has(st, run, run + 100, step);
}

Test(staying, is_what_was_said_last)
{
	struct sk_staying st = { 0 };

	cr_assert(!has(&st, 0, 0));
	say(&st, 1, -1, 5);
	cr_assert(has(&st, 1, 5) && !has(&st, 1, -1) && !has(&st, 2, 5));
	say(&st, 1, -1, 6);
	cr_assert(has(&st, 1, 6) && !has(&st, 1, 5));
	say(&st, 1, 6, -1);
	cr_assert(has(&st, 1, 6));
	say(&st, 1, 7, 8);
	cr_assert(has(&st, 1, 7) && has(&st, 1, 8) && !has(&st, 1, 6));
	cr_assert(!sk_staying_has(&st, 1, 1, 7), "another run's");
}

/* Some agents may have heard that 8 is agreed on, and have let go of 7. */
Test(staying, a_new_run_has_all_that_was_said_until_it_agrees)
{
	struct sk_staying st = { 0 };

	say(&st, 1, 7, 8);
	say(&st, 2, -1, -1);
	cr_assert(has(&st, 1, 7) && has(&st, 1, 8));
	say(&st, 2, -1, 9);
	say(&st, 3, -1, 9);
	cr_assert(has(&st, 1, 7) && has(&st, 1, 8) && has(&st, 2, 9) &&
		  has(&st, 3, 9));
	say(&st, 3, 9, -1);
	cr_assert(has(&st, 3, 9) && !has(&st, 2, 9) && !has(&st, 1, 7));
	/* As where the store was emptied. */
	say(&st, 1, -1, 2);
	cr_assert(has(&st, 3, 9) && has(&st, 1, 2));
}

Test(staying, so_has_who_begins_anew_in_a_run)
{
	struct sk_staying st = { 0 };

	say(&st, 1, 7, 8);
	say(&st, 1, -1, -1);
	cr_assert(has(&st, 1, 7) && has(&st, 1, 8));
	say(&st, 1, 9, -1);
	cr_assert(has(&st, 1, 9) && !has(&st, 1, 7) && !has(&st, 1, 8));
}

/* However many lives agree on nothing, what was agreed on stays. */
Test(staying, what_all_had_outlives_any_number_of_runs)
{
	struct sk_staying st = { 0 }, other;

	say(&st, 1, 7, -1);
	for (uint64_t run = 2; run < 40; run++)
		say(&st, run, -1, (int64_t)run);
	cr_assert(has(&st, 1, 7) && has(&st, 39, 39) && has(&st, 38, 38));
	cr_assert_leq(st.n_before, SK_STAY_MOST);
	other = st;
	cr_assert(sk_staying_equal(&st, &other));
	other.before[0].step++;
	cr_assert(!sk_staying_equal(&st, &other));
}
