/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/leftover.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "catalogue/pins.h"
#include "disk/flush.h"
#include "disk/index.h"
#include "disk/retain.h"
#include "memory/record.h"

/* A step's directory on its way out. */
struct leftover {
	struct work work;
	struct agent *agent;
	char job[SK_JOB_MAX + 1];
	uid_t uid;
	struct sk_store_run run;
	int64_t step;
	uint32_t looks;			/* the agent's, when it began */
	unsigned pins;			/* of the step, then */
	int32_t world;
	bool *own;			/* ranks of it that are this agent's */
	char dir[SK_CAT_DIR_MAX];
	int result;
	struct sk_err err;
};

static struct leftover *leftover_free(struct leftover *l)
{
	if (l)
		free(l->own);
	free(l);
	return NULL;
}

/* Where what the disk has of it lies; NULL: it has nothing. */
static const char *dir_of(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->stored.dir[0])
			return image->stored.dir;
	}
	return NULL;
}

/* Of ranks that never came to this agent nobody here knows what becomes: as
 * long as it knows the snapshot, it knows those that did. */
static int note_own(const struct sk_cat_snapshot *s, struct leftover *l)
{
	const struct sk_cat_run *run = sk_cat_run_find(s->job, s->run,
						       s->run_id);
	const struct sk_cat_state *state;

	l->world = s->world;
	l->own = calloc((size_t)s->world, sizeof(*l->own));
	if (!run || !l->own)
		return -ENOENT;
	sk_link_each(state, &run->states, link) {
		if (state->rank < s->world)
			l->own[state->rank] = true;
	}
	return 0;
}

/* Memory has nothing of it, so that nothing is to be added; and there is a
 * newer one that takes its place. */
static bool is_left_over(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest = sk_cat_newest(s->job);

	return sk_link_empty(&s->live) && !s->shared && newest &&
	       newest != s &&
	       sk_cat_order(newest->run, newest->run_id, newest->step, s) > 0 &&
	       !s->leases && !s->flushing && !s->pinned && !s->filling &&
	       sk_cat_hopeless(s) && !sk_cat_begun_with(s);
}

static void delete_step(struct work *work)
{
	struct leftover *l = sk_link_object(work, struct leftover, work);

	l->result = sk_store_retire_own(l->agent->store, l->job, l->dir,
					&l->run, l->own, l->world, &l->err);
}

/* What is refused else is so for now: the next flush that fails asks again. */
static void note_refused(const struct leftover *l)
{
	struct sk_cat_job *job = sk_cat_job_find(&l->agent->cat, l->job,
						 l->uid);
	struct sk_cat_snapshot *s = NULL;

	if (job)
		s = sk_cat_snapshot_find(job, l->run.number, l->run.id,
					 l->step);
	if (s && l->result == -EEXIST) {
		s->shared = true;
	} else if (s && l->result == -EBUSY && !s->unpinning &&
		   (!s->unpinned_at || s->unpinned_at < l->looks)) {
		s->pinned = s->pin_stored = true;
		s->pin_stored_at = l->agent->looks;
		(void)sk_cat_want_pinned(s);
		record_snapshot(l->agent, s);
	}
}

static void deleted(struct work *work)
{
	struct leftover *l = sk_link_object(work, struct leftover, work);
	struct agent *a = l->agent;

	index_changed(a, l->job);
	if (l->result == 0) {
		retain_forget(a, l->job, l->uid, &l->run, l->step, l->dir,
			      l->pins);
		log_warning(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is "
			    "deleted from disk: it was written in part when "
			    "there was no room, the rest is lost, and newer "
			    "steps need what it takes", l->job, l->run.number,
			    l->step);
	}
	a->leftover = NULL;
	if (l->result == 0)
		flush_room_came(a);
	note_refused(l);
	if (l->result == 0 || l->result == -EEXIST || l->result == -EBUSY)
		leftover_clear(a);
	leftover_free(l);
	agent_changed(a);
}

/* False: not of this one. */
static bool begin(struct agent *a, const struct sk_cat_snapshot *s,
		  const char *dir)
{
	struct leftover *l = calloc(1, sizeof(*l));

	if (!l || note_own(s, l) < 0) {
		leftover_free(l);
		return false;
	}
	l->agent = a;
	memcpy(l->job, s->job->name, sizeof(l->job));
	l->uid = s->job->uid;
	l->run = (struct sk_store_run){ s->run, s->run_id };
	l->step = s->step;
	l->looks = a->looks;
	l->pins = s->pins;
	memcpy(l->dir, dir, sizeof(l->dir));
	l->work.run = delete_step;
	l->work.finish = deleted;
	a->leftover = l;
	work_submit(&a->loop.works, a->keeping, &l->work);
	return true;
}

void leftover_clear(struct agent *a)
{
	struct sk_cat_snapshot *s;

	if (a->leftover || a->quit)
		return;
	sk_link_each(s, &a->cat.failing, failing) {
		const char *dir = is_left_over(s) ? dir_of(s) : NULL;

		a->cat.visits++;
		if (dir && begin(a, s, dir))
			return;
	}
}

void leftover_close(struct agent *a)
{
	a->leftover = leftover_free(a->leftover);
}
