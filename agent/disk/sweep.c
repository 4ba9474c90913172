/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/sweep.h"

#include "agent.h"

#define SWEEP_NS (UINT64_C(30) * 1000000000)
#define ALL_AFTER 120u		/* sweeps: those of unknown agents too */

struct sweep {
	struct work work;
	struct timer timer;
	struct agent *agent;
	unsigned n;
	unsigned dead;		/* agents; the background's */
};

static void run_sweep(struct work *work)
{
	struct sweep *s = sk_link_object(work, struct sweep, work);

	s->dead = sk_store_sweep(s->agent->store, s->n % ALL_AFTER ?
				 SK_STORE_DEAD_ONLY : SWEEP_STALE_S);
}

static void wait_for_next(struct sweep *s)
{
	timer_set(&s->agent->loop.timers, &s->timer,
		  agent_now(s->agent) + SWEEP_NS);
}

static void swept(struct work *work)
{
	struct sweep *s = sk_link_object(work, struct sweep, work);

	if (s->dead)
		log_info(s->agent, "removed what %u dead agents left on the "
			 "store", s->dead);
	wait_for_next(s);
}

static void time_to(struct timer *timer)
{
	struct sweep *s = sk_link_object(timer, struct sweep, timer);

	s->n++;
	s->work.run = run_sweep;
	s->work.finish = swept;
	work_submit(&s->agent->loop.works, s->agent->slow, &s->work);
}

int sweep_open(struct agent *a)
{
	struct sweep *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->agent = a;
	s->n = ALL_AFTER - 1;	/* the first one is of all */
	s->timer.fire = time_to;
	a->sweep = s;
	wait_for_next(s);
	return 0;
}

void sweep_close(struct agent *a)
{
	if (!a->sweep)
		return;
	timer_clear(&a->loop.timers, &a->sweep->timer);
	free(a->sweep);
	a->sweep = NULL;
}
