/* SPDX-License-Identifier: Apache-2.0 */
/* What goes of what lies on a store: cases by hand, and random lists against
 * the rules said once more, as slowly as they read. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "catalogue/retention.h"
#include "random.h"

#define MOST 96
#define SECOND UINT64_C(1000000000)

struct list {
	struct sk_retain_step steps[MOST];
	uint64_t ranks[MOST];
	size_t n;
};

static struct sk_retain_step *add(struct list *l, uint64_t run, int64_t step,
				  int32_t world, uint64_t ranks)
{
	struct sk_retain_step *s = &l->steps[l->n];

	cr_assert_lt(l->n, MOST);
	l->ranks[l->n] = ranks;
	*s = (struct sk_retain_step){
		.run = run, .run_id = run, .step = step, .looked = true,
		.complete = ranks == (UINT64_C(1) << world) - 1,
		.world = world, .ranks = &l->ranks[l->n], .bytes = 1,
		.written_ns = ((uint64_t)step + run * 1000) * SECOND,
	};
	l->n++;
	return s;
}

static int decide(struct list *l, struct sk_retention policy)
{
	return sk_retain(l->steps, l->n, &policy);
}

static void expect(const struct list *l, const char *goes)
{
	char got[MOST + 1] = "";

	for (size_t i = 0; i < l->n; i++)
		got[i] = l->steps[i].goes ? 'x' : '.';
	cr_assert_str_eq(got, goes);
}

/* Ages are not rounded, and none is too long to be told. */
Test(retention, what_is_older_by_less_than_a_second_goes)
{
	struct list l = { .n = 0 };

	for (int64_t step = 3; step > 0; step--)
		add(&l, 1, step, 2, 3);
	l.steps[0].written_ns = 10 * SECOND;
	l.steps[1].written_ns = 9 * SECOND;
	l.steps[2].written_ns = 9 * SECOND - 1;
	(void)decide(&l, (struct sk_retention){ .keep_age_s = 1 });
	expect(&l, "..x");
	(void)decide(&l, (struct sk_retention){ .keep_age_s = INT64_MAX });
	expect(&l, "...");
}

Test(retention, keeps_the_last_and_every_nth)
{
	struct list l = { .n = 0 };

	for (int64_t step = 10; step > 0; step--)
		add(&l, 1, step, 2, 3);
	cr_assert_eq(decide(&l, (struct sk_retention){ 0 }), 0);
	expect(&l, "..........");
	cr_assert_eq(decide(&l, (struct sk_retention){ .keep_last = 3 }), 7);
	expect(&l, "...xxxxxxx");
	(void)decide(&l, (struct sk_retention){ .keep_last = 3,
						.keep_every = 4 });
	expect(&l, "...xxx.xxx");
	/* By itself it lets nothing go. */
	(void)decide(&l, (struct sk_retention){ .keep_every = 4 });
	expect(&l, "..........");
	(void)decide(&l, (struct sk_retention){ .keep_age_s = 2 });
	expect(&l, "...xxxxxxx");
	(void)decide(&l, (struct sk_retention){ .keep_bytes = 4 });
	expect(&l, "....xxxxxx");
	l.steps[5].pinned = true;
	l.steps[6].in_use = true;
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, ".xxxx..xxx");
}

Test(retention, the_newest_complete_one_stays_whatever_is_said)
{
	const struct sk_retention hard = { .keep_last = 1, .keep_age_s = 1,
					   .keep_bytes = 1 };
	struct list l = { .n = 0 };

	/* Two that may still become complete, one of another day. */
	add(&l, 2, 5, 2, 1);
	add(&l, 2, 4, 2, 2);
	add(&l, 1, 1, 2, 3)->bytes = 100;
	add(&l, 1, 0, 2, 3);
	(void)decide(&l, hard);
	expect(&l, "...x");
}

/* A job that goes back is at the steps that it had before; those of the run
 * that was are older, whatever their number. */
Test(retention, rolled_back_steps_are_the_newest)
{
	struct list l = { .n = 0 };

	add(&l, 2, 12, 1, 1);
	add(&l, 2, 11, 1, 1);
	add(&l, 1, 30, 1, 1);
	add(&l, 1, 20, 1, 1);
	(void)decide(&l, (struct sk_retention){ .keep_last = 2 });
	expect(&l, "..xx");
}

/* What a dead run left half way goes when a newer one has been completed
 * since, and not before: another node may be at it. */
Test(retention, incomplete_ones_go_for_what_was_completed_later)
{
	struct list l = { .n = 0 };

	add(&l, 2, 40, 2, 3);
	add(&l, 2, 30, 2, 1)->written_ns = 9999 * SECOND;
	add(&l, 1, 20, 2, 1);
	add(&l, 1, 10, 2, 3);
	(void)decide(&l, (struct sk_retention){ .keep_last = 4 });
	expect(&l, "..x.");
}

/* No step is ever complete on a disk that one node alone has. */
Test(retention, a_node_of_its_own_keeps_the_last_of_its_ranks)
{
	struct list l = { .n = 0 };

	for (int64_t step = 9; step > 0; step--)
		add(&l, 1, step, 4, 3);
	(void)decide(&l, (struct sk_retention){ .keep_last = 3 });
	expect(&l, "...xxxxxx");
	/* One that its ranks are still at is none yet. */
	l.ranks[0] = 1;
	(void)decide(&l, (struct sk_retention){ .keep_last = 3 });
	expect(&l, "....xxxxx");
}

/* What the others have written may be the one before its newest: whatever is
 * said, that stays as well. */
Test(retention, a_node_of_its_own_keeps_one_for_those_behind)
{
	struct list l = { .n = 0 };

	for (int64_t step = 5; step > 0; step--)
		add(&l, 1, step, 4, 3)->bytes = 100;
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, "..xxx");
	(void)decide(&l, (struct sk_retention){ .keep_bytes = 100 });
	expect(&l, "..xxx");
	/* What it has of a new run replaces nothing yet. */
	l = (struct list){ .n = 0 };
	add(&l, 2, 6, 4, 3);
	for (int64_t step = 5; step > 2; step--)
		add(&l, 1, step, 4, 3);
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, "..xx");
}

/* What a restart passed over takes no other's place. */
Test(retention, a_node_of_its_own_does_not_count_what_nobody_goes_back_to)
{
	struct list l = { .n = 0 };

	add(&l, 2, 10, 2, 1);
	add(&l, 1, 10, 2, 1)->passed = true;
	add(&l, 1, 9, 2, 1);
	add(&l, 1, 8, 2, 1);
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, "...x");
}

/* On a shared store a node may be behind the others. */
Test(retention, steps_wait_for_a_node_that_is_behind)
{
	struct list l = { .n = 0 };

	for (int64_t step = 40; step > 10; step--)
		add(&l, 1, step, 4, 3);
	add(&l, 1, 10, 4, 15);
	add(&l, 1, 9, 4, 15);
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	for (size_t i = 0; i < 17; i++)
		cr_assert_not(l.steps[i].goes, "step %zu", i);
	cr_assert(l.steps[17].goes, "bounded all the same");
	cr_assert_not(l.steps[30].goes);
	cr_assert(l.steps[31].goes);
}

Test(retention, strangers_are_left_alone)
{
	struct list l = { .n = 0 };

	add(&l, 3, 9, 1, 1);
	add(&l, 2, 9, 1, 1)->run_id = 8;
	add(&l, 2, 8, 1, 1)->ours = true;
	add(&l, 2, 7, 1, 1)->run_id = 8;
	add(&l, 2, 6, 1, 1)->ours = true;
	add(&l, 1, 5, 1, 1);
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, "..x.xx");
}

Test(retention, a_run_that_lives_keeps_its_newest)
{
	struct list l = { .n = 0 };

	add(&l, 2, 5, 1, 1);
	add(&l, 1, 9, 1, 1)->living = true;
	add(&l, 1, 8, 1, 1)->living = true;
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, "..x");
}

/* What its ranks go back to: no half of a later one, and nothing that somebody
 * else calls by its number. */
Test(retention, what_a_run_that_lives_has_whole_stays)
{
	struct list l = { .n = 0 };

	add(&l, 3, 1, 1, 1);
	add(&l, 2, 9, 2, 1)->living = true;
	add(&l, 2, 8, 2, 3)->living = true;
	add(&l, 2, 7, 2, 3)->living = true;
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, ".x.x");
	l = (struct list){ .n = 0 };
	add(&l, 3, 1, 1, 1);
	add(&l, 2, 9, 1, 1)->run_id = 8;
	for (int64_t step = 8; step > 6; step--) {
		struct sk_retain_step *s = add(&l, 2, step, 1, 1);

		s->living = true;
		s->ours = true;
	}
	(void)decide(&l, (struct sk_retention){ .keep_last = 1 });
	expect(&l, "...x");
}

/* Of old ones nothing is known but the name: enough complete ones before them
 * are. */
Test(retention, names_alone_go_when_enough_is_known_to_be_newer)
{
	struct list l = { .n = 0 };

	for (int64_t step = 6; step > 0; step--) {
		struct sk_retain_step *s = add(&l, 1, step, 1, 1);

		s->looked = s->complete = step > 3;
		s->bytes = s->looked;
	}
	(void)decide(&l, (struct sk_retention){ .keep_last = 3 });
	expect(&l, "...xxx");
	cr_assert_not(sk_retain_is_short(l.steps, l.n, &(struct sk_retention){
					 .keep_last = 3 }));
	(void)decide(&l, (struct sk_retention){ .keep_last = 4 });
	expect(&l, "......");
	cr_assert(sk_retain_is_short(l.steps, l.n, &(struct sk_retention){
				     .keep_last = 4 }));
	/* What may go is no lack while enough is there, nor is there one
	 * where nothing may go. */
	l.steps[5].looked = true;
	cr_assert_not(sk_retain_is_short(l.steps, l.n, &(struct sk_retention){
					 .keep_last = 2 }));
	for (size_t i = 0; i < l.n; i++)
		l.steps[i].looked = true;
	cr_assert_not(sk_retain_is_short(l.steps, l.n, &(struct sk_retention){
					 .keep_last = 4 }));
	/* Nor is there too little of what nobody counts. */
	cr_assert_not(sk_retain_is_short(l.steps, l.n, &(struct sk_retention){
					 .keep_age_s = 4 }));
}

/* ---- against the rules, read aloud ---- */

static bool strange(const struct list *l, size_t i)
{
	for (size_t j = 0; j < l->n; j++) {
		if (l->steps[j].run == l->steps[i].run &&
		    l->steps[j].run_id != l->steps[i].run_id)
			return !l->steps[i].ours;
	}
	return false;
}

static bool same(const struct list *l, size_t i, size_t j)
{
	return l->steps[i].run == l->steps[j].run &&
	       l->steps[i].run_id == l->steps[j].run_id;
}

static bool covers(const struct list *l, size_t j, size_t i)
{
	return l->steps[i].looked && l->steps[j].looked &&
	       l->steps[i].world == l->steps[j].world &&
	       !(l->ranks[i] & ~l->ranks[j]);
}

static bool full(const struct list *l, size_t i)
{
	uint64_t all = 0;

	for (size_t j = 0; j < l->n; j++) {
		if (same(l, i, j) && l->steps[j].looked)
			all |= l->ranks[j];
	}
	return l->steps[i].looked && l->ranks[i] == all;
}

static size_t newest_of(const struct list *l)
{
	size_t i = 0;

	while (i < l->n && (!l->steps[i].complete || strange(l, i)))
		i++;
	return i;
}

static bool may_go(const struct list *l, size_t i)
{
	const struct sk_retain_step *s = &l->steps[i];
	bool newest_of_run = s->complete && s->living;

	for (size_t j = 0; j < i; j++)
		newest_of_run &= !(same(l, i, j) && l->steps[j].complete);
	return !strange(l, i) && !s->pinned && !s->in_use &&
	       i != newest_of(l) && !newest_of_run;
}

static bool replaced(const struct list *l, size_t i, size_t by)
{
	size_t theirs = 0, others = 0;

	if (full(l, i) && by < SK_RETAIN_APART)
		by = SK_RETAIN_APART;
	for (size_t j = 0; j < i; j++) {
		if (strange(l, j) || l->steps[j].passed)
			continue;
		theirs += covers(l, j, i);
		others += !covers(l, j, i) && full(l, j) && !same(l, i, j);
	}
	if (full(l, i) && theirs >= by)
		return true;
	return theirs + others >= by + SK_RETAIN_AWAIT;
}

/* By number and age alone. */
static bool should_go_first(const struct list *l, size_t i,
			    const struct sk_retention *p)
{
	const struct sk_retain_step *s = &l->steps[i];
	size_t newest = newest_of(l), newer = 0;
	bool old;

	if (!sk_retention_limits(p) || !may_go(l, i))
		return false;
	for (size_t j = 0; j < i; j++)
		newer += l->steps[j].complete && !strange(l, j);
	old = p->keep_age_s && newest < l->n &&
	      l->steps[newest].written_ns > s->written_ns &&
	      l->steps[newest].written_ns - s->written_ns >
	      p->keep_age_s * SECOND;
	if (s->complete || !s->looked)
		return old || (p->keep_last && newer >= p->keep_last &&
			       !(p->keep_every &&
				 s->step % p->keep_every == 0));
	if (newest < i)
		return old || l->steps[newest].written_ns > s->written_ns;
	return p->keep_last && replaced(l, i, p->keep_last) &&
	       !(full(l, i) && p->keep_every && s->step % p->keep_every == 0);
}

static bool should_go(const struct list *l, size_t i,
		      const struct sk_retention *p)
{
	const struct sk_retain_step *s = &l->steps[i];
	uint64_t bytes = s->bytes;

	if (should_go_first(l, i, p))
		return true;
	for (size_t j = 0; j < i; j++) {
		if (!strange(l, j) && !should_go_first(l, j, p))
			bytes += l->steps[j].bytes;
	}
	return p->keep_bytes && bytes > p->keep_bytes && may_go(l, i) &&
	       (s->complete || !s->looked || newest_of(l) < i ||
		replaced(l, i, 1));
}

static int newest_first(const void *a, const void *b)
{
	const struct sk_retain_step *x = a, *y = b;

	if (x->run != y->run)
		return x->run > y->run ? -1 : 1;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	return (x->run_id < y->run_id) - (x->run_id > y->run_id);
}

static void draw_list(uint64_t *state, struct list *l)
{
	uint64_t all = 1 + draw(state, 7), seldom = 1 + draw(state, 12);
	size_t n = draw(state, MOST);
	bool apart = draw(state, 3) == 0;

	l->n = 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t ranks = draw(state, seldom) ? 7 : draw(state, 8);
		uint64_t run = 1 + draw(state, all);
		struct sk_retain_step *s;

		ranks &= apart ? 3 : 7;
		s = add(l, run, (int64_t)draw(state, 60), 3, ranks);
		s->run_id = run + 100 * !draw(state, 40);
		s->living = run == all;
		s->ours = run == all && s->run_id == run;
		s->pinned = !draw(state, 30);
		s->in_use = !draw(state, 30);
		s->passed = !s->complete && !draw(state, 8);
		s->bytes = draw(state, 5);
		s->written_ns = draw(state, 100) * SECOND;
	}
	qsort(l->steps, l->n, sizeof(*l->steps), newest_first);
	for (size_t i = 0; i < l->n; i++) {
		uint64_t ranks = *l->steps[i].ranks;

		/* Behind a point nothing is looked into. */
		l->steps[i].looked = i < n - n / 4;
		l->steps[i].complete &= l->steps[i].looked;
		l->steps[i].world = (int32_t)ranks;
	}
	for (size_t i = 0; i < l->n; i++) {
		l->ranks[i] = (uint64_t)l->steps[i].world;
		l->steps[i].ranks = &l->ranks[i];
		l->steps[i].world = 3;
	}
}

Test(retention, random_lists_are_judged_as_the_rules_read)
{
	uint64_t state = 4177, went = 0;
	struct list l;

	for (int trial = 0; trial < 1500; trial++) {
		struct sk_retention p = {
			.keep_last = (uint32_t)draw(&state, 6),
			.keep_every = (uint32_t)draw(&state, 5),
			.keep_age_s = draw(&state, 3) ? 0 : draw(&state, 80),
			.keep_bytes = draw(&state, 3) ? 0 : draw(&state, 60),
		};
		int n;

		draw_list(&state, &l);
		n = decide(&l, p);
		cr_assert_geq(n, 0);
		went += (uint64_t)n;
		for (size_t i = 0; i < l.n; i++)
			cr_assert_eq(l.steps[i].goes, should_go(&l, i, &p),
				     "trial %d, step %zu of %zu", trial, i,
				     l.n);
	}
	cr_assert_gt(went, 7500, "%d", (int)went);
}
