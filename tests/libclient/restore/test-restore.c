/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restore without an agent: images made here, ranks as threads, the agent's
 * part played by a few functions. What moves is compared element by element.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>

#include "state/names.h"
#include "stub-agent.h"
#include "thread-ranks.h"

/* Where each case takes several times as long, of every third. */
#ifdef __SANITIZE_ADDRESS__
#define EVERY 3
#else
#define EVERY 1
#endif

static void run_property_with(uint64_t seed, int where, uint32_t flags,
			      void (*more)(struct rank *))
{
	struct sk_restore_options o = {
		.flags = flags | SK_RESTORE_EXTRA_OK,
	};
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	random_test(&test, seed);
	save(&test, 1, 10, where);
	for (int i = 0; i < RANKS_MAX; i++) {
		ranks[i].step = SK_LATEST;
		ranks[i].opts = &o;
		ranks[i].more = more;
	}
	restore(&test, ranks);
	for (int i = 0; i < test.world[1]; i++)
		cr_assert(!ranks[i].result, "seed %" PRIu64 ", %d to %d ranks,"
			  " rank %d: %s", seed, test.world[0], test.world[1],
			  i, ranks[i].text);
	cr_assert(!wrong_elements(&test, ranks),
		  "seed %" PRIu64 ", %d to %d ranks: wrong elements", seed,
		  test.world[0], test.world[1]);
	close_ranks(&test, ranks);
	free_test(&test);
}

static void run_property(uint64_t seed, int where, uint32_t flags)
{
	run_property_with(seed, where, flags, NULL);
}

Test(restore, any_mesh_to_any_mesh_from_memory)
{
	for (uint64_t seed = 1; seed <= 300; seed += EVERY)
		run_property(seed, 0, 0);
}

Test(restore, any_mesh_to_any_mesh_from_disk)
{
	for (uint64_t seed = 1000; seed < 1200; seed += EVERY)
		run_property(seed, 2, 0);
}

Test(restore, any_mesh_to_any_mesh_from_both)
{
	for (uint64_t seed = 2000; seed < 2200; seed += EVERY)
		run_property(seed, 3, 0);
}

Test(restore, any_mesh_to_any_mesh_unverified)
{
	for (uint64_t seed = 3000; seed < 3100; seed += EVERY)
		run_property(seed, seed % 2 ? 2 : 0, SK_RESTORE_NO_VERIFY);
}

/* Names are where they were saved, mostly; here two of them change places. */
static void change_places(struct rank *r)
{
	struct sk_state *s = r->state;
	uint32_t last = s->n_locals - 1;
	struct sk_local first = s->locals[0];

	if (!last)
		return;
	sk_names_take(s, 0);
	sk_names_take(s, last);
	s->locals[0] = s->locals[last];
	s->locals[last] = first;
	sk_names_put(s, 0);
	sk_names_put(s, last);
}

Test(restore, in_any_order)
{
	for (uint64_t seed = 4000; seed < 4100; seed += EVERY)
		run_property_with(seed, 0, 0, change_places);
}

/* ---- describing ---- */

static struct sk_tensor floats(const char *name, float *data, int64_t n)
{
	return (struct sk_tensor){ .name = name, .dtype = SK_F32, .ndim = 1,
				   .shape = { n }, .data = data };
}

/* Also of the first ones, whose array becomes the state's. */
Test(describing, of_two_of_one_name_the_later_counts)
{
	float memory[12];
	struct sk_tensor all[] = {
		floats("a", memory, 3),
		floats("b", memory + 3, 2),
		floats("a", memory + 5, 4),
		floats("c", memory + 9, 3),
		floats("b", memory + 9, 1),
	};
	const float *want[] = { memory + 5, memory + 9, memory + 9 };
	const char *names[] = { "a", "b", "c" };
	struct rank r = { 0 };
	struct test test;

	plain_test(&test, 1, 1);
	open_rank(&r, &test, 0, NULL);
	cr_assert_eq(sk_state_clear(r.state), 0);
	for (int round = 0; round < 2; round++) {
		cr_assert_eq(sk_state_tensors(r.state, all, 5), 0);
		cr_assert_eq(r.state->n_locals, 3u);
		for (uint32_t i = 0; i < 3; i++) {
			const struct sk_local *l = &r.state->locals[i];

			cr_assert_eq(sk_state_find(r.state, names[i]), i);
			cr_assert_str_eq(l->item.spec.name, names[i]);
			cr_assert_eq(l->parts[0].data, want[i]);
		}
	}
	close_ranks(&test, &r);
	free_test(&test);
}

/* None of them, where one is refused. */
Test(describing, all_or_none)
{
	float memory[8];
	struct sk_tensor all[] = {
		floats("a", memory, 3),
		floats("b", memory, 2),
		floats("", memory + 5, 1),
	};
	struct rank r = { 0 };
	struct test test;

	plain_test(&test, 1, 1);
	open_rank(&r, &test, 0, NULL);
	cr_assert_eq(sk_state_clear(r.state), 0);
	cr_assert_eq(sk_state_tensors(r.state, all, 3), -EINVAL);
	cr_assert_eq(r.state->n_locals, 0u);
	cr_assert_eq(sk_state_tensors(r.state, all, 1), 0);
	cr_assert_eq(sk_state_tensors(r.state, all + 1, 2), -EINVAL);
	cr_assert_eq(r.state->n_locals, 1u);
	close_ranks(&test, &r);
	free_test(&test);
}

/* ---- what goes wrong ---- */

/* A bit of one image, at one place. */
static void damage_one(void)
{
	struct image *i = &agent.images[below(agent.n)];
	uint64_t data = i->layout->image_bytes - i->layout->header_bytes;
	int fd = i->memory >= 0 ? i->memory : i->disk;

	if (data)
		flip(fd, i->layout->header_bytes + (uint64_t)below(
							(int64_t)data));
}

static unsigned count_reported(void)
{
	unsigned n = 0;

	for (int i = 0; i < agent.n; i++)
		n += agent.images[i].reported[0] + agent.images[i].reported[1];
	return n;
}

/* Right values or an error, the same on all ranks; never wrong values. */
static int run_damaged(uint64_t seed, int where)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int r;

	random_test(&test, seed);
	save(&test, 1, 10, where);
	damage_one();
	for (int i = 0; i < RANKS_MAX; i++) {
		ranks[i].step = SK_LATEST;
		ranks[i].opts = &o;
	}
	restore(&test, ranks);
	r = one_result(&test, ranks, seed);
	cr_assert(r == 0 || r == -EBADMSG, "seed %" PRIu64 ": %s", seed,
		  ranks[0].text);
	cr_assert(r || !wrong_elements(&test, ranks), "seed %" PRIu64, seed);
	cr_assert(r != -EBADMSG || count_reported() == 1, "seed %" PRIu64,
		  seed);
	cr_assert(r != -EBADMSG || strstr(ranks[0].text, "overwritten") ||
		  test.world[1] > 1, "seed %" PRIu64 ": %s", seed,
		  ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
	return r;
}

Test(restore, a_damaged_image_is_never_restored)
{
	int refused = 0;

	for (uint64_t seed = 4000; seed < 4200; seed += EVERY)
		refused += run_damaged(seed, seed % 2 ? 2 : 0) < 0;
	cr_assert(refused > 20 / EVERY);
}

Test(restore, the_disk_copy_of_a_damaged_image_is_taken)
{
	for (uint64_t seed = 5000; seed < 5200; seed += EVERY) {
		struct sk_restore_options o = {
			.flags = SK_RESTORE_EXTRA_OK };
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;
		struct image *i;

		random_test(&test, seed);
		save(&test, 1, 10, 1);
		i = &agent.images[0];	/* a primary one: both places */
		if (i->layout->image_bytes > i->layout->header_bytes)
			flip(i->memory, i->layout->image_bytes - 1);
		for (int k = 0; k < RANKS_MAX; k++) {
			ranks[k].step = 10;
			ranks[k].opts = &o;
		}
		restore(&test, ranks);
		cr_assert(!one_result(&test, ranks, seed), "seed %" PRIu64
			  ": %s", seed, ranks[0].text);
		cr_assert(!wrong_elements(&test, ranks), "seed %" PRIu64,
			  seed);
		cr_assert(ranks[0].report.damaged == count_reported());
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* ---- what is listed is not there ---- */

/* Right values, or the same error everywhere, whoever needed the image: what
 * goes each time that it was listed is no first run. */
static int run_strange(uint64_t seed, int where, bool lies)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int r;

	random_test(&test, seed);
	save(&test, 1, 10, where);
	*(lies ? &agent.liar : &agent.gone) = 1 + (int)below(agent.n);
	for (int i = 0; i < RANKS_MAX; i++) {
		ranks[i].step = SK_LATEST;
		ranks[i].opts = &o;
	}
	restore(&test, ranks);
	r = one_result(&test, ranks, seed);
	cr_assert(r == 0 || r == (lies ? -EBADMSG : -EIO), "seed %" PRIu64
		  ": %d %s", seed, r, ranks[0].text);
	cr_assert(r || !wrong_elements(&test, ranks), "seed %" PRIu64, seed);
	cr_assert(!r || !strstr(ranks[0].text, "overwritten"), "%s",
		  ranks[0].text);
	cr_assert(!lies || count_reported() || !r, "seed %" PRIu64 ": %s",
		  seed, ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
	return r;
}

Test(restore, an_image_that_is_gone_by_now)
{
	int refused = 0;

	for (uint64_t seed = 6000; seed < 6200; seed += EVERY)
		refused += run_strange(seed, (int)(seed % 4), false) < 0;
	cr_assert(refused > 20 / EVERY && refused < 190 / EVERY, "%d",
		  refused);
}

Test(restore, an_image_that_is_not_what_was_listed)
{
	int refused = 0;

	for (uint64_t seed = 7000; seed < 7200; seed += EVERY)
		refused += run_strange(seed, (int)(seed % 4), true) < 0;
	cr_assert(refused > 20 / EVERY && refused < 190 / EVERY, "%d",
		  refused);
}
