/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl pin, unpin, evict, flush: what changes a snapshot's fate. */
#include "cachectl.h"

#include <stdio.h>
#include <string.h>

#define WAIT_PIECE_MS 250

/* Of this very snapshot: "the newest" may be another one by the second time. */
static int ask_manage(struct context *ctx, struct sk_msg *msg)
{
	const uint16_t asked = msg->type;
	bool again;
	int r = ask_again(ctx, msg, &again);

	/* An agent that ended before it answered has evicted it; or unpinned
	 * it, and what is to stay of its job had it deleted. */
	return r == -ENOENT && again && (asked == SK_MSG_EVICT ||
					 asked == SK_MSG_UNPIN) ? 0 : r;
}

/* Where a pin stands: for scripts, and what people are told of it. */
enum pin_place {
	PIN_UNKNOWN, PIN_ON_DISK, PIN_FOLLOWS, PIN_TO_DISK, PIN_IN_MEMORY,
	PIN_IN_PART, PIN_NO_STORE
};

static const struct {
	const char *word, *text;
} pin_places[] = {
	[PIN_UNKNOWN] = { "unknown", "" },
	[PIN_ON_DISK] = { "disk", "" },
	[PIN_FOLLOWS] = { "to-disk", "; it is on disk, and its pin not yet" },
	[PIN_TO_DISK] = { "to-disk", "; it goes to disk, memory alone has it" },
	[PIN_IN_MEMORY] = { "memory", " in memory alone; to have it on disk: "
			    "cachectl flush" },
	[PIN_IN_PART] = { "memory", " in memory alone: it is not complete, and "
			  "not written" },
	[PIN_NO_STORE] = { "memory", " in memory alone; to have it on disk the "
			   "agent needs a --store" },
};

static enum pin_place pin_place_of(const struct sk_wire_snapshot *s)
{
	const enum pin_place on_disk = s->flags & SK_SNAP_PIN_UNSTORED ?
				       PIN_FOLLOWS : PIN_ON_DISK;

	if (s->flags & SK_SNAP_DURABLE)
		return on_disk;
	if (s->flags & (SK_SNAP_WANTED | SK_SNAP_FLUSHING))
		return PIN_TO_DISK;
	/* All that there is of it here, or ever. */
	if (s->flags & SK_SNAP_DISK && !(s->flags & SK_SNAP_COMPLETE))
		return on_disk;
	return s->flags & (SK_SNAP_COMPLETE | SK_SNAP_LOCAL) ?
	       PIN_IN_MEMORY : PIN_IN_PART;
}

/* It is pinned, whatever becomes of this. */
static enum pin_place ask_pin_place(struct context *ctx,
				    const struct sk_wire_id *id)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	const struct sk_err said = ctx->err;
	enum pin_place place = PIN_UNKNOWN;
	size_t n = 0;

	if (ask_snapshots(ctx, id, &all, &n) >= 0 && n)
		place = pin_place_of(&all[0]);
	if (place == PIN_IN_MEMORY && !ctx->conn.agent.has_store)
		place = PIN_NO_STORE;
	ctx->err = said;
	return place;
}

static const char *report_pin(struct context *ctx, const struct sk_msg *msg)
{
	enum pin_place place;

	if (msg->type != SK_MSG_PIN)
		return "";
	place = ask_pin_place(ctx, &msg->body.manage.id);
	report_text(ctx->report, "stands", NULL, "%s", pin_places[place].word);
	return pin_places[place].text;
}

static int manage(struct context *ctx, const char *text,
		  enum sk_msg_type type, uint32_t flags, const char *done,
		  struct sk_wire_snapshot *ret)
{
	struct sk_msg msg = { .type = (uint16_t)type }, asked;
	const char *where;
	int r = ask_snapshot(ctx, text, ret);

	if (r < 0)
		return r;
	msg.body.manage.id = ret->id;
	msg.body.manage.id.rank = -1;
	msg.body.manage.flags = flags;
	asked = msg;
	r = ask_manage(ctx, &msg);
	if (r < 0)
		return r;
	/* Whether the others' parts are, their agents know. */
	if (type == SK_MSG_FLUSH && ctx->wait && ret->flags & SK_SNAP_LOCAL)
		done = "written";
	report_text(ctx->report, "job", NULL, "%s", ret->id.job);
	report_number(ctx->report, "run", NULL, CELL_INT,
		      (int64_t)ret->id.run);
	report_number(ctx->report, "step", NULL, CELL_INT, ret->id.step);
	report_text(ctx->report, "result", NULL, "%s", done);
	where = report_pin(ctx, &asked);
	report_draw(ctx->report, "%s %s@%llu/%lld%s\n", done, ret->id.job,
		    (unsigned long long)ret->id.run, (long long)ret->id.step,
		    where);
	return 0;
}

int command_pin(struct context *ctx, int argc, char **argv)
{
	struct sk_wire_snapshot s;

	(void)argc;
	return manage(ctx, argv[0], SK_MSG_PIN, 0, "pinned", &s);
}

int command_unpin(struct context *ctx, int argc, char **argv)
{
	struct sk_wire_snapshot s;

	(void)argc;
	return manage(ctx, argv[0], SK_MSG_UNPIN, 0, "unpinned", &s);
}

int command_evict(struct context *ctx, int argc, char **argv)
{
	struct sk_wire_snapshot s;
	uint32_t flags = (ctx->force ? SK_EVICT_FORCE : 0) |
			 (ctx->memory ? SK_EVICT_MEMORY : 0) |
			 (ctx->disk ? SK_EVICT_DISK : 0);

	(void)argc;
	return manage(ctx, argv[0], SK_MSG_EVICT, flags, "evicted", &s);
}

/* How far the flush is, for the progress line; silent on errors, because the
 * wait itself reports them. */
static void show_flush(struct context *ctx, const struct sk_wire_id *id,
		       struct progress *p)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	size_t n = 0;

	if (ask_snapshots(ctx, id, &all, &n) >= 0 && n)
		progress_at(p, all[0].flushed_bytes);
}

/* For all of it, or for what that rank has saved of it. */
static int wait_until(struct context *ctx, const struct sk_wire_id *id,
		      enum sk_until until, struct progress *p)
{
	uint64_t waited = 0;
	int lost = 0, r;

	do {
		struct sk_msg msg = { .type = SK_MSG_WAIT, .body.wait = {
			.id = *id, .until = until,
			.timeout_ms = WAIT_PIECE_MS } };

		r = ask_deferred(ctx, &msg, WAIT_PIECE_MS + ctx->timeout_ms);
		if (r == -ETIMEDOUT && ctx->unreachable)
			break;
		if (r == -ETIMEDOUT)
			show_flush(ctx, id, p);
		waited += WAIT_PIECE_MS;
		/* An agent in its place flushes it as well. */
		lost += r == -ECONNRESET;
	} while ((r == -ETIMEDOUT && waited < SK_WAIT_MAX_MS) ||
		 (r == -ECONNRESET && lost <= AGAIN_MOST));
	return r;
}

/* Of a job on several nodes this agent's part: the rest it never knows. */
static int wait_parts(struct context *ctx, const struct sk_wire_id *id,
		      struct progress *p)
{
	_cleanup_free_ struct sk_wire_image *all = NULL;
	size_t n = 0;
	int r = ask_images(ctx, id, &all, &n);

	for (size_t i = 0; i < n && r >= 0; i++) {
		struct sk_wire_id part = *id;

		part.rank = all[i].id.rank;
		if (all[i].kind == SK_IMAGE_PRIMARY)
			r = wait_until(ctx, &part, SK_WRITTEN, p);
	}
	return r;
}

static int wait_durable(struct context *ctx, const struct sk_wire_snapshot *s)
{
	struct progress p;
	int r;

	progress_start(&p, "flushed", NULL, s->bytes_memory);
	r = s->flags & SK_SNAP_LOCAL ?
		    wait_parts(ctx, &s->id, &p) :
		    wait_until(ctx, &s->id, SK_DURABLE, &p);
	progress_end(&p);
	return r;
}

int command_flush(struct context *ctx, int argc, char **argv)
{
	struct sk_wire_snapshot s;
	int r = manage(ctx, argv[0], SK_MSG_FLUSH, 0,
		       ctx->wait ? "durable" : "to be flushed", &s);

	(void)argc;
	if (r >= 0 && ctx->wait)
		r = wait_durable(ctx, &s);
	return r;
}
