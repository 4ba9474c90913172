/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/lanes.h"

#include <assert.h>
#include <stdbool.h>

void lanes_init(struct lanes *lanes, struct works *works,
		struct sk_pool *pool)
{
	*lanes = (struct lanes){ .works = works, .pool = pool };
	sk_link_init(&lanes->waiting);
	sk_link_init(&lanes->running);
}

static void run_lane(struct work *work)
{
	struct lane_work *w = sk_link_object(work, struct lane_work, work);

	w->run(w);
}

static bool is_running(const struct lanes *lanes, uid_t uid)
{
	const struct lane_work *w;

	sk_link_each(w, &lanes->running, link) {
		if (w->uid == uid)
			return true;
	}
	return false;
}

/* The oldest of each user who has nothing under way. The pool's queue is
 * short so: one for each user at most. */
static void start_free(struct lanes *lanes)
{
	struct lane_work *w;

	sk_link_each(w, &lanes->waiting, link) {
		if (is_running(lanes, w->uid))
			continue;
		sk_link_remove(&w->link);
		sk_link_insert(&lanes->running, &w->link);
		work_submit(lanes->works, lanes->pool, &w->work);
	}
}

static void finish_lane(struct work *work)
{
	struct lane_work *w = sk_link_object(work, struct lane_work, work);
	struct lanes *lanes = w->lanes;

	sk_link_remove(&w->link);
	w->finish(w);
	start_free(lanes);
}

unsigned lanes_waiting(const struct lanes *lanes, uid_t uid)
{
	const struct lane_work *w;
	unsigned n = 0;

	sk_link_each(w, &lanes->waiting, link)
		n += w->uid == uid;
	return n;
}

void lanes_submit(struct lanes *lanes, uid_t uid, struct lane_work *work)
{
	assert(work->run && work->finish);
	work->work = (struct work){ .run = run_lane, .finish = finish_lane };
	work->lanes = lanes;
	work->uid = uid;
	sk_link_init(&work->link);
	sk_link_insert(&lanes->waiting, &work->link);
	start_free(lanes);
}
