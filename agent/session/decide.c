/* SPDX-License-Identifier: Apache-2.0 */
#include "session/decide.h"

#include <inttypes.h>
#include <stdlib.h>

#include "agent.h"
#include "disk/flush.h"

#define DECIDE_NS UINT64_C(1000000000)

/* A question that is out. */
struct decision {
	struct lane_work work;
	struct agent *agent;
	struct sk_cat_question *question;
};

static void tell(struct lane_work *work)
{
	struct decision *d = sk_link_object(work, struct decision, work);

	sk_cat_question_run(d->question);
}

static void decide_again(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, decide_timer);
	struct sk_cat_job *job;

	sk_link_each(job, &a->cat.jobs, link) {
		if (!sk_link_empty(&job->undecided))
			sk_cat_wake_for(job, SK_CAT_DECIDE);
	}
	agent_changed(a);
}

/* Who comes later does not put it off. */
static void wait_for_memory(struct agent *a)
{
	a->decide_timer.fire = decide_again;
	timer_set_by(&a->loop.timers, &a->decide_timer,
		     agent_now(a) + DECIDE_NS);
}

static void told(struct lane_work *work)
{
	struct decision *d = sk_link_object(work, struct decision, work);
	struct agent *a = d->agent;
	bool known = sk_cat_question_end(d->question);

	free(d);
	/* Asked again at once it would find no memory again. */
	if (!known) {
		wait_for_memory(a);
		return;
	}
	decide_anew(a);
	agent_changed(a);
}

static int ask(void *ctx, struct sk_cat_question *question)
{
	struct agent *a = ctx;
	struct decision *d = malloc(sizeof(*d));

	if (!d)
		return -ENOMEM;
	*d = (struct decision){ .agent = a, .question = question,
				.work = { .run = tell, .finish = told } };
	lanes_submit(&a->questions, sk_cat_question_uid(question),
		     sk_cat_question_job(question), &d->work);
	return 0;
}

static void completed(void *ctx, const struct sk_cat_snapshot *s)
{
	struct agent *a = ctx;

	a->counts.completed++;
	s->job->figures.completed++;
	s->job->figures.completed_ns = agent_now(a);
	s->job->figures.completed_step = s->step;
	log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is complete",
		 s->job->name, s->run, s->step);
}

void decide_open(struct agent *a)
{
	a->cat.ask = ask;
	a->cat.completed = completed;
}

void decide_anew(struct agent *a)
{
	struct sk_cat_job *job;
	unsigned undecided = 0;
	struct sk_link awake;

	sk_cat_awake_take(&a->cat, SK_CAT_DECIDE, &awake);
	while ((job = sk_cat_awake_next(&awake, SK_CAT_DECIDE))) {
		undecided += sk_cat_refresh(job);
		/* Once: it begins a flush that failed anew. */
		if (job->flush_due && sk_link_empty(&job->undecided))
			flush_newest(a, job);
	}
	flush_go_on(a);
	if (undecided)
		wait_for_memory(a);
}
