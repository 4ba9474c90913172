/* SPDX-License-Identifier: Apache-2.0 */
/* OPEN, CLOSE, REPORT_BAD: images in the hands of those who restore. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "calls/call.h"
#include "calls/device.h"
#include "disk/stored.h"
#include "disk/sums.h"
#include "memory/bytes.h"
#include "memory/memory.h"
#include "session/lease.h"
#include "session/request.h"
#include "session/rights.h"

/* How long checksums of files are kept after the last was opened. */
#define KEEP_NS (UINT64_C(30) * 1000000000)

static int image_find(struct call *c, uint64_t id, uint32_t place,
		      struct sk_cat_image **ret)
{
	struct sk_cat_image *image = sk_cat_image_by_id(&c->agent->cat, id);

	if (!image || !session_sees(c->session, image->snapshot->job))
		return sk_err_set(&c->err, -ENOENT, "there is no image %"
				  PRIu64 "; list again", id);
	if (place == SK_PLACE_MEMORY ? !image->slot :
	    place != SK_PLACE_DISK || !image->stored.dir[0])
		return sk_err_set(&c->err, -ENOENT, "image %" PRIu64 " is not "
				  "%s any more; list again", id,
				  place == SK_PLACE_MEMORY ? "in memory" :
				  "on disk");
	*ret = image;
	return 0;
}

/* ---- opening ---- */

/* The stamped header, from what only the agent can write. */
static int header_fd(const struct sk_os *os, const struct sk_layout *l,
		     const struct sk_stamp *stamp, struct sk_err *err)
{
	_cleanup_free_ void *header = malloc(l->header_bytes);

	if (!header)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	sk_layout_stamp(l, stamp, header);
	return bytes_fd(os, "shardkeep:header", header, l->header_bytes, err);
}

static struct sk_stamp stamp_of(const struct sk_cat_image *image)
{
	return (struct sk_stamp){
		.run = image->snapshot->run,
		.run_id = image->snapshot->run_id,
		.step = (uint64_t)image->snapshot->step,
		.sums = image->sums,
	};
}

/* That, or what it says beside the layout. */
static int stamp_fd(const struct sk_os *os, uint32_t flags,
		    const struct sk_layout *l, const struct sk_stamp *stamp,
		    struct sk_err *err)
{
	if (flags & SK_OPEN_SUMS)
		return bytes_fd(os, "shardkeep:sums", stamp->sums,
				l->n_sums * sizeof(*stamp->sums), err);
	return header_fd(os, l, stamp, err);
}

static struct sk_wire_open_reply describe(const struct sk_cat_image *image,
					  uint32_t place)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	const struct sk_layout *l = image->layout->layout;

	return (struct sk_wire_open_reply){
		.image_bytes = l->image_bytes,
		.header_bytes = l->header_bytes,
		.place = place,
		.n_sums = l->n_sums,
		.run = s->run,
		.run_id = s->run_id,
		.step = s->step,
		.rank = image->rank,
		.kind = (uint32_t)image->kind,
		.digest = l->digest,
	};
}

/* An image on disk that is being opened, for one who asked. */
struct opening {
	struct request request;
	struct lane_work work;
	struct sk_stored stored;
	struct sk_layout *layout;	/* a reference */
	uint64_t content[2];		/* hash of its checksums */
	struct sk_wire_open_reply reply;
	int stamp;			/* a memfd; the reply's, or closed */
	int fd;				/* of the file, or an error */
	struct sk_err err;
};

static void opening_release(struct request *q)
{
	struct opening *o = sk_link_object(q, struct opening, request);

	sk_layout_free(o->layout);
	free(o);
}

static const struct request_kind opening_kind = {
	.release = opening_release,
};

/* Whether it is still the file whose header the catalogue knows. */
static int check_file(struct opening *o, const struct stat *st)
{
	const struct sk_file_id file = sk_file_id_of(st);

	if (file.bytes != o->layout->image_bytes)
		return sk_err_set(&o->err, -EBADMSG, "the image of rank %"
				  PRId32 " in %s is not of %" PRIu64 " bytes",
				  o->stored.rank, o->stored.dir,
				  o->layout->image_bytes);
	if (!sk_file_id_equal(&file, &o->stored.file))
		return sk_err_set(&o->err, -ENOENT, "the image of rank %"
				  PRId32 " in %s is another file by now; list "
				  "again", o->stored.rank, o->stored.dir);
	return 0;
}

/* Who restores may open thousands: what follows from a layout that is kept
 * anyway is not remembered. */
static void forget_one(struct sk_recall *recall, struct sk_layout *l)
{
	_cleanup_layout_ struct sk_layout *base =
		sk_recall_described(recall, l);

	if (base && base != l)
		sk_recall_drop(recall, l);
}

/* The header tells what a sketch leaves out. */
static int need_whole(struct opening *o, const void *header, uint64_t bytes)
{
	struct sk_layout *whole;
	int r;

	if (o->layout->header)
		return 0;
	r = sk_recall_get(o->request.agent->recall, o->layout->job,
			  o->layout->rank, o->layout->kind, header, bytes,
			  o->layout->image_bytes, &whole, &o->err);
	if (r < 0)
		return r;
	forget_one(o->request.agent->recall, whole);
	if (!sk_digest_equal(&whole->digest, &o->layout->digest) ||
	    whole->n_sums != o->layout->n_sums) {
		sk_layout_free(whole);
		return sk_err_set(&o->err, -EBADMSG, "the header is not that "
				  "of its layout");
	}
	sk_layout_free(o->layout);
	o->layout = whole;
	return 0;
}

/* Whether the header that was read is that of the image that is known. */
static int check_stamp(struct opening *o, const struct sk_stamp *stamp)
{
	uint64_t content[2];

	sk_cat_hash_sums(o->layout, stamp->sums, content);
	if (stamp->run != o->stored.run.number ||
	    stamp->run_id != o->stored.run.id ||
	    stamp->step != o->stored.step ||
	    memcmp(content, o->content, sizeof(content)) != 0)
		return sk_err_set(&o->err, -ENOENT, "the image of rank %"
				  PRId32 " in %s is another one by now; list "
				  "again", o->stored.rank, o->stored.dir);
	return 0;
}

static int read_header(struct opening *o, struct sk_stamp *stamp)
{
	_cleanup_free_ void *header = NULL;
	struct sk_file_id file;
	uint64_t bytes;
	int r;

	r = sk_store_read_header(o->request.agent->store, o->fd, &header,
				 &bytes, &file, &o->err);
	if (r == 0 && bytes != o->layout->header_bytes)
		r = sk_err_set(&o->err, -EBADMSG, "the header is not that of "
			       "its layout");
	/* Who wants the checksums alone has them without it. */
	if (r == 0 && !(o->request.msg.body.open.flags & SK_OPEN_SUMS))
		r = need_whole(o, header, bytes);
	if (r < 0)
		return r;
	r = sk_layout_read_stamp(o->layout, header, stamp, &o->err);
	return r < 0 ? r : check_stamp(o, stamp);
}

static struct sums_key key_of(const struct opening *o)
{
	struct sums_key key = { .file = o->stored.file,
				.digest = o->layout->digest };

	memcpy(key.content, o->content, sizeof(key.content));
	return key;
}

/* What another one was told of the same file; false: nobody was. */
static bool find_sums(struct opening *o, const struct sums_key *key,
		      uint64_t *sums)
{
	bool brief = o->request.msg.body.open.flags & SK_OPEN_SUMS;
	struct sk_layout *whole = NULL;

	if (!sums_find(o->request.agent->sums, key, sums, o->layout->n_sums,
		       brief || o->layout->header ? NULL : &whole))
		return false;
	if (!whole)
		return true;
	sk_layout_free(o->layout);
	o->layout = whole;
	return true;
}

/* Memory does not keep the checksums of what only the disk has: they are those
 * of the file, if they are still the same. */
static int make_stamp(struct opening *o)
{
	const struct agent *a = o->request.agent;
	uint32_t n = o->layout->n_sums, flags = o->request.msg.body.open.flags;
	const struct sums_key key = key_of(o);
	_cleanup_free_ uint64_t *sums = NULL;
	struct sk_stamp stamp = {
		.run = o->stored.run.number, .run_id = o->stored.run.id,
		.step = o->stored.step,
	};
	int r;

	stamp.sums = sums = calloc((size_t)n + 1, sizeof(*sums));
	if (!sums)
		return sk_err_set(&o->err, -ENOMEM, "no memory for a header");
	if (!find_sums(o, &key, sums)) {
		r = read_header(o, &stamp);
		if (r < 0)
			return r;
		sums_keep(a->sums, &key, sums, n,
			  flags & SK_OPEN_SUMS ? NULL : o->layout);
	}
	o->stamp = stamp_fd(a->os, flags, o->layout, &stamp, &o->err);
	return o->stamp < 0 ? o->stamp : 0;
}

/* A file of its own for every reader: they differ in how they read it. */
static void open_file(struct lane_work *work)
{
	struct opening *o = sk_link_object(work, struct opening, work);
	const struct sk_os *os = o->request.agent->os;
	struct stat st;
	int r;

	o->fd = sk_store_open_image(o->request.agent->store, &o->stored,
				    &o->err);
	if (o->fd < 0)
		return;
	r = os->fstat(os, o->fd, &st);
	if (r == 0)
		r = check_file(o, &st);
	else
		sk_err_errno(&o->err, r, "cannot look at the image of rank %"
			     PRId32 " in %s", o->stored.rank, o->stored.dir);
	if (r == 0 && o->stamp < 0)
		r = make_stamp(o);
	if (r == 0)
		return;
	sk_close_fd(o->fd);
	o->fd = r;
}

static void refuse_opened(struct opening *o)
{
	struct request *q = &o->request;
	const struct sk_wire_open *in = &q->msg.body.open;

	sk_close_fd(o->stamp);
	if (q->session)
		(void)lease_end(q->session, in->image, in->place);
	request_answer(q, o->fd, NULL, NULL, 0, &o->err);
}

static void time_to_forget(struct timer *timer)
{
	sums_clear(sk_link_object(timer, struct agent, sums_timer)->sums);
}

/* Who restores opens what it needs within moments. */
static void forget_sums_later(struct agent *a)
{
	a->sums_timer.fire = time_to_forget;
	timer_set(&a->loop.timers, &a->sums_timer, agent_now(a) + KEEP_NS);
}

static void opened(struct lane_work *work)
{
	struct opening *o = sk_link_object(work, struct opening, work);
	struct sk_msg msg = { .body.open_reply = o->reply };
	int fds[2] = { o->fd, o->stamp };

	o->request.busy = false;
	forget_sums_later(o->request.agent);
	if (o->fd < 0) {
		refuse_opened(o);
		return;
	}
	request_answer(&o->request, 0, &msg, fds, 2, &o->err);
}

static int open_disk(struct call *c, struct sk_cat_image *image, int stamp)
{
	struct opening *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return sk_err_set(&c->err, -ENOMEM, "no memory to open an "
				  "image");
	r = request_init(&o->request, &opening_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(o);
		return r;
	}
	stored_name(image, &o->stored);
	o->layout = sk_layout_ref(image->layout->layout);
	memcpy(o->content, image->content, sizeof(o->content));
	o->reply = describe(image, SK_PLACE_DISK);
	o->stamp = stamp;
	o->work.run = open_file;
	o->work.finish = opened;
	o->request.busy = true;
	lanes_submit(&c->agent->lanes, c->session->uid, o->stored.job,
		     &o->work);
	return CALL_LATER;
}

static int open_memory(struct call *c, struct sk_cat_image *image, int stamp)
{
	const struct memory *m = image->slot->memory;
	int fd;

	fd = sk_slot_reopen_ro(c->agent->os, &m->slots[image->kind], &c->err);
	if (fd < 0)
		return fd;
	c->out_fds[0] = fd;
	c->out_fds[1] = stamp;
	c->n_out = 2;
	c->out.body.open_reply = describe(image, SK_PLACE_MEMORY);
	return 0;
}

static int open_leased(struct call *c, struct sk_cat_image *image, int stamp)
{
	const struct sk_wire_open *in = &c->in->body.open;
	int r;

	/* From here on it stays where it is. */
	r = lease_new(c->session, image, in->place, &c->err);
	if (r < 0)
		return r;
	r = in->place == SK_PLACE_DISK ? open_disk(c, image, stamp) :
					 open_memory(c, image, stamp);
	if (r < 0)
		(void)lease_end(c->session, in->image, in->place);
	return r;
}

int call_open(struct call *c)
{
	const struct sk_wire_open *in = &c->in->body.open;
	struct sk_cat_image *image = NULL;
	struct sk_stamp stamp;
	int fd = -1, r;

	r = image_find(c, in->image, in->place, &image);
	if (r < 0)
		return r;
	stamp = stamp_of(image);
	if (image->sums)
		fd = stamp_fd(c->agent->os, in->flags, image->layout->layout,
			      &stamp, &c->err);
	if (image->sums && fd < 0)
		return fd;
	r = open_leased(c, image, fd);
	if (r < 0)
		sk_close_fd(fd);
	return r;
}

int call_close(struct call *c)
{
	const struct sk_wire_open *in = &c->in->body.open;

	if (lease_end(c->session, in->image, in->place))
		return 0;
	return sk_err_set(&c->err, -ENOENT, "image %" PRIu64 " is not open",
			  in->image);
}

/* The image itself may be whole. */
static int report_copy(struct call *c)
{
	const struct sk_wire_bad *in = &c->in->body.bad;
	struct sk_cat_image *image;

	image = sk_cat_image_by_id(&c->agent->cat, in->image);
	if (!image || !session_sees(c->session, image->snapshot->job) ||
	    !device_copy_bad(c->agent, in->image))
		return sk_err_set(&c->err, -ENOENT, "there is no copy of image "
				  "%" PRIu64 " on a GPU", in->image);
	log_error(c->agent, "job \"%s\" run %" PRIu64 " step %" PRId64 " rank "
		  "%" PRId32 ": a reader found a bad checksum on a GPU; what "
		  "is in memory is read instead", image->snapshot->job->name,
		  image->snapshot->run, image->snapshot->step, image->rank);
	c->agent->counts.bad_reported++;
	return 0;
}

int call_report_bad(struct call *c)
{
	const struct sk_wire_bad *in = &c->in->body.bad;
	bool disk = in->place == SK_PLACE_DISK;
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image = NULL;
	const char *name;
	int r;

	if (in->place == SK_PLACE_DEVICE)
		return report_copy(c);
	r = image_find(c, in->image, in->place, &image);
	if (r < 0)
		return r;
	s = image->snapshot;
	sk_cat_image_bad(image, disk, in->entry);
	name = sk_cat_damaged(image, disk);
	log_error(c->agent, "job \"%s\" run %" PRIu64 " step %" PRId64 " rank "
		  "%" PRId32 ": a reader found a bad checksum %s%s%s; the "
		  "image is set aside", s->job->name, s->run, s->step,
		  image->rank, disk ? "on disk" : "in memory",
		  name ? " of " : "", name ? name : "");
	c->agent->counts.bad_reported++;
	agent_changed(c->agent);
	return 0;
}
