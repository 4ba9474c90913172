/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is, on a clock that chores move. */
#include "loop/turns.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define US UINT64_C(1000)
#define SOME 64

struct rig {
	struct sk_os os;
	struct turns turns;
	uint64_t now;
	struct {
		const struct job *job;
	} order[4096];
	size_t n;
};

/* Asks for as much as it may, or for one portion at a time. */
struct job {
	struct chore chore;
	struct rig *rig;
	uint64_t cost;		/* of a portion, ns */
	uint64_t spent;
	unsigned left;		/* portions, after the next */
};

static uint64_t now_ns(const struct sk_os *os)
{
	return sk_link_object(os, const struct rig, os)->now;
}

static void run(struct chore *chore)
{
	struct job *j = sk_link_object(chore, struct job, chore);
	struct rig *rig = j->rig;

	cr_assert(sk_link_empty(&chore->link));
	cr_assert_lt(rig->n, sizeof(rig->order) / sizeof(*rig->order));
	rig->order[rig->n++].job = j;
	rig->now += j->cost;
	j->spent += j->cost;
	if (!j->left)
		return;
	j->left--;
	turns_queue(&rig->turns, chore);
}

static void rig_init(struct rig *rig)
{
	*rig = (struct rig){ .os.now_ns = now_ns, .now = 12345 };
	turns_init(&rig->turns);
}

static struct party *join(struct rig *rig, uid_t uid, pid_t pid)
{
	struct party *p = NULL;

	cr_assert_eq(turns_join(&rig->turns, uid, pid, &p), 0);
	return p;
}

static void leave(struct rig *rig, struct party *p)
{
	turns_leave(&rig->turns, p);
}

static void job_init(struct job *j, struct rig *rig, struct party *party,
		     uint64_t cost)
{
	*j = (struct job){ .rig = rig, .cost = cost,
			   .chore = { .run = run, .party = party,
				      .brief = true } };
	sk_link_init(&j->chore.link);
}

static void ask(struct job *j, unsigned portions)
{
	j->left = portions - 1;
	turns_queue(&j->rig->turns, &j->chore);
}

static void take(struct rig *rig, unsigned n)
{
	while (n--)
		(void)turns_take(&rig->turns, &rig->os);
}

static void take_all(struct rig *rig)
{
	while (!turns_idle(&rig->turns))
		(void)turns_take(&rig->turns, &rig->os);
}

/* ---- who asks for little ---- */

Test(turns, who_asks_for_little_is_next)
{
	struct party *many, *one;
	struct job crowd[SOME], j;
	struct rig rig;

	rig_init(&rig);
	many = join(&rig, 1000, 1);
	one = join(&rig, 1000, 2);
	for (int i = 0; i < SOME; i++) {
		job_init(&crowd[i], &rig, many, 50 * US);
		ask(&crowd[i], 10);
	}
	job_init(&j, &rig, one, 10 * US);
	take(&rig, 100);
	for (int i = 0; i < 20; i++) {
		size_t before = rig.n;

		ask(&j, 1);
		take(&rig, 1);
		cr_assert_eq(rig.order[before].job, &j, "round %d", i);
		take(&rig, 2);
	}
	take_all(&rig);
	cr_assert_eq(rig.n, SOME * 10 + 20, "each portion once");
	leave(&rig, many);
	leave(&rig, one);
}

/* Another user's processes, however many, are one user's. */
Test(turns, users_first)
{
	struct party *crowd[SOME], *one;
	struct job jobs[SOME], j;
	uint64_t others = 0;
	struct rig rig;

	rig_init(&rig);
	for (int i = 0; i < SOME; i++) {
		crowd[i] = join(&rig, 1001, 100 + i);
		job_init(&jobs[i], &rig, crowd[i], 20 * US);
		ask(&jobs[i], 1000);
	}
	one = join(&rig, 1000, 2);
	job_init(&j, &rig, one, 30 * US);
	ask(&j, 1000);
	while (j.spent < 6000 * US)
		take(&rig, 1);
	for (int i = 0; i < SOME; i++) {
		others += jobs[i].spent;
		cr_assert_leq(jobs[i].spent, (6000 / SOME + 20) * US);
		cr_assert_geq(jobs[i].spent + 40 * US, 6000 / SOME * US);
		sk_link_remove(&jobs[i].chore.link);
	}
	cr_assert_geq(others, (6000 - 50) * US);
	cr_assert_leq(others, (6000 + 50) * US);
	sk_link_remove(&j.chore.link);
	cr_assert_not(turns_take(&rig.turns, &rig.os), "they were taken back");
	cr_assert(turns_idle(&rig.turns));
	for (int i = 0; i < SOME; i++)
		leave(&rig, crowd[i]);
	leave(&rig, one);
	cr_assert_eq(rig.turns.users.next, &rig.turns.own_user.link);
	cr_assert_eq(rig.turns.users.prev, &rig.turns.own_user.link);
}

/* Time that nobody asked for is not saved up. */
Test(turns, nothing_is_saved)
{
	struct party *busy, *idle;
	struct job a, b;
	struct rig rig;

	rig_init(&rig);
	busy = join(&rig, 1000, 1);
	idle = join(&rig, 1000, 2);
	job_init(&a, &rig, busy, 10 * US);
	job_init(&b, &rig, idle, 10 * US);
	ask(&a, 1000);
	take(&rig, 500);
	a.spent = 0;
	ask(&b, 1000);
	take(&rig, 200);
	cr_assert_leq(b.spent, 1010 * US);
	cr_assert_geq(b.spent, 990 * US);
	take_all(&rig);
	leave(&rig, busy);
	leave(&rig, idle);
}

/* One process comes and goes with each request; it is one of three. */
Test(turns, who_comes_anew_each_time)
{
	struct party *steady[2];
	struct job jobs[2], j;
	unsigned came = 0;
	struct rig rig;

	rig_init(&rig);
	for (int i = 0; i < 2; i++) {
		steady[i] = join(&rig, 1000, 1 + i);
		job_init(&jobs[i], &rig, steady[i], 10 * US);
		ask(&jobs[i], 1000);
	}
	while (jobs[0].spent < 1000 * US) {
		struct party *p = join(&rig, 1000, 7);
		size_t before = rig.n;

		job_init(&j, &rig, p, 10 * US);
		ask(&j, 1);
		for (came++; j.spent == 0;)
			take(&rig, 1);
		cr_assert_leq(rig.n - before, 3);
		leave(&rig, p);
	}
	cr_assert_leq(came, 220, "it has half at most");
	take_all(&rig);
	for (int i = 0; i < 2; i++)
		leave(&rig, steady[i]);
}

/* ---- clocks ---- */

Test(turns, a_clock_that_stands_still)
{
	struct party *parties[3];
	struct job jobs[3];
	struct rig rig;

	rig_init(&rig);
	for (int i = 0; i < 3; i++) {
		parties[i] = join(&rig, 1000, 1 + i);
		job_init(&jobs[i], &rig, parties[i], 0);
		ask(&jobs[i], 10);
	}
	take_all(&rig);
	for (int i = 0; i < 30; i++)
		cr_assert_eq(rig.order[i].job, &jobs[i % 3], "turn %d", i);
	for (int i = 0; i < 3; i++)
		leave(&rig, parties[i]);
}

/* Who was at it when the machine slept for a day is not out for a day. */
Test(turns, a_clock_that_jumps)
{
	const uint64_t day = UINT64_C(86400000000000);
	struct party *slept, *other;
	struct job a, b;
	struct rig rig;

	rig_init(&rig);
	slept = join(&rig, 1000, 1);
	other = join(&rig, 1000, 2);
	job_init(&a, &rig, slept, day);
	ask(&a, 1);
	take(&rig, 1);
	job_init(&a, &rig, slept, 1000 * US);
	job_init(&b, &rig, other, 1000 * US);
	ask(&b, 1000);
	ask(&a, 1);
	while (!a.spent)
		take(&rig, 1);
	cr_assert_leq(b.spent, 102 * 1000 * US);
	take_all(&rig);
	leave(&rig, slept);
	leave(&rig, other);
}

/* ---- lives ---- */

struct last {
	struct chore chore;
	struct turns *turns;
	struct party *party;
};

static void leave_and_end(struct chore *chore)
{
	struct last *l = sk_link_object(chore, struct last, chore);

	turns_leave(l->turns, l->party);
	free(l);
}

Test(turns, the_last_connection_ends_in_its_turn)
{
	struct rig rig;
	struct last *l = malloc(sizeof(*l));

	rig_init(&rig);
	cr_assert_not_null(l);
	*l = (struct last){ .turns = &rig.turns,
			    .party = join(&rig, 1000, 1) };
	l->chore = (struct chore){ .run = leave_and_end, .party = l->party };
	sk_link_init(&l->chore.link);
	turns_queue(&rig.turns, &l->chore);
	cr_assert_not(turns_take(&rig.turns, &rig.os), "it is not brief");
	cr_assert(turns_idle(&rig.turns));
}

Test(turns, who_is_one_party)
{
	struct rig rig;
	struct party *a, *b, *c, *d, *e;

	rig_init(&rig);
	a = join(&rig, 1000, 5);
	b = join(&rig, 1000, 5);
	c = join(&rig, 1001, 5);
	/* Of another namespace, where nobody can tell. */
	d = join(&rig, 1000, 0);
	e = join(&rig, 1000, 0);
	cr_assert_eq(a, b);
	cr_assert_neq(a, c);
	cr_assert_neq(d, e);
	cr_assert_eq(a->user, d->user);
	leave(&rig, a);
	cr_assert_eq(b->refs, 1);
	leave(&rig, b);
	leave(&rig, c);
	leave(&rig, d);
	leave(&rig, e);
}

/* The agent's own is a user's beside the others. */
Test(turns, the_agents_own)
{
	struct party *p;
	struct job own, j;
	struct rig rig;

	rig_init(&rig);
	p = join(&rig, 0, 1);
	job_init(&own, &rig, NULL, 10 * US);
	job_init(&j, &rig, p, 10 * US);
	own.chore.brief = false;
	ask(&own, 100);
	ask(&j, 100);
	take(&rig, 100);
	cr_assert_eq(own.spent, 500 * US);
	cr_assert_eq(j.spent, 500 * US);
	take_all(&rig);
	leave(&rig, p);
}
