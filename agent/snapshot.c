/* SPDX-License-Identifier: Apache-2.0 */
/* Slots being taken and sealed; what is complete; what may go. */
#include "agent.h"

#include <string.h>

/* ---- taking a slot ---- */

static struct sk_cat_snapshot *snapshot_of(const struct rank_slot *slot)
{
	return slot->image[0] ? slot->image[0]->snapshot :
	       slot->image[1] ? slot->image[1]->snapshot : NULL;
}

static bool leased(const struct rank_slot *slot)
{
	return (slot->image[0] && slot->image[0]->leases) ||
	       (slot->image[1] && slot->image[1]->leases);
}

/* A snapshot newer than the newest complete one may still become complete:
 * ranks in lockstep must not destroy each other's progress. */
static bool pending(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newest = sk_cat_newest_complete(s->job);

	return !s->complete && !s->hopeless &&
	       (!newest || s->run > newest->run ||
		(s->run == newest->run && s->step > newest->step));
}

static bool evictable(struct agent *a, const struct rank_slot *slot)
{
	const struct sk_cat_snapshot *s = snapshot_of(slot);

	return slot->status == SLOT_SEALED && s && !leased(slot) &&
	       !pending(s) && sk_cat_may_evict(s, a->store, NULL) == 0;
}

static struct rank_slot *find_slot(struct agent *a, struct state *st)
{
	struct rank_slot *oldest = NULL;

	for (uint32_t i = 0; i < st->n_slots; i++) {
		struct rank_slot *slot = &st->slots[i];

		if (slot->status == SLOT_FREE)
			return slot;
		if (evictable(a, slot) &&
		    (!oldest || slot->step < oldest->step))
			oldest = slot;
	}
	return oldest;
}

int slot_would(struct agent *a, struct state *st)
{
	return find_slot(a, st) ? 0 : -EBUSY;
}

static void release_and_cover(struct agent *a, struct rank_slot *slot)
{
	struct sk_cat_snapshot *s = snapshot_of(slot);
	struct sk_cat_job *job = s ? s->job : NULL;
	uint64_t run = s ? s->run : 0, step = s ? s->step : 0;

	slot_release(a, slot);
	s = job ? sk_cat_find(job, run, step) : NULL;
	if (s) {
		snapshot_cover(a, s);
		/* What was given up does not come back. */
		s->hopeless = !s->complete;
	}
}

static bool is_filling(const struct state *st, uint64_t step)
{
	for (uint32_t i = 0; i < st->n_slots; i++)
		if (st->slots[i].status == SLOT_FILLING &&
		    st->slots[i].step == step)
			return true;
	return false;
}

int slot_take(struct agent *a, struct state *st, uint64_t step,
	      uint32_t flags, uint32_t *ret_slot, uint64_t *ret_eta_ns,
	      struct sk_err *err)
{
	struct sk_cat_snapshot *s = sk_cat_find(st->job, st->run, step);
	struct rank_slot *slot;

	if (is_filling(st, step) ||
	    (s && sk_cat_find_image(s, st->rank, SK_IMAGE_PRIMARY)))
		return sk_err_set(err, -EEXIST, "step %llu of job \"%s\" has "
				  "an image of rank %d already, from this run",
				  (unsigned long long)step, st->job->name,
				  st->rank);
	slot = find_slot(a, st);
	if (!slot) {
		a->count.busy++;
		*ret_eta_ns = flush_eta_ns(a);
		return sk_err_set(err, -EBUSY, "none of rank %d's %u slots is "
				  "free: the oldest flush needs %.1f s more",
				  st->rank, st->n_slots,
				  (double)*ret_eta_ns / 1e9);
	}
	if (slot->status == SLOT_SEALED) {
		release_and_cover(a, slot);
		a->count.evicted++;
	}
	slot->status = SLOT_FILLING;
	slot->step = step;
	slot->flags = flags;
	*ret_slot = (uint32_t)(slot - st->slots);
	return 0;
}

/* ---- sealing ---- */

static int read_stamp(struct agent *a, const struct state *st,
		      const struct rank_slot *slot, int kind, uint64_t **ret,
		      struct sk_err *err)
{
	const struct sk_layout *l = st->layouts[kind];
	uint64_t *sums = calloc(l->n_sums + 1u, sizeof(*sums));
	struct sk_stamp stamp = { .sums = sums };
	int r;

	(void)a;
	if (!sums)
		return sk_err_set(err, -ENOMEM, "out of memory");
	r = sk_layout_read_stamp(l, slot->memory[kind].map, &stamp, err);
	if (r >= 0 && (stamp.run != st->run || stamp.step != slot->step))
		r = sk_err_set(err, -EBADMSG, "the image says run %llu, step "
			       "%llu", (unsigned long long)stamp.run,
			       (unsigned long long)stamp.step);
	if (r < 0) {
		free(sums);
		return r;
	}
	*ret = sums;
	return 0;
}

static bool wants_flush(const struct agent *a, const struct state *st,
			const struct rank_slot *slot)
{
	if (!a->store)
		return false;
	if (slot->flags & SK_SLOT_FLUSH)
		return true;
	return !(slot->flags & SK_SLOT_NO_FLUSH) &&
	       st->flush_every != UINT32_MAX &&
	       slot->step % st->flush_every == 0;
}

static int add_images(struct agent *a, struct state *st,
		      struct rank_slot *slot, uint64_t *sums[2],
		      struct sk_err *err)
{
	struct sk_cat_snapshot *s;

	s = sk_cat_snapshot(st->job, st->run, slot->step, st->world);
	if (!s)
		return sk_err_set(err, -ENOMEM, "out of memory");
	if (!s->created_ns)
		s->created_ns = a->os->wall_ns(a->os);
	for (int k = 0; k < 2; k++) {
		if (!st->layouts[k])
			continue;
		slot->image[k] = sk_cat_add(&a->cat, s, st->layouts[k],
					    sums[k]);
		if (!slot->image[k]) {
			slot_release(a, slot);
			return sk_err_set(err, -ENOMEM, "out of memory");
		}
		slot->image[k]->slot = slot;
		a->count.bytes_sealed += st->layouts[k]->image_bytes;
	}
	slot->status = SLOT_SEALED;
	s->wanted |= wants_flush(a, st, slot);
	snapshot_cover(a, s);
	return 0;
}

int slot_seal(struct agent *a, struct state *st, uint32_t index,
	      uint64_t step, struct sk_err *err)
{
	struct rank_slot *slot = &st->slots[index];
	uint64_t *sums[2] = { NULL, NULL };
	int r = 0;

	if (index >= st->n_slots || slot->status != SLOT_FILLING ||
	    slot->step != step)
		return sk_err_set(err, -EINVAL, "slot %u is not being filled "
				  "for step %llu", index,
				  (unsigned long long)step);
	for (int k = 0; k < 2 && r >= 0; k++)
		if (st->layouts[k])
			r = read_stamp(a, st, slot, k, &sums[k], err);
	if (r >= 0)
		r = add_images(a, st, slot, sums, err);
	free(sums[0]);
	free(sums[1]);
	if (r < 0) {
		slot->status = SLOT_FREE;
		a->count.discarded++;
		say(a, 1, "rank %d of job \"%s\": step %llu refused: %s",
		    st->rank, st->job->name, (unsigned long long)step,
		    err->text);
		return r;
	}
	a->count.sealed++;
	flush_queue(a);
	return 0;
}

/* ---- coverage ---- */

void snapshot_cover(struct agent *a, struct sk_cat_snapshot *s)
{
	struct sk_layout **known;
	bool before = s->complete;
	size_t n = 0;

	for (struct state *st = a->states; st; st = st->next)
		n += 2;
	known = calloc(n + 1, sizeof(*known));
	if (!known)
		return;
	n = 0;
	for (struct state *st = a->states; st; st = st->next)
		if (st->job == s->job && st->run == s->run)
			known[n++] = st->layouts[0];
	sk_cat_cover(s, known, n);
	free(known);
	if (s->complete && !before) {
		a->count.completed++;
		say(a, 3, "job \"%s\", run %llu, step %llu is complete",
		    s->job->name, (unsigned long long)s->run,
		    (unsigned long long)s->step);
	}
}

void image_bad(struct agent *a, struct sk_cat_image *image, uint32_t place)
{
	struct sk_cat_snapshot *s = image->snapshot;

	if (place == SK_PLACE_DISK)
		image->bad_disk = true;
	else
		image->bad_memory = true;
	a->count.bad_images++;
	say(a, 0, "rank %d's %s image of job \"%s\", run %llu, step %llu has "
	    "bad bytes %s; it is set aside", image->rank,
	    image->kind ? "replica" : "primary", s->job->name,
	    (unsigned long long)s->run, (unsigned long long)s->step,
	    place == SK_PLACE_DISK ? "on disk" : "in memory");
	snapshot_cover(a, s);
}

/* ---- evicting ---- */

static void evict_memory(struct agent *a, struct sk_cat_job *job,
			 uint64_t run, uint64_t step)
{
	for (;;) {
		struct sk_cat_snapshot *s = sk_cat_find(job, run, step);
		struct sk_cat_image *i = s ? s->images : NULL;

		while (i && (!i->slot || i->leases))
			i = i->next;
		if (!i)
			break;
		slot_release(a, i->slot);
		a->count.evicted++;
	}
	if (sk_cat_find(job, run, step))
		snapshot_cover(a, sk_cat_find(job, run, step));
	state_collect(a);
}

static int evict_disk(struct agent *a, struct sk_cat_job *job, uint64_t run,
		      uint64_t step, struct sk_err *err)
{
	int r = 0;

	for (;;) {
		struct sk_cat_snapshot *s = sk_cat_find(job, run, step);
		struct sk_cat_image *i = s ? s->images : NULL;

		while (i && !i->on_disk)
			i = i->next;
		if (!i)
			break;
		if (i->dir[0]) {
			int e = sk_store_delete(a->store, job->name, i->dir,
						err);

			r = e < 0 && e != -ENOENT ? e : r;
		}
		i->on_disk = false;
		if (!i->slot)
			(void)sk_cat_drop_image(i);
	}
	if (sk_cat_find(job, run, step))
		snapshot_cover(a, sk_cat_find(job, run, step));
	return r;
}

int snapshot_evict(struct agent *a, struct sk_cat_snapshot *s, uint32_t flags,
		   struct sk_err *err)
{
	struct sk_cat_job *job = s->job;
	uint64_t run = s->run, step = s->step;
	int r = 0;

	if (sk_cat_in_use(s) || s->flushing || !(flags & SK_EVICT_FORCE))
		r = sk_cat_may_evict(s, a->store, err);
	if (r < 0)
		return r;
	if (flags & SK_EVICT_MEMORY || !(flags & SK_EVICT_DISK))
		evict_memory(a, job, run, step);
	if (flags & SK_EVICT_DISK && a->store)
		r = evict_disk(a, job, run, step, err);
	return r;
}

bool snapshot_evict_oldest(struct agent *a)
{
	struct sk_cat_snapshot *oldest = NULL;

	for (struct sk_cat_job *j = a->cat.jobs; j; j = j->next)
		for (struct sk_cat_snapshot *s = j->snapshots; s; s = s->next)
			if (sk_cat_in_memory(s) && !pending(s) &&
			    sk_cat_may_evict(s, a->store, NULL) == 0 &&
			    (!oldest || s->created_ns < oldest->created_ns))
				oldest = s;
	if (!oldest)
		return false;
	evict_memory(a, oldest->job, oldest->run, oldest->step);
	return true;
}

/* All ranks of a run are gone: what is newest goes to disk, and what was
 * being made never will be complete. */
void job_ended(struct agent *a, struct sk_cat_job *job, uint64_t run)
{
	struct sk_cat_snapshot *newest = sk_cat_newest_complete(job);

	for (struct sk_cat_snapshot *s = job->snapshots; s; s = s->next)
		if (s->run == run && !s->complete)
			s->hopeless = true;
	if (newest && a->store && !sk_cat_durable(newest))
		newest->wanted = true;
	flush_queue(a);
}
