/* SPDX-License-Identifier: Apache-2.0 */
/* Files that went while the last one of their snapshot was written. */
#include "disk/earlier.h"

#include <criterion/criterion.h>

#include "agent/disk/rows.h"

#define WORLD 3

/* The disk has all ranks' images of step 5. */
static struct sk_cat_snapshot *snapshot(struct sk_catalogue *cat)
{
	struct sk_cat_job *job;

	sk_cat_init(cat);
	cat->budget = UINT64_MAX;
	job = sk_cat_job_get(cat, "job", 0);
	for (int rank = 0; rank < WORLD; rank++) {
		const struct sk_cat_found found = {
			.run = 1, .run_id = 71, .step = 5, .dir = "step",
			.file = { .bytes = 100 + (uint64_t)rank } };
		struct sk_err err = { "" };

		cr_assert_eq(sk_cat_stored_add(job, &found,
					       row_of(cat, rank, WORLD),
					       &err), 0,
			     "%s", err.text);
	}
	return sk_cat_snapshot_find(job, 1, 71, 5);
}

static struct sk_cat_image *image_of(struct sk_cat_snapshot *s, int rank)
{
	return sk_cat_image_find(s, rank, SK_IMAGE_PRIMARY);
}

/* The first, one between, the last: it is forgotten, and the others are not. */
Test(earlier, each_that_is_gone_is_forgotten)
{
	for (int gone = 0; gone < WORLD; gone++) {
		struct sk_catalogue cat;
		struct sk_cat_snapshot *s = snapshot(&cat);
		struct earlier e;

		cr_assert_eq(earlier_list(&e, image_of(s, WORLD - 1)), 0);
		cr_assert_eq(e.n, WORLD);
		e.images[WORLD - 1].file =
			image_of(s, WORLD - 1)->stored.file;
		cr_assert_eq(earlier_forget(&e, s), 0);
		e.gone[gone] = true;
		cr_assert_eq(earlier_forget(&e, s), 1);
		for (int rank = 0; rank < WORLD; rank++)
			cr_assert_eq(!image_of(s, rank), rank == gone,
				     "%d is gone, not %d", gone, rank);
		/* Once more it is gone, but there is none to forget. */
		cr_assert_eq(earlier_forget(&e, s), 1);
		earlier_free(&e);
		sk_cat_destroy(&cat);
	}
}

/* Another file by now: a look at the store knew better. */
Test(earlier, what_is_another_file_stays)
{
	struct sk_catalogue cat;
	struct sk_cat_snapshot *s = snapshot(&cat);
	struct earlier e;

	cr_assert_eq(earlier_list(&e, image_of(s, WORLD - 1)), 0);
	e.gone[0] = true;
	e.images[0].file.bytes++;
	cr_assert_eq(earlier_forget(&e, s), 1);
	cr_assert_not_null(image_of(s, e.images[0].rank));
	earlier_free(&e);
	sk_cat_destroy(&cat);
}
