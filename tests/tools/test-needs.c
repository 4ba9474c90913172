/* SPDX-License-Identifier: Apache-2.0 */
/* What doctor holds against the room on a store. */
#include <criterion/criterion.h>

#include "needs.h"

#define WHOLE SK_SNAP_COMPLETE

static const struct sk_retention one = { .keep_last = 1 };

Test(needs, one_more_lies_there_before_the_oldest_goes)
{
	const struct sk_wire_snapshot all[] = {
		{ .bytes_memory = 100, .flags = WHOLE },
		{ .bytes_disk = 90, .flags = WHOLE },
	};
	const struct sk_retention three = { .keep_last = 3 };

	cr_assert_eq(still_needs(&one, all, 2), 110);
	cr_assert_eq(still_needs(&three, all, 2), 310);
}

Test(needs, nothing_where_more_lies_there)
{
	const struct sk_wire_snapshot all[] = {
		{ .bytes_disk = 100, .flags = WHOLE },
		{ .bytes_disk = 100, .flags = WHOLE },
		{ .bytes_disk = 100, .flags = WHOLE },
	};

	cr_assert_eq(still_needs(&one, all, 3), 0);
}

Test(needs, without_a_number_as_many_as_there_are)
{
	const struct sk_wire_snapshot all[] = {
		{ .bytes_memory = 100, .flags = WHOLE },
		{ .bytes_memory = 100, .flags = WHOLE },
	};

	cr_assert_eq(still_needs(&(struct sk_retention){ 0 }, all, 2), 300);
}

Test(needs, what_stays_for_good_makes_no_room)
{
	struct sk_wire_snapshot all[] = {
		{ .bytes_memory = 100, .id.step = 7, .flags = WHOLE },
		{ .bytes_disk = 100, .id.step = 6, .flags = WHOLE },
		{ .bytes_disk = 100, .id.step = 5, .flags = WHOLE },
		{ .bytes_disk = 100, .id.step = 4, .flags = WHOLE },
	};
	const struct sk_retention every = { .keep_last = 1, .keep_every = 2 };

	all[1].flags |= SK_SNAP_PINNED;
	all[2].flags |= SK_SNAP_PINNED;
	cr_assert_eq(still_needs(&one, all, 4), 100);
	cr_assert_eq(still_needs(&every, all, 4), 200);
	all[3].flags |= SK_SNAP_PINNED;
	cr_assert_eq(still_needs(&one, all, 4), 200);
}

/* The newest that all nodes have may be the one before. */
Test(needs, a_node_of_several_keeps_two)
{
	const struct sk_wire_snapshot all[] = {
		{ .bytes_disk = 100 }, { .bytes_disk = 100 },
	};

	cr_assert_eq(still_needs(&one, all, 2), 100);
	cr_assert_eq(still_needs(&one, all, 1), 200);
}

Test(needs, no_more_than_the_bytes_that_are_kept)
{
	const struct sk_wire_snapshot all[] = {
		{ .bytes_memory = 100, .flags = WHOLE },
	};
	const struct sk_retention some = { .keep_last = 9, .keep_bytes = 250 };
	const struct sk_retention less = { .keep_last = 9, .keep_bytes = 50 };

	cr_assert_eq(still_needs(&some, all, 1), 350);
	/* The newest stays in any case. */
	cr_assert_eq(still_needs(&less, all, 1), 200);
}
