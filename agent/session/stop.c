/* SPDX-License-Identifier: Apache-2.0 */
#include "session/stop.h"

#include <assert.h>

#include "agent.h"
#include "disk/flush.h"

#define SECOND_NS UINT64_C(1000000000)

void agent_stop_now(struct agent *a)
{
	/* A write under way ends at its next piece. */
	atomic_store(&a->abort, true);
	a->quit = true;
}

static void stop_time_over(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, stop_timer);

	assert(a->stopping);
	log_error(a, "the time to flush is over");
	agent_stop_now(a);
}

void agent_stop(struct agent *a, const char *why)
{
	struct sk_cat_job *job;

	if (a->stopping)
		return;
	log_info(a, "stopping: %s", why);
	a->stopping = true;
	flush_try_anew(a);
	sk_link_each(job, &a->cat.jobs, link)
		flush_newest(a, job);
	a->stop_timer.fire = stop_time_over;
	timer_set(&a->loop.timers, &a->stop_timer, agent_now(a) +
		  a->now.stop_timeout_s * SECOND_NS);
	agent_changed(a);
}

void agent_stop_signal(struct agent *a, bool from_keeper, const char *why)
{
	if (++a->stop_signals[from_keeper] == 1) {
		agent_stop(a, why);
		return;
	}
	log_warning(a, "stopping at once: %s", why);
	agent_stop_now(a);
}

static void idle(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, idle_timer);

	assert(!a->n_sessions);
	agent_stop(a, "nobody has been connected for a while");
}

void agent_check_idle(struct agent *a)
{
	timer_clear(&a->loop.timers, &a->idle_timer);
	if (!a->now.idle_exit_s || a->n_sessions || a->stopping)
		return;
	a->idle_timer.fire = idle;
	timer_set(&a->loop.timers, &a->idle_timer, agent_now(a) +
		  a->now.idle_exit_s * SECOND_NS);
}
