/* SPDX-License-Identifier: Apache-2.0 */
#include "conn/list.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/util.h"
#include "conn/memfd.h"
#include "wire/version.h"

/* However many files there are: an agent that looks for longer is asked again
 * by whoever wants. */
#define LOOK_MOST_NS (UINT64_C(1800) * 1000000000)

/* ---- lists ---- */

/* What the reply says fits what the descriptor holds: nothing is allocated
 * on its word alone. */
static int check_list(const struct sk_os *os, const struct sk_msg *msg,
		      int fd, uint64_t *ret_bytes, struct sk_err *err)
{
	const struct sk_wire_list_reply *reply = &msg->body.list_reply;
	struct stat st;
	int r;

	if (!reply->record_bytes || reply->record_bytes > SK_WIRE_RECORD_MOST)
		return sk_err_set(err, -EPROTO, "the agent's records have %u "
				  "bytes, which makes no sense",
				  reply->record_bytes);
	r = os->fstat(os, fd, &st);
	if (r < 0)
		return sk_err_errno(err, r, "cannot look at the agent's list");
	if (!sk_mul_u64(reply->n, reply->record_bytes, ret_bytes) ||
	    (uint64_t)st.st_size < *ret_bytes)
		return sk_err_set(err, -EPROTO, "the agent's list of %" PRIu64
				  " records is cut short", reply->n);
	return 0;
}

static int read_bytes(const struct sk_os *os, int fd, uint64_t bytes,
		      void **ret, struct sk_err *err)
{
	_cleanup_free_ void *records = malloc(bytes ? bytes : 1);
	int r;

	if (!records)
		return sk_err_set(err, -ENOMEM, "no memory for a list of %"
				  PRIu64 " bytes", bytes);
	r = sk_read_all(os, fd, records, bytes, 0);
	if (r < 0)
		return sk_err_errno(err, r, "cannot read the agent's list");
	*ret = sk_take_ptr(records);
	return 0;
}

static int read_records(const struct sk_os *os, const struct sk_msg *msg,
			size_t record_bytes, int fd, void **ret_records,
			struct sk_err *err)
{
	const struct sk_wire_list_reply *reply = &msg->body.list_reply;
	_cleanup_free_ void *theirs = NULL;
	uint64_t bytes = 0;
	int r;

	r = check_list(os, msg, fd, &bytes, err);
	if (r >= 0)
		r = read_bytes(os, fd, bytes, &theirs, err);
	if (r < 0)
		return r;
	if (reply->record_bytes == record_bytes) {
		*ret_records = sk_take_ptr(theirs);
		return 0;
	}
	*ret_records = calloc(reply->n + 1, record_bytes);
	if (!*ret_records)
		return sk_err_set(err, -ENOMEM, "no memory for a list of %"
				  PRIu64 " records", reply->n);
	sk_wire_records_fit(theirs, reply->n, reply->record_bytes,
			    *ret_records, record_bytes);
	return 0;
}

int sk_list_read(struct sk_conn *conn, struct sk_msg *msg,
		 size_t record_bytes, uint64_t until_ns, void *ret_records,
		 size_t *ret_n, struct sk_err *err)
{
	int fds[SK_MSG_FDS], n_fds = 0, r;
	void *records = NULL;

	assert(record_bytes);
	r = sk_conn_call(conn, msg, NULL, 0, fds, &n_fds, until_ns, err);
	if (r < 0)
		return r;
	if (msg->type == SK_MSG_LIST && msg->body.list_reply.looking)
		r = sk_err_set(err, -EAGAIN, "%.*s", SK_ERR_MAX - 1,
			       msg->body.list_reply.text);
	else if (n_fds == 1)
		r = read_records(conn->os, msg, record_bytes, fds[0],
				 &records, err);
	else
		r = sk_err_set(err, -EPROTO, "the agent gave %d descriptors "
			       "for a list", n_fds);
	sk_close_fds(conn->os, fds, n_fds);
	if (r < 0)
		return r;
	*(void **)ret_records = records;
	*ret_n = msg->body.list_reply.n;
	return 0;
}

/* A fifth: the job may have to be read before the look, and what is complete be
 * told after it, which has twice as long. */
static uint32_t patience_ms(uint64_t now_ns, uint64_t until_ns)
{
	uint64_t ms = until_ns > now_ns ? (until_ns - now_ns) / 5000000 : 0;

	if (ms > SK_WAIT_MAX_MS)
		return SK_WAIT_MAX_MS;
	return ms ? (uint32_t)ms : 1;
}

/* At what, where it is not the store. */
static int say_looking(const struct sk_wire_list_reply *reply,
		       struct sk_err *err)
{
	if (reply->text[0])
		return sk_err_set(err, -ETIMEDOUT, "%.*s", SK_ERR_MAX - 1,
				  reply->text);
	return sk_err_set(err, -ETIMEDOUT, "the agent is still looking at the "
			  "store, at %" PRIu64 " files so far", reply->n);
}

/* While the agent looks at more and more files of the store, which may take
 * long once in its life, it is asked again. */
static int list(struct sk_conn *conn, struct sk_msg *msg, size_t record_bytes,
		uint64_t until_ns, void *ret_records, size_t *ret_n,
		struct sk_err *err)
{
	uint64_t now = conn->os->now_ns(conn->os), looked = 0;
	uint64_t most = now + LOOK_MOST_NS;
	uint64_t span = until_ns > now ? until_ns - now : 0;
	const struct sk_msg asked = *msg;

	while (true) {
		const struct sk_wire_list_reply *reply = &msg->body.list_reply;
		int r;

		*msg = asked;
		msg->body.list.wait_ms = patience_ms(now, until_ns);
		r = sk_list_read(conn, msg, record_bytes, until_ns,
				 ret_records, ret_n, err);
		if (r != -EAGAIN)
			return r;
		now = conn->os->now_ns(conn->os);
		if (reply->n != looked)
			until_ns = now + span;
		looked = reply->n;
		/* An answer has its way. */
		if (now + span / 16 >= until_ns || now >= most)
			return say_looking(reply, err);
	}
}

int sk_list_snapshots(struct sk_conn *conn, const struct sk_wire_id *id,
		      uint32_t limit, uint64_t until_ns,
		      struct sk_wire_snapshot **ret, size_t *ret_n,
		      struct sk_list_gaps *ret_gaps, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = *id, .what = SK_LIST_SNAPSHOTS, .limit = limit } };
	int r;

	r = list(conn, &msg, sizeof(**ret), until_ns, ret, ret_n, err);
	if (r < 0)
		return r;
	ret_gaps->n = msg.body.list_reply.unreadable;
	(void)snprintf(ret_gaps->first, sizeof(ret_gaps->first), "%.*s",
		       SK_ERR_MAX - 1, msg.body.list_reply.text);
	return 0;
}

int sk_list_gaps_error(const struct sk_list_gaps *gaps, const char *what,
		       struct sk_err *err)
{
	return !gaps->n ? 0 :
	       sk_err_set(err, -EIO, "nobody can tell whether there is %.100s: "
			  "%.200s", what, gaps->first);
}

int sk_list_images(struct sk_conn *conn, const struct sk_wire_id *id,
		   uint32_t flags, uint64_t until_ns,
		   struct sk_wire_image **ret, size_t *ret_n,
		   struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = *id, .what = SK_LIST_IMAGES, .flags = flags } };

	return list(conn, &msg, sizeof(**ret), until_ns, ret, ret_n, err);
}

int sk_list_parts(struct sk_conn *conn, const struct sk_wire_id *id,
		  uint64_t until_ns, struct sk_wire_part **ret, size_t *ret_n,
		  uint32_t *ret_flags, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = *id, .what = SK_LIST_PARTS, .flags = SK_LIST_KNOWN } };
	int r = list(conn, &msg, sizeof(**ret), until_ns, ret, ret_n, err);

	if (r >= 0 && ret_flags)
		*ret_flags = msg.body.list_reply.flags;
	return r;
}

/* ---- images ---- */

int sk_image_open(struct sk_conn *conn, uint64_t image, enum sk_place place,
		  uint64_t until_ns, struct sk_opened_image *ret,
		  struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = image, .place = place } };
	const struct sk_wire_open_reply *reply = &msg.body.open_reply;
	int fds[SK_MSG_FDS], n_fds = 0, r;

	r = sk_conn_call(conn, &msg, NULL, 0, fds, &n_fds, until_ns, err);
	if (r < 0)
		return r;
	if (n_fds != 2 || reply->header_bytes > reply->image_bytes) {
		sk_close_fds(conn->os, fds, n_fds);
		return sk_err_set(err, -EPROTO, "the agent opened an image of %"
				  PRIu64 " bytes, %" PRIu64 " of them header, "
				  "with %d descriptors", reply->image_bytes,
				  reply->header_bytes, n_fds);
	}
	*ret = (struct sk_opened_image){
		.data = fds[0],
		.header = fds[1],
		.image_bytes = reply->image_bytes,
		.header_bytes = reply->header_bytes,
	};
	return 0;
}

static int check_sums(const struct sk_os *os, int fd, uint32_t n,
		      struct sk_err *err)
{
	struct stat st;
	int r;

	r = os->fstat(os, fd, &st);
	if (r < 0)
		return sk_err_errno(err, r, "cannot look at an image's "
				    "checksums");
	if ((uint64_t)st.st_size == n * sizeof(uint64_t))
		return 0;
	return sk_err_set(err, -EPROTO, "the agent gave %" PRIu64 " bytes for "
			  "%u checksums", (uint64_t)st.st_size, n);
}

int sk_image_take_sums(struct sk_conn *conn, const struct sk_msg *msg,
		       int *fds, int n_fds, int *ret_data, int *ret_sums,
		       struct sk_err *err)
{
	int r;

	if (n_fds != 2)
		r = sk_err_set(err, -EPROTO, "the agent opened an image with "
			       "%d descriptors", n_fds);
	else
		r = check_sums(conn->os, fds[1], msg->body.open_reply.n_sums,
			       err);
	if (r < 0) {
		sk_close_fds(conn->os, fds, n_fds);
		return r;
	}
	*ret_data = fds[0];
	*ret_sums = fds[1];
	return 0;
}

struct sk_msg sk_image_ask_sums(uint64_t image, enum sk_place place)
{
	return (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
		.image = image, .place = place, .flags = SK_OPEN_SUMS } };
}

int sk_image_open_sums(struct sk_conn *conn, uint64_t image,
		       enum sk_place place, uint64_t until_ns,
		       struct sk_wire_open_reply *ret_reply, int *ret_data,
		       int *ret_sums, struct sk_err *err)
{
	struct sk_msg msg = sk_image_ask_sums(image, place);
	int fds[SK_MSG_FDS], n_fds = 0, r;

	r = sk_conn_call(conn, &msg, NULL, 0, fds, &n_fds, until_ns, err);
	if (r >= 0)
		r = sk_image_take_sums(conn, &msg, fds, n_fds, ret_data,
				       ret_sums, err);
	if (r >= 0)
		*ret_reply = msg.body.open_reply;
	return r;
}
