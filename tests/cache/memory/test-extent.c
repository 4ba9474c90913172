/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "memory/extent.h"
#include "base/util.h"

/* The data of two images: [100, 1000) and [50, 300). */
static int check(const struct sk_extent *extents, uint32_t n, uint64_t *bytes)
{
	static const uint64_t from[2] = { 100, 50 }, to[2] = { 1000, 300 };
	struct sk_err err = { "" };
	int r = sk_extents_check(extents, n, from, to, bytes, &err);

	cr_assert(r == 0 || strstr(err.text, "cannot be"), "%s", err.text);
	return r;
}

Test(extent, each_begins_at_the_next_grain)
{
	const struct sk_extent all[] = { { 100, 613, 0, 0 },
					 { 613, 1000, 0, 0 },
					 { 50, 300, 1, 0 } };
	uint64_t bytes = 0;

	cr_assert_eq(check(all, 3, &bytes), 0);
	cr_assert_eq(bytes, 1024 + 512 + 512);
	cr_assert_eq(check(all, 1, &bytes), 0);
	cr_assert_eq(bytes, 1024);
	cr_assert_eq(check(NULL, 0, &bytes), 0);
	cr_assert_eq(bytes, 0);
}

Test(extent, refuses_what_is_not_in_its_image)
{
	static const struct sk_extent wrong[] = {
		{ 99, 200, 0, 0 },  { 900, 1001, 0, 0 }, { 200, 200, 0, 0 },
		{ 300, 200, 0, 0 }, { 49, 100, 1, 0 },	 { 50, 301, 1, 0 },
		{ 100, 200, 2, 0 }, { 100, 200, 0, 1 },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(wrong); i++) {
		uint64_t bytes = 0;

		cr_assert_eq(check(&wrong[i], 1, &bytes), -EINVAL, "%zu", i);
	}
}

/* Each is behind the one before it, or bytes would stand there twice. */
Test(extent, refuses_another_order)
{
	static const struct sk_extent wrong[][2] = {
		{ { 200, 300, 0, 0 }, { 299, 400, 0, 0 } },
		{ { 200, 300, 0, 0 }, { 100, 200, 0, 0 } },
		{ { 200, 300, 0, 0 }, { 200, 300, 0, 0 } },
		{ { 50, 100, 1, 0 }, { 200, 300, 0, 0 } },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(wrong); i++) {
		uint64_t bytes = 0;

		cr_assert_eq(check(wrong[i], 2, &bytes), -EINVAL, "%zu", i);
		cr_assert_eq(check(wrong[i], 1, &bytes), 0, "%zu", i);
	}
}
