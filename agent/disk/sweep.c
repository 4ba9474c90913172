/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/sweep.h"

#include "agent.h"

#define SWEEP_NS (UINT64_C(30) * 1000000000)
#define FIRST_NS (UINT64_C(2) * 1000000000)
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

/* Beside those who read the store, which works where writing hangs. */
static void begin(struct sweep *s)
{
	s->work.run = run_sweep;
	s->work.finish = swept;
	work_submit(&s->agent->loop.works, s->agent->keeping, &s->work);
}

static void time_to(struct timer *timer)
{
	struct sweep *s = sk_link_object(timer, struct sweep, timer);

	s->n++;
	begin(s);
}

int sweep_open(struct agent *a)
{
	struct sweep *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->agent = a;
	s->n = ALL_AFTER - 1;	/* the next one is of all */
	s->timer.fire = time_to;
	a->sweep = s;
	begin(s);
	/* Steps that got their names back are seen by the first look; but what
	 * memory holds is not to wait for a disk that does not answer. */
	if (!works_drain_until(&a->loop.works, agent_now(a) + FIRST_NS))
		log_warning(a, "the store %s takes no writes for now: what dead "
			    "agents left there goes later", a->opts->store);
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
