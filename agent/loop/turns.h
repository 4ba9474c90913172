/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns: whose is next, of all who have something for the loop to do.
 *
 * A fair queue by time: of the users who have something to do the one is next
 * on whom least was spent, and of that user's processes the one on which least
 * was. So however much some ask for, over however many connections, who asks
 * for little is next as soon as the portion that is under way is over. Nobody
 * saves up: who comes after a while stands where the others are, and who comes
 * anew not before those who left, or one that leaves after each request would
 * be the next for good.
 * (Start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996.)
 *
 * Thread-safety: none; all of it is the loop's thread's.
 */
#ifndef SK_AGENT_LOOP_TURNS_H
#define SK_AGENT_LOOP_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/link.h"
#include "base/os.h"

/** What must be done by the loop's thread: in portions, so that nobody waits
 * for all of it. Those of one party take turns. */
struct chore {
	/** Does a portion, which is bounded. Queued no more meanwhile: what has
	 * more to do queues itself anew. May free the chore. */
	void (*run)(struct chore *chore);
	struct party *party;	/* whose it is; NULL: the agent's own. It stays
				 * as long as this is queued. */
	bool brief;		/* others may follow in the same turn */
	struct sk_link link;	/* in the party; on its own: idle. Whoever frees
				 * a chore that is queued removes it here. */
};

/** A process of a user, while it has connections. */
struct party {
	struct sk_link link;	/* in its user */
	struct sk_link due;	/* in its user's, while it has chores */
	struct sk_link chores;
	struct user *user;
	uint64_t at;		/* spent on it, ns, or where it came in */
	pid_t pid;
	unsigned refs;
	unsigned unheard;	/* its connections that said nothing yet */
	unsigned pending;	/* its requests that wait */
	uint64_t look;		/* the round of its last look at the store */
};

/** All that a user has. */
struct user {
	struct sk_link link;	/* in the turns */
	struct sk_link due;	/* in the turns', while a party is */
	struct sk_link parties, due_parties;
	uint64_t at;
	uint64_t clock;		/* where its parties are */
	uint64_t left;		/* where the last were that left */
	uint64_t look;		/* the round of looks of its parties */
	uint64_t looks;		/* the round that its next look is in */
	uid_t uid;
};

struct turns {
	struct sk_link users, due_users;
	uint64_t clock;		/* where users are */
	uint64_t left;		/* the same of users */
	struct user own_user;	/* the agent itself */
	struct party own;
};

void turns_init(struct turns *t);
/** The party of that process from now on, until it leaves as often. A pid that
 * is not known (<= 0): a party of its own each time. -ENOMEM. */
int turns_join(struct turns *t, uid_t uid, pid_t pid, struct party **ret);
/** None of what it had is queued any more, if that was the last one. */
void turns_leave(struct turns *t, struct party *party);
/** @chore's next portion is due; it is idle. */
void turns_queue(struct turns *t, struct chore *chore);
/** Something was done for it that was no chore. */
void turns_charge(struct party *party, uint64_t ns);
/** Nothing is due. */
bool turns_idle(const struct turns *t);
/** Has the next one do a portion. Whether another may follow in this turn. */
bool turns_take(struct turns *t, const struct sk_os *os);

#endif
