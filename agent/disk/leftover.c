/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/leftover.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "disk/index.h"
#include "disk/retain.h"

/* A step's directory on its way out. */
struct leftover {
	struct work work;
	struct agent *agent;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	struct sk_store_run run;
	int64_t step;
	char dir[SK_CAT_DIR_MAX];
	int result;
	struct sk_err err;
};

/* Where all that the disk has of it lies; NULL: it has nothing. Other agents'
 * ranks are nobody's here. */
static const char *dir_of_ours(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_run *run = sk_cat_run_find(s->job, s->run,
						       s->run_id);
	const struct sk_cat_image *image;
	const char *dir = NULL;

	sk_link_each(image, &s->images, link) {
		if (!image->stored.dir[0])
			continue;
		if (s->elsewhere &&
		    !(run && sk_cat_state_find(run, image->rank)))
			return NULL;
		dir = image->stored.dir;
	}
	return dir;
}

/* Memory has nothing of it, so that nothing is to be added; and there is a
 * newer one that takes its place. */
static bool is_left_over(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest = sk_cat_newest(s->job);

	return sk_link_empty(&s->live) && newest && newest != s &&
	       sk_cat_order(newest->run, newest->run_id, newest->step, s) > 0 &&
	       !s->leases && !s->flushing && !s->pinned && !s->filling &&
	       sk_cat_hopeless(s) && !sk_cat_begun_with(s);
}

static void delete_step(struct work *work)
{
	struct leftover *l = sk_link_object(work, struct leftover, work);

	l->result = sk_store_retire(l->agent->store, l->job, l->dir, &l->run,
				    &l->err);
}

/* What is refused is so for now: the next flush that fails asks again. */
static void deleted(struct work *work)
{
	struct leftover *l = sk_link_object(work, struct leftover, work);
	struct agent *a = l->agent;
	struct sk_cat_snapshot *s;

	index_changed(a, l->job);
	if (l->result == 0) {
		retain_forget(a, l->job, l->uid, &l->run, l->step, l->dir);
		log_warning(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is "
			    "deleted from disk: it was written in part when "
			    "there was no room, the rest is lost, and newer "
			    "steps need what it takes", l->job, l->run.number,
			    l->step);
	}
	a->leftover = NULL;
	if (l->result == 0) {
		sk_link_each(s, &a->cat.failing, failing) {
			s->retry_ns = 0;
			sk_cat_wake_for(s->job, SK_CAT_WRITE);
		}
		leftover_clear(a);
	}
	free(l);
	agent_changed(a);
}

static void begin(struct agent *a, const struct sk_cat_snapshot *s,
		  const char *dir)
{
	struct leftover *l = calloc(1, sizeof(*l));

	if (!l)
		return;
	l->agent = a;
	memcpy(l->job, s->job->name, sizeof(l->job));
	l->uid = s->job->uid;
	l->run = (struct sk_store_run){ s->run, s->run_id };
	l->step = s->step;
	memcpy(l->dir, dir, sizeof(l->dir));
	l->work.run = delete_step;
	l->work.finish = deleted;
	a->leftover = l;
	work_submit(&a->loop.works, a->keeping, &l->work);
}

void leftover_clear(struct agent *a)
{
	struct sk_cat_snapshot *s;

	if (a->leftover || a->quit)
		return;
	sk_link_each(s, &a->cat.failing, failing) {
		const char *dir = is_left_over(s) ? dir_of_ours(s) : NULL;

		a->cat.visits++;
		if (dir) {
			begin(a, s, dir);
			return;
		}
	}
}

void leftover_close(struct agent *a)
{
	free(a->leftover);
	a->leftover = NULL;
}
