/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/cadence.h"

#include "agent.h"
#include "disk/flush.h"

#define SECOND_NS UINT64_C(1000000000)

static uint64_t interval_ns(const struct agent *a)
{
	return a->now.flush_interval_s * SECOND_NS;
}

/* Has been written, or will be without our help. */
static bool is_cared_for(const struct sk_cat_snapshot *s)
{
	return !s || !s->by_cadence || s->wanted || s->hopeless_on_disk ||
	       sk_cat_on_disk(s);
}

static void look(struct timer *timer);

static void look_later(struct agent *a)
{
	a->cadence_timer.fire = look;
	/* The time may have been a longer one, before the options changed. */
	timer_set_by(&a->loop.timers, &a->cadence_timer,
		     agent_now(a) + interval_ns(a));
}

/* Training may have stopped, or gone over to other steps. */
static void look(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, cadence_timer);
	uint64_t now = agent_now(a);
	struct sk_cat_job *job;

	sk_link_each(job, &a->cat.jobs, link) {
		if (!job->cadence.at_ns || is_cared_for(sk_cat_newest(job)))
			continue;
		if (now - job->flushed_ns >= 2 * interval_ns(a))
			flush_newest(a, job);
		else
			look_later(a);
	}
}

void cadence_step(struct agent *a, const struct sk_cat_state *state,
		  int64_t step)
{
	struct sk_cat_job *job = state->run->job;
	uint64_t now = agent_now(a), least = interval_ns(a);

	if (!a->store)
		return;
	/* As much rest for the disk as it had work. */
	if (least && least < 2 * job->flush_took_ns)
		least = 2 * job->flush_took_ns;
	sk_cadence_step(&job->cadence, state->run->number, state->run->id, step,
			now, least);
	if (!job->flushed_ns)
		job->flushed_ns = now;
	if (least)
		look_later(a);
}

void cadence_sealed(struct agent *a, const struct sk_cat_snapshot *s)
{
	if (a->store && s->by_cadence && !s->wanted && interval_ns(a))
		look_later(a);
}

void cadence_close(struct agent *a)
{
	timer_clear(&a->loop.timers, &a->cadence_timer);
}
