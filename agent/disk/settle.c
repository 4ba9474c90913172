/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/settle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "disk/histories.h"
#include "disk/index.h"
#include "memory/record.h"

/* A step whose directory gets the name that readers look for. */
struct settling {
	struct work work;
	struct agent *agent;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	uint64_t step;
	struct sk_store_run run;
	bool pinned, complete;	/* the first: it is to be */
	bool is_pinned;
	bool displaced;		/* an older run's is known to be aside */
	bool again;		/* its pin has failed before: that is said */
	int result;
	struct sk_err err;
};

void settle_name(char dir[SK_CAT_DIR_MAX], int64_t step)
{
	(void)snprintf(dir, SK_CAT_DIR_MAX, "step-%012" PRId64, step);
}

/*
 * Whether an older run's directory of the step may stand aside. To tell by the
 * names, all steps of the job are read; but of almost none there is another
 * one, and the last look at the job has seen them. What another agent has moved
 * aside since then is retention's. In the background, which looks as well.
 */
static bool has_older(const struct settling *t)
{
	const struct sk_history *h = histories_find(t->agent, t->job);

	return t->displaced || !h || sk_history_has_others(h, t->step, &t->run);
}

static void settle_in_store(struct work *work)
{
	struct settling *t = sk_link_object(work, struct settling, work);
	struct sk_store *store = t->agent->store;
	char dir[SK_CAT_DIR_MAX];

	settle_name(dir, (int64_t)t->step);
	if (t->pinned)
		t->result = sk_store_pin(store, t->job, dir, &t->run, true,
					 &t->err);
	t->is_pinned = t->pinned && t->result == 0;
	if (t->complete && t->result == 0 && has_older(t))
		t->result = sk_store_settle(store, t->job, t->step, &t->run,
					    &t->err);
}

/* From now on another agent may unpin it, and who waits for a slot may have its
 * memory. What failed is tried again as long as memory has it: held.c. */
static void note_pin(const struct settling *t)
{
	const struct sk_cat_job *job = sk_cat_job_find(&t->agent->cat, t->job,
						       t->uid);
	struct sk_cat_snapshot *s = job ?
		sk_cat_snapshot_find(job, t->run.number, t->run.id,
				     (int64_t)t->step) : NULL;

	agent_changed(t->agent);
	if (!s)
		return;
	s->pin_settling = false;
	s->pin_failed = !t->is_pinned;
	sk_cat_wake(s->job);
	if (s->pin_failed)
		return;
	s->pin_stored = true;
	s->pin_stored_at = t->agent->looks;
	record_snapshot(t->agent, s);
}

static void step_settled(struct work *work)
{
	struct settling *t = sk_link_object(work, struct settling, work);

	if (t->result < 0 && !t->again)
		log_warning(t->agent, "%s", t->err.text);
	if (t->pinned)
		note_pin(t);
	index_changed(t->agent, t->job);
	free(t);
}

void settle_step(struct agent *a, struct sk_cat_snapshot *s)
{
	struct settling *t;

	if (!s->pinned && !sk_cat_on_disk(s))
		return;
	t = calloc(1, sizeof(*t));
	if (!t)
		return;		/* the next complete flush does it */
	t->agent = a;
	memcpy(t->job, s->job->name, sizeof(t->job));
	t->uid = s->job->uid;
	t->step = (uint64_t)s->step;
	t->run = (struct sk_store_run){ s->run, s->run_id };
	t->pinned = (s->pinning ? s->was_pinned : s->pinned) && !s->unpinning;
	t->complete = sk_cat_on_disk(s);
	t->displaced = s->displaced;
	t->again = t->pinned && s->pin_failed;
	s->pin_settling |= t->pinned;
	t->work.run = settle_in_store;
	t->work.finish = step_settled;
	work_submit(&a->loop.works, a->slow, &t->work);
}
