/* SPDX-License-Identifier: Apache-2.0 */
/* Which snapshot is restored, and what is said where there is none. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "restore/agree.h"
#include "stub-agent.h"
#include "thread-ranks.h"

Test(restore, the_newest_that_is_whole_is_taken)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int n;

	plain_test(&test, 2, 2);
	save(&test, 3, 10, 0);
	n = agent.n;
	salt = 1;
	save(&test, 3, 20, 0);
	flip(agent.images[n].memory, agent.images[n].layout->image_bytes - 1);
	salt = 0;
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(ranks[1].report.step == 10);
	cr_assert(ranks[1].report.run == 3);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	agent.images[n].reported[0] = false;
	cr_assert(run_plain(&test, ranks, 20, NULL) == -EBADMSG);
	cr_assert(strstr(ranks[0].text, "wq"), "%s", ranks[0].text);
	cr_assert(strstr(ranks[0].text, "overwritten"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Images are listed of what is tried, however much else there is. */
Test(restore, a_history_is_not_gone_through)
{
	size_t records[2];

	for (int k = 0; k < 2; k++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;

		plain_test(&test, 2, 2);
		for (int64_t step = 1; step <= (k ? 10 : 2); step++)
			save(&test, 1, step, 0);
		cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
			  ranks[0].text);
		records[k] = agent.records;
		cr_assert(agent.lists == 2, "%u", agent.lists);
		close_ranks(&test, ranks);
		free_test(&test);
	}
	cr_assert(records[0] && records[0] == records[1], "%zu, then %zu",
		  records[0], records[1]);
}

/* The newest eight are asked for, and what is older only where they are no
 * good. */
Test(restore, where_the_newest_are_damaged_an_older_one_is_taken)
{
	for (int bad = 7; bad <= 9; bad++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;

		plain_test(&test, 2, 2);
		for (int64_t step = 1; step <= 10; step++)
			save(&test, 1, step, 0);
		for (int i = agent.n - 1; i >= 0; i--)
			if (agent.images[i].step > 10 - bad)
				flip(agent.images[i].memory,
				     agent.images[i].layout->image_bytes - 1);
		cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
			  ranks[0].text);
		cr_assert(ranks[0].report.step == 10 - bad &&
			  ranks[1].report.step == 10 - bad);
		cr_assert(agent.snapshot_lists == (bad < 8 ? 2u : 4u), "%u",
			  agent.snapshot_lists);
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* It comes back while the ranks meet, and they list what it has then. */
Test(restore, an_agent_that_comes_late_is_waited_for)
{
	for (int k = 0; k < 2; k++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		int n = k ? 2 : 1;
		struct test test;

		plain_test(&test, n, n);
		save(&test, 1, 10, 0);
		agent.deaf = k ? 0 : 8;
		agent.away = k ? 1 : 0;
		cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
			  ranks[0].text);
		cr_assert(!agent.deaf && !agent.away);
		cr_assert(!wrong_elements(&test, ranks));
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* However many snapshots there are that were not listed yet. */
Test(restore, what_one_rank_cannot_ask_for_nobody_gets)
{
	const char *names[] = { NULL };
	struct sk_restore_options o = { .names = names, .n_names = 1 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	for (int64_t step = 1; step <= 20; step++)
		save(&test, 1, step, 0);
	for (int i = 0; i < 2; i++)
		ranks[i].step = SK_LATEST;
	ranks[1].opts = &o;
	restore(&test, ranks);
	cr_assert(one_result(&test, ranks, 0) == -EINVAL, "%d: %s",
		  ranks[0].result, ranks[0].text);
	cr_assert(strstr(ranks[0].text, "null pointer"), "%s", ranks[0].text);
	cr_assert(agent.snapshot_lists == 1, "%u", agent.snapshot_lists);
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, a_run_that_is_newer_comes_first)
{
	struct sk_restore_options o = { .run = 4 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 1, 1);
	save(&test, 4, 900, 0);
	save(&test, 5, 100, 0);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL));
	cr_assert(ranks[0].report.step == 100);
	close_ranks(&test, ranks);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, &o));
	cr_assert(ranks[0].report.step == 900);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Two lives of one number: each is restored from its own images alone. */
Test(restore, lives_of_one_number_are_not_mixed)
{
	struct sk_restore_options o = { .run = 1, .run_id = 11 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	agent.run_id = 11;
	save(&test, 1, 10, 0);
	agent.run_id = 12;
	salt = 1;
	save(&test, 1, 10, 0);
	agent.run_id = 0;
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.run_id == 12 &&
		  ranks[1].report.run_id == 12);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	salt = 0;
	cr_assert(!run_plain(&test, ranks, SK_LATEST, &o), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.run_id == 11);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Where the store could not be read, nobody says that there is nothing. */
Test(restore, what_cannot_be_read_is_not_nothing)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	agent.unreadable = 1;
	cr_assert(run_plain(&test, ranks, SK_LATEST, NULL) == -EIO);
	cr_assert(strstr(ranks[0].text, "cannot read /store/job"), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	save(&test, 1, 10, 0);
	cr_assert(run_plain(&test, ranks, 11, NULL) == -EIO);
	close_ranks(&test, ranks);
	/* What is there is restored all the same. */
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	agent.unreadable = 0;
	free_test(&test);
}

Test(restore, nothing_to_restore_says_so)
{
	struct sk_restore_options o = { .run = 7 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	cr_assert(run_plain(&test, ranks, SK_LATEST, NULL) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "first run"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	/* Who looked in one place cannot tell. */
	cr_assert(run_plain(&test, ranks, SK_LATEST,
			    &(struct sk_restore_options){
				.flags = SK_RESTORE_DISK_ONLY }) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "no snapshot on disk that") &&
		  !strstr(ranks[0].text, "first run"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	save(&test, 1, 10, 0);
	agent.incomplete = true;
	cr_assert(run_plain(&test, ranks, SK_LATEST, NULL) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "wq [0:4] of rank 1"), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	agent.incomplete = false;
	cr_assert(run_plain(&test, ranks, 11, NULL) == -ENOENT);
	cr_assert(strstr(ranks[1].text, "step 11"), "%s", ranks[1].text);
	close_ranks(&test, ranks);
	/* A run that was asked for and is not there is no first run. */
	cr_assert(run_plain(&test, ranks, SK_LATEST, &o) == -ENOENT);
	cr_assert(strstr(ranks[1].text, "of run 7 that"), "%s", ranks[1].text);
	close_ranks(&test, ranks);
	/* Nor is it one where one rank alone asks for that. */
	for (int i = 0; i < 2; i++) {
		ranks[i].step = SK_LATEST;
		ranks[i].opts = i ? &o : NULL;
	}
	restore(&test, ranks);
	cr_assert(one_result(&test, ranks, 0) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "of run 7 that"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	o.run_id = 0xab;
	cr_assert(run_plain(&test, ranks, 10, &o) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "step 10 of run 7 (00000000000000ab)"),
		  "%s", ranks[0].text);
	close_ranks(&test, ranks);
	o.run = 0;
	cr_assert(run_plain(&test, ranks, SK_LATEST, &o) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "of a run (00000000000000ab)"), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

static unsigned words_of_stale;

/* Who could not take what the others gave hears of it by their words. */
static void hear_stale(void *said, size_t bytes)
{
	const struct sk_restore_word *w = said;

	if (bytes != sizeof(*w) || w->status != -ENOENT)
		return;
	cr_assert(w->stale);
	words_of_stale++;
}

/* Ranks of one agent never hear of the same: a job must not begin anew. */
Test(restore, what_never_stands_still_is_no_first_run)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	agent.restless = true;
	ranks[1].lie = hear_stale;
	cr_assert_eq(run_plain(&test, ranks, SK_LATEST, NULL), -EIO);
	cr_assert_eq(words_of_stale, SK_LIST_AGAIN_MAX);
	cr_assert(strstr(ranks[0].text, "of 9 times"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Nor does something old take the place of what never stood still: ranks that
 * list differently, and one that finds nothing of what it has listed. */
Test(restore, what_never_stands_still_is_nothing_older)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int r;

	for (int world = 1; world <= 2; world++) {
		plain_test(&test, world, world);
		save(&test, 1, 3, 0);
		save(&test, 1, 10, 0);
		agent.restless = true;
		agent.standing = 3;
		r = run_plain(&test, ranks, SK_LATEST, NULL);
		cr_assert_eq(r, -EIO, "%d ranks: %d, step %" PRId64 ": %s",
			     world, r, ranks[0].report.step, ranks[0].text);
		cr_assert(strstr(ranks[0].text, "of 9 times"), "%s",
			  ranks[0].text);
		close_ranks(&test, ranks);
		/* What was asked for by its number is there. */
		cr_assert(!run_plain(&test, ranks, 3, NULL), "%s",
			  ranks[0].text);
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* Each byte that several ranks of a node read is verified by one of them. */
Test(restore, ranks_share_the_verification)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	uint64_t bytes = 0, verified = 0, most = 0;
	struct test test;

	plain_test(&test, 2, 4);
	test.tensors[0].target.placements[0] = SK_REPLICATE;
	save(&test, 1, 10, 0);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(!wrong_elements(&test, ranks));
	for (int i = 0; i < agent.n; i++)
		for (uint32_t k = 0; k < agent.images[i].layout->n_entries; k++)
			bytes += agent.images[i].layout->entries[k].bytes;
	for (int i = 0; i < 4; i++) {
		uint64_t v = ranks[i].report.bytes_verified;

		verified += v;
		most = v > most ? v : most;
	}
	/* The blobs come on top of the tensor's 4 MiB. */
	cr_assert(verified >= (4 << 20) && verified <= bytes,
		  "%" PRIu64 " of %" PRIu64, verified, bytes);
	cr_assert(most <= 3 << 20, "one rank verified %" PRIu64, most);
	close_ranks(&test, ranks);
	free_test(&test);
}
