/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot holds beyond what is described. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "restore/beyond.h"
#include "stub-agent.h"
#include "thread-ranks.h"

struct told {
	int n, mine;
	char names[8][32];
	struct sk_spec last;
	int fail;		/* what the next one returns */
};

static int note(void *ctx, const struct sk_item *item, bool mine)
{
	struct told *told = ctx;

	cr_assert(told->n < 8);
	(void)snprintf(told->names[told->n++], 32, "%s", item->spec.name);
	told->mine += mine;
	told->last = item->spec;
	return told->fail;
}

static int ask(struct rank *r, uint64_t run, int64_t step, struct told *told,
	       int32_t *ret_world)
{
	const struct sk_beyond to = { .ctx = told, .name = note };
	struct sk_err err = { "" };
	int ret;

	*told = (struct told){ .fail = told->fail };
	ret = sk_restore_beyond(r->state, run, step, &to, ret_world, &err);
	(void)snprintf(r->text, sizeof(r->text), "%s", err.text);
	return ret;
}

static void begin(struct test *test, struct rank *ranks, int from, int to)
{
	plain_test(test, from, to);
	save(test, 1, 10, 0);
	for (int i = 0; i < to; i++)
		open_rank(&ranks[i], test, i, NULL);
}

static void end(struct test *test, struct rank *ranks)
{
	close_ranks(test, ranks);
	free_test(test);
}

Test(beyond, what_is_described_is_not_told)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct told told = { 0 };
	struct test test;
	int32_t world = 0;

	begin(&test, ranks, 3, 2);
	cr_assert_eq(ask(&ranks[1], 1, 10, &told, &world), 0, "%s",
		     ranks[1].text);
	cr_assert_eq(told.n, 0, "%s", told.names[0]);
	cr_assert_eq(world, 3);
	end(&test, ranks);
}

Test(beyond, the_rest_is_told_once)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct told told = { 0 };
	struct test test;
	int32_t world = 0;

	begin(&test, ranks, 3, 2);
	cr_assert_eq(sk_state_remove(ranks[0].state, "wq"), 0);
	cr_assert_eq(ask(&ranks[0], 1, 10, &told, &world), 0);
	cr_assert_eq(told.n, 1);
	cr_assert_str_eq(told.names[0], "wq");
	cr_assert_eq(told.mine, 1);
	cr_assert_eq(told.last.dtype, SK_F32);
	cr_assert_eq(told.last.shape[1], 1024);
	end(&test, ranks);
}

/* The restore after it asks for no header again. */
Test(beyond, a_header_is_read_once)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct told told = { 0 };
	struct test test;
	int32_t world = 0;
	uint64_t bytes;

	begin(&test, ranks, 1, 1);
	cr_assert_eq(ask(&ranks[0], 1, 10, &told, &world), 0);
	bytes = agent.header_bytes;
	cr_assert_gt(bytes, 0);
	cr_assert_eq(ask(&ranks[0], 1, 10, &told, &world), 0);
	cr_assert_eq(agent.header_bytes, bytes);
	end(&test, ranks);
}

Test(beyond, what_is_not_there_is_refused)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct told told = { 0 };
	struct test test;
	int32_t world = 7;

	begin(&test, ranks, 1, 1);
	cr_assert_eq(ask(&ranks[0], 1, 11, &told, &world), -ENOENT);
	cr_assert(strstr(ranks[0].text, "no snapshot of step 11"), "%s",
		  ranks[0].text);
	cr_assert_eq(world, 7);
	end(&test, ranks);
}

Test(beyond, a_damaged_description_is_no_empty_one)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct told told = { 0 };
	struct test test;
	int32_t world = 0;

	begin(&test, ranks, 2, 1);
	for (int i = 0; i < agent.n; i++)
		flip(agent.images[i].header, 100);
	cr_assert_eq(ask(&ranks[0], 1, 10, &told, &world), -EBADMSG);
	cr_assert(strstr(ranks[0].text, "cannot be told"), "%s",
		  ranks[0].text);
	cr_assert_eq(told.n, 0);
	end(&test, ranks);
}

Test(beyond, who_is_told_may_end_it)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct told told = { .fail = -ENOMEM };
	struct test test;
	int32_t world = 0;

	begin(&test, ranks, 1, 1);
	cr_assert_eq(sk_state_clear(ranks[0].state), 0);
	cr_assert_eq(ask(&ranks[0], 1, 10, &told, &world), -ENOMEM);
	cr_assert_eq(told.n, 1);
	end(&test, ranks);
}
