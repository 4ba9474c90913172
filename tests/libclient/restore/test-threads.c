/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads a restore copies by, and that all of its units are run. */
#include <criterion/criterion.h>

#include "base/util.h"
#include "conn/client.h"
#include "restore/threads.h"

static struct sk sk;
static struct sk_restoring rs = { .sk = &sk };

static void set_up(unsigned threads)
{
	cr_assert_eq(sk_pool_new(threads, -1, "few", &sk.pool, NULL), 0);
}

static void tear_down(void)
{
	sk.pool = sk_pool_free(sk.pool);
}

Test(threads, a_ranks_part_of_the_cpus)
{
	static const struct {
		unsigned own, cpus;
		int32_t near;
		bool said;
		unsigned want;
	} cases[] = {
		{ 1, 2, 1, false, 2 },	{ 1, 2, 2, false, 1 },
		{ 8, 16, 1, false, 16 }, { 8, 16, 2, false, 8 },
		{ 8, 16, 8, false, 8 },	{ 8, 224, 8, false, 16 },
		{ 8, 96, 8, false, 12 }, { 2, 1, 64, false, 2 },
		{ 1, 4, 0, false, 4 },	{ 3, 16, 1, true, 3 },
		{ 32, 16, 1, true, 32 },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		set_up(cases[i].own);
		sk.cpus = cases[i].cpus;
		sk.threads_said = cases[i].said;
		rs.n_near = cases[i].near;
		cr_assert_eq(sk_restore_threads(&rs), cases[i].want,
			     "case %zu: %u", i, sk_restore_threads(&rs));
		tear_down();
	}
}

struct counted {
	struct sk_task task;
	unsigned runs[40];
};

static void count(struct sk_task *task, size_t unit)
{
	struct counted *c = (struct counted *)task;

	__atomic_fetch_add(&c->runs[unit], 1, __ATOMIC_RELAXED);
}

Test(threads, each_unit_is_run_once)
{
	set_up(2);
	sk.threads_said = false;
	for (sk.cpus = 1; sk.cpus < 12; sk.cpus++)
		for (size_t units = 0; units <= 40; units += 5) {
			struct counted c = { .task = { .run = count,
						       .units = units } };

			sk_restore_run(&rs, &c.task);
			for (size_t i = 0; i < 40; i++)
				cr_assert_eq(c.runs[i], i < units);
		}
	tear_down();
}
