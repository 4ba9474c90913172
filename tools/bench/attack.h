/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attacks: processes that keep an agent busy with what a client may send, and
 * with what none may, as fast as they can.
 */
#ifndef SK_BENCH_ATTACK_H
#define SK_BENCH_ATTACK_H

#include "bench.h"

/* Processes of one kind. */
struct attack {
	const char *name;
	/* In a process of its own, until it is killed. */
	void (*run)(struct bench *b, int who);
};

/* The one that asks the agent for nothing, and takes a core. */
extern const struct attack attack_none;
/* The @i-th of the others; NULL: that were all. */
const struct attack *attack_at(int i);

#define ATTACKERS_MAX 64

struct attackers {
	pid_t pids[ATTACKERS_MAX];
	int n;
};

/* Begins @n of them, which end with this process. 0 or negative errno. */
int attackers_start(struct bench *b, const struct attack *attack, int n,
		    struct attackers *ret);
/* Kills them, and waits. */
void attackers_end(struct attackers *a);

#endif
