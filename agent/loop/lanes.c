/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/lanes.h"

#include <assert.h>
#include <string.h>

#include "base/table.h"

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

/* What the user has under way, or NULL. */
static const struct lane_work *running_of(const struct lanes *lanes, uid_t uid)
{
	const struct lane_work *w;

	sk_link_each(w, &lanes->running, link) {
		if (w->uid == uid)
			return w;
	}
	return NULL;
}

/* Of a user who has nothing under way the oldest of the first round. The
 * pool's queue is short so: one for each user at most. */
static void start_next(struct lanes *lanes, uid_t uid)
{
	struct lane_work *w, *next = NULL;

	if (running_of(lanes, uid))
		return;
	sk_link_each(w, &lanes->waiting, link) {
		if (w->uid == uid && (!next || w->round < next->round))
			next = w;
	}
	if (!next)
		return;
	sk_link_remove(&next->link);
	sk_link_insert(&lanes->running, &next->link);
	work_submit(lanes->works, lanes->pool, &next->work);
}

/* One of each job, and then the next of each: it is the one that is under way,
 * or that after the job's last one. */
static uint64_t round_of(const struct lanes *lanes, uid_t uid, uint64_t job)
{
	const struct lane_work *now = running_of(lanes, uid), *w;
	uint64_t round = now ? now->round + (now->job == job) : 0;

	sk_link_each(w, &lanes->waiting, link) {
		if (w->uid == uid && w->job == job && w->round >= round)
			round = w->round + 1;
	}
	return round;
}

static void finish_lane(struct work *work)
{
	struct lane_work *w = sk_link_object(work, struct lane_work, work);
	struct lanes *lanes = w->lanes;
	uid_t uid = w->uid;

	sk_link_remove(&w->link);
	w->finish(w);
	start_next(lanes, uid);
}

unsigned lanes_waiting(const struct lanes *lanes, uid_t uid)
{
	const struct lane_work *w;
	unsigned n = 0;

	sk_link_each(w, &lanes->waiting, link)
		n += w->uid == uid;
	return n;
}

void lanes_submit(struct lanes *lanes, uid_t uid, const char *job,
		  struct lane_work *work)
{
	assert(work->run && work->finish);
	work->work = (struct work){ .run = run_lane, .finish = finish_lane };
	work->lanes = lanes;
	work->uid = uid;
	work->job = sk_hash_bytes(sk_hash_seed(), job, strlen(job));
	work->round = round_of(lanes, uid, work->job);
	sk_link_init(&work->link);
	sk_link_insert(&lanes->waiting, &work->link);
	start_next(lanes, uid);
}
