/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot holds beyond what is described. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "restore/beyond.h"
#include "state/state.h"
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

/* Ranks as they come back, and what one of them has been told. */
struct asking {
	struct test test;
	struct rank ranks[RANKS_MAX];
	struct told told;
	int32_t world;
	bool expects, same;
};

static void begin(struct asking *a, int from, int to)
{
	*a = (struct asking){ .world = 7 };
	plain_test(&a->test, from, to);
	save(&a->test, 1, 10, 0);
	for (int i = 0; i < to; i++)
		open_rank(&a->ranks[i], &a->test, i, NULL);
}

static int ask(struct asking *a, int rank, int64_t step)
{
	const struct sk_beyond to = { .ctx = &a->told, .name = note,
				      .same = a->expects ? &a->same : NULL };
	struct rank *r = &a->ranks[rank];
	struct sk_err err = { "" };
	int ret;

	a->told = (struct told){ .fail = a->told.fail };
	ret = sk_restore_beyond(r->state, 1, step, &to, &a->world, &err);
	(void)snprintf(r->text, sizeof(r->text), "%s", err.text);
	return ret;
}

static void end(struct asking *a)
{
	close_ranks(&a->test, a->ranks);
	free_test(&a->test);
}

Test(beyond, what_is_described_is_not_told)
{
	struct asking a;

	begin(&a, 3, 2);
	cr_assert_eq(ask(&a, 1, 10), 0, "%s", a.ranks[1].text);
	cr_assert_eq(a.told.n, 0, "%s", a.told.names[0]);
	cr_assert_eq(a.world, 3);
	end(&a);
}

Test(beyond, the_rest_is_told_once)
{
	struct asking a;

	begin(&a, 3, 2);
	cr_assert_eq(sk_state_remove(a.ranks[0].state, "wq"), 0);
	cr_assert_eq(ask(&a, 0, 10), 0);
	cr_assert_eq(a.told.n, 1);
	cr_assert_str_eq(a.told.names[0], "wq");
	cr_assert_eq(a.told.mine, 1);
	cr_assert_eq(a.told.last.dtype, SK_F32);
	cr_assert_eq(a.told.last.shape[1], 1024);
	end(&a);
}

/* The restore after it asks for no header again. */
Test(beyond, a_header_is_read_once)
{
	struct asking a;
	uint64_t bytes;

	begin(&a, 1, 1);
	cr_assert_eq(ask(&a, 0, 10), 0);
	bytes = agent.header_bytes;
	cr_assert_gt(bytes, 0);
	cr_assert_eq(ask(&a, 0, 10), 0);
	cr_assert_eq(agent.header_bytes, bytes);
	end(&a);
}

/* Each is followed by another one, or the last by none. */
Test(beyond, agents_that_are_killed_are_followed)
{
	struct sk_announced to = { 0 };
	struct sk_err err;
	struct asking a;

	begin(&a, 1, 1);
	cr_assert_eq(sk_state_remove(a.ranks[0].state, "wq"), 0);
	agent.away = SK_AGENTS_MOST - 1;
	cr_assert_eq(ask(&a, 0, 10), 0, "%s", a.ranks[0].text);
	cr_assert_eq(a.told.n, 1);
	agent.away = SK_AGENTS_MOST;
	cr_assert_eq(ask(&a, 0, 10), -ECONNRESET);
	cr_assert_eq(agent.away, 0);
	agent.deaf = SK_AGENTS_MOST - 1;
	cr_assert_eq(sk_restore_announce(a.ranks[0].state, &to, &err), 0);
	cr_assert_eq(to.run, 99);
	agent.deaf = SK_AGENTS_MOST;
	cr_assert_eq(sk_restore_announce(a.ranks[0].state, &to, &err),
		     -ECONNRESET);
	cr_assert_eq(agent.deaf, 0);
	end(&a);
}

Test(beyond, of_what_is_expected_no_header_is_read)
{
	struct asking a;

	begin(&a, 2, 2);
	a.expects = true;
	for (int i = 0; i < 2; i++) {
		a.same = false;
		cr_assert_eq(ask(&a, i, 10), 0, "%s", a.ranks[i].text);
		cr_assert(a.same);
		cr_assert_eq(a.told.n, 0, "%s", a.told.names[0]);
		cr_assert_eq(a.world, 2);
	}
	cr_assert_eq(agent.header_bytes, 0);
	end(&a);
}

Test(beyond, what_is_not_as_expected_is_read)
{
	struct asking a;

	begin(&a, 2, 2);
	a.expects = a.same = true;
	cr_assert_eq(sk_state_remove(a.ranks[0].state, "wq"), 0);
	cr_assert_eq(ask(&a, 0, 10), 0, "%s", a.ranks[0].text);
	cr_assert_not(a.same);
	cr_assert_eq(a.told.n, 1);
	cr_assert_str_eq(a.told.names[0], "wq");
	cr_assert_gt(agent.header_bytes, 0);
	end(&a);
}

/* The snapshot lacks it, which no name beyond says. */
Test(beyond, more_than_was_saved_is_not_the_same)
{
	char more[4] = "abc";
	struct asking a;

	begin(&a, 1, 1);
	a.expects = a.same = true;
	cr_assert_eq(sk_state_blob(a.ranks[0].state, "more", more, 4), 0);
	cr_assert_eq(ask(&a, 0, 10), 0, "%s", a.ranks[0].text);
	cr_assert_not(a.same);
	cr_assert_eq(a.told.n, 0);
	end(&a);
}

/* Whose sizes no description of a rank's says. */
Test(beyond, a_local_blob_of_another_size_is_not_the_same)
{
	char own[4096];
	struct asking a;

	begin(&a, 2, 2);
	a.expects = a.same = true;
	cr_assert_eq(sk_state_blob_local(a.ranks[1].state, "rng", own,
					 sizeof(own)), 0);
	cr_assert_eq(ask(&a, 1, 10), 0, "%s", a.ranks[1].text);
	cr_assert_not(a.same);
	cr_assert_eq(a.told.n, 0);
	end(&a);
}

Test(beyond, other_ranks_are_not_the_same)
{
	struct asking a;

	begin(&a, 3, 2);
	a.expects = a.same = true;
	cr_assert_eq(ask(&a, 1, 10), 0, "%s", a.ranks[1].text);
	cr_assert_not(a.same);
	cr_assert_eq(a.world, 3);
	end(&a);
}

/* Nor is it laid out anew when the rank registers, which describes the same. */
Test(beyond, what_was_read_is_what_is_described)
{
	struct sk_item items[8] = { 0 };
	struct sk_layout *read;
	struct sk_state *state;
	struct asking a;

	begin(&a, 1, 1);
	state = a.ranks[0].state;
	cr_assert_eq(ask(&a, 0, 10), 0);
	cr_assert_leq(state->n_locals, 8u);
	for (uint32_t i = 0; i < state->n_locals; i++)
		items[i] = state->locals[i].item;
	read = sk_recall_same(state->sk->recall, JOB, 0, 1, SK_IMAGE_PRIMARY,
			      NULL, items, state->n_locals);
	cr_assert_not_null(read);
	sk_layout_free(read);
	end(&a);
}

Test(beyond, what_is_not_there_is_refused)
{
	struct asking a;

	begin(&a, 1, 1);
	cr_assert_eq(ask(&a, 0, 11), -ENOENT);
	cr_assert(strstr(a.ranks[0].text, "no snapshot of step 11"), "%s",
		  a.ranks[0].text);
	cr_assert_eq(a.world, 7);
	end(&a);
}

/* Of three ranks' images one goes between two lists. */
Test(beyond, what_goes_meanwhile_is_not_half_told)
{
	struct asking a;

	begin(&a, 3, 1);
	cr_assert_eq(sk_state_clear(a.ranks[0].state), 0);
	agent.leaving = 1;
	cr_assert_eq(ask(&a, 0, 10), -ENOENT);
	cr_assert(strstr(a.ranks[0].text, "went while"), "%s",
		  a.ranks[0].text);
	cr_assert_eq(a.told.n, 0);
	cr_assert_eq(ask(&a, 0, 10), 0, "%s", a.ranks[0].text);
	/* Of one that is damaged the names count. */
	agent.images[0].reported[0] = true;
	cr_assert_eq(ask(&a, 0, 10), 0, "%s", a.ranks[0].text);
	end(&a);
}

Test(beyond, a_damaged_description_is_no_empty_one)
{
	struct asking a;

	begin(&a, 2, 1);
	for (int i = 0; i < agent.n; i++)
		flip(agent.images[i].header, 100);
	cr_assert_eq(ask(&a, 0, 10), -EBADMSG);
	cr_assert(strstr(a.ranks[0].text, "cannot be told"), "%s",
		  a.ranks[0].text);
	cr_assert_eq(a.told.n, 0);
	end(&a);
}

Test(beyond, who_is_told_may_end_it)
{
	struct asking a;

	begin(&a, 1, 1);
	a.told.fail = -ENOMEM;
	cr_assert_eq(sk_state_clear(a.ranks[0].state), 0);
	cr_assert_eq(ask(&a, 0, 10), -ENOMEM);
	cr_assert_eq(a.told.n, 1);
	end(&a);
}
