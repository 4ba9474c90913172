/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one restore that ask for different things. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>

#include "restore/ballot.h"
#include "stub-agent.h"
#include "thread-ranks.h"

/* Rank 0 asks for @a, rank 1 for @b. */
static int run_apart(struct test *test, struct rank *ranks,
		     const struct sk_restore_options *a, int64_t step_a,
		     const struct sk_restore_options *b, int64_t step_b)
{
	ranks[0].opts = a;
	ranks[0].step = step_a;
	ranks[1].opts = b;
	ranks[1].step = step_b;
	restore(test, ranks);
	cr_assert_str_eq(ranks[0].text, ranks[1].text);
	return one_result(test, ranks, 0);
}

static void expect(const struct rank *ranks, const char *what)
{
	for (int i = 0; i < 2; i++)
		cr_assert(strstr(ranks[i].text, what), "%s", ranks[i].text);
}

/* After one list of each at most, whatever there is to be tried. */
static void expect_refused(struct test *test, struct rank *ranks, int r,
			   const char *what)
{
	cr_assert(r == -EINVAL, "%d: %s", r, ranks[0].text);
	expect(ranks, what);
	cr_assert(agent.snapshot_lists <= 2, "%u", agent.snapshot_lists);
	agent.snapshot_lists = 0;
	close_ranks(test, ranks);
}

Test(limits, where_it_may_lie_holds_for_all_ranks)
{
	const uint32_t flags[] = { SK_RESTORE_MEMORY_ONLY,
				   SK_RESTORE_DISK_ONLY };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 1);
	for (int k = 0; k < 4; k++) {
		struct sk_restore_options o = { .flags = flags[k / 2] };
		int r = run_apart(&test, ranks, k % 2 ? &o : NULL, SK_LATEST,
				  k % 2 ? NULL : &o, SK_LATEST);

		cr_assert(!r, "%s", ranks[0].text);
		cr_assert(!wrong_elements(&test, ranks));
		for (int i = 0; i < 2; i++)
			cr_assert(!(k < 2 ? ranks[i].report.bytes_disk :
					    ranks[i].report.bytes_memory),
				  "rank %d of case %d", i, k);
		close_ranks(&test, ranks);
	}
	free_test(&test);
}

/* The first of the two restores would verify what the other does not. */
Test(limits, what_one_rank_has_verified_all_do)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_NO_VERIFY };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	for (int k = 0; k < 2; k++) {
		int r = run_apart(&test, ranks, k ? &o : NULL, SK_LATEST,
				  k ? NULL : &o, SK_LATEST);

		cr_assert(!r, "%s", ranks[0].text);
		for (int i = 0; i < 2; i++)
			cr_assert(ranks[i].report.bytes_verified >= 2 << 20,
				  "rank %d: %" PRIu64, i,
				  ranks[i].report.bytes_verified);
		close_ranks(&test, ranks);
	}
	/* Where all say so, it is so. */
	cr_assert(!run_apart(&test, ranks, &o, SK_LATEST, &o, SK_LATEST));
	cr_assert(!ranks[0].report.bytes_verified);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* However far back it is, and whoever would have taken something newer. */
Test(limits, a_step_that_one_rank_asks_for_is_everybodys)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct sk_restore_options o = { .run = 1 };
	struct test test;

	plain_test(&test, 2, 2);
	for (int64_t step = 1; step <= 20; step++) {
		salt = (uint64_t)step;
		save(&test, 1, step, 0);
	}
	salt = 3;
	cr_assert(!run_apart(&test, ranks, NULL, SK_LATEST, NULL, 3), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.step == 3 && ranks[1].report.step == 3);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	/* Nobody goes on to an older one, for one must not. */
	for (int i = 0; i < agent.n; i++)
		if (agent.images[i].step == 3)
			agent.images[i].reported[0] = true;
	cr_assert(run_apart(&test, ranks, NULL, 3, NULL, SK_LATEST) ==
		  -EBADMSG, "%s", ranks[0].text);
	close_ranks(&test, ranks);
	cr_assert(run_apart(&test, ranks, &o, SK_LATEST, NULL, 21) == -ENOENT);
	expect(ranks, "no snapshot of step 21 of run 1");
	close_ranks(&test, ranks);
	salt = 0;
	free_test(&test);
}

Test(limits, what_contradicts_itself_is_refused_at_once)
{
	struct sk_restore_options m = { .flags = SK_RESTORE_MEMORY_ONLY };
	struct sk_restore_options d = { .flags = SK_RESTORE_DISK_ONLY };
	struct sk_restore_options two = { .run = 2 }, one = { .run = 1 };
	struct sk_restore_options a = { .run_id = 10 }, b = { .run_id = 11 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int r;

	plain_test(&test, 2, 2);
	for (uint64_t run = 1; run <= 2; run++)
		save(&test, run, 10, 1);
	r = run_apart(&test, ranks, &d, SK_LATEST, &m, SK_LATEST);
	expect_refused(&test, ranks, r, "rank 0 restores with "
		       "SK_RESTORE_DISK_ONLY and rank 1 with "
		       "SK_RESTORE_MEMORY_ONLY");
	r = run_apart(&test, ranks, NULL, 10, NULL, 11);
	expect_refused(&test, ranks, r, "rank 0 asks for step 10 and rank 1 "
		       "for step 11");
	r = run_apart(&test, ranks, &two, SK_LATEST, &one, SK_LATEST);
	expect_refused(&test, ranks, r, "rank 0 asks for run 2 and rank 1 for "
		       "run 1");
	r = run_apart(&test, ranks, &a, SK_LATEST, &b, SK_LATEST);
	expect_refused(&test, ranks, r, "rank 0 asks for the run of id "
		       "000000000000000a and rank 1 for that of "
		       "000000000000000b");
	free_test(&test);
}

static void be_another_job(struct rank *r)
{
	if (r->rank == 1)
		strcpy((char *)r->state->job.name, "another!");
}

/* Rank 1 says what rank 0 does, as a rank of three. */
static int of_three(void *ctx, const void *in, size_t bytes, void *out,
		    uint32_t timeout_ms)
{
	struct sk_restore_ballot *theirs = (void *)((char *)out + bytes);

	(void)ctx;
	(void)timeout_ms;
	memcpy(out, in, bytes);
	memcpy(theirs, in, bytes);
	if (bytes == sizeof(*theirs)) {
		theirs->limits.rank = 1;
		theirs->limits.world = 3;
	}
	return 0;
}

Test(limits, ranks_of_several_jobs_are_told_so)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int r;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	for (int i = 0; i < 2; i++)
		ranks[i].more = be_another_job;
	r = run_apart(&test, ranks, NULL, SK_LATEST, NULL, SK_LATEST);
	expect_refused(&test, ranks, r, "rank 0 restores job property and "
		       "rank 1 job another!");
	free_test(&test);
}

Test(limits, ranks_of_several_worlds_are_told_so)
{
	struct sk_comm comm = { .allgather = of_three };
	struct rank r = { .more = NULL };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	open_rank(&r, &test, 0, NULL);
	cr_assert(sk_restore(r.state, SK_LATEST, &comm, NULL, NULL) ==
		  -EINVAL);
	cr_assert(strstr(sk_error(), "rank 0 counts 2 ranks in the job and "
			 "rank 1 3"), "%s", sk_error());
	close_ranks(&(struct test){ .world = { 1, 1 } }, &r);
	free_test(&test);
}
