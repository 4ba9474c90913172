/* SPDX-License-Identifier: Apache-2.0 */
#include "cachectl.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/text.h"
#include "base/util.h"
#include "conn/agent.h"
#include "conn/list.h"

static uint64_t until(const struct context *ctx)
{
	return sk_until_ms(ctx->os, ctx->timeout_ms);
}

/* The value of @call; on a terminal, what we wait for if it takes long. */
#define WAITING(what, call)						\
	({								\
		struct waiting w_;					\
		int r_;							\
									\
		waiting_begin(&w_, what);				\
		r_ = (call);						\
		waiting_end(&w_);					\
		r_;							\
	})

/* The value of @call of an agent that was connected to; where that ends before
 * it answers, of the one in its place. */
#define AGAIN(ctx, call)						\
	({								\
		int again_, left_ = AGAIN_MOST;				\
									\
		do {							\
			again_ = ask_connect(ctx);			\
			if (again_ >= 0)				\
				again_ = (call);			\
		} while (again_ == -ECONNRESET && left_--);		\
		again_;							\
	})

static const char for_agent[] = "waiting for the agent";
static const char for_list[] = "waiting for the agent's list";

/* Whatever kept us from an agent, scripts get the one answer. */
static int reached(struct context *ctx, int r)
{
	ctx->unreachable = r < 0 && r != -EPROTO && r != -EACCES;
	return ctx->unreachable && r != -ETIMEDOUT && r != -ECONNRESET ?
	       -ENOTCONN : r;
}

int ask_connect(struct context *ctx)
{
	_cleanup_free_ char *differs = NULL;
	int r;

	if (ctx->conn.sock >= 0)
		return 0;
	/* Whose it is is for who asks to judge: root looks at all agents. */
	r = WAITING(for_agent, sk_agent_connect(ctx->os, ctx->socket,
			sk_conn_open_any, until(ctx), ctx->path, &ctx->conn,
			&ctx->err));
	if (r >= 0)
		differs = sk_agent_differs(ctx->os, &ctx->conn.agent,
					   ctx->path);
	if (differs)
		sk_text_clean(differs);
	if (differs)
		fprintf(stderr, "cachectl: warning: %s\n", differs);
	return reached(ctx, r);
}

int ask(struct context *ctx, struct sk_msg *msg)
{
	int r = ask_connect(ctx);

	if (r < 0)
		return r;
	return WAITING(for_agent, sk_conn_call(&ctx->conn, msg, NULL, 0, NULL,
					       NULL, until(ctx), &ctx->err));
}

int ask_again(struct context *ctx, struct sk_msg *msg, bool *ret_again)
{
	const struct sk_msg asked = *msg;
	int r = ask(ctx, msg);

	*ret_again = false;
	for (int i = 0; i < AGAIN_MOST && r == -ECONNRESET; i++) {
		*ret_again = true;
		*msg = asked;
		r = ask(ctx, msg);
	}
	return r;
}

/* Milliseconds in which an agent lets go of what it has, however much. */
#define END_MS 60000

/* An agent that stops answers before it has let go of what it has open, and
 * then ends the connection, unless somebody between holds it. */
static int await_end(struct context *ctx, const struct sk_conn *conn)
{
	struct pollfd end = { .fd = conn->sock, .events = POLLIN };
	int r = ctx->os->poll(ctx->os, &end, 1, sk_until_ms(ctx->os, END_MS));

	return r >= 0 ? 0 : sk_err_errno(&ctx->err, r, "the agent has stopped, "
					 "and has not closed all that it had "
					 "open for %d s", END_MS / 1000);
}

static int call_deferred(struct context *ctx, struct sk_conn *conn,
			 struct sk_msg *msg, uint64_t until_ns)
{
	bool stops = msg->type == SK_MSG_STOP;
	struct sk_err lost;
	int r = sk_conn_call(conn, msg, NULL, 0, NULL, NULL, until_ns,
			     &ctx->err);

	if (!stops || (r < 0 && r != -ENODATA))
		return r;
	lost = ctx->err;
	if (r >= 0)
		return await_end(ctx, conn);
	(void)await_end(ctx, conn);
	ctx->err = lost;	/* the worse of the two */
	return r;
}

int ask_deferred(struct context *ctx, struct sk_msg *msg, uint32_t timeout_ms)
{
	struct sk_conn conn = SK_CONN_NULL;
	int r = ask_connect(ctx);

	if (r >= 0)
		r = reached(ctx, sk_conn_open_any(ctx->os, ctx->path,
						  until(ctx), &conn,
						  &ctx->err));
	if (r < 0)
		return r;
	r = WAITING(msg->type == SK_MSG_STOP ?
		    "the agent flushes what is not durable" : for_agent,
		    call_deferred(ctx, &conn, msg,
				  sk_until_ms(ctx->os, timeout_ms)));
	/* Who says that the time is over is there. */
	ctx->unreachable = r == -ETIMEDOUT && conn.sock < 0;
	sk_conn_close(&conn);
	return r;
}

static int parse_u64(const char *text, uint64_t *ret)
{
	unsigned long long v;
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || *end || v > INT64_MAX)
		return -EINVAL;
	*ret = v;
	return 0;
}

static int parse_parts(char *job, struct sk_wire_id *id)
{
	char *step = strchr(job, '/'), *run;
	uint64_t v;

	if (step)
		*step++ = 0;
	run = strchr(job, '@');
	if (run) {
		*run++ = 0;
		/* 0 would be any. */
		if (parse_u64(run, &id->run) || !id->run)
			return -EINVAL;
	}
	if (step && strcmp(step, "latest") != 0) {
		if (parse_u64(step, &v))
			return -EINVAL;
		id->step = (int64_t)v;
	}
	return sk_job_check(job, NULL);
}

int ask_parse_snapshot(struct context *ctx, const char *text,
		       struct sk_wire_id *ret_id)
{
	struct sk_wire_id id = { .step = -1, .rank = -1 };
	char job[SK_JOB_MAX + 64];

	ctx->misused = true;
	if (strlen(text) >= sizeof(job))
		return sk_err_set(&ctx->err, -EINVAL,
				  "\"%.40s...\" is too long for a snapshot",
				  text);
	strcpy(job, text);
	if (parse_parts(job, &id) || strlen(job) > SK_JOB_MAX)
		return sk_err_set(&ctx->err, -EINVAL,
				  "\"%s\" does not name a snapshot; write "
				  "JOB, JOB/STEP or JOB@RUN/STEP", text);
	ctx->misused = false;
	strcpy(id.job, job);
	*ret_id = id;
	return 0;
}

bool ask_is_latest(const char *text)
{
	const char *step = strchr(text, '/');

	return step && strcmp(step, "/latest") == 0;
}

/* An agent that is another user's may say anything, and what it says is shown
 * on a terminal. */
static void make_text(char *text, size_t size)
{
	text[size - 1] = 0;
	sk_text_clean(text);
}

static int ask_some(struct context *ctx, const struct sk_wire_id *id,
		    uint32_t limit, struct sk_wire_snapshot **ret,
		    size_t *ret_n)
{
	struct sk_list_gaps gaps = { 0 };
	int r = AGAIN(ctx, WAITING(for_list, sk_list_snapshots(&ctx->conn, id,
			limit, until(ctx), ret, ret_n, &gaps, &ctx->err)));

	for (size_t i = 0; r >= 0 && i < *ret_n; i++)
		make_text((*ret)[i].id.job, sizeof((*ret)[i].id.job));
	make_text(gaps.first, sizeof(gaps.first));
	if (r >= 0 && !*ret_n) {
		r = sk_list_gaps_error(&gaps, "such a snapshot", &ctx->err);
		if (r < 0)
			free(sk_take_ptr(*ret));
	} else if (r >= 0 && gaps.n) {
		fprintf(stderr, "cachectl: %u parts of the store could not be "
			"read, the first: %s\n", gaps.n, gaps.first);
	}
	return r;
}

int ask_snapshots(struct context *ctx, const struct sk_wire_id *id,
		  struct sk_wire_snapshot **ret, size_t *ret_n)
{
	return ask_some(ctx, id, 0, ret, ret_n);
}

int ask_newest(struct context *ctx, const struct sk_wire_id *id,
	       struct sk_wire_snapshot **ret, size_t *ret_n)
{
	return ask_some(ctx, id, 1, ret, ret_n);
}

int ask_gaps(struct context *ctx, const struct sk_wire_id *id)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_list_gaps gaps = { 0 };
	size_t n = 0;
	int r = AGAIN(ctx, WAITING(for_list, sk_list_snapshots(&ctx->conn, id,
			0, until(ctx), &all, &n, &gaps, &ctx->err)));

	make_text(gaps.first, sizeof(gaps.first));
	return r < 0 || !gaps.n ? r :
		       sk_err_set(&ctx->err, -EBADMSG, "%u parts of the store "
				  "are no images any more, or cannot be read, "
				  "the first: %s", gaps.n, gaps.first);
}

int ask_images(struct context *ctx, const struct sk_wire_id *id,
	       struct sk_wire_image **ret, size_t *ret_n)
{
	int r = AGAIN(ctx, WAITING(for_list, sk_list_images(&ctx->conn, id,
			0, until(ctx), ret, ret_n, &ctx->err)));

	for (size_t i = 0; r >= 0 && i < *ret_n; i++)
		make_text((*ret)[i].id.job, sizeof((*ret)[i].id.job));
	return r;
}

int ask_records(struct context *ctx, struct sk_msg *msg, size_t record_bytes,
		void *ret, size_t *ret_n)
{
	const struct sk_msg asked = *msg;

	return AGAIN(ctx, (*msg = asked, sk_list_read(&ctx->conn, msg,
			record_bytes, until(ctx), ret, ret_n, &ctx->err)));
}

static void make_texts(struct sk_wire_stat *s)
{
	make_text(s->name, sizeof(s->name));
	make_text(s->help, sizeof(s->help));
	make_text(s->job, sizeof(s->job));
	make_text(s->key, sizeof(s->key));
	/* Of a long word the end stands behind it. */
	make_text(s->rest, sizeof(s->rest));
	make_text((char *)s + offsetof(struct sk_wire_stat, word),
		  sizeof(s->word) + sizeof(s->rest));
}

int ask_stats(struct context *ctx, struct sk_wire_stat **ret, size_t *ret_n)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	int r = ask_records(ctx, &msg, sizeof(**ret), ret, ret_n);

	for (size_t i = 0; r >= 0 && i < *ret_n; i++)
		make_texts(&(*ret)[i]);
	return r;
}

/* Newest first, one at least; down to the newest complete one. */
static int ask_named(struct context *ctx, const char *text,
		     struct sk_wire_id *ret_id, struct sk_wire_snapshot **ret,
		     size_t *ret_n)
{
	int r = ask_parse_snapshot(ctx, text, ret_id);

	if (r >= 0)
		r = ask_newest(ctx, ret_id, ret, ret_n);
	if (r < 0)
		return r;
	if (*ret_n)
		return 0;
	free(sk_take_ptr(*ret));
	return sk_err_set(&ctx->err, -ENOENT, "there is no snapshot %s; "
			  "cachectl list shows what there is", text);
}

int ask_snapshot(struct context *ctx, const char *text,
		 struct sk_wire_snapshot *ret)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id id;
	size_t n = 0;
	int r = ask_named(ctx, text, &id, &all, &n);

	if (r >= 0)
		*ret = all[0];
	return r;
}

bool is_damaged(const struct sk_wire_snapshot *s)
{
	return s->bad_memory >= 0 || s->bad_disk >= 0;
}

int ask_complete(struct context *ctx, const char *text,
		 struct sk_wire_snapshot *ret)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id id;
	size_t n = 0, i = 0;
	int r = ask_named(ctx, text, &id, &all, &n);

	if (r < 0)
		return r;
	while (id.step < 0 && i < n && !(all[i].flags & SK_SNAP_COMPLETE) &&
	       !is_damaged(&all[i]))
		i++;
	if (i == n || !(all[i].flags & SK_SNAP_COMPLETE))
		i = 0;
	if (i)
		fprintf(stderr, "cachectl: step %" PRId64 " of job \"%s\" is "
			"not complete: %s; step %" PRId64 " is taken\n",
			all[0].id.step, all[0].id.job, all[0].text,
			all[i].id.step);
	*ret = all[i];
	return 0;
}

static int read_header(struct context *ctx, int fd, uint64_t bytes,
		       struct opened *o)
{
	void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	int r;

	if (map == MAP_FAILED)
		return sk_err_errno(&ctx->err, -errno,
				    "cannot map an image's header");
	r = sk_layout_parse(map, bytes, o->image_bytes, &o->layout, &ctx->err);
	if (r >= 0) {
		o->stamp.sums = calloc(o->layout->n_sums + 1u,
				       sizeof(uint64_t));
		r = o->stamp.sums ?
		    sk_layout_read_stamp(o->layout, map, &o->stamp,
					 &ctx->err) :
		    sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	}
	munmap(map, bytes);
	return r;
}

int ask_open(struct context *ctx, const struct sk_wire_image *image,
	     struct opened *ret)
{
	struct sk_opened_image open;
	struct opened o;
	int r = ask_connect(ctx);

	if (r >= 0)
		r = sk_image_open(&ctx->conn, image->image, image->place,
				  until(ctx), &open, &ctx->err);
	if (r < 0)
		return r;
	o = (struct opened){ .fd = open.data,
			     .image_bytes = open.image_bytes,
			     .generation = ctx->conn.generation };
	r = read_header(ctx, open.header, open.header_bytes, &o);
	sk_close_fd(open.header);
	if (r < 0) {
		ask_close(ctx, image, &o);
		return r;
	}
	*ret = o;
	return 0;
}

int ask_report_bad(struct context *ctx, const struct sk_wire_image *image,
		   const struct opened *opened, uint32_t entry)
{
	struct sk_msg msg = { .type = SK_MSG_REPORT_BAD, .body.bad = {
		.image = image->image, .place = image->place,
		.entry = entry } };
	int r = sk_conn_call_in(&ctx->conn, opened->generation, &msg,
				until(ctx), &ctx->err);

	return r == -ECONNRESET ? r : 0;
}

void ask_close(struct context *ctx, const struct sk_wire_image *image,
	       struct opened *opened)
{
	struct sk_msg msg = { .type = SK_MSG_CLOSE, .body.open = {
		.image = image->image, .place = image->place } };
	struct sk_err none;

	/* The lease ends with the connection at the latest. */
	(void)sk_conn_call_in(&ctx->conn, opened->generation, &msg,
			      until(ctx), &none);
	sk_close_fd(opened->fd);
	sk_layout_free(opened->layout);
	free(opened->stamp.sums);
	*opened = (struct opened){ .fd = -1 };
}

static const struct {
	uint32_t flag;
	const char *word;
} flag_words[] = {
	{ SK_SNAP_COMPLETE, "complete" },
	{ SK_SNAP_DURABLE, "durable" },
	{ SK_SNAP_NEWEST, "newest" },
	{ SK_SNAP_PINNED, "pinned" },
	{ SK_SNAP_IN_USE, "in-use" },
	{ SK_SNAP_WANTED, "to-flush" },
	{ SK_SNAP_FLUSHING, "flushing" },
	{ SK_SNAP_FAILED, "flush-failed" },
};

char *snapshot_words(const struct sk_wire_snapshot *s, char *buf, size_t size)
{
	size_t at = 0;

	buf[0] = 0;
	if (!(s->flags & SK_SNAP_COMPLETE))
		at = (size_t)snprintf(buf, size, "incomplete");
	for (size_t i = 0; i < SK_ARRAY_SIZE(flag_words); i++) {
		if (!(s->flags & flag_words[i].flag) || at >= size ||
		    (flag_words[i].flag == SK_SNAP_WANTED &&
		     s->flags & SK_SNAP_FLUSHING))
			continue;
		at += (size_t)snprintf(buf + at, size - at, "%s%s",
				       at ? " " : "", flag_words[i].word);
	}
	return buf;
}

const char *image_state_word(uint32_t state)
{
	static const char *const words[] = {
		[SK_IMAGE_FILLING] = "filling",
		[SK_IMAGE_SEALED] = "sealed",
		[SK_IMAGE_DURABLE] = "durable",
		[SK_IMAGE_STORED] = "stored",
		[SK_IMAGE_BAD] = "bad",
	};

	return state < SK_ARRAY_SIZE(words) && words[state] ? words[state] :
							      "unknown";
}
