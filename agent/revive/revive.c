/* SPDX-License-Identifier: Apache-2.0 */
#include "revive/revive.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/size.h"
#include "calls/device.h"
#include "catalogue/revive.h"
#include "revive/add.h"
#include "revive/left.h"
#include "revive/sealed.h"

#define ID_BITS 40u		/* of what one agent may count */

/* Bytes of headers that are read before anybody is served; of tests less. */
#ifndef REVIVE_AT_ONCE
#define REVIVE_AT_ONCE (512u << 10)
#endif

/* What there is of one job. */
struct batch {
	struct sk_link link;		/* in v->batches, in that order */
	struct reviving *v;
	struct sk_cat_job *job;		/* which waits for it */
	struct left *first;
	uint32_t n, at;			/* how far it was read */
	struct lane_work work;		/* of the one at that */
	int result;
	struct sk_err err;
};

/* ---- in order ---- */

static int compare_jobs(const struct table_record *a,
			const struct table_record *b)
{
	return a->uid != b->uid ? (a->uid < b->uid ? -1 : 1) :
				  memcmp(a->job, b->job, sizeof(a->job));
}

/* Of each job runs, then by registration, in their order; of each what is
 * sealed comes first, since it tells the layout, on the device before that. */
static int compare(const void *left, const void *right)
{
	const struct table_record *a = &((const struct left *)left)->record;
	const struct table_record *b = &((const struct left *)right)->record;
	int r = compare_jobs(a, b);

	if (r)
		return r;
	if (a->state != b->state)
		return a->state < b->state ? -1 : 1;
	return (int)b->use - (int)a->use;
}

static uint32_t count_of_job(const struct left *first, uint32_t most)
{
	uint32_t n = 1;

	while (n < most && compare_jobs(&first[n].record, &first->record) == 0)
		n++;
	return n;
}

/* ---- at once ---- */

static void was_read(struct reviving *v, struct left *e, int result,
		     const struct sk_err *err)
{
	if (result < 0 && left_is_device(e))
		left_unreadable(e, err->text);
	else if (result < 0)
		left_lose(v, e, err->text);
}

static void read_at_once(struct reviving *v, struct left *first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct sk_err err = { "" };

		was_read(v, &first[i], sealed_read(v->agent, &first[i], &err),
			 &err);
	}
	add_job(v, first, n);
}

/* ---- beside serving ---- */

static void batch_free(struct batch *b)
{
	sk_link_remove(&b->link);
	free(b);
}

static void reviving_free(struct reviving *v)
{
	for (uint32_t i = 0; i < v->n; i++)
		left_free(&v->entries[i]);
	free(v->entries);
	free(v);
}

static void all_is_read(struct reviving *v)
{
	struct agent *a = v->agent;
	char text[32];

	if (v->n)
		log_info(a, "%" PRIu64 " images outlived the last agent, in "
			 "slots of %s", a->counts.revived,
			 sk_size_format(v->bytes, text, sizeof(text)));
	a->reviving = NULL;
	reviving_free(v);
}

static void read_in_background(struct lane_work *work)
{
	struct batch *b = sk_link_object(work, struct batch, work);

	b->result = sealed_read(b->v->agent, &b->first[b->at], &b->err);
}

static void batch_was_read(struct batch *b)
{
	struct reviving *v = b->v;

	for (uint32_t i = 0; i < b->n; i++)
		v->agent->unread_devices -= b->first[i].counted;
	sk_cat_job_was_read(b->job);
	add_job(v, b->first, b->n);
	batch_free(b);
}

/* That of the user's that somebody waits for, or the first; NULL: there is
 * none any more. */
static struct batch *next_of(const struct reviving *v, uid_t uid)
{
	struct batch *b, *first = NULL;

	sk_link_each(b, &v->batches, link) {
		if (b->job->uid != uid)
			continue;
		if (b->job->unread_asked)
			return b;
		if (!first)
			first = b;
	}
	return first;
}

static bool has_more(struct batch *b)
{
	while (b->at < b->n && !sealed_bytes(&b->first[b->at]))
		b->at++;
	return b->at < b->n;
}

static void one_was_read(struct lane_work *work);

/* One of each user is out at a time: more would wait in its lane. */
static void go_on(struct reviving *v, uid_t uid)
{
	struct batch *b;

	while ((b = next_of(v, uid)) && !has_more(b))
		batch_was_read(b);
	if (!b)
		return;
	b->err.text[0] = 0;
	b->work.run = read_in_background;
	b->work.finish = one_was_read;
	lanes_submit(&v->agent->lanes, uid, b->job->name, &b->work);
}

static void one_was_read(struct lane_work *work)
{
	struct batch *b = sk_link_object(work, struct batch, work);
	struct reviving *v = b->v;

	/* What is not read is the next agent's. */
	if (v->agent->quit)
		return;
	was_read(v, &b->first[b->at++], b->result, &b->err);
	v->agent->read_images++;
	go_on(v, b->job->uid);
	if (sk_link_empty(&v->batches))
		all_is_read(v);
}

/* What it takes of the memory is taken from now on. */
static void charge(struct batch *b)
{
	struct sk_cat_amount slots = { 0 };

	for (uint32_t i = 0; i < b->n; i++) {
		struct left *e = &b->first[i];
		const struct table_record *r = &e->record;

		e->counted = r->serial && left_is_device(e);
		b->v->agent->unread_devices += e->counted;
		if (!r->serial || e->counted)
			continue;
		slots.bytes += r->kind_bytes[0] + r->kind_bytes[1];
		slots.fds += !!r->kind_bytes[0] + !!r->kind_bytes[1];
	}
	sk_cat_job_unread(b->job, &slots);
}

/* False: there is no memory to do so. */
static bool read_later(struct reviving *v, struct left *first, uint32_t n)
{
	struct batch *b = calloc(1, sizeof(*b));

	if (!b)
		return false;
	*b = (struct batch){ .v = v, .first = first, .n = n };
	b->job = sk_cat_job_get(&v->agent->cat, first->record.job,
				first->record.uid);
	if (!b->job) {
		free(b);
		return false;
	}
	charge(b);
	sk_link_init(&b->link);
	sk_link_insert(&v->batches, &b->link);
	return true;
}

static uint64_t bytes_of(const struct left *first, uint32_t n)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < n; i++)
		bytes += sealed_bytes(&first[i]);
	return bytes;
}

static void begin_users(struct reviving *v)
{
	const struct batch *b;
	uid_t last = (uid_t)-1;

	/* They stand in the order of their users, and none is over yet. */
	sk_link_each(b, &v->batches, link) {
		if (b->job->uid != last)
			go_on(v, b->job->uid);
		last = b->job->uid;
	}
}

/* All is charged, or there, before anybody is served. */
static void take_up(struct reviving *v)
{
	uint64_t room = REVIVE_AT_ONCE, bytes;

	qsort(v->entries, v->n, sizeof(*v->entries), compare);
	for (uint32_t at = 0, n; at < v->n; at += n) {
		n = count_of_job(&v->entries[at], v->n - at);
		bytes = bytes_of(&v->entries[at], n);
		if (bytes > room && read_later(v, &v->entries[at], n))
			continue;
		room -= bytes < room ? bytes : room;
		read_at_once(v, &v->entries[at], n);
	}
	begin_users(v);
	if (sk_link_empty(&v->batches))
		all_is_read(v);
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
	struct reviving *v;
	int r;

	if (a->keeper.kind == KEEPER_NONE)
		return 0;
	r = take_table(a, kept, err);
	if (r < 0)
		return r;
	a->cat.next_id = table_lives(&a->table) << ID_BITS;
	v = calloc(1, sizeof(*v));
	if (v) {
		v->agent = a;
		sk_link_init(&v->batches);
		r = left_collect(v, kept);
	}
	if (!v || r < 0) {
		free(v);
		return sk_err_errno(err, -ENOMEM, "cannot take up what was "
				    "kept");
	}
	drop_rest(a, kept);
	a->reviving = v;
	take_up(v);
	device_drain_dead(a);
	return 0;
}

void revive_give_up(struct agent *a)
{
	struct reviving *v = a->reviving;
	struct batch *b;

	if (!v)
		return;
	sk_link_each(b, &v->batches, link) {
		sk_cat_job_was_read(b->job);
		batch_free(b);
	}
	a->reviving = NULL;
	reviving_free(v);
}

void revive_close(struct agent *a)
{
	timer_clear(&a->loop.timers, &a->await_timer);
	table_close(a->os, &a->table);
}
