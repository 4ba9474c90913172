/* SPDX-License-Identifier: Apache-2.0 */
/* Which jobs are awake: those that something has happened to, and no others;
 * of those that are asleep there is nothing to be done, whatever their lives
 * were. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "catalogue/pins.h"
#include "catalogue/private.h"
#include "catalogue/queue.h"
#include "catalogue/told.h"

#define SEED 5300u
#define JOBS 4
#define RANKS 2
#define QUESTIONS 16
#define KNOWN 5u		/* snapshots, of a job */

static const uint64_t kinds[2] = { 4096, 0 };

struct desk {
	struct sk_catalogue cat;
	struct sk_cat_question *out[QUESTIONS];
	unsigned n_out;
	bool full;			/* nothing can be asked */
	unsigned held;			/* jobs that were, of all looks */
};

static int put_on_desk(void *ctx, struct sk_cat_question *q)
{
	struct desk *d = ctx;

	if (d->full)
		return -ENOMEM;
	cr_assert_lt(d->n_out, QUESTIONS);
	d->out[d->n_out++] = q;
	return 0;
}

static void answer_one(struct desk *d)
{
	if (!d->n_out)
		return;
	sk_cat_question_run(d->out[--d->n_out]);
	cr_assert(sk_cat_question_end(d->out[d->n_out]));
}

static void desk_open(struct desk *d)
{
	*d = (struct desk){ 0 };
	sk_cat_init(&d->cat);
	d->cat.budget = UINT64_MAX;
	d->cat.has_store = true;
	d->cat.ctx = d;
	d->cat.ask = put_on_desk;
}

static void desk_close(struct desk *d)
{
	while (d->n_out)
		answer_one(d);
	sk_cat_destroy(&d->cat);
	cr_assert_eq(d->cat.used, 0);
	cr_assert_eq(d->cat.layouts.count, 0, "a layout is left");
	cr_assert(sk_link_empty(&d->cat.users), "a user is left");
}

/* Whose boxes are said: what they cover is asked. */
static struct sk_cat_layout *layout(struct desk *d, int rank)
{
	struct sk_box box = { .offset = { 8 * rank }, .size = { 8 } };
	const struct sk_item item = {
		.spec = { .name = "w", .dtype = SK_F32, .ndim = 1,
			  .shape = { 8 * RANKS } },
		.explicit_boxes = true, .n_boxes = 1, .boxes = &box };
	struct sk_layout *l = NULL;

	cr_assert_eq(sk_layout_new("job", rank, RANKS, SK_IMAGE_PRIMARY, &item,
				   1, &l, NULL), 0);
	return sk_cat_layout_take(&d->cat, l);
}

static struct sk_cat_state *enter(struct desk *d, const char *job, int rank)
{
	const struct sk_cat_ask ask = { .rank = rank, .world = RANKS,
					.fresh_id = 1 + d->cat.next_id };
	struct sk_cat_layout *layouts[2] = { layout(d, rank), NULL };
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cat_run_open(sk_cat_job_get(&d->cat, job, 0), &ask,
				     &run, &err), 0, "%s", err.text);
	state = sk_cat_state_new(run, rank, layouts);
	cr_assert(state);
	state->flush_every = 1;
	for (int i = 0; i < 3; i++)
		cr_assert(sk_cat_slot_add(state, kinds, NULL));
	return state;
}

static struct sk_cat_slot *fill(struct sk_cat_state *state, int64_t step)
{
	struct sk_cat_slot *slot = NULL;
	unsigned evicted;

	return sk_cat_slot_take(state, step, 0, false, &slot, &evicted,
				NULL) < 0 ? NULL : slot;
}

static void seal(struct sk_cat_slot *slot)
{
	uint64_t *sums[2] = { calloc(8, sizeof(uint64_t)), NULL };

	cr_assert_eq(sk_cat_slot_seal(slot, sums, NULL, 1), 0);
}

/* As if it had been written to disk. */
static void write_image(struct sk_cat_image *image)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	struct sk_cat_found found = {
		.run = s->run, .run_id = s->run_id, .step = s->step,
		.dir = "step" };

	memcpy(found.content, image->content, sizeof(found.content));
	cr_assert_eq(sk_cat_stored_add(s->job, &found,
				       sk_cat_layout_ref(image->layout), NULL),
		     0);
}

/* ---- the duties, as an agent does them ---- */

static bool is_awake(const struct sk_cat_job *job, enum sk_cat_duty duty)
{
	return !sk_link_empty(&job->awake[duty]);
}

/* The oldest; NULL: none. */
static struct sk_cat_snapshot *can_be_written(const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s, *best = NULL;

	sk_link_each(s, &job->live, live) {
		if (sk_cat_flushable(s) &&
		    (!best || sk_cat_order(s->run, s->run_id, s->step,
					   best) < 0))
			best = s;
	}
	return best;
}

static void decide(struct desk *d)
{
	struct sk_cat_job *job;
	struct sk_link awake;

	sk_cat_awake_take(&d->cat, SK_CAT_DECIDE, &awake);
	while ((job = sk_cat_awake_next(&awake, SK_CAT_DECIDE)))
		(void)sk_cat_refresh(job);
}

static void look_what_to_write(struct desk *d)
{
	const struct sk_cat_queue_place at = { 0 };
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;

	sk_link_each(job, &d->cat.awake[SK_CAT_WRITE], awake[SK_CAT_WRITE]) {
		sk_cat_sleep(job, SK_CAT_WRITE);
		s = can_be_written(job);
		if (s)
			sk_cat_queue_put(s, &at);
		else
			sk_cat_queue_leave(job);
	}
	sk_link_each(job, &d->cat.awake[SK_CAT_FINISH], awake[SK_CAT_FINISH]) {
		if (!can_be_written(job))
			sk_cat_sleep(job, SK_CAT_FINISH);
	}
}

static void trim(struct desk *d)
{
	struct sk_cat_job *job;
	struct sk_link awake;

	sk_cat_awake_take(&d->cat, SK_CAT_TRIM, &awake);
	while ((job = sk_cat_awake_next(&awake, SK_CAT_TRIM)))
		(void)sk_cat_job_trim(job);
}

static void leave_to_disk(struct desk *d)
{
	struct sk_cat_job *job;

	sk_link_each(job, &d->cat.awake[SK_CAT_LEAVE], awake[SK_CAT_LEAVE]) {
		(void)sk_cat_stored_leave(job, KNOWN, KNOWN);
		if (job->n_snapshots <= KNOWN)
			sk_cat_sleep(job, SK_CAT_LEAVE);
	}
}

/* A rank of it has no slot beside its pins; or one may come to be so. */
static bool is_held(const struct sk_cat_job *job)
{
	const struct sk_cat_state *state;
	const struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link) {
		if (state->living && sk_cat_state_held(state, NULL))
			return true;
	}
	return false;
}

static void look_who_is_held(struct desk *d)
{
	struct sk_cat_job *job;
	struct sk_link awake;

	sk_cat_awake_take(&d->cat, SK_CAT_HELD, &awake);
	while ((job = sk_cat_awake_next(&awake, SK_CAT_HELD)))
		if (is_held(job)) {
			sk_cat_wake_for(job, SK_CAT_HELD);
			d->held++;
		}
}

static void follow_up(struct desk *d)
{
	/* What is decided wakes it for what follows from that. */
	for (int i = 0; i < 3; i++) {
		decide(d);
		look_what_to_write(d);
		trim(d);
		leave_to_disk(d);
	}
	look_who_is_held(d);
	sk_cat_tell(&d->cat);
}

/* ---- what wakes a job, one by one ---- */

/* A job with a snapshot of step 1, to be written, that is known to be whole,
 * and one that has nothing to do with it. */
struct scene {
	struct desk desk;
	struct sk_cat_job *job, *other;
	struct sk_cat_state *states[RANKS];
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;
};

static void set_out(struct scene *c)
{
	desk_open(&c->desk);
	for (int i = 0; i < RANKS; i++) {
		c->states[i] = enter(&c->desk, "job", i);
		(void)enter(&c->desk, "other", i);
		seal(fill(c->states[i], 1));
	}
	c->job = c->states[0]->run->job;
	c->other = sk_cat_job_find(&c->desk.cat, "other", 0);
	c->s = sk_cat_snapshot_find(c->job, 0, 0, 1);
	c->image = sk_cat_image_find(c->s, 0, SK_IMAGE_PRIMARY);
	(void)sk_cat_complete(c->s);
	answer_one(&c->desk);
	follow_up(&c->desk);
	cr_assert(sk_cat_complete(c->s));
	cr_assert_eq(c->job->next_out, c->s, "it is to be written");
	for (int duty = 0; duty < SK_CAT_DUTIES; duty++) {
		cr_assert(!is_awake(c->other, (enum sk_cat_duty)duty));
		sk_cat_sleep(c->job, (enum sk_cat_duty)duty);
	}
}

static void take_slot(struct scene *c)
{
	cr_assert(fill(c->states[0], 2));
}

static void lose_rank(struct scene *c)
{
	(void)sk_cat_state_end(c->states[0]);
}

static void begin_flush(struct scene *c)
{
	sk_cat_flushing(c->s, true);
}

static void end_flush(struct scene *c)
{
	sk_cat_flushing(c->s, true);
	sk_cat_sleep(c->job, SK_CAT_WRITE);
	sk_cat_flushing(c->s, false);
	cr_assert(sk_cat_flushable(c->s));
}

static void find_on_disk(struct scene *c)
{
	write_image(c->image);
}

static void lose_on_disk(struct scene *c)
{
	write_image(c->image);
	sk_cat_sleep(c->job, SK_CAT_WRITE);
	sk_cat_stored_remove(c->image);
}

static void find_bad(struct scene *c)
{
	sk_cat_image_bad(c->image, false, 0);
}

static void evict(struct scene *c)
{
	cr_assert_eq(sk_cat_evict_memory(c->s), RANKS);
}

static void begin_with(struct scene *c)
{
	const struct sk_cat_begun with = { .run = 1, .run_id = 1, .step = 1 };

	sk_cat_run_began(c->states[0]->run, &with);
}

static void meet_run(struct scene *c)
{
	sk_cat_run_seen(c->job, 40);
}

static void await_no_more(struct scene *c)
{
	(void)sk_cat_await_no_more(c->job);
}

static void give_back(struct scene *c)
{
	sk_cat_state_empty(c->states[0]);
}

static void replace(struct scene *c)
{
	struct sk_cat_layout *layouts[2] = { layout(&c->desk, 0), NULL };
	uint64_t id = c->states[0]->id;
	struct sk_cat_state *next =
		sk_cat_state_new(c->states[0]->run, 0, layouts);

	(void)sk_cat_state_replace(c->states[0], next);
	cr_assert_eq(sk_cat_state_by_id(&c->desk.cat, id), next);
}

static void end_detention(struct scene *c)
{
	sk_cat_state_detain(c->states[0], c);
	sk_cat_sleep(c->job, SK_CAT_TRIM);
	sk_cat_detain_end(&c->desk.cat, c);
}

static void adopt(struct scene *c)
{
	struct sk_cat_layout *layouts[2] = { layout(&c->desk, 0), NULL };
	struct sk_cat_state *next;

	(void)sk_cat_state_end(c->states[0]);
	next = sk_cat_state_new(c->states[0]->run, 0, layouts);
	for (int duty = 0; duty < SK_CAT_DUTIES; duty++)
		sk_cat_sleep(c->job, (enum sk_cat_duty)duty);
	cr_assert(sk_cat_slot_adopt(next, kinds, NULL));
}

Test(awake, what_happens_to_a_job_wakes_it)
{
	static void (*const things[])(struct scene *c) = {
		take_slot, lose_rank, begin_flush, end_flush, find_on_disk,
		lose_on_disk, find_bad, evict, begin_with, meet_run,
		await_no_more, give_back, replace, end_detention,
		adopt,
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(things); i++) {
		struct scene c;

		set_out(&c);
		things[i](&c);
		for (int duty = 0; duty < SK_CAT_DUTIES; duty++) {
			cr_assert(is_awake(c.job, (enum sk_cat_duty)duty),
				  "thing %zu, duty %d", i, duty);
			cr_assert(!is_awake(c.other, (enum sk_cat_duty)duty),
				  "thing %zu, duty %d", i, duty);
		}
		desk_close(&c.desk);
	}
}

/* A registration that came to nothing leaves one. */
Test(awake, a_job_is_born_awake)
{
	struct desk d;

	desk_open(&d);
	cr_assert(sk_cat_job_get(&d.cat, "new", 7));
	trim(&d);
	cr_assert_null(sk_cat_job_find(&d.cat, "new", 7));
	desk_close(&d);
}

/* It is asleep while a question is out, and where nothing can be asked. */
Test(awake, an_answer_wakes_its_job)
{
	struct sk_cat_snapshot *s;
	struct desk d;

	desk_open(&d);
	for (int i = 0; i < RANKS; i++)
		seal(fill(enter(&d, "job", i), 1));
	s = sk_cat_snapshot_find(sk_cat_job_find(&d.cat, "job", 0), 0, 0, 1);
	d.full = true;
	decide(&d);
	cr_assert(!is_awake(s->job, SK_CAT_DECIDE), "nobody has asked");
	cr_assert(sk_cat_undecided(s));
	cr_assert(is_awake(s->job, SK_CAT_DECIDE));
	follow_up(&d);
	cr_assert(!is_awake(s->job, SK_CAT_DECIDE));
	d.full = false;
	sk_cat_wake_for(s->job, SK_CAT_DECIDE);
	follow_up(&d);
	cr_assert_eq(d.n_out, 1);
	cr_assert(!is_awake(s->job, SK_CAT_DECIDE) &&
		  !is_awake(s->job, SK_CAT_WRITE));
	answer_one(&d);
	cr_assert(is_awake(s->job, SK_CAT_DECIDE));
	decide(&d);
	cr_assert(is_awake(s->job, SK_CAT_WRITE) && sk_cat_flushable(s));
	desk_close(&d);
}

/* Whoever is taken may wake, or go, while others are looked at. */
Test(awake, jobs_come_and_go_meanwhile)
{
	struct sk_cat_job *jobs[3], *job;
	struct sk_link awake;
	struct desk d;

	desk_open(&d);
	for (int i = 0; i < 3; i++)
		jobs[i] = sk_cat_job_get(&d.cat, (char[]){ (char)('a' + i), 0 },
					 0);
	sk_cat_awake_take(&d.cat, SK_CAT_DECIDE, &awake);
	job = sk_cat_awake_next(&awake, SK_CAT_DECIDE);
	cr_assert_eq(job, jobs[0]);
	sk_cat_wake(job);
	sk_cat_wake(jobs[2]);
	cr_assert(sk_cat_job_trim(jobs[1]));
	cr_assert_eq(sk_cat_awake_next(&awake, SK_CAT_DECIDE), jobs[2]);
	cr_assert_null(sk_cat_awake_next(&awake, SK_CAT_DECIDE));
	sk_cat_awake_take(&d.cat, SK_CAT_DECIDE, &awake);
	cr_assert_eq(sk_cat_awake_next(&awake, SK_CAT_DECIDE), jobs[0]);
	cr_assert_null(sk_cat_awake_next(&awake, SK_CAT_DECIDE));
	desk_close(&d);
}

/* ---- random lives ---- */

struct count {
	unsigned runs, states, undecided;
};

static struct count count(const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct count n = { 0 };

	sk_link_each(run, &job->runs, link) {
		n.runs++;
		sk_link_each(state, &run->states, link)
			n.states++;
	}
	sk_link_each(s, &job->undecided, undecided)
		n.undecided++;
	return n;
}

static void check_asleep(const struct desk *d, struct sk_cat_job *job,
			 unsigned seed, int turn)
{
	struct count before = count(job), after;

	cr_assert(is_awake(job, SK_CAT_WRITE) ||
		  can_be_written(job) == job->next_out,
		  "seed %u, turn %d: another one is next", seed, turn);
	cr_assert(is_awake(job, SK_CAT_FINISH) || !can_be_written(job),
		  "seed %u, turn %d: it can be written", seed, turn);
	cr_assert(is_awake(job, SK_CAT_HELD) || !is_held(job),
		  "seed %u, turn %d: it is held", seed, turn);
	cr_assert(is_awake(job, SK_CAT_LEAVE) || job->n_snapshots <= KNOWN,
		  "seed %u, turn %d: too many are known", seed, turn);
	if (!is_awake(job, SK_CAT_DECIDE) && !d->full) {
		cr_assert(!before.undecided || sk_cat_asking(job),
			  "seed %u, turn %d: nobody asks", seed, turn);
		(void)sk_cat_refresh(job);
	}
	after = count(job);
	cr_assert(is_awake(job, SK_CAT_DECIDE) ||
		  after.undecided == before.undecided,
		  "seed %u, turn %d: it can be decided", seed, turn);
	if (is_awake(job, SK_CAT_TRIM))
		return;
	cr_assert(!sk_cat_job_trim(job), "seed %u, turn %d: it is over", seed,
		  turn);
	after = count(job);
	cr_assert(after.runs == before.runs && after.states == before.states,
		  "seed %u, turn %d: something is left over", seed, turn);
}

/* What is kept of it is what a look at all of it finds. */
static void check_told(const struct desk *d, unsigned seed, int turn)
{
	size_t snapshots = 0, to_write = 0, jobs = 0;
	const struct sk_cat_job *job, *before = NULL;
	const struct sk_cat_snapshot *s;
	unsigned living = 0, ranks;
	struct sk_cat_run *run;
	uint64_t used = 0;

	while ((job = sk_cat_largest(&d->cat, NULL, before))) {
		cr_assert(!before || before->used.bytes >= job->used.bytes);
		ranks = 0;
		sk_link_each(run, &job->runs, link)
			ranks += sk_cat_run_ranks(run);
		cr_assert_eq(ranks, job->n_living, "seed %u, turn %d", seed,
			     turn);
		sk_link_each(s, &job->live, live)
			to_write += sk_cat_flushable(s);
		snapshots += job->n_snapshots;
		living += ranks;
		used += job->used.bytes;
		jobs++;
		before = job;
	}
	cr_assert_eq(jobs, d->cat.by_name.count, "seed %u, turn %d", seed,
		     turn);
	cr_assert(used == d->cat.used && living == d->cat.n_living &&
		  snapshots == d->cat.n_snapshots, "seed %u, turn %d", seed,
		  turn);
	cr_assert_eq(to_write, d->cat.n_to_write, "seed %u, turn %d: %zu are "
		     "to be written, not %zu", seed, turn, to_write,
		     d->cat.n_to_write);
}

static struct sk_cat_snapshot *any_snapshot(const struct sk_cat_job *job)
{
	size_t n = job->n_snapshots ? (size_t)random() % job->n_snapshots : 0;
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		if (!n--)
			return s;
	}
	return NULL;
}

static void meet_disk(struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image = s ? sk_cat_image_find(s, (int)random() %
					 RANKS, SK_IMAGE_PRIMARY) : NULL;

	if (!s || !image)
		return;
	if (random() % 8 == 0) {
		s->wanted = false;
		sk_cat_wake(s->job);
	} else if (random() % 4 == 0) {
		s->pinned = !s->pinned;
		sk_cat_set_failure(s, random() % 2 ? "it fails" : NULL);
		(void)sk_cat_want_pinned(s);
		sk_cat_unwant_pinned(s);
	} else if (random() % 4 == 0)
		sk_cat_flushing(s, !s->flushing);
	else if (random() % 8 == 0)
		sk_cat_image_bad(image, !image->slot, 0);
	else if (image->stored.dir[0] && !s->flushing)
		sk_cat_stored_remove(image);
	else
		write_image(image);
}

static void go_and_come(struct desk *d, struct sk_cat_state *states[RANKS],
			const char *name)
{
	for (int i = 0; i < RANKS; i++)
		(void)sk_cat_state_end(states[i]);
	if (random() % 2)
		(void)sk_cat_trim_free(&d->cat, NULL);
	for (int i = 0; i < RANKS; i++)
		states[i] = enter(d, name, i);
}

/* As where memory may be had again. */
static void ask_anew(struct desk *d)
{
	struct sk_cat_job *job;

	sk_link_each(job, &d->cat.jobs, link) {
		if (!sk_link_empty(&job->undecided))
			sk_cat_wake_for(job, SK_CAT_DECIDE);
	}
}

static void do_any(struct desk *d, struct sk_cat_state *states[RANKS],
		   const char *name, int64_t step)
{
	struct sk_cat_state *state = states[random() % RANKS];
	struct sk_cat_snapshot *s = any_snapshot(state->run->job);
	struct sk_cat_slot *slot;

	switch (random() % 12) {
	case 0:
		go_and_come(d, states, name);
		break;
	case 1:
		if (s && !s->flushing)
			(void)sk_cat_evict_memory(s);
		break;
	case 2 ... 4:
		meet_disk(s);
		break;
	case 5:
		answer_one(d);
		break;
	case 6:
		d->full = random() % 4 == 0;
		if (!d->full)
			ask_anew(d);
		break;
	default:
		slot = fill(state, step);
		if (slot && random() % 8)
			seal(slot);
		else if (slot)
			sk_cat_slot_clear(slot);
	}
}

/* How many jobs were held. */
static unsigned live(unsigned seed)
{
	static const char *const names[JOBS] = { "a", "b", "c", "d" };
	struct sk_cat_state *states[JOBS][RANKS];
	struct sk_cat_job *job;
	struct desk d;

	srandom(seed);
	desk_open(&d);
	for (int i = 0; i < JOBS * RANKS; i++)
		states[i / RANKS][i % RANKS] = enter(&d, names[i / RANKS],
						     i % RANKS);
	for (int turn = 0; turn < 300; turn++) {
		int i = (int)(random() % JOBS);

		do_any(&d, states[i], names[i], turn / 8);
		if (random() % 4 == 0)
			continue;
		follow_up(&d);
		check_told(&d, seed, turn);
		sk_link_each(job, &d.cat.jobs, link)
			check_asleep(&d, job, seed, turn);
	}
	d.full = false;
	desk_close(&d);
	cr_assert(!d.cat.n_living && !d.cat.n_snapshots && !d.cat.n_to_write &&
		  !d.cat.by_bytes.root, "seed %u: something is told of", seed);
	return d.held;
}

Test(awake, nothing_is_left_undone)
{
	unsigned held = 0;

	for (unsigned i = 0; i < 60; i++)
		held += live(SEED + i);
	cr_assert_gt(held, 0, "nobody ever was held");
}
