/* SPDX-License-Identifier: Apache-2.0 */
/* Names that do not fit, comms that lie, options that make no sense. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "restore/ballot.h"
#include "thread-ranks.h"

/* ---- names ---- */

static char extra_memory[64];

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), n_end = strlen(end);

	return n >= n_end && !strcmp(text + n - n_end, end);
}

static void describe_another(struct rank *r)
{
	if (r->rank == 1)
		cr_assert(!sk_state_blob(r->state, "scheduler", extra_memory,
					 16));
	if (r->rank == 0)
		cr_assert(!sk_state_blob(r->state, "loader", extra_memory,
					 16));
}

static void describe_less(struct rank *r)
{
	cr_assert(!sk_state_remove(r->state, "config"));
	if (r->rank)
		cr_assert(!sk_state_remove(r->state, "wq"));
}

static void describe_another_size(struct rank *r)
{
	cr_assert(!sk_state_blob(r->state, "config", r->memory[0], 99));
}

static void describe_another_dtype(struct rank *r)
{
	struct sk_tensor t = { .name = "wq", .dtype = SK_BF16, .ndim = 2,
			       .shape = { 1024, 512 } };

	if (r->rank != 1)
		return;
	t.data = take_memory(r, 1024 * 512 * 2);
	cr_assert(!sk_state_tensor(r->state, &t));
}

static void describe_without_memory(struct rank *r)
{
	struct sk_tensor t = { .name = "wq", .dtype = SK_F32, .ndim = 2,
			       .shape = { 1024, 1024 } };

	cr_assert(!sk_state_tensor(r->state, &t));
}

static int run_with(struct test *test, struct rank *ranks,
		    void (*more)(struct rank *),
		    const struct sk_restore_options *o)
{
	for (int i = 0; i < RANKS_MAX; i++)
		ranks[i].more = more;
	return run_plain(test, ranks, SK_LATEST, o);
}

Test(restore, missing_names_are_all_listed_on_all_ranks)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MISSING_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_another, NULL) == -ENOKEY);
	for (int i = 0; i < 2; i++) {
		cr_assert(strstr(ranks[i].text, "loader, scheduler"), "%s",
			  ranks[i].text);
		cr_assert(!strstr(ranks[i].text, "overwritten"));
	}
	close_ranks(&test, ranks);
	cr_assert(!run_with(&test, ranks, describe_another, &o), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.missing == 1);
	cr_assert(ranks[0].report.tensors == 3);
	cr_assert(!wrong_in(&ranks[0], &ranks[0].state->locals[0]));
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, names_that_no_rank_asked_for_are_listed)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_less, NULL) == -ENOKEY);
	/* wq is asked for by rank 0. */
	for (int i = 0; i < 2; i++)
		cr_assert(ends_with(ranks[i].text, "by no rank: config"), "%s",
			  ranks[i].text);
	close_ranks(&test, ranks);
	cr_assert(!run_with(&test, ranks, describe_less, &o));
	cr_assert(ranks[0].report.extra == 1);
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, other_sizes_and_types_are_refused_everywhere)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_PARTIAL };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_another_size, &o) ==
		  -EINVAL);
	cr_assert(strstr(ranks[1].text, "\"config\" has 100 bytes"), "%s",
		  ranks[1].text);
	close_ranks(&test, ranks);
	cr_assert(run_with(&test, ranks, describe_another_dtype, &o) ==
		  -EINVAL);
	cr_assert(strstr(ranks[0].text, "rank 1"), "%s", ranks[0].text);
	cr_assert(strstr(ranks[0].text, "F32 [1024, 1024]"), "%s",
		  ranks[0].text);
	cr_assert(strstr(ranks[0].text, "BF16 [1024, 512]"), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, only_what_is_named_needs_memory)
{
	const char *names[] = { "config" };
	const char *wrong[] = { "config", "confog" };
	struct sk_restore_options o = { .names = names, .n_names = 1 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_without_memory, NULL) ==
		  -EINVAL);
	cr_assert(strstr(ranks[0].text, "wq"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	cr_assert(!run_with(&test, ranks, describe_without_memory, &o), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.tensors == 1);
	cr_assert(!wrong_in(&ranks[0], &ranks[0].state->locals[1]));
	close_ranks(&test, ranks);
	o.names = wrong;
	o.n_names = 2;
	cr_assert(run_with(&test, ranks, NULL, &o) == -ENOKEY);
	cr_assert(strstr(ranks[0].text, "confog"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* It is there, and nobody has told where to: what a rank forgot to describe
 * does not stay as it is without a word. */
Test(restore, what_is_named_has_to_be_described_by_a_rank)
{
	const char *names[] = { "config", "wq" };
	struct sk_restore_options o = { .names = names, .n_names = 2 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_less, &o) == -ENOKEY);
	for (int i = 0; i < 2; i++)
		cr_assert(ends_with(ranks[i].text, "1 named that are not in "
				    "the snapshot, or described by no rank: "
				    "config"), "%s", ranks[i].text);
	close_ranks(&test, ranks);
	/* wq is described by rank 0. */
	o.names = names + 1;
	o.n_names = 1;
	cr_assert(!run_with(&test, ranks, describe_less, &o), "%s",
		  ranks[0].text);
	cr_assert_eq(ranks[1].report.missing, 0u);
	close_ranks(&test, ranks);
	o.names = names;
	o.n_names = 2;
	o.flags = SK_RESTORE_MISSING_OK;
	cr_assert(!run_with(&test, ranks, describe_less, &o), "%s",
		  ranks[0].text);
	cr_assert_eq(ranks[1].report.missing, 1u);
	close_ranks(&test, ranks);
	free_test(&test);
}

static void describe_many(struct rank *r)
{
	char name[64];

	for (int i = 0; i < 8000; i++) {
		struct sk_tensor t = { .name = name, .dtype = SK_U8, .ndim = 1,
				       .shape = { 1 }, .data = &r->text };

		(void)snprintf(name, sizeof(name), "layers.%05d.mlp.experts."
			       "w1.weight", i);
		cr_assert(!sk_state_tensor(r->state, &t));
	}
}

Test(restore, a_list_that_is_cut_says_so)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 1, 1);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_many, NULL) == -ENOKEY);
	cr_assert(strstr(ranks[0].text, "; more than "), "%.200s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* ---- comms that lie ---- */

static void spoil(char *bytes, size_t n)
{
	for (uint64_t i = 1 + below(8); n && i-- > 0;)
		bytes[below(n)] ^= (char)(1u << below(8));
}

/* Rank 1 says what rank 0 does, but for a few bits; the end is all ones. */
static int garbled(void *ctx, const void *in, size_t bytes, void *out,
		   uint32_t timeout_ms)
{
	char *theirs = (char *)out + bytes;

	(void)ctx;
	(void)timeout_ms;
	memcpy(out, in, bytes);
	memcpy(theirs, in, bytes);
	if (bytes == sizeof(struct sk_restore_ballot))
		((struct sk_restore_ballot *)theirs)->limits.rank = 1;
	if (one_in(3))
		spoil(theirs, bytes);
	if (one_in(3))
		memset(theirs + below(bytes), 0xff, 1);
	if (one_in(6))
		memset(theirs, 0xff, bytes);
	return 0;
}

/* Nobody's part arrives, one's own neither. */
static int forgets(void *ctx, const void *in, size_t bytes, void *out,
		   uint32_t timeout_ms)
{
	(void)ctx;
	(void)in;
	(void)timeout_ms;
	memset(out, 0, 2 * bytes);
	return 0;
}

static int restore_over(const struct test *test,
			int (*fn)(void *, const void *, size_t, void *,
				  uint32_t), bool another)
{
	struct sk_comm comm = { .allgather = fn };
	struct rank r = { .more = another ? describe_another : NULL };
	int result;

	open_rank(&r, test, 0, NULL);
	result = sk_restore(r.state, SK_LATEST, &comm, NULL, NULL);
	if (result < 0)
		cr_assert(sk_error()[0]);
	close_ranks(&(struct test){ .world = { 1, 1 } }, &r);
	return result;
}

Test(restore, a_broken_comm_is_an_error_and_no_more)
{
	struct test test;
	int failed = 0;

	draw_from(7);
	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(restore_over(&test, forgets, false) == -EPROTO, "%s",
		  sk_error());
	for (int i = 0; i < 200; i++)
		failed += restore_over(&test, garbled, i % 2) < 0;
	cr_assert(failed > 100, "%d of 200 failed", failed);
	free_test(&test);
}

/* ---- options ---- */

Test(restore, options_that_make_no_sense)
{
	struct sk_restore_options both = {
		.flags = SK_RESTORE_MEMORY_ONLY | SK_RESTORE_DISK_ONLY };
	struct sk_restore_options unknown = { .flags = 1u << 30 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 1, 1);
	save(&test, 1, 10, 0);
	cr_assert(run_plain(&test, ranks, SK_LATEST, &both) == -EINVAL);
	close_ranks(&test, ranks);
	cr_assert(run_plain(&test, ranks, SK_LATEST, &unknown) == -EINVAL);
	close_ranks(&test, ranks);
	cr_assert(run_plain(&test, ranks, -2, NULL) == -EINVAL);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* ---- comms of other ranks ---- */

/* Nobody waits for who is another one in the comm than its state says. */
Test(restore, a_rank_that_is_another_one_in_the_comm_is_told_to_all)
{
	for (int wrong = 0; wrong < 3; wrong++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;
		char words[64];

		plain_test(&test, 3, 3);
		save(&test, 1, 10, 0);
		for (int i = 0; i < 3; i++)
			ranks[i].comm_world = 3;
		ranks[wrong].shift = 1;
		cr_assert_eq(run_plain(&test, ranks, SK_LATEST, NULL),
			     -EINVAL);
		(void)snprintf(words, sizeof(words), "the state is rank %d of "
			       "3, and the comm has it as rank %d of 3",
			       (wrong + 1) % 3, wrong);
		for (int i = 0; i < 3; i++) {
			cr_assert(strstr(ranks[i].text, words), "rank %d: %s",
				  i, ranks[i].text);
			cr_assert_eq(ranks[i].aborts, 0);
			cr_assert_eq(ranks[i].gathers, ranks[0].gathers);
		}
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* Nor for who asks for what makes no sense, of whatever step. */
static void refuse_alone(const struct sk_restore_options *wrong, int64_t step)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 3, 3);
	save(&test, 1, 10, 0);
	for (int k = 0; k < 3; k++)
		ranks[k].step = step;
	ranks[1].opts = wrong;
	restore(&test, ranks);
	cr_assert_eq(one_result(&test, ranks, 0), -EINVAL);
	for (int k = 0; k < 3; k++)
		cr_assert(!strncmp(ranks[k].text, "rank 1: ", 8),
			  "rank %d: %s", k, ranks[k].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, options_of_one_rank_that_make_no_sense_are_told_to_all)
{
	const struct sk_restore_options wrong[] = {
		{ .flags = UINT32_C(1) << 31 },
		{ .flags = SK_RESTORE_MEMORY_ONLY | SK_RESTORE_DISK_ONLY },
		{ .n_names = 3 } };

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		refuse_alone(&wrong[i], SK_LATEST);
		refuse_alone(&wrong[i], 10);
	}
}

static void lack_a_function(struct sk_comm *comm)
{
	static const struct sk_comm_device half = { .ordinal = 0 };

	comm->device = &half;
}

/* Nothing but what it must have is called. */
static void leave_reserved(struct sk_comm *comm)
{
	comm->reserved[0] = comm;
	comm->exchange = (void *)1;
	comm->abort = (void *)1;
	comm->device = (void *)1;
}

/* Nor for whose comm is not as the others'. */
Test(restore, a_comm_of_one_rank_that_makes_no_sense_is_told_to_all)
{
	static const struct {
		void (*spoil)(struct sk_comm *comm);
		const char *words;
	} cases[] = {
		{ lack_a_function, "rank 1: sk_comm.device lacks a function" },
		{ leave_reserved, "rank 1: sk_comm.reserved" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;

		plain_test(&test, 3, 3);
		save(&test, 1, 10, 0);
		for (int k = 0; k < 3; k++)
			ranks[k].comm_world = 3;
		ranks[1].spoil = cases[i].spoil;
		cr_assert_eq(run_plain(&test, ranks, SK_LATEST, NULL),
			     -EINVAL);
		for (int k = 0; k < 3; k++) {
			cr_assert(!strncmp(ranks[k].text, cases[i].words,
					   strlen(cases[i].words)),
				  "rank %d: %s", k, ranks[k].text);
			cr_assert_eq(ranks[k].aborts, 0);
			cr_assert_eq(ranks[k].gathers, ranks[0].gathers);
		}
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

static void have_no_way(struct sk_comm *comm)
{
	comm->allgather = NULL;
}

/* They cannot be told, and need not wait. */
Test(restore, a_comm_without_words_is_broken_off)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	for (int i = 0; i < 2; i++) {
		ranks[i].comm_world = 2;
		ranks[i].spoil = have_no_way;
	}
	cr_assert_eq(run_plain(&test, ranks, SK_LATEST, NULL), -EINVAL);
	for (int i = 0; i < 2; i++) {
		cr_assert_str_eq(ranks[i].text, "sk_comm.allgather is NULL");
		cr_assert_eq(ranks[i].aborts, 1);
	}
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Whom nobody hears says what is wrong with the call, and not that. */
static int nobody_comes(void *ctx, const void *in, size_t bytes, void *out,
			uint32_t timeout_ms)
{
	(void)ctx;
	(void)in;
	(void)bytes;
	(void)out;
	(void)timeout_ms;
	return -ETIMEDOUT;
}

static void be_left_alone(struct sk_comm *comm)
{
	comm->allgather = nobody_comes;
}

Test(restore, who_is_refused_and_alone_knows_why)
{
	const struct sk_restore_options wrong = { .flags = 1u << 31 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	for (int i = 0; i < 2; i++) {
		ranks[i].comm_world = 2;
		ranks[i].spoil = be_left_alone;
	}
	cr_assert_eq(run_plain(&test, ranks, SK_LATEST, &wrong), -EINVAL);
	for (int i = 0; i < 2; i++) {
		cr_assert(strstr(ranks[i].text, "sk_restore_options.flags"),
			  "%s", ranks[i].text);
		cr_assert_eq(ranks[i].aborts, 1);
	}
	close_ranks(&test, ranks);
	free_test(&test);
}

static int restore_alone(struct test *test, int32_t comm_world,
			 struct rank *ret_rank)
{
	struct rank ranks[RANKS_MAX] = { { .comm_world = comm_world } };

	ranks[0].step = SK_LATEST;
	restore(test, ranks);
	*ret_rank = ranks[0];
	if (!ranks[0].result)
		cr_assert_eq(wrong_elements(test, ranks), 0);
	close_ranks(test, ranks);
	return ret_rank->result;
}

/* What so many give has no room; the others of the comm need not wait for who
 * will not come. */
Test(restore, a_comm_of_more_ranks_is_broken_off)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	ranks[0].comm_world = ranks[1].comm_world = 5;
	cr_assert_eq(run_plain(&test, ranks, SK_LATEST, NULL), -EINVAL);
	for (int i = 0; i < 2; i++) {
		cr_assert(strstr(ranks[i].text, "of 2, and the comm has it as"),
			  "%s", ranks[i].text);
		cr_assert(ranks[i].aborts == 1 && !ranks[i].gathers);
	}
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Who is alone asks nobody, whatever joins it to others. */
Test(restore, alone_has_no_use_for_a_comm)
{
	struct rank rank;
	struct test test;

	plain_test(&test, 2, 1);
	save(&test, 1, 10, 3);
	cr_assert_eq(restore_alone(&test, 5, &rank), 0, "%s", rank.text);
	cr_assert(!rank.gathers && !rank.aborts && !rank.devices);
	cr_assert_eq(restore_alone(&test, 1, &rank), 0, "%s", rank.text);
	cr_assert(!rank.gathers && !rank.aborts && !rank.devices);
	free_test(&test);
}
