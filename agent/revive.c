/* SPDX-License-Identifier: Apache-2.0 */
#include "revive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/size.h"
#include "base/util.h"
#include "calls/device.h"
#include "disk/flush.h"
#include "disk/stored.h"
#include "memory/memory.h"
#include "memory/record.h"

#define AWAIT_NS (UINT64_C(120) * 1000000000)	/* a rank may take to be back */
#define ID_BITS 40u		/* of what one agent may count */
#define LOOK_MOST 8u		/* steps on disk, of each job */

/* A slot that was kept, or a device slot. */
struct entry {
	struct table_record record;
	uint32_t at;			/* in the table */
	int fds[2];			/* -1: taken, or none */
	struct sk_layout *layouts[2];	/* references, of what is sealed */
	uint64_t *sums[2];
	struct entry *device;		/* has what it was to hold; or NULL */
	struct sk_cat_slot *slot;	/* that it has become; NULL: none */
};

struct reviving {
	struct agent *agent;
	struct kept *kept;
	struct entry *entries;
	uint32_t n;
	uint32_t images, lost;		/* sealed ones */
	uint64_t bytes;
};

/* ---- what was kept ---- */

static bool is_device(const struct entry *e)
{
	return e->record.use == TABLE_DEVICE;
}

/* Of a device slot: the memory, and what tells how to drain it. */
static bool has_fd(const struct entry *e, int kind)
{
	return is_device(e) || e->record.kind_bytes[kind];
}

/* Of a device slot: what it holds is in memory as well. */
static bool is_copy(const struct entry *e)
{
	return is_device(e) && e->record.step < 0 && e->record.stands_for;
}

static void forget_entry(struct reviving *v, struct entry *e)
{
	struct agent *a = v->agent;
	char name[KEPT_NAME];

	table_drop(&a->table, e->at);
	for (int kind = 0; kind < 2; kind++) {
		e->fds[kind] = sk_close_fd(e->fds[kind]);
		if (!has_fd(e, kind))
			continue;
		record_name(e->record.serial, kind, name, sizeof(name));
		keeper_forget(a->os, &a->keeper, name);
	}
	e->record.serial = 0;
}

static void lose(struct reviving *v, struct entry *e, const char *why)
{
	const struct table_record *r = &e->record;

	if (r->use == TABLE_SEALED || (is_device(e) && r->step >= 0)) {
		v->lost++;
		log_error(v->agent, "the image of job \"%.*s\" run %" PRIu64
			  " step %" PRId64 " rank %" PRId32 " did not outlive "
			  "the last agent: %s", (int)sizeof(r->job), r->job,
			  r->run, r->step, r->rank, why);
	}
	forget_entry(v, e);
}

/* Written by an agent, but not by this one. */
static bool slot_makes_sense(const struct table_record *r)
{
	return r->use >= TABLE_FREE && r->use <= TABLE_DEVICE && r->state &&
	       r->kind_bytes[0] &&
	       r->kind_bytes[0] % SK_PAGE == 0 &&
	       r->kind_bytes[1] % SK_PAGE == 0 &&
	       r->kind_bytes[0] < INT64_MAX / 2 &&
	       r->kind_bytes[1] < INT64_MAX / 2 &&
	       (r->use == TABLE_DEVICE ||
		(r->header_bytes[0] <= r->kind_bytes[0] &&
		 r->header_bytes[1] <= r->kind_bytes[1])) &&
	       (r->use != TABLE_SEALED || r->step >= 0);
}

static bool makes_sense(const struct table_record *r)
{
	return memchr(r->job, 0, sizeof(r->job)) &&
	       sk_job_check(r->job, NULL) == 0 && r->rank >= 0 &&
	       r->rank < r->world &&
	       (r->use == TABLE_RUN ? !r->state && !r->kind_bytes[0] &&
				      !r->kind_bytes[1] :
				      slot_makes_sense(r));
}

static void take_fds(struct reviving *v, struct entry *e)
{
	bool whole = true;
	char name[KEPT_NAME];

	for (int kind = 0; kind < 2; kind++) {
		if (!has_fd(e, kind))
			continue;
		record_name(e->record.serial, kind, name, sizeof(name));
		e->fds[kind] = kept_take(v->kept, name);
		whole &= e->fds[kind] >= 0;
	}
	if (!makes_sense(&e->record))
		lose(v, e, "its record makes no sense");
	else if (!whole)
		lose(v, e, "its memory was not kept");
}

static int collect(struct reviving *v)
{
	const struct table *t = &v->agent->table;
	uint32_t most = table_used(t);

	v->entries = calloc((size_t)most + 1, sizeof(*v->entries));
	if (!v->entries)
		return -ENOMEM;
	for (uint32_t at = 0; at < most; at++) {
		struct entry *e = &v->entries[v->n];

		if (!table_get(t, at, &e->record))
			continue;
		e->at = at;
		e->fds[0] = e->fds[1] = -1;
		v->n++;
	}
	for (uint32_t i = 0; i < v->n; i++)
		take_fds(v, &v->entries[i]);
	return 0;
}

/* Runs, then by registration, in their order; of each what is sealed comes
 * first, since it tells the layout, on the device before that. */
static int compare(const void *left, const void *right)
{
	const struct table_record *a = &((const struct entry *)left)->record;
	const struct table_record *b = &((const struct entry *)right)->record;

	if (a->state != b->state)
		return a->state < b->state ? -1 : 1;
	return (int)b->use - (int)a->use;
}

/* ---- what is sealed ---- */

static int read_layout(struct reviving *v, struct entry *e, int kind,
		       const void *header, struct sk_err *err)
{
	const struct table_record *r = &e->record;
	struct sk_layout **ret = &e->layouts[kind];
	int result = sk_recall_get(v->agent->recall, r->job, r->rank,
				   (enum sk_image_kind)kind, header,
				   r->header_bytes[kind],
				   r->image_bytes[kind], ret, err);

	if (result < 0)
		return result;
	if (sk_digest_equal(&(*ret)->digest, &r->digests[kind]) &&
	    (*ret)->header_bytes == r->header_bytes[kind] &&
	    (*ret)->image_bytes == r->image_bytes[kind] &&
	    (*ret)->image_bytes <= r->kind_bytes[kind])
		return 0;
	return sk_err_set(err, -EBADMSG, "its header is of another layout");
}

static int read_stamp(struct entry *e, int kind, const void *header,
		      struct sk_err *err)
{
	const struct table_record *r = &e->record;
	const struct sk_layout *l = e->layouts[kind];
	struct sk_stamp stamp = { 0 };
	struct sk_digest content;
	int result;

	stamp.sums = calloc((size_t)l->n_sums + 1, sizeof(*stamp.sums));
	if (!stamp.sums)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	e->sums[kind] = stamp.sums;
	result = sk_layout_read_stamp(l, header, &stamp, err);
	if (result < 0)
		return result;
	record_content(l, stamp.sums, &content);
	if (stamp.run == r->run && stamp.run_id == r->run_id &&
	    stamp.step == (uint64_t)r->step &&
	    sk_digest_equal(&content, &r->content[kind]))
		return 0;
	return sk_err_set(err, -EBADMSG, "its stamp is not the one that was "
			  "sealed");
}

static int read_image(struct reviving *v, struct entry *e, int kind,
		      struct sk_err *err)
{
	const struct sk_os *os = v->agent->os;
	uint64_t bytes = e->record.header_bytes[kind];
	_cleanup_free_ void *header = malloc(bytes + 1);
	int r;

	if (!header)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	if (os->pread(os, e->fds[kind], header, bytes, 0) != (ssize_t)bytes)
		return sk_err_set(err, -EIO, "its header cannot be read");
	r = read_layout(v, e, kind, header, err);
	return r < 0 ? r : read_stamp(e, kind, header, err);
}

static void read_sealed(struct reviving *v, struct entry *e)
{
	struct sk_err err = { "" };
	int r = 0;

	if (!e->record.serial || e->record.use != TABLE_SEALED)
		return;
	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (e->record.kind_bytes[kind])
			r = read_image(v, e, kind, &err);
	}
	if (r < 0)
		lose(v, e, err.text);
}

/* ---- what is sealed on a device ---- */

/* Its slot, in which nothing has been sealed yet. */
static struct entry *stood_for(struct entry *first, uint32_t n,
			       const struct entry *device)
{
	const struct table_record *r = &device->record;

	for (uint32_t i = 0; i < n; i++) {
		struct entry *e = &first[i];

		if (r->stands_for && e->record.serial == r->stands_for &&
		    e->record.use == TABLE_FILLING &&
		    e->record.step == r->step)
			return e;
	}
	return NULL;
}

static int read_template(struct entry *e, int kind, uint64_t at,
			 struct sk_layout **ret, const struct sk_os *os,
			 struct sk_err *err)
{
	const struct table_record *r = &e->record;
	uint64_t bytes = r->header_bytes[kind];
	_cleanup_free_ void *header = malloc(bytes + 1);
	int result;

	if (!header)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	if (os->pread(os, e->fds[1], header, bytes, (off_t)at) !=
	    (ssize_t)bytes)
		return sk_err_set(err, -EIO, "what it holds cannot be read");
	result = sk_layout_parse(header, bytes, r->image_bytes[kind], ret,
				 err);
	if (result < 0)
		return result;
	return sk_digest_equal(&(*ret)->digest, &r->digests[kind]) ? 0 :
	       sk_err_set(err, -EBADMSG, "it is of another layout");
}

/* The slot gets layouts, which it had no header to tell by. */
static int match(struct reviving *v, struct entry *device, struct entry *slot,
		 struct sk_err *err)
{
	const struct table_record *r = &device->record, *of = &slot->record;
	uint64_t at = 0;
	int result = 0;

	for (int kind = 0; kind < 2 && result == 0; kind++) {
		if (!of->kind_bytes[kind] != !r->header_bytes[kind] ||
		    r->header_bytes[kind] > SK_HEADER_MAX + 2ull * SK_PAGE ||
		    r->image_bytes[kind] > of->kind_bytes[kind])
			return sk_err_set(err, -EBADMSG, "it is not what its "
					  "slot is to hold");
		if (r->header_bytes[kind])
			result = read_template(device, kind, at,
					       &slot->layouts[kind],
					       v->agent->os, err);
		at += r->header_bytes[kind];
	}
	if (result == 0)
		slot->device = device;
	return result;
}

/* It was sealed there just when the agent was killed. */
static bool is_over(const struct entry *first, uint32_t n,
		    const struct entry *device)
{
	for (uint32_t i = 0; i < n; i++)
		if (first[i].record.serial == device->record.stands_for &&
		    first[i].record.use == TABLE_SEALED &&
		    first[i].record.step == device->record.step)
			return true;
	return false;
}

/* Only what stands for a slot is of any use, or is a copy of what one holds:
 * for all else, the process that might want it has it mapped. */
static void match_devices(struct reviving *v, struct entry *first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct entry *e = &first[i], *slot;
		struct sk_err err = { "the slot that it stood for did not" };

		if (!e->record.serial || !is_device(e) || is_copy(e))
			continue;
		slot = stood_for(first, n, e);
		if (e->record.step < 0 || is_over(first, n, e))
			forget_entry(v, e);
		else if (!slot || match(v, e, slot, &err) < 0)
			lose(v, e, err.text);
	}
}

/* ---- into the catalogue ---- */

static void free_entry(struct entry *e)
{
	for (int kind = 0; kind < 2; kind++) {
		e->fds[kind] = sk_close_fd(e->fds[kind]);
		e->layouts[kind] = sk_layout_free(e->layouts[kind]);
		free(e->sums[kind]);
		e->sums[kind] = NULL;
	}
}

static int add_state(struct agent *a, const struct entry *e,
		     struct sk_cat_state **ret, struct sk_err *err)
{
	const struct table_record *r = &e->record;
	struct sk_cat_layout *layouts[2] = { NULL, NULL };
	struct sk_cat_job *job = sk_cat_job_get(&a->cat, r->job, r->uid);
	struct sk_cat_run *run;
	int result;

	if (!job)
		return sk_err_set(err, -ENOMEM, "no memory for a job");
	result = sk_cat_run_revive(job, r->run, r->run_id, r->world, &run,
				   err);
	if (result < 0)
		return result;
	for (int kind = 0; kind < 2; kind++) {
		if (e->layouts[kind])
			layouts[kind] = sk_cat_layout_take(
				&a->cat, sk_layout_ref(e->layouts[kind]));
	}
	*ret = layouts[0] && !layouts[1] == !e->layouts[1] ?
	       sk_cat_state_revive(run, r->rank, r->state, layouts) : NULL;
	if (*ret) {
		(*ret)->numa_node = r->numa_node;
		(*ret)->flush_every = r->flush_every;
		return 0;
	}
	sk_cat_layout_unref(layouts[0]);
	sk_cat_layout_unref(layouts[1]);
	return sk_err_set(err, -ENOMEM, "no memory for a rank");
}

/* What its record says beside: of the snapshot, and of damage. */
static void mark_sealed(struct sk_cat_slot *slot,
			const struct table_record *r)
{
	struct sk_cat_snapshot *s = slot->snapshot;

	s->pinned |= !!(r->flags & TABLE_PINNED);
	s->wanted |= !!(r->flags & TABLE_WANTED);
	for (int kind = 0; kind < 2; kind++) {
		if (slot->images[kind] && r->flags & TABLE_BAD << kind)
			sk_cat_image_bad(slot->images[kind], false, 0);
	}
}

static int fill_slot(struct sk_cat_slot *slot, struct entry *e)
{
	const struct table_record *r = &e->record;
	int result;

	if (r->last_step > slot->state->last_step)
		slot->state->last_step = r->last_step;
	if (e->device)
		return sk_cat_slot_resume(slot, r->step,
					  e->device->record.flags);
	if (r->use != TABLE_SEALED)
		return 0;
	result = sk_cat_slot_revive(slot, r->step, e->sums, r->created_ns);
	if (result < 0)
		return result;
	e->sums[0] = e->sums[1] = NULL;
	mark_sealed(slot, r);
	return 0;
}

static int add_slot(struct reviving *v, struct sk_cat_state *state,
		    struct entry *e, struct sk_err *err)
{
	struct agent *a = v->agent;
	struct sk_cat_slot *slot;
	struct memory *m;
	int r;

	r = memory_adopt(a, e->record.kind_bytes, e->fds,
			 e->record.numa_node, &m, err);
	if (r < 0)
		return r;
	m->sealed_writes = e->record.flags & TABLE_NO_WRITES;
	/* Until all is there, the record stays as it was. */
	slot = sk_cat_slot_add(state, e->record.kind_bytes, m);
	r = slot ? fill_slot(slot, e) : -ENOMEM;
	if (!slot) {
		memory_release(m);
		return sk_err_set(err, r, "no memory for a slot");
	}
	if (r == 0 && e->device)
		r = device_revive(a, &e->device->record, e->device->at,
				  e->device->fds, slot);
	/* The record is dropped, and not this slot's any more. */
	if (r < 0) {
		sk_cat_slot_clear(slot);
		return sk_err_errno(err, r, "it cannot be taken up");
	}
	m->record = e->at;
	m->serial = e->record.serial;
	e->slot = slot;
	v->bytes += slot->bytes;
	return r;
}

/* The slots of one registration; what was being filled is free. */
static void add_group(struct reviving *v, struct entry *first, uint32_t n)
{
	struct sk_cat_state *state = NULL;
	struct sk_err err = { "no image tells what it holds" };
	int r = -ENODATA;

	for (uint32_t i = 0; i < n; i++) {
		struct entry *e = &first[i];

		if (!e->record.serial || is_device(e))
			continue;
		/* The first one that is whole: it has the layouts. */
		if (!state && (e->record.use == TABLE_SEALED || e->device))
			r = add_state(v->agent, e, &state, &err);
		if (state)
			r = add_slot(v, state, e, &err);
		if (r < 0)
			lose(v, e, err.text);
		else
			v->images += e->record.use == TABLE_SEALED;
	}
}

/* Those whose slots could not be taken up. */
static void drop_devices(struct reviving *v, struct entry *first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (first[i].record.serial && is_device(&first[i]) &&
		    !is_copy(&first[i]) && first[i].fds[0] >= 0)
			forget_entry(v, &first[i]);
}

static struct sk_cat_slot *slot_with(const struct reviving *v,
				     uint64_t serial)
{
	for (uint32_t i = 0; i < v->n; i++)
		if (v->entries[i].record.serial == serial)
			return v->entries[i].slot;
	return NULL;
}

/* When all slots are there: one may be another registration's by now. */
static void add_copies(struct reviving *v)
{
	for (uint32_t i = 0; i < v->n; i++) {
		struct entry *e = &v->entries[i];
		const struct sk_cat_slot *slot;

		if (!e->record.serial || !is_copy(e))
			continue;
		slot = slot_with(v, e->record.stands_for);
		if (!slot || slot->use != SK_CAT_SEALED ||
		    device_revive_copy(v->agent, &e->record, e->at, e->fds,
				       slot) < 0)
			forget_entry(v, e);
	}
}

/* Nothing of it need be sealed: its ranks come back to it all the same, and
 * who had not been told of it yet joins them. */
static void add_run(struct reviving *v, struct entry *e)
{
	const struct table_record *r = &e->record;
	struct sk_cat_job *job = sk_cat_job_get(&v->agent->cat, r->job,
						r->uid);
	struct sk_err err = { "no memory for a job" };
	struct sk_cat_run *run;

	if (!job || sk_cat_run_revive(job, r->run, r->run_id, r->world, &run,
				      &err) < 0) {
		record_unkept(v->agent, "a run", err.text);
		forget_entry(v, e);
		return;
	}
	run->awaited = true;
	run->note = e->at + 1;
}

static void add_all(struct reviving *v)
{
	uint32_t from = 0, to;

	qsort(v->entries, v->n, sizeof(*v->entries), compare);
	for (; from < v->n && !v->entries[from].record.state; from++)
		if (v->entries[from].record.serial)
			add_run(v, &v->entries[from]);
	for (; from < v->n; from = to) {
		for (to = from; to < v->n && v->entries[to].record.state ==
					     v->entries[from].record.state;
		     to++)
			read_sealed(v, &v->entries[to]);
		match_devices(v, &v->entries[from], to - from);
		add_group(v, &v->entries[from], to - from);
		drop_devices(v, &v->entries[from], to - from);
		for (uint32_t i = from; i < to; i++)
			if (!is_copy(&v->entries[i]))
				free_entry(&v->entries[i]);
	}
	add_copies(v);
}

/* ---- waiting for the ranks ---- */

static void await_no_more(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, await_timer);
	struct sk_cat_job *job;
	unsigned n = 0, away;

	sk_link_each(job, &a->cat.jobs, link) {
		away = sk_cat_await_no_more(job);
		n += away;
		/* As when the last rank goes. */
		if (away)
			flush_newest(a, job);
	}
	if (n)
		log_info(a, "%u ranks of before the restart did not come "
			 "back", n);
	(void)sk_cat_trim_free(&a->cat, NULL);
	agent_changed(a);
}

static void welcome(struct reviving *v)
{
	struct agent *a = v->agent;
	struct sk_cat_snapshot *s;
	struct sk_cat_job *job;
	char text[32];

	sk_link_each(job, &a->cat.jobs, link) {
		/* In full: with what was free, and what is no longer. */
		sk_link_each(s, &job->live, live)
			record_snapshot(a, s);
		/* That some are durable the last agent may have told. */
		stored_foresee(a, job, LOOK_MOST);
	}
	a->await_timer.fire = await_no_more;
	timer_set(&a->loop.timers, &a->await_timer, agent_now(a) + AWAIT_NS);
	a->counts.revived += v->images;
	a->counts.lost_images += v->lost;
	log_info(a, "%u images outlived the last agent, in slots of %s",
		 v->images, sk_size_format(v->bytes, text, sizeof(text)));
	agent_changed(a);
}

/* ---- all of it ---- */

static int new_table(struct agent *a, struct sk_err *err)
{
	int r = table_new(a->os, &a->table, err);

	if (r < 0)
		return r;
	if (!keeper_give(a->os, &a->keeper, KEPT_TABLE, a->table.fd))
		log_warning(a, "the keeper takes nothing: what memory holds "
			    "will not outlive this agent");
	return 0;
}

static int take_table(struct agent *a, struct kept *kept, struct sk_err *err)
{
	int fd = kept_take(kept, KEPT_TABLE), r;
	size_t n;

	if (fd < 0)
		return new_table(a, err);
	r = table_adopt(a->os, fd, &a->table, err);
	if (r == 0)
		return 0;
	(void)a->os->close(a->os, fd);
	if (r != -EPROTO)
		return r;
	n = kept_drop(a->os, kept, "slot-");
	log_error(a, "%s; %zu kept descriptors of slots are let go", err->text,
		  n);
	return new_table(a, err);
}

/* Those that no record names: of slots that were being made, or given back. */
static void drop_rest(struct agent *a, struct kept *kept)
{
	for (size_t i = 0; i < kept->n; i++) {
		const struct kept_fd *k = &kept->v[i];

		if (k->fd < 0 || strncmp(k->name, "slot-", 5) != 0)
			continue;
		keeper_forget(a->os, &a->keeper, k->name);
		(void)sk_close_fd(kept_take(kept, k->name));
	}
}

int revive(struct agent *a, struct kept *kept, struct sk_err *err)
{
	struct reviving v = { .agent = a, .kept = kept };
	int r;

	if (a->keeper.kind == KEEPER_NONE)
		return 0;
	r = take_table(a, kept, err);
	if (r < 0)
		return r;
	a->cat.next_id = table_lives(&a->table) << ID_BITS;
	r = collect(&v);
	if (r < 0)
		return sk_err_errno(err, r, "cannot take up what was kept");
	add_all(&v);
	drop_rest(a, kept);
	if (v.n)
		welcome(&v);
	device_drain_dead(a);
	free(v.entries);
	return 0;
}

void revive_close(struct agent *a)
{
	timer_clear(&a->loop.timers, &a->await_timer);
	table_close(a->os, &a->table);
}
