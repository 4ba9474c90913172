/* SPDX-License-Identifier: Apache-2.0 */
/* From wishes to looks, one after the other. */
#include "disk/stored.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "disk/histories.h"
#include "disk/index.h"
#include "disk/merge.h"
#include "disk/passed.h"
#include "disk/prove.h"
#include "disk/scan.h"
#include "disk/wrote.h"
#include "wire/message.h"

/* Who was told of older ones may come back to them so long. */
#define ASKED_NS (UINT64_C(30) * 1000000000)
#define LEAVE_AT_ONCE 64u
/* Turns follow each other faster than there is something to leave. */
#define LEAVE_EACH_NS UINT64_C(1000000000)

void stored_name(const struct sk_cat_image *image, struct sk_stored *ret)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	struct sk_stored stored = {
		.step = (uint64_t)s->step, .rank = image->rank,
		.world = s->world,
		.run = { s->run, s->run_id }, .file = image->stored.file,
	};

	memcpy(stored.job, s->job->name, sizeof(stored.job));
	memcpy(stored.dir, image->stored.dir, sizeof(stored.dir));
	*ret = stored;
}

/* The wish may be gone after it. */
static void grant(struct scan *scan, struct stored_wish *w)
{
	struct sk_err err = scan->err;
	int r = scan->result;

	if (r == 0 && w->enters && scan->owner != (uid_t)-1 &&
	    scan->owner != w->uid)
		r = sk_err_set(&err, -EACCES, "the store holds a job \"%s\" of "
			       "another user; choose another name", w->job);
	w->end = scan->end;
	w->newest_run = scan->newest_run;
	w->unreadable = scan->unreadable;
	w->first = scan->first;
	if (w->census && r == 0) {
		*w->census = scan->census;
		scan->census = (struct census){ .n = 0 };
	}
	w->granted(w, r, &err);
}

/* One by one off the list: what is granted may wish anew. */
static void grant_all(struct scan *scan)
{
	while (!sk_link_empty(&scan->wishes)) {
		struct stored_wish *w = sk_link_object(scan->wishes.next,
						       struct stored_wish,
						       link);

		sk_link_remove(&w->link);
		grant(scan, w);
	}
}

/* Whoever waits is connected; see take_back of struct request_kind. */
static struct party *party_of(struct agent *a, const struct stored_wish *wish)
{
	return wish->party ? wish->party : &a->loop.chores.own;
}

/* One of each user who waits, and then the next of each, and of each user's
 * processes the same: however many looks some want, who wants one waits for
 * one of each. */
static void queue_wish(struct agent *a, struct stored_wish *wish)
{
	struct party *p = party_of(a, wish);
	struct user *u = p->user;

	wish->since_ns = agent_now(a);
	if (p->look < u->look)
		p->look = u->look;
	wish->round = ++p->look;
	if (u->looks <= a->wish_round)
		u->looks = a->wish_round + 1;
	sk_link_insert(&a->wishes, &wish->link);
}

static void note_asked(const struct scan *scan)
{
	if (scan->range.most)
		scan->agent->asked_ns = agent_now(scan->agent);
}

static void drop_scan(struct work *work)
{
	scan_drop(sk_link_object(work, struct scan, work));
}

static void scan_dropped(struct work *work)
{
	free(sk_link_object(work, struct scan, work));
}

/* What it found may be much: freeing that takes long. */
static void free_scan(struct agent *a, struct scan *scan)
{
	scan->work.run = drop_scan;
	scan->work.finish = scan_dropped;
	work_submit(&a->loop.works, a->slow, &scan->work);
}

static void over(struct agent *a, struct scan *scan)
{
	if (scan->result < 0)
		passed_all(a, scan);
	if (scan->told < 0)
		log_warning(a, "%s", scan->untold.text);
	grant_all(scan);
	if (scan->learnt)
		index_changed(a, NULL);
	if (scan->unproved)
		prove_later(a);
	free_scan(a, scan);
}

/* There is more to look at: in its turn, which is that of the first of those
 * who wait for it. */
static void line_up(struct agent *a, struct scan *scan)
{
	struct stored_wish *w = sk_link_object(scan->wishes.next,
					       struct stored_wish, link);

	sk_link_remove(&w->link);
	w->scan = scan;
	queue_wish(a, w);
}

static void scan_merged(struct scan *scan)
{
	struct agent *a = scan->agent;

	/* The background has the histories no more: who is granted may read
	 * them. */
	a->scanning = false;
	a->scan = NULL;
	note_asked(scan);
	if (scan->partial && scan->result == 0 &&
	    !sk_link_empty(&scan->wishes))
		line_up(a, scan);
	else
		over(a, scan);
	agent_changed(a);
	stored_go_on(a);
}

static void scan_finished(struct work *work)
{
	struct scan *scan = sk_link_object(work, struct scan, work);

	assert(scan->agent->scanning);
	/* None of them goes before somebody was told of it. */
	note_asked(scan);
	merge_begin(scan->agent, scan, scan_merged);
}

/* ---- the next look ---- */

static bool same_range(const struct stored_range *a,
		       const struct stored_range *b)
{
	return a->most == b->most && a->run == b->run && a->step == b->step;
}

static bool is_before(struct agent *a, const struct stored_wish *w,
		      const struct stored_wish *than)
{
	uint64_t looks = party_of(a, w)->user->looks;
	uint64_t others = party_of(a, than)->user->looks;

	return looks != others ? looks < others : w->round < than->round;
}

static struct stored_wish *next_wish(struct agent *a)
{
	struct stored_wish *next, *w;
	struct user *u;

	next = sk_link_object(a->wishes.next, struct stored_wish, link);
	sk_link_each(w, &a->wishes, link) {
		if (is_before(a, w, next))
			next = w;
	}
	u = party_of(a, next)->user;
	u->look = next->round;
	a->wish_round = u->looks++;
	return next;
}

/* All that wish the same are served by one look; what was seen before one came
 * may be otherwise by now. */
static void take_wishes(struct agent *a, struct scan *scan,
			const struct stored_wish *first)
{
	struct stored_wish *w;

	memcpy(scan->job, first->job, sizeof(scan->job));
	scan->range = first->range;
	sk_link_each(w, &a->wishes, link) {
		if (w->scan || strcmp(w->job, scan->job) != 0 ||
		    !same_range(&w->range, &scan->range))
			continue;
		sk_link_remove(&w->link);
		sk_link_insert(&scan->wishes, &w->link);
		w->taken = true;
		scan->counts |= w->census != NULL;
		scan->restores |= w->restores;
	}
}

static void scan_init(struct agent *a, struct scan *scan,
		      const struct stored_wish *first)
{
	*scan = (struct scan){
		.agent = a, .serial = a->cat.serial, .owner = (uid_t)-1,
		.mark = ++a->looks,
		.work = { .run = scan_run, .finish = scan_finished },
	};
	sk_link_init(&scan->wishes);
	take_wishes(a, scan, first);
	wrote_take(a, scan->job, &scan->wrote);
}

/* Those that the look was for are told; the others' turn comes. */
static void refuse_scan(struct agent *a, const struct stored_wish *first)
{
	struct scan scan;

	scan_init(a, &scan, first);
	scan.result = sk_err_set(&scan.err, -ENOMEM, "no memory to look at "
				 "the store");
	wrote_free(&scan.wrote);
	grant_all(&scan);
}

/* The wish is no more than one of those that the look is for. */
static struct scan *take_scan(struct stored_wish *w)
{
	struct scan *scan = w->scan;

	w->scan = NULL;
	sk_link_remove(&w->link);
	sk_link_insert(&scan->wishes, &w->link);
	scan->resumed = true;
	return scan;
}

static void scan_begin(struct agent *a)
{
	struct stored_wish *first = next_wish(a);
	struct scan *scan = first->scan ? take_scan(first) :
					  calloc(1, sizeof(*scan));

	if (!scan) {
		refuse_scan(a, first);
		return;
	}
	if (!scan->resumed)
		scan_init(a, scan, first);
	a->scanning = true;
	a->scan = scan;
	work_submit(&a->loop.works, a->slow, &scan->work);
}

/* One at a time; what is seldom due does not wait for all others. */
void stored_go_on(struct agent *a)
{
	while (!a->quit && !a->scanning) {
		if (index_is_due(a))
			index_begin(a);
		else if (prove_is_due(a))
			prove_begin(a);
		else if (!sk_link_empty(&a->wishes))
			scan_begin(a);
		else
			return;
	}
}

static bool is_in_memory(struct agent *a, const struct stored_wish *w)
{
	const struct sk_cat_job *job = sk_cat_job_find(&a->cat, w->job, w->uid);

	return !w->job[0] || (job && !sk_link_empty(&job->live));
}

static bool any_kept_waiting(struct agent *a, struct sk_link *wishes,
			     uint64_t ns)
{
	const uint64_t now = agent_now(a);
	struct stored_wish *w;

	sk_link_each(w, wishes, link) {
		if (w->party && now - w->since_ns > ns && is_in_memory(a, w))
			return true;
	}
	return false;
}

bool stored_kept_waiting(struct agent *a, uint64_t ns)
{
	return any_kept_waiting(a, &a->wishes, ns) ||
	       (a->scan && any_kept_waiting(a, &a->scan->wishes, ns));
}

static void give_up(const struct agent *a, struct stored_wish *w)
{
	struct sk_err err;
	int r = sk_err_set(&err, -EIO, "the store \"%s\" does not answer "
			   "(store-hangs)", sk_store_path(a->store));

	sk_link_remove(&w->link);
	w->granted(w, r, &err);
}

static void give_up_all(const struct agent *a, struct sk_link *wishes)
{
	while (!sk_link_empty(wishes))
		give_up(a, sk_link_object(wishes->next, struct stored_wish,
					  link));
}

/* Of the one under way all that it has found is the background's. */
void stored_hangs(struct agent *a)
{
	if (a->scan)
		give_up_all(a, &a->scan->wishes);
	while (!sk_link_empty(&a->wishes)) {
		struct stored_wish *w = sk_link_object(a->wishes.next,
						       struct stored_wish,
						       link);
		struct scan *scan = w->scan ? take_scan(w) : NULL;

		if (!scan) {
			give_up(a, w);
			continue;
		}
		give_up_all(a, &scan->wishes);
		free_scan(a, scan);
	}
}

void stored_scan(struct agent *a, struct stored_wish *wish)
{
	struct sk_err err = { "" };

	assert(wish->granted);
	sk_link_init(&wish->link);
	wish->scan = NULL;
	wish->taken = false;
	if (!a->store) {
		wish->granted(wish, 0, &err);
		return;
	}
	/* Nobody waits for it; what memory has is known without. */
	if (degraded_on(&a->degraded, DEGRADED_STORE_HANGS)) {
		give_up(a, wish);
		return;
	}
	queue_wish(a, wish);
	stored_go_on(a);
}

bool stored_unwish(struct stored_wish *wish)
{
	if (wish->taken) {
		wish->party = NULL;	/* it may go */
		return false;
	}
	sk_link_remove(&wish->link);
	return true;
}

/* ---- what need not be known ---- */

static void time_to_leave(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, leave_timer);

	stored_leave(a);
}

static bool leave_some(struct agent *a, struct sk_cat_job *job)
{
	unsigned n = sk_cat_stored_leave(job, SK_LIST_KNOWN_MOST,
					 LEAVE_AT_ONCE);

	/* The next look forgets what was noted of their files. */
	if (n && !job->leaves)
		stored_foresee(a, job, 0);
	return n || job->leaves;
}

/* Whether there is more, of any job. Who has too many stays awake for it,
 * whatever keeps them: nothing tells of the end of all that. */
static bool leave_of_all(struct agent *a, bool asked)
{
	struct sk_cat_job *job;
	bool more = false;

	sk_link_each(job, &a->cat.awake[SK_CAT_LEAVE], awake[SK_CAT_LEAVE]) {
		a->cat.visits++;
		if (job->n_snapshots > SK_LIST_KNOWN_MOST)
			more |= asked || leave_some(a, job);
		else
			sk_cat_sleep(job, SK_CAT_LEAVE);
	}
	return more;
}

void stored_leave(struct agent *a)
{
	uint64_t now = agent_now(a), due = a->asked_ns + ASKED_NS;
	bool asked = a->asked_ns && now < due;

	if (!a->store || a->quit)
		return;
	a->leave_timer.fire = time_to_leave;
	if (now < a->leave_ns) {
		if (!a->leave_timer.set)
			timer_set(&a->loop.timers, &a->leave_timer,
				  a->leave_ns);
		return;
	}
	a->leave_ns = now + LEAVE_EACH_NS;
	if (!leave_of_all(a, asked))
		return;
	a->leave_ns = asked ? due : now + 1;
	timer_set(&a->loop.timers, &a->leave_timer, a->leave_ns);
}

static void foreseen(struct stored_wish *wish, int r, const struct sk_err *err)
{
	(void)r;
	(void)err;	/* who asks is told */
	free(wish);
}

void stored_foresee(struct agent *a, const struct sk_cat_job *job,
		    size_t most)
{
	struct stored_wish *w = calloc(1, sizeof(*w));

	if (!w)
		return;
	*w = (struct stored_wish){
		.granted = foreseen, .uid = job->uid,
		.range = { .most = most, .step = -1 },
	};
	memcpy(w->job, job->name, sizeof(w->job));
	stored_scan(a, w);
}

static void refuse(struct stored_wish *w)
{
	struct scan *scan = w->scan ? take_scan(w) : NULL;
	struct sk_err err;
	int r = sk_err_set(&err, -ESHUTDOWN, "the agent ends");

	if (!scan) {
		sk_link_remove(&w->link);
		w->granted(w, r, &err);
		return;
	}
	scan->result = r;
	scan->err = err;
	grant_all(scan);
	scan_drop(scan);
	free(scan);
}

void stored_close(struct agent *a)
{
	merge_now(a);
	while (!sk_link_empty(&a->wishes))
		refuse(sk_link_object(a->wishes.next, struct stored_wish,
				      link));
	free(a->ignored);
	a->ignored = NULL;
	free(a->passed);
	a->passed = NULL;
	wrote_close(a);
	histories_free(a);
	timer_clear(&a->loop.timers, &a->leave_timer);
}
