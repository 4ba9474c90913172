/* SPDX-License-Identifier: Apache-2.0 */
/* Long lists, against the plain way to do it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "lists.h"
#include "support/random.h"

#define MOST 60

/* Job by job, as an agent lists them; times are few, so that some are equal. */
static size_t make_list(uint64_t *random, struct sk_wire_snapshot *all)
{
	size_t n = 0, jobs = 1 + draw(random, 8);

	for (size_t j = 0; j < jobs && n < MOST; j++) {
		size_t steps = 1 + draw(random, 9);

		for (size_t i = 0; i < steps && n < MOST; i++, n++) {
			all[n] = (struct sk_wire_snapshot){ .id = {
				.step = (int64_t)(steps - i) / 2, .rank = -1,
				.run = steps - i } };
			all[n].created_ns = draw(random, 12);
			(void)snprintf(all[n].id.job, sizeof(all[n].id.job),
				       "job-%zu", jobs - j);
		}
	}
	return n;
}

/* Of each job's next the newest, the first listed of those. */
static void merge_plainly(const struct sk_wire_snapshot *all, size_t n,
			  size_t *order)
{
	bool taken[MOST] = { false };

	for (size_t k = 0; k < n; k++) {
		size_t best = n;

		for (size_t i = 0; i < n; i++) {
			if (taken[i] || (i && !taken[i - 1] &&
					 !strcmp(all[i].id.job,
						 all[i - 1].id.job)))
				continue;
			if (best == n ||
			    all[i].created_ns > all[best].created_ns)
				best = i;
		}
		taken[best] = true;
		order[k] = best;
	}
}

Test(lists, are_merged_as_one_by_one)
{
	uint64_t random = 1;
	struct sk_wire_snapshot all[MOST], merged[MOST];
	size_t order[MOST];

	for (int round = 0; round < 2000; round++) {
		size_t n = make_list(&random, all);

		memcpy(merged, all, sizeof(all));
		merge_plainly(all, n, order);
		cr_assert_eq(list_merge(merged, n), 0);
		for (size_t i = 0; i < n; i++)
			cr_assert_eq(memcmp(&merged[i], &all[order[i]],
					    sizeof(all[0])), 0,
				     "round %d: number %zu", round, i);
	}
	cr_assert_eq(list_merge(merged, 0), 0);
}

/* All of a job and step, and no other, are found. */
Test(lists, what_is_listed_is_found)
{
	uint64_t random = 2;
	struct sk_wire_snapshot all[MOST];
	const struct sk_wire_snapshot *s;
	struct listed listed;

	for (int round = 0; round < 300; round++) {
		size_t n = make_list(&random, all);

		cr_assert_eq(listed_note(&listed, all, sizeof(all[0]), n), 0);
		for (size_t i = 0; i < n; i++) {
			struct listed_walk w = listed_find(&listed,
							   &all[i].id);
			size_t want = 0, found = 0;

			for (size_t j = 0; j < n; j++)
				want += all[j].id.step == all[i].id.step &&
					!strcmp(all[j].id.job, all[i].id.job);
			while ((s = listed_next(&w))) {
				cr_assert_eq(s->id.step, all[i].id.step);
				cr_assert_str_eq(s->id.job, all[i].id.job);
				found++;
			}
			cr_assert_eq(found, want);
		}
		all[0].id.rank = 3;
		struct listed_walk none = listed_find(&listed, &all[0].id);
		cr_assert_null(listed_next(&none));
		listed_free(&listed);
	}
}
