/* SPDX-License-Identifier: Apache-2.0 */
#include "health.h"

#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "calls/refusals.h"
#include "disk/faults.h"
#include "disk/held.h"
#include "disk/watch.h"
#include "io/io.h"
#include "memory/record.h"
#include "session/session.h"

#define LOOK_NS UINT64_C(2000000000)
#define SOON_NS UINT64_C(500000000)	/* where one at the store is out */
#define LOCKED_BYTES ((rlim_t)64 << 20)

static void look_at_memlock(struct agent *a)
{
	struct rlimit limit;

	/* Root's is not looked at by the system. */
	if (a->uid != 0 && a->os->getrlimit(a->os, RLIMIT_MEMLOCK,
					    &limit) == 0)
		degraded_is(a, DEGRADED_MEMLOCK,
			    limit.rlim_cur < LOCKED_BYTES, NULL);
}

/* The first that says so. */
static const struct session *find_pageable(const struct agent *a)
{
	const struct session *s;
	const struct sk_cat_state *state;

	sk_link_each(s, &a->sessions, link)
		sk_link_each(state, &s->states, owned)
			if (state->pageable)
				return s;
	return NULL;
}

/* All users see it, and not each other's jobs. */
static void look_at_locking(struct agent *a)
{
	const struct session *s = find_pageable(a);
	char why[32] = "";

	if (s)
		(void)snprintf(why, sizeof(why), "process %d", (int)s->pid);
	degraded_is(a, DEGRADED_GPU_PAGEABLE, s, why);
}

static void look_at_io(struct agent *a)
{
	int direct = a->io ? sk_io_direct(a->io) : -1;

	if (direct >= 0)
		degraded_is(a, DEGRADED_NO_DIRECT, !direct, NULL);
}

static void look(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, health_timer);

	watch_turn(a);
	held_look(a);
	faults_look(a);
	refusals_look(a);
	look_at_memlock(a);
	look_at_locking(a);
	look_at_io(a);
	record_look(a);
	degraded_is(a, DEGRADED_KEEPER, a->keeper.lost, NULL);
	degraded_is(a, DEGRADED_SOCKET, a->displaced, NULL);
	timer_set(&a->loop.timers, &a->health_timer, agent_now(a) +
		  (watch_is_out(a) ? SOON_NS : LOOK_NS));
}

int health_open(struct agent *a)
{
	int r = watch_open(a);

	if (r < 0)
		return r;
	if (a->store && a->store_volatile)
		degraded_set(a, DEGRADED_STORE_VOLATILE, NULL);
	if (a->io && a->opts->backend != SK_IO_THREADS &&
	    strcmp(sk_io_describe(a->io), "threads") == 0)
		degraded_set(a, DEGRADED_NO_URING, NULL);
	a->health_timer.fire = look;
	look(&a->health_timer);
	return 0;
}

void health_close(struct agent *a)
{
	timer_clear(&a->loop.timers, &a->health_timer);
	watch_close(a);
}
