/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/turns.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* What a portion costs at least, where a clock stands still, and at most, where
 * it was set, or the machine slept. */
#define LEAST_NS UINT64_C(1000)
#define MOST_NS UINT64_C(100000000)

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void user_init(struct turns *t, struct user *u, uid_t uid)
{
	*u = (struct user){ .uid = uid, .at = later(t->clock, t->left) };
	sk_link_init(&u->link);
	sk_link_init(&u->due);
	sk_link_init(&u->parties);
	sk_link_init(&u->due_parties);
	sk_link_insert(&t->users, &u->link);
}

static void party_init(struct user *u, struct party *p, pid_t pid)
{
	*p = (struct party){ .user = u, .pid = pid,
			     .at = later(u->clock, u->left) };
	sk_link_init(&p->link);
	sk_link_init(&p->due);
	sk_link_init(&p->chores);
	sk_link_insert(&u->parties, &p->link);
}

void turns_init(struct turns *t)
{
	*t = (struct turns){ .clock = 0 };
	sk_link_init(&t->users);
	sk_link_init(&t->due_users);
	user_init(t, &t->own_user, 0);
	party_init(&t->own_user, &t->own, 0);
	t->own.refs = 1;	/* it never leaves */
}

/* ---- who there is ---- */

static struct user *find_user(struct turns *t, uid_t uid)
{
	struct user *u;

	sk_link_each(u, &t->users, link) {
		if (u != &t->own_user && u->uid == uid)
			return u;
	}
	u = malloc(sizeof(*u));
	if (u)
		user_init(t, u, uid);
	return u;
}

static void trim_user(struct turns *t, struct user *u)
{
	if (u == &t->own_user || !sk_link_empty(&u->parties))
		return;
	t->left = later(t->left, u->at);
	sk_link_remove(&u->due);
	sk_link_remove(&u->link);
	free(u);
}

int turns_join(struct turns *t, uid_t uid, pid_t pid, struct party **ret)
{
	struct user *u = find_user(t, uid);
	struct party *p;

	if (!u)
		return -ENOMEM;
	sk_link_each(p, &u->parties, link) {
		if (pid <= 0 || p->pid != pid)
			continue;
		p->refs++;
		*ret = p;
		return 0;
	}
	p = malloc(sizeof(*p));
	if (!p) {
		trim_user(t, u);
		return -ENOMEM;
	}
	party_init(u, p, pid);
	p->refs = 1;
	*ret = p;
	return 0;
}

void turns_leave(struct turns *t, struct party *party)
{
	struct user *u = party->user;

	assert(party->refs);
	if (--party->refs)
		return;
	assert(sk_link_empty(&party->chores));
	u->left = later(u->left, party->at);
	sk_link_remove(&party->due);
	sk_link_remove(&party->link);
	free(party);
	trim_user(t, u);
}

/* ---- whose turn it is ---- */

void turns_queue(struct turns *t, struct chore *chore)
{
	struct party *p = chore->party ? chore->party : &t->own;
	struct user *u = p->user;

	assert(chore->run && sk_link_empty(&chore->link));
	sk_link_insert(&p->chores, &chore->link);
	if (sk_link_empty(&p->due))
		sk_link_insert(&u->due_parties, &p->due);
	if (sk_link_empty(&u->due))
		sk_link_insert(&t->due_users, &u->due);
	/* Those that had some already are not behind. */
	p->at = later(p->at, u->clock);
	u->at = later(u->at, t->clock);
}

/* Chores may have been taken back. */
static struct party *least_party(struct user *u)
{
	struct party *p, *least = NULL;

	sk_link_each(p, &u->due_parties, due) {
		if (sk_link_empty(&p->chores))
			sk_link_remove(&p->due);
		else if (!least || p->at < least->at)
			least = p;
	}
	return least;
}

static struct user *least_user(struct turns *t)
{
	struct user *u, *least = NULL;

	sk_link_each(u, &t->due_users, due) {
		if (!least || u->at < least->at)
			least = u;
	}
	return least;
}

/* However many processes the other users have, they are not looked at. */
static struct party *next_party(struct turns *t)
{
	struct party *p;
	struct user *u;

	while ((u = least_user(t))) {
		p = least_party(u);
		if (p)
			return p;
		sk_link_remove(&u->due);
	}
	return NULL;
}

void turns_charge(struct party *party, uint64_t ns)
{
	ns = ns < LEAST_NS ? LEAST_NS : ns > MOST_NS ? MOST_NS : ns;
	party->at += ns;
	party->user->at += ns;
}

bool turns_idle(const struct turns *t)
{
	return sk_link_empty(&t->due_users);
}

bool turns_take(struct turns *t, const struct sk_os *os)
{
	struct party *p = next_party(t);
	struct chore *chore;
	uint64_t began;
	bool brief;

	if (!p)
		return false;
	t->clock = p->user->at;
	p->user->clock = p->at;
	chore = sk_link_object(p->chores.next, struct chore, link);
	sk_link_remove(&chore->link);
	brief = chore->brief;
	began = os->now_ns(os);
	p->refs++;	/* its last connection may end by this */
	chore->run(chore);
	turns_charge(p, os->now_ns(os) - began);
	turns_leave(t, p);
	return brief;
}
