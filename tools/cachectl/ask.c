/* SPDX-License-Identifier: Apache-2.0 */
#include "cachectl.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int ask_connect(struct context *ctx)
{
	int r;

	if (ctx->conn.sock >= 0)
		return 0;
	r = sk_find_agent(ctx->socket, ctx->path, sizeof(ctx->path),
			  &ctx->err);
	if (r >= 0)
		r = sk_conn_open(ctx->path, ctx->timeout_ms, &ctx->conn,
				 &ctx->err);
	/* Whatever kept us from it, scripts get the one answer. */
	return r < 0 && r != -EPROTO && r != -EACCES ? -ENOTCONN : r;
}

int ask(struct context *ctx, struct sk_msg *msg, int *ret_fds,
	int *ret_n_fds)
{
	int r = ask_connect(ctx);

	if (r < 0)
		return r;
	return sk_conn_call(&ctx->conn, msg, NULL, 0, ret_fds, ret_n_fds,
			    ctx->timeout_ms, &ctx->err);
}

int ask_deferred(struct context *ctx, struct sk_msg *msg, uint32_t timeout_ms)
{
	struct sk_conn conn = { .sock = -1 };
	int r = ask_connect(ctx);

	if (r >= 0)
		r = sk_conn_open(ctx->path, ctx->timeout_ms, &conn,
				 &ctx->err);
	if (r < 0)
		return r;
	r = sk_conn_call(&conn, msg, NULL, 0, NULL, NULL, timeout_ms,
			 &ctx->err);
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
		if (parse_u64(run, &id->run))
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

	if (strlen(text) >= sizeof(job))
		return sk_err_set(&ctx->err, -EINVAL,
				  "\"%.40s...\" is too long for a snapshot",
				  text);
	strcpy(job, text);
	if (parse_parts(job, &id) || strlen(job) > SK_JOB_MAX)
		return sk_err_set(&ctx->err, -EINVAL,
				  "\"%s\" does not name a snapshot; write "
				  "JOB, JOB/STEP or JOB@RUN/STEP", text);
	strcpy(id.job, job);
	*ret_id = id;
	return 0;
}

/* Copies the records out of the agent's memfd. */
static int read_records(struct context *ctx, int fd, uint64_t n, size_t size,
			void **ret)
{
	struct stat st;
	uint64_t bytes, at = 0;
	char *records;

	if (!sk_mul_u64(n, size, &bytes) || fstat(fd, &st) < 0 ||
	    (uint64_t)st.st_size < bytes)
		return sk_err_set(&ctx->err, -EPROTO,
				  "the agent's list is cut short");
	records = malloc(bytes ? bytes : 1);
	if (!records)
		return sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	while (at < bytes) {
		ssize_t k = pread(fd, records + at, bytes - at, (off_t)at);

		if (k <= 0) {
			free(records);
			return sk_err_set(&ctx->err, -EIO,
					  "cannot read the agent's list");
		}
		at += (uint64_t)k;
	}
	*ret = records;
	return 0;
}

static int ask_list(struct context *ctx, const struct sk_wire_id *id,
		    enum sk_list what, enum sk_msg_type type, size_t size,
		    void **ret, size_t *ret_n)
{
	struct sk_msg msg = { .type = type };
	int fds[SK_MSG_FDS], n_fds = 0, r;
	uint64_t n;

	if (id) {
		msg.body.list.id = *id;
		msg.body.list.what = what;
	}
	r = ask(ctx, &msg, fds, &n_fds);
	if (r < 0)
		return r;
	n = msg.body.list_reply.n;
	if (n_fds != 1 || msg.body.list_reply.record_bytes != size)
		r = sk_err_set(&ctx->err, -EPROTO,
			       "the agent's records are of another version");
	else
		r = read_records(ctx, fds[0], n, size, ret);
	while (n_fds)
		sk_close_fd(fds[--n_fds]);
	if (r >= 0)
		*ret_n = n;
	return r;
}

int ask_snapshots(struct context *ctx, const struct sk_wire_id *id,
		  struct sk_wire_snapshot **ret, size_t *ret_n)
{
	return ask_list(ctx, id, SK_LIST_SNAPSHOTS, SK_MSG_LIST,
			sizeof(**ret), (void **)ret, ret_n);
}

int ask_images(struct context *ctx, const struct sk_wire_id *id,
	       struct sk_wire_image **ret, size_t *ret_n)
{
	return ask_list(ctx, id, SK_LIST_IMAGES, SK_MSG_LIST, sizeof(**ret),
			(void **)ret, ret_n);
}

int ask_stats(struct context *ctx, struct sk_wire_stat **ret, size_t *ret_n)
{
	return ask_list(ctx, NULL, 0, SK_MSG_STATS, sizeof(**ret),
			(void **)ret, ret_n);
}

int ask_snapshot(struct context *ctx, const char *text,
		 struct sk_wire_snapshot *ret)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id id;
	size_t n = 0;
	int r = ask_parse_snapshot(ctx, text, &id);

	if (r >= 0)
		r = ask_snapshots(ctx, &id, &all, &n);
	if (r < 0)
		return r;
	if (!n)
		return sk_err_set(&ctx->err, -ENOENT,
				  "there is no snapshot %s; cachectl list "
				  "shows what there is", text);
	*ret = all[0];	/* newest first */
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
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image->image, .place = image->place } };
	struct opened o = { .fd = -1 };
	int fds[SK_MSG_FDS], n_fds = 0, r;

	r = ask(ctx, &msg, fds, &n_fds);
	if (r < 0)
		return r;
	if (n_fds == 2) {
		o.fd = fds[0];
		o.image_bytes = msg.body.open_reply.image_bytes;
		r = read_header(ctx, fds[1],
				msg.body.open_reply.header_bytes, &o);
		sk_close_fd(fds[1]);
	} else {
		r = sk_err_set(&ctx->err, -EPROTO,
			       "the agent gave %d descriptors for an image",
			       n_fds);
		while (n_fds)
			sk_close_fd(fds[--n_fds]);
	}
	if (r < 0) {
		ask_close(ctx, image, &o);
		return r;
	}
	*ret = o;
	return 0;
}

void ask_close(struct context *ctx, const struct sk_wire_image *image,
	       struct opened *opened)
{
	struct sk_msg msg = { .type = SK_MSG_CLOSE, .body.open = {
		.image = image->image, .place = image->place } };
	struct sk_err first = ctx->err;

	/* The lease ends with the connection at the latest. */
	(void)ask(ctx, &msg, NULL, NULL);
	ctx->err = first;
	sk_close_fd(opened->fd);
	sk_layout_free(opened->layout);
	free(opened->stamp.sums);
	*opened = (struct opened){ .fd = -1 };
}

int ask_read(int fd, char *buf, uint64_t bytes, uint64_t offset)
{
	while (bytes) {
		ssize_t n = pread(fd, buf, bytes, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENODATA;
		buf += n;
		bytes -= (uint64_t)n;
		offset += (uint64_t)n;
	}
	return 0;
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
		if (!(s->flags & flag_words[i].flag) || at >= size)
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
