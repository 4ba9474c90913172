/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl watch: what becomes of snapshots, a line for each event. */
#include "cachectl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "conn/list.h"
#include "lists.h"

#define INTERVAL_NS UINT64_C(500000000)

struct seen {
	struct sk_wire_snapshot *v;	/* as they are listed */
	size_t n;
};

struct watching {
	struct context *ctx;
	struct sk_wire_id id;
	struct seen now, before;
	uint64_t told;			/* events */
	bool full;			/* no more are wanted */
};

/* ---- telling ---- */

static int print_json(const struct sk_wire_snapshot *s, const char *event,
		      const char *at)
{
	json_t *doc = json_pack("{ss ss ss sI sI sI sI sI}", "time", at,
				"event", event, "job", s->id.job,
				"run", (json_int_t)s->id.run,
				"step", (json_int_t)s->id.step,
				"images", (json_int_t)s->images,
				"world", (json_int_t)s->id.world,
				"uid", (json_int_t)s->uid);
	int e = doc ? json_dumpf(doc, stdout, JSON_COMPACT) : -1;

	json_decref(doc);
	return e ? -EIO : 0;
}

static int tell(struct watching *w, const struct sk_wire_snapshot *s,
		const char *event)
{
	uint64_t ns = w->ctx->os->wall_ns(w->ctx->os);
	time_t seconds = (time_t)(ns / 1000000000);
	char at[64];
	struct tm tm;
	int e = 0;

	if (w->full)
		return 0;
	w->full = ++w->told == w->ctx->count;
	gmtime_r(&seconds, &tm);
	(void)strftime(at, sizeof(at), "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (w->ctx->output == OUTPUT_JSON)
		e = print_json(s, event, at);
	else
		printf("%s %s@%" PRIu64 "/%" PRId64 " %s (%" PRIu32 " of %d "
		       "images)", at, s->id.job, s->id.run, s->id.step, event,
		       s->images, s->id.world);
	putchar('\n');
	/* Whoever reads a pipe waits for it. */
	if (e < 0 || fflush(stdout))
		return sk_err_set(&w->ctx->err, -EIO, "cannot print: %s",
				  strerror(errno));
	return 0;
}

/* ---- what has changed ---- */

static bool same(const struct sk_wire_snapshot *a,
		 const struct sk_wire_snapshot *b)
{
	return a->uid == b->uid && a->id.run == b->id.run &&
	       a->id.run_id == b->id.run_id;
}

static const struct sk_wire_snapshot *
find(const struct listed *in, const struct sk_wire_snapshot *s)
{
	struct listed_walk walk = listed_find(in, &s->id);
	const struct sk_wire_snapshot *it;

	while ((it = listed_next(&walk)))
		if (same(it, s))
			return it;
	return NULL;
}

static const struct {
	uint32_t flag;
	bool on;
	const char *event;
} changes[] = {
	{ SK_SNAP_COMPLETE, true, "complete" },
	{ SK_SNAP_COMPLETE, false, "incomplete" },
	{ SK_SNAP_FAILED, true, "flush-failed" },
	{ SK_SNAP_DURABLE, true, "durable" },
	{ SK_SNAP_MEMORY, false, "evicted" },
	{ SK_SNAP_DISK, false, "deleted" },
	{ SK_SNAP_PINNED, true, "pinned" },
	{ SK_SNAP_PINNED, false, "unpinned" },
};

/* @was: all zero where it is new. */
static int tell_changes(struct watching *w,
			const struct sk_wire_snapshot *was,
			const struct sk_wire_snapshot *is)
{
	int r = 0;

	if (is->images > was->images && is->flags & SK_SNAP_MEMORY)
		r = tell(w, is, "sealed");
	for (size_t i = 0; i < SK_ARRAY_SIZE(changes) && r >= 0; i++) {
		bool had = was->flags & changes[i].flag;
		bool has = is->flags & changes[i].flag;

		if (had != has && has == changes[i].on)
			r = tell(w, is, changes[i].event);
	}
	if (r >= 0 && ((is->bad_memory >= 0 && was->bad_memory < 0) ||
		       (is->bad_disk >= 0 && was->bad_disk < 0)))
		r = tell(w, is, "damaged");
	return r;
}

/* What an agent does not leave to the disk. One of before leaves the newer ones
 * instead, where there are as many of these. */
static bool stays(const struct sk_wire_snapshot *s)
{
	return s->flags & (SK_SNAP_MEMORY | SK_SNAP_PINNED | SK_SNAP_IN_USE |
			   SK_SNAP_FAILED) || s->bad_disk >= 0;
}

/* How many of its job are known that are newer than each; @or_stay: or stay. */
static void count_before(const struct seen *in, bool or_stay, size_t *ret)
{
	size_t end, n;

	for (size_t from = 0; from < in->n; from = end) {
		n = 0;
		for (end = from; end < in->n &&
		     in->v[end].uid == in->v[from].uid &&
		     !strcmp(in->v[end].id.job, in->v[from].id.job); end++)
			n += or_stay && stays(&in->v[end]);
		for (size_t i = from; i < end; i++)
			ret[i] = n + i - from;
	}
}

/* Oldest first, as they came. An old one that only the disk has is no event
 * where it is not known any more, nor where somebody has asked for it. */
static int tell_all(struct watching *w, const struct listed *before,
		    const struct listed *now, size_t *others)
{
	const struct sk_wire_snapshot none = { .bad_memory = -1,
					       .bad_disk = -1 };
	bool or_stay = w->ctx->conn.version < SK_WIRE_VERSION;
	size_t come = 0;
	int r = 0;

	for (size_t i = 0; i < w->now.n; i++)
		come += !find(before, &w->now.v[i]);
	count_before(&w->before, or_stay, others);
	for (size_t i = w->before.n; i-- > 0 && r >= 0; ) {
		const struct sk_wire_snapshot *was = &w->before.v[i];
		bool left = was->flags & SK_SNAP_DISK &&
			    others[i] + come >= SK_LIST_KNOWN_MOST;

		if (!left && !find(now, was))
			r = tell(w, was, was->flags & SK_SNAP_DISK ?
				 "deleted" : "evicted");
	}
	count_before(&w->now, or_stay, others);
	for (size_t i = w->now.n; i-- > 0 && r >= 0; ) {
		const struct sk_wire_snapshot *is = &w->now.v[i];
		const struct sk_wire_snapshot *was = find(before, is);

		if (was || is->flags & SK_SNAP_MEMORY ||
		    others[i] < SK_LIST_KNOWN_MOST)
			r = tell_changes(w, was ? was : &none, is);
	}
	return r;
}

static int compare(struct watching *w)
{
	size_t most = w->now.n > w->before.n ? w->now.n : w->before.n;
	_cleanup_free_ size_t *others = calloc(most + 1, sizeof(*others));
	struct listed before = { 0 }, now = { 0 };
	int r;

	if (!others ||
	    listed_note(&before, w->before.v, sizeof(*w->before.v),
			w->before.n) < 0 ||
	    listed_note(&now, w->now.v, sizeof(*w->now.v), w->now.n) < 0)
		r = sk_err_set(&w->ctx->err, -ENOMEM, "out of memory");
	else
		r = tell_all(w, &before, &now, others);
	listed_free(&before);
	listed_free(&now);
	return r;
}

/* ---- looking ---- */

static int list(struct watching *w, uint32_t flags)
{
	struct context *ctx = w->ctx;
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = w->id, .what = SK_LIST_SNAPSHOTS, .flags = flags } };
	int r = ask_connect(ctx);

	if (r >= 0)
		r = sk_list_read(&ctx->conn, &msg, sizeof(*w->now.v),
				 sk_until_ms(ctx->os, ctx->timeout_ms),
				 &w->now.v, &w->now.n, &ctx->err);
	return r;
}

static int look(struct watching *w, uint32_t flags)
{
	int r;

	free(w->before.v);
	w->before = w->now;
	w->now = (struct seen){ NULL, 0 };
	r = list(w, flags);
	/* Another agent may be in its place, which has not looked yet. */
	if (r == -ECONNRESET)
		r = list(w, 0);
	for (size_t i = 0; i < w->now.n; i++)
		w->now.v[i].id.job[sizeof(w->now.v[i].id.job) - 1] = 0;
	return r;
}

int command_watch(struct context *ctx, int argc, char **argv)
{
	struct watching w = { .ctx = ctx, .id = { .step = -1, .rank = -1 } };
	int r = argc ? ask_parse_snapshot(ctx, argv[0], &w.id) : 0;

	/* What was there before is no event; and the store is looked at once:
	 * what happens to it while we watch, the agent does. */
	if (r >= 0)
		r = look(&w, 0);
	while (r >= 0 && !w.full) {
		live_wait(ctx, INTERVAL_NS);
		r = look(&w, SK_LIST_KNOWN);
		if (r >= 0)
			r = compare(&w);
	}
	free(w.now.v);
	free(w.before.v);
	return r;
}
