/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the rules: what is complete, what stays, what goes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "catalogue-private.h"
#include "checksum.h"
#include "coverage.h"
#include "util.h"
#include "wire.h"

/* ---- coverage ---- */

/* What counts as present when coverage is asked. */
enum asked {
	ASKED_ANYWHERE,		/* memory and disk */
	ASKED_DISK,		/* primary images on disk */
	ASKED_HOPE		/* anywhere, and what living ranks may seal */
};

/* The images of a question, and what identifies it. */
struct question {
	struct sk_coverage_image *images;
	uint32_t *key;		/* per image: layout id, present */
	size_t n;
	size_t room;
};

static void question_free(struct question *q)
{
	free(q->images);
	free(q->key);
}

static void ask_about(struct question *q, const struct sk_cat_layout *layout,
		      bool present)
{
	if (!layout || q->n == q->room)
		return;
	q->images[q->n].layout = layout->layout;
	q->images[q->n].present = present;
	q->key[q->n] = layout->id << 1 | present;
	q->n++;
}

static bool is_present(const struct sk_cat_image *image, enum asked asked)
{
	if (asked == ASKED_DISK)
		return image->kind == SK_IMAGE_PRIMARY &&
		       sk_cat_on_disk(image);
	return sk_cat_in_memory(image) || sk_cat_on_disk(image);
}

bool sk_cat_expected(const struct sk_cat_state *state,
		     const struct sk_cat_snapshot *snapshot)
{
	const struct sk_cat_slot *slot;

	if (!state->living || state->replaced ||
	    sk_cat_image_find(snapshot, state->rank, SK_IMAGE_PRIMARY))
		return false;
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FILLING && slot->snapshot == snapshot)
			return true;
	}
	return state->last_step < snapshot->step &&
	       state->lost_step != snapshot->step;
}

static size_t count_links(const struct sk_link *head)
{
	size_t n = 0;

	for (const struct sk_link *l = head->next; l != head; l = l->next)
		n++;
	return n;
}

static int question_new(const struct sk_cat_snapshot *s, enum asked asked,
			struct question *q)
{
	struct sk_cat_run *run = sk_cat_run_find(s->job, s->run);
	struct sk_cat_state *state;
	struct sk_cat_image *image;

	q->room = count_links(&s->images) +
		  (run ? 2 * count_links(&run->states) : 0) + 1;
	q->images = calloc(q->room, sizeof(*q->images));
	q->key = calloc(q->room + 2, sizeof(*q->key));
	if (!q->images || !q->key)
		return -ENOMEM;
	sk_link_each(image, &s->images, link)
		ask_about(q, image->layout, is_present(image, asked));
	if (!run)
		return 0;
	/* What the others registered tells what must be covered. */
	sk_link_each(state, &run->states, link) {
		bool hope = asked == ASKED_HOPE && sk_cat_expected(state, s);

		if (state->replaced ||
		    sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY))
			continue;
		ask_about(q, state->layouts[0], hope);
		ask_about(q, hope ? state->layouts[1] : NULL, true);
	}
	return 0;
}

/* Steady state: the same layouts ask the same question at every step. */
static struct sk_cat_verdict *known_verdict(struct sk_cat_job *job,
					    struct question *q, int32_t world,
					    uint8_t key[16])
{
	q->key[q->n] = (uint32_t)world;
	sk_xxh3_128(q->key, (q->n + 1) * sizeof(*q->key), key);
	for (unsigned i = 0; i < SK_CAT_VERDICTS; i++) {
		struct sk_cat_verdict *v = &job->verdicts[i];

		if (v->result <= 0 && memcmp(v->key, key, 16) == 0)
			return v;
	}
	return NULL;
}

/* 0 or a negative errno with the sentence. */
static int covered(const struct sk_cat_snapshot *s, enum asked asked,
		   struct sk_err *err)
{
	struct sk_cat_job *job = s->job;
	struct question q = { NULL };
	struct sk_cat_verdict *v;
	struct sk_err text = { "" };
	uint8_t key[16];
	int r;

	r = question_new(s, asked, &q);
	if (r < 0) {
		question_free(&q);
		return sk_err_set(err, r, "no memory to tell what is covered");
	}
	v = known_verdict(job, &q, s->world, key);
	if (!v) {
		v = &job->verdicts[job->next_verdict++ % SK_CAT_VERDICTS];
		job->catalogue->coverage_checks++;
		v->result = sk_coverage_check(q.images, q.n, s->world, &text);
		memcpy(v->key, key, sizeof(key));
		(void)snprintf(v->text, sizeof(v->text), "%s", text.text);
	}
	question_free(&q);
	r = v->result;
	if (r < 0)
		sk_err_set(err, r, "%s", v->text);
	if (r == -ENOMEM)	/* not a verdict on the set */
		v->result = 1;
	return r;
}

/*
 * As long as all of a run's ranks live, those that are still to seal are
 * waited for, and coverage is not asked at every seal. After a death it is:
 * replicas may hold what the dead rank did not save.
 */
static const struct sk_cat_state *awaited(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = sk_cat_run_find(s->job, s->run);
	struct sk_cat_state *state;

	if (!run || run->ended)
		return NULL;
	sk_link_each(state, &run->states, link) {
		if (sk_cat_expected(state, s))
			return state;
	}
	return NULL;
}

static bool any_on_disk(const struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (image->kind == SK_IMAGE_PRIMARY && sk_cat_on_disk(image))
			return true;
	}
	return false;
}

/* All ranks that this agent knows sealed it, but the world has more: they
 * are other agents'. */
static bool is_local(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run = sk_cat_run_find(s->job, s->run);
	struct sk_cat_state *state;
	struct sk_cat_image *image;
	int32_t ranks = 0;

	if (!run)
		return false;
	sk_link_each(state, &run->states, link) {
		if (state->replaced)
			continue;
		image = sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY);
		if (!image || !sk_cat_in_memory(image))
			return false;
		ranks++;
	}
	return ranks && ranks < s->world;
}

bool sk_cat_update(struct sk_cat_snapshot *s)
{
	const struct sk_cat_state *state = awaited(s);
	bool was = s->complete || s->local;
	struct sk_err err = { "" };

	s->stale = false;
	if (sk_link_empty(&s->images))
		s->complete = false;
	else if (state)
		s->complete = false;
	else
		s->complete = covered(s, ASKED_ANYWHERE, &err) == 0;
	if (state)
		sk_err_set(&err, 0, "rank %" PRId32 " of %" PRId32 " has not "
			   "sealed it yet", state->rank, s->world);
	s->on_disk = any_on_disk(s) && covered(s, ASKED_DISK, NULL) == 0;
	s->local = !s->complete && is_local(s);
	(void)snprintf(s->missing, sizeof(s->missing), "%s", err.text);
	return !was && (s->complete || s->local);
}

void sk_cat_update_run(struct sk_cat_job *job, uint64_t run)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		if (s->run == run && !s->complete)
			(void)sk_cat_update(s);
	}
}

bool sk_cat_hopeless(const struct sk_cat_snapshot *s)
{
	struct sk_cat_run *run;
	struct sk_err err;
	int32_t known = 0;
	struct sk_cat_state *state;
	bool lost = false;

	if (s->complete || s->local)
		return false;
	run = sk_cat_run_find(s->job, s->run);
	if (!run || !sk_cat_run_living(run))
		return true;
	sk_link_each(state, &run->states, link) {
		known += !state->replaced;
		lost |= !state->replaced && !sk_cat_expected(state, s) &&
			!sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY);
	}
	/* Ranks that have not come yet, or are another agent's, may hold
	 * anything; but no more than all of ours can be had here. */
	if (known < s->world && !run->ended)
		return lost;
	return lost && covered(s, ASKED_HOPE, &err) != 0;
}

/* ---- what stays ---- */

struct sk_cat_snapshot *sk_cat_newest(const struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		if (s->complete || s->local)
			return s;
	}
	return NULL;
}

static bool is_newer(const struct sk_cat_snapshot *s,
		     const struct sk_cat_snapshot *than)
{
	return !than || sk_cat_order(s->run, s->step, than) > 0;
}

static bool awaits_disk(const struct sk_cat_snapshot *s)
{
	return s->job->catalogue->has_store && s->wanted && !s->on_disk &&
	       !s->hopeless_on_disk;
}

const char *sk_cat_protected(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest = sk_cat_newest(s->job);

	if (s->leases)
		return "in use by a restore";
	if (s->flushing)
		return "being flushed";
	if (s->pinned)
		return "pinned";
	if (s == newest)
		return "the newest complete snapshot";
	if (awaits_disk(s) && (s->complete || s->local))
		return "not durable yet";
	if (is_newer(s, newest) && !sk_cat_hopeless(s))
		return "newer than the newest complete snapshot, and may "
		       "still become complete";
	return NULL;
}

bool sk_cat_flushable(const struct sk_cat_snapshot *s)
{
	return awaits_disk(s) && !s->flushing && (s->complete || s->local);
}

/* ---- slots ---- */

static bool step_wanted(const struct sk_cat_state *state, int64_t step,
			uint32_t flags)
{
	if (flags & SK_SLOT_FLUSH)
		return true;
	if (flags & SK_SLOT_NO_FLUSH || state->flush_every == UINT32_MAX)
		return false;
	return step % (state->flush_every ? state->flush_every : 1) == 0;
}

static int check_step(const struct sk_cat_state *state, int64_t step,
		      struct sk_err *err)
{
	const struct sk_cat_run *run = state->run;
	const struct sk_cat_snapshot *s;
	const struct sk_cat_slot *slot;

	s = sk_cat_snapshot_find(run->job, run->number, step);
	if (!s || s->step != step)
		return 0;
	if (sk_cat_image_find(s, state->rank, SK_IMAGE_PRIMARY))
		return sk_err_set(err, -EEXIST, "rank %" PRId32 " of job "
				  "\"%s\" has sealed step %" PRId64 " of run %"
				  PRIu64 " already", state->rank,
				  run->job->name, step, run->number);
	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FILLING && slot->snapshot == s)
			return sk_err_set(err, -EEXIST, "rank %" PRId32
					  " of job \"%s\" is filling step %"
					  PRId64 " already", state->rank,
					  run->job->name, step);
	}
	return 0;
}

/* A free slot, else the one with this rank's oldest image that may go. */
static struct sk_cat_slot *choose_slot(const struct sk_cat_state *state)
{
	struct sk_cat_slot *slot, *oldest = NULL;

	sk_link_each(slot, &state->slots, link) {
		if (slot->use == SK_CAT_FREE)
			return slot;
		if (slot->use != SK_CAT_SEALED ||
		    sk_cat_protected(slot->snapshot))
			continue;
		if (!oldest || sk_cat_order(slot->snapshot->run,
					    slot->snapshot->step,
					    oldest->snapshot) < 0)
			oldest = slot;
	}
	return oldest;
}

static int say_busy(const struct sk_cat_state *state, struct sk_err *err)
{
	const struct sk_cat_slot *slot;
	char text[SK_ERR_MAX] = "";
	size_t at = 0;

	sk_link_each(slot, &state->slots, link) {
		const char *why = "being filled";

		if (slot->use == SK_CAT_SEALED)
			why = sk_cat_protected(slot->snapshot);
		if (!why || at >= sizeof(text))
			continue;
		at += (size_t)snprintf(text + at, sizeof(text) - at,
				       "%sstep %" PRId64 " is %s",
				       at ? ", " : "", slot->snapshot->step,
				       why);
	}
	return sk_err_set(err, -EBUSY, "no slot of rank %" PRId32 " of job "
			  "\"%.40s\" is free (%s); skip this snapshot, wait, "
			  "or register more slots", state->rank,
			  state->run->job->name, text);
}

int sk_cat_slot_take(struct sk_cat_state *state, int64_t step, uint32_t flags,
		     bool dry, struct sk_cat_slot **ret_slot,
		     unsigned *ret_evicted, struct sk_err *err)
{
	struct sk_cat_run *run = state->run;
	struct sk_cat_snapshot *s;
	struct sk_cat_slot *slot;
	unsigned evicted;
	int r;

	r = dry ? 0 : check_step(state, step, err);
	if (r < 0)
		return r;
	slot = choose_slot(state);
	if (!slot && !dry && !(flags & SK_SLOT_WILL_WAIT))
		state->lost_step = step;
	if (!slot)
		return say_busy(state, err);
	if (dry)
		return 0;
	s = sk_cat_snapshot_get(run->job, run->number, step, run->world);
	if (!s)
		return sk_err_set(err, -ENOMEM, "no memory for a snapshot");
	s->filling++;
	evicted = slot->use == SK_CAT_SEALED;
	if (evicted)
		sk_cat_slot_clear(slot);
	slot->use = SK_CAT_FILLING;
	slot->snapshot = s;
	slot->flags = flags;
	if (step > state->last_step)
		state->last_step = step;
	if (state->lost_step == step)
		state->lost_step = -1;
	*ret_slot = slot;
	*ret_evicted = evicted;
	return 0;
}

/* The image that the slot is to hold; the disk may know it already. */
static struct sk_cat_image *slot_image(struct sk_cat_slot *slot, int kind)
{
	struct sk_cat_layout *layout = slot->state->layouts[kind];
	struct sk_cat_image *image;

	image = sk_cat_image_find(slot->snapshot, slot->state->rank,
				  (enum sk_image_kind)kind);
	if (image && image->layout != layout) {
		/* The disk has something else under that name: not ours. */
		sk_cat_layout_unref(image->layout);
		image->layout = sk_cat_layout_ref(layout);
		image->stored.dir[0] = 0;
	}
	if (image)
		return image;
	image = sk_cat_image_new(slot->snapshot, sk_cat_layout_ref(layout));
	if (!image)
		sk_cat_layout_unref(layout);
	return image;
}

int sk_cat_slot_seal(struct sk_cat_slot *slot, uint64_t *const sums[2],
		     uint64_t wall_ns)
{
	struct sk_cat_image *images[2] = { NULL, NULL };
	struct sk_cat_snapshot *s = slot->snapshot;

	for (int kind = 0; kind < 2; kind++) {
		if (!slot->state->layouts[kind])
			continue;
		images[kind] = slot_image(slot, kind);
		if (images[kind])
			continue;
		if (kind)
			sk_cat_image_trim(images[0]);
		return -ENOMEM;
	}
	for (int kind = 0; kind < 2; kind++) {
		if (!images[kind])
			continue;
		free(images[kind]->sums);
		images[kind]->sums = sums[kind];
		images[kind]->slot = slot;
		images[kind]->bad_memory = false;
		slot->images[kind] = images[kind];
	}
	slot->use = SK_CAT_SEALED;
	s->filling--;
	s->hopeless_on_disk = false;
	s->wanted |= step_wanted(slot->state, s->step, slot->flags);
	if (!s->created_ns)
		s->created_ns = wall_ns;
	(void)sk_cat_update(s);
	return 0;
}

/* Takes the images out of the slot. */
static void empty_slot(struct sk_cat_slot *slot)
{
	for (int kind = 0; kind < 2; kind++) {
		struct sk_cat_image *image = slot->images[kind];

		slot->images[kind] = NULL;
		if (!image)
			continue;
		image->slot = NULL;
		image->bad_memory = false;
		sk_cat_image_trim(image);
	}
}

void sk_cat_slot_clear(struct sk_cat_slot *slot)
{
	struct sk_cat_snapshot *s = slot->snapshot;
	struct sk_cat_state *state = slot->state;
	bool was_filling = slot->use == SK_CAT_FILLING;

	if (slot->use == SK_CAT_FREE)
		return;
	if (was_filling) {
		s->filling--;
		state->lost_step = s->step;
	}
	empty_slot(slot);
	slot->use = SK_CAT_FREE;
	slot->snapshot = NULL;
	if (!state->living && !was_filling)
		sk_cat_slot_release(slot);
	if (!sk_cat_snapshot_trim(s))
		(void)sk_cat_update(s);
}

unsigned sk_cat_evict_memory(struct sk_cat_snapshot *s)
{
	struct sk_cat_image *image;
	unsigned evicted = 0;
	bool more = true;

	while (more) {
		more = false;
		sk_link_each(image, &s->images, link) {
			struct sk_cat_slot *slot = image->slot;

			if (!slot)
				continue;
			evicted++;
			more = true;
			/* Both kinds go with the slot, and with the last
			 * slot the snapshot. */
			s->filling++;
			sk_cat_slot_clear(slot);
			s->filling--;
			break;
		}
	}
	(void)sk_cat_snapshot_trim(s);
	return evicted;
}

/* ---- disk ---- */

static bool same_content(const struct sk_cat_image *image,
			 const struct sk_cat_layout *layout,
			 const uint64_t *sums)
{
	return image->layout == layout &&
	       (!layout->layout->n_sums ||
		memcmp(image->sums, sums,
		       layout->layout->n_sums * sizeof(*sums)) == 0);
}

static int stored_image(struct sk_cat_job *job, uint64_t run, int64_t step,
			struct sk_cat_layout *layout, uint64_t *sums,
			struct sk_cat_image **ret_image, struct sk_err *err)
{
	const struct sk_layout *l = layout->layout;
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;

	s = sk_cat_snapshot_get(job, run, step, l->world);
	if (!s)
		return sk_err_set(err, -ENOMEM, "no memory for a snapshot");
	if (s->world != l->world)
		return sk_err_set(err, -EINVAL, "step %" PRId64 " of run %"
				  PRIu64 " has %" PRId32 " ranks, this image "
				  "says %" PRId32, step, run, s->world,
				  l->world);
	image = sk_cat_image_find(s, l->rank, l->kind);
	if (image && !same_content(image, layout, sums))
		return sk_err_set(err, -ESTALE, "rank %" PRId32 " of step %"
				  PRId64 " of run %" PRIu64 " is another image "
				  "than the one in memory", l->rank, step, run);
	if (!image) {
		image = sk_cat_image_new(s, layout);
		if (!image) {
			(void)sk_cat_snapshot_trim(s);
			return sk_err_set(err, -ENOMEM,
					  "no memory for an image");
		}
		image->sums = sums;
		*ret_image = image;
		return 1;
	}
	*ret_image = image;
	return 0;
}

int sk_cat_stored_add(struct sk_cat_job *job, uint64_t run, int64_t step,
		      struct sk_cat_layout *layout, uint64_t *sums,
		      const char *dir, uint64_t mtime_ns, struct sk_err *err)
{
	struct sk_cat_image *image = NULL;
	struct sk_cat_snapshot *s;
	int r;

	r = stored_image(job, run, step, layout, sums, &image, err);
	if (r <= 0) {	/* known, or refused: ours are not needed */
		free(sums);
		sk_cat_layout_unref(layout);
	}
	if (r < 0)
		return r;
	s = image->snapshot;
	(void)snprintf(image->stored.dir, sizeof(image->stored.dir), "%s",
		       dir);
	image->stored.serial = ++job->catalogue->serial;
	image->stored.mtime_ns = mtime_ns;
	image->bad_disk = false;
	if (!s->created_ns)
		s->created_ns = mtime_ns;
	if (run > job->newest_run)
		job->newest_run = run;
	s->stale = true;
	return 0;
}

void sk_cat_stored_remove(struct sk_cat_image *image)
{
	struct sk_cat_snapshot *s = image->snapshot;

	image->stored.dir[0] = 0;
	image->bad_disk = false;
	sk_cat_image_trim(image);
	if (!sk_cat_snapshot_trim(s))
		s->stale = true;
}

void sk_cat_refresh(struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;

	sk_link_each(s, &job->snapshots, link) {
		if (s->stale)
			(void)sk_cat_update(s);
	}
}

/* ---- use ---- */

void sk_cat_image_bad(struct sk_cat_image *image, bool disk)
{
	if (disk)
		image->bad_disk = true;
	else
		image->bad_memory = true;
	(void)sk_cat_update(image->snapshot);
}

void sk_cat_lease(struct sk_cat_image *image, int count)
{
	struct sk_cat_snapshot *s = image->snapshot;

	image->leases = (unsigned)((int)image->leases + count);
	s->leases = (unsigned)((int)s->leases + count);
	sk_cat_image_trim(image);
	(void)sk_cat_snapshot_trim(s);
}
