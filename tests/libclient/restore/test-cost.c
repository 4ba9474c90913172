/* SPDX-License-Identifier: Apache-2.0 */
/* What a restore opens, reads and tells: as much as it wants, however much
 * there is. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>

#include "restore/agree.h"
#include "stub-agent.h"
#include "thread-ranks.h"

/* The layout is the rank's own: no header, and no other rank's image. */
Test(restore, on_the_same_mesh_each_opens_its_own)
{
	for (int world = 1; world <= RANKS_MAX; world++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;

		plain_test(&test, world, world);
		save(&test, 1, 10, 0);
		cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
			  ranks[0].text);
		cr_assert(!wrong_elements(&test, ranks));
		/* The blob is one rank's primary, the others' replica. */
		cr_assert(agent.opens == 2u * (unsigned)world - 1,
			  "%d ranks opened %u", world, agent.opens);
		cr_assert(!agent.header_bytes);
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* Images are opened when it is known which: several in a round trip. */
Test(restore, images_are_opened_together)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 60, 1);
	for (int where = 0; where < 3; where++) {
		save(&test, 1, 10, where);
		agent.opens = agent.together = 0;
		cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
			  ranks[0].text);
		cr_assert(!wrong_elements(&test, ranks));
		cr_assert_gt(agent.opens, 3u * SK_CONN_AT_ONCE);
		cr_assert_leq(agent.together,
			      agent.opens / SK_CONN_AT_ONCE + 1);
		close_ranks(&test, ranks);
		forget_images();
	}
	free_test(&test);
}

/* One rank wants a row of what many have. */
static void want_a_row(int world, int where, int own_more,
		       unsigned *ret_opens, uint64_t *ret_header_bytes)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct sk_box row = { .offset = { 700 }, .size = { 1, 1024 } };
	struct test test;
	int owner = 0;

	plain_test(&test, world, 1);
	test.own_more = own_more;
	test.tensors[0].explicit_target = true;
	test.tensors[0].n_boxes = 1;
	test.tensors[0].boxes = malloc(sizeof(row));
	test.tensors[0].owners = malloc(sizeof(owner));
	*test.tensors[0].boxes = row;
	*test.tensors[0].owners = owner;
	save(&test, 1, 10, where);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, &o), "%s",
		  ranks[0].text);
	cr_assert(!wrong_elements(&test, ranks));
	*ret_opens = agent.opens;
	*ret_header_bytes = agent.header_bytes;
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, a_large_world_costs_what_is_wanted_of_it)
{
	for (int where = 0; where <= 2; where += 2) {
		unsigned opens[2];
		uint64_t bytes[2];

		want_a_row(4, where, 0, &opens[0], &bytes[0]);
		want_a_row(30, where, 0, &opens[1], &bytes[1]);
		cr_assert(opens[0] == opens[1] && opens[0] <= 4, "%u, then %u",
			  opens[0], opens[1]);
		/* One tells the names of all. */
		cr_assert(bytes[0] == bytes[1] && bytes[0] == 4096,
			  "%" PRIu64 ", then %" PRIu64, bytes[0], bytes[1]);
	}
}

/* What ranks keep for themselves may have another size on each. */
Test(restore, others_own_blobs_of_any_size_cost_nothing)
{
	for (int where = 0; where <= 2; where += 2) {
		unsigned opens[2];
		uint64_t bytes[2];

		want_a_row(4, where, 8, &opens[0], &bytes[0]);
		want_a_row(30, where, 8, &opens[1], &bytes[1]);
		cr_assert(opens[0] == opens[1] && opens[0] <= 4, "%u, then %u",
			  opens[0], opens[1]);
		cr_assert(bytes[0] == bytes[1] && bytes[0] <= 8192,
			  "%" PRIu64 ", then %" PRIu64, bytes[0], bytes[1]);
	}
}

static void replicate(int from, uint64_t *ret_gathers, uint64_t *ret_bytes)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, from, 4);
	test.tensors[0].target.placements[0] = SK_REPLICATE;
	save(&test, 1, 10, 0);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(!wrong_elements(&test, ranks));
	*ret_gathers = ranks[0].gathers;
	*ret_bytes = ranks[0].gathered;
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Who verified what is told by a number, whatever there was. */
Test(restore, what_ranks_exchange_does_not_grow_with_the_images)
{
	uint64_t gathers[2], bytes[2];

	replicate(2, &gathers[0], &bytes[0]);
	replicate(30, &gathers[1], &bytes[1]);
	cr_assert(gathers[0] == 4 && gathers[1] == 4,
		  "%" PRIu64 ", then %" PRIu64, gathers[0], gathers[1]);
	cr_assert(bytes[0] == bytes[1], "%" PRIu64 ", then %" PRIu64, bytes[0],
		  bytes[1]);
}

/* As one that reads without verifying. */
static void verify_nothing(void *said, size_t bytes)
{
	struct sk_restore_word *word = said;

	if (bytes == sizeof(*word) && word->owed)
		word->owed /= 2;
}

/* Others count on rank 1 to verify what it does not even read, or reads
 * without verifying: they find out, and do it themselves. */
Test(restore, who_does_not_verify_its_part_is_found_out)
{
	const char *names[] = { "config" };
	struct sk_restore_options less = { .names = names, .n_names = 1 };

	for (int k = 0; k < 2; k++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;

		plain_test(&test, 2, 4);
		test.tensors[0].target.placements[0] = SK_REPLICATE;
		save(&test, 1, 10, 0);
		for (int i = 0; i < 4; i++) {
			ranks[i].step = SK_LATEST;
			ranks[i].opts = i == 1 && !k ? &less : NULL;
		}
		ranks[1].lie = k ? verify_nothing : NULL;
		restore(&test, ranks);
		cr_assert(!one_result(&test, ranks, 0), "%s", ranks[0].text);
		for (int i = 0; i < 4; i++) {
			if (i == 1)
				continue;
			cr_assert(!wrong_in(&ranks[i],
					    &ranks[i].state->locals[0]));
			cr_assert(ranks[i].report.bytes_verified >= 4 << 20,
				  "rank %d verified %" PRIu64, i,
				  ranks[i].report.bytes_verified);
		}
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* So many descriptors more than there are now. */
static void allow_descriptors(rlim_t more)
{
	struct rlimit limit;
	int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);

	cr_assert(lowest >= 0);
	close(lowest);
	cr_assert(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = (rlim_t)lowest + more;
	cr_assert(!setrlimit(RLIMIT_NOFILE, &limit));
}

/* A tensor that lies in more images than a process may have files open. */
Test(restore, more_images_than_descriptors)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct rlimit limit;
	struct test test;

	cr_assert(!getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = limit.rlim_max;	/* the images take three each */
	cr_assert(!setrlimit(RLIMIT_NOFILE, &limit));
	plain_test(&test, 400, 1);
	save(&test, 1, 10, 2);
	allow_descriptors(300);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(agent.opens > 340, "%u", agent.opens);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	free_test(&test);
}

static unsigned opens_to_inspect(int world, uint32_t flags)
{
	struct sk sk = { .os = sk_os_linux(), .recall = sk_recall_new() };
	unsigned opens[2];
	struct test test;

	plain_test(&test, world, 1);
	save(&test, 1, 10, 0);
	for (int k = 0; k < 2; k++) {
		char *text = NULL;

		agent.opens = 0;
		cr_assert(!sk_inspect(&sk, JOB, SK_LATEST, 0, flags, &text),
			  "%s", sk_error());
		cr_assert(strstr(text, "\"wq\""), "%s", text);
		free(text);
		opens[k] = agent.opens;
	}
	cr_assert(opens[1] <= 1, "%u at the second time", opens[1]);
	sk_recall_free(sk.recall);
	free_test(&test);
	return opens[0];
}

/* One image tells what all that describe the same have. */
Test(inspect, a_large_world_is_told_by_few_headers)
{
	for (uint32_t flags = 0; flags <= SK_INSPECT_BRIEF;
	     flags += SK_INSPECT_BRIEF) {
		unsigned few = opens_to_inspect(4, flags);
		unsigned many = opens_to_inspect(30, flags);

		cr_assert(few == many && few <= 2, "%u, then %u", few, many);
	}
}

static int inspect(char **ret_text)
{
	struct sk sk = { .os = sk_os_linux(), .recall = sk_recall_new() };
	int r = sk_inspect(&sk, JOB, SK_LATEST, 0, 0, ret_text);

	sk_recall_free(sk.recall);
	return r;
}

/* What goes between two lists is looked for again: nobody is told of a part of
 * a snapshot as of all of it. */
Test(inspect, images_that_leave_between_two_lists)
{
	char *all = NULL, *again = NULL;
	struct test test;

	plain_test(&test, 4, 1);
	save(&test, 1, 10, 0);
	cr_assert(!inspect(&all), "%s", sk_error());
	agent.leaving = 1;
	cr_assert(!inspect(&again), "%s", sk_error());
	cr_assert_str_eq(again, all);
	free(all);
	free(again);
	agent.leaving = 100;
	cr_assert_eq(inspect(&again), -ENOENT);
	cr_assert(strstr(sk_error(), "went while"), "%s", sk_error());
	/* Steps that are all gone by the second list. */
	agent.leaving = 0;
	agent.restless = true;
	cr_assert_eq(inspect(&again), -ENOENT);
	free_test(&test);
}
