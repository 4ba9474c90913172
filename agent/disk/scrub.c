/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/scrub.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "disk/stored.h"
#include "layout/sums.h"
#include "memory/memory.h"

#define SECOND_NS UINT64_C(1000000000)
#define PIECE_BYTES ((size_t)1 << 20)
#ifndef ROUND_NS		/* a test has no time */
#define ROUND_NS (600 * SECOND_NS)	/* least time between two begins */
#endif

/* An image in one place. */
struct target {
	uint64_t id;
	bool disk;
};

/* While its work is out, the background has all from fd on. */
struct scrub {
	struct work work;
	struct timer timer;
	struct agent *agent;
	struct target *round;
	size_t n, at;
	uint64_t began_ns;
	/* The one that is read: */
	bool reading;
	struct target target;
	struct memory *memory;		/* held; NULL: on disk */
	enum sk_image_kind kind;
	uint64_t fill;			/* of its slot */
	struct sk_stored stored;
	int fd;				/* the file; -1: not open yet */
	struct sk_layout *layout;	/* a reference */
	uint64_t *sums;
	struct sk_sums_walk *walk;
	uint64_t done;			/* bytes, the header included */
	bool ended;
	int result;
	struct sk_err err;
};

/* ---- in the background ---- */

static int open_file(struct scrub *s)
{
	struct agent *a = s->agent;
	struct sk_stamp stamp = { 0 };
	struct stat st;
	struct sk_file_id file;
	int r;

	s->fd = sk_store_open_image(a->store, &s->stored, &s->err);
	if (s->fd < 0)
		return s->fd;
	r = a->os->fstat(a->os, s->fd, &st);
	if (r < 0)
		return r;
	file = sk_file_id_of(&st);
	if (!sk_file_id_equal(&file, &s->stored.file))
		return -ESTALE;
	r = sk_store_read_layout(a->store, s->fd, &s->layout, &stamp, &s->err);
	s->sums = stamp.sums;
	return r;
}

static int begin_reading(struct scrub *s)
{
	int r = s->memory || s->fd >= 0 ? 0 : open_file(s);

	if (r < 0)
		return r;
	s->walk = sk_sums_new(s->layout, s->sums);
	s->done = s->layout->header_bytes;
	return s->walk ? 0 : -ENOMEM;
}

static int read_piece(struct scrub *s, char *buf)
{
	const struct sk_os *os = s->agent->os;
	int fd = s->memory ? s->memory->slots[s->kind].fd : s->fd;
	uint64_t left = s->layout->image_bytes - s->done;
	size_t want = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
	ssize_t n;

	/* What the cache has says nothing of the disk. */
	if (!s->memory)
		(void)os->fadvise(os, fd, POSIX_FADV_DONTNEED);
	n = want ? os->pread(os, fd, buf, want, s->done) : 0;
	if (n < 0)
		return (int)n;
	if ((want && !n) || s->done + (uint64_t)n > s->layout->image_bytes)
		return -ENODATA;
	s->done += (uint64_t)n;
	s->ended = s->done == s->layout->image_bytes;
	return n ? sk_sums_add(s->walk, buf, (size_t)n, &s->err) : 0;
}

static void read_some(struct work *work)
{
	struct scrub *s = sk_link_object(work, struct scrub, work);
	_cleanup_free_ char *buf = malloc(PIECE_BYTES);

	s->result = buf ? 0 : -ENOMEM;
	if (s->result == 0 && !s->walk)
		s->result = begin_reading(s);
	if (s->result == 0)
		s->result = read_piece(s, buf);
}

/* ---- what was found ---- */

/* As it was when its reading began; NULL: something else became of it. */
static struct sk_cat_image *still_there(const struct scrub *s)
{
	struct sk_cat_image *image = sk_cat_image_by_id(&s->agent->cat,
							s->target.id);

	if (!image)
		return NULL;
	if (s->target.disk)
		return image->stored.dir[0] && !image->bad_disk &&
		       sk_file_id_equal(&image->stored.file, &s->stored.file) ?
		       image : NULL;
	return image->slot && !image->bad_memory &&
	       image->slot->use == SK_CAT_SEALED &&
	       image->slot->memory == s->memory &&
	       image->slot->fill == s->fill ? image : NULL;
}

static void set_aside(struct scrub *s, struct sk_cat_image *image)
{
	struct agent *a = s->agent;
	struct sk_cat_snapshot *of = image->snapshot;
	const char *name;

	sk_cat_image_bad(image, s->target.disk, s->walk ?
			 sk_sums_wrong(s->walk) : 0);
	name = sk_cat_damaged(image, s->target.disk);
	log_error(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " rank %" PRId32
		  ": a look at what is kept found a bad checksum %s%s%s; the "
		  "image is set aside", of->job->name, of->run, of->step,
		  image->rank, s->target.disk ? "on disk" : "in memory",
		  name ? " of " : "", name ? name : "");
	a->counts.scrub_bad++;
	agent_changed(a);
}

static void let_go(struct scrub *s)
{
	s->walk = sk_sums_free(s->walk);
	s->layout = sk_layout_free(s->layout);
	free(s->sums);
	s->sums = NULL;
	if (s->fd >= 0)
		s->agent->os->close(s->agent->os, s->fd);
	s->fd = -1;
	if (s->memory)
		memory_unhold(s->memory);
	s->memory = NULL;
	s->reading = false;
}

static void wait_for(struct scrub *s, uint64_t ns)
{
	struct agent *a = s->agent;

	timer_set(&a->loop.timers, &s->timer, agent_now(a) + ns);
}

static void was_read(struct work *work)
{
	struct scrub *s = sk_link_object(work, struct scrub, work);
	struct agent *a = s->agent;
	struct sk_cat_image *image;

	/* Whatever else it is, an error is no verdict. */
	if (s->result == -EBADMSG) {
		image = still_there(s);
		if (image)
			set_aside(s, image);
	} else if (s->result == 0 && s->ended) {
		a->counts.scrubbed++;
	}
	if (s->result < 0 || s->ended || a->quit)
		let_go(s);
	if (!a->quit)
		wait_for(s, (uint64_t)(1e9 * (double)PIECE_BYTES /
				       (double)a->opts->scrub_rate));
}

/* ---- the next one ---- */

static bool begin_memory(struct scrub *s, const struct sk_cat_image *image)
{
	const struct sk_layout *l = image->layout->layout;

	if (!image->slot || image->bad_memory ||
	    image->slot->use != SK_CAT_SEALED || !image->sums)
		return false;
	s->sums = calloc((size_t)l->n_sums + 1, sizeof(*s->sums));
	if (!s->sums)
		return false;
	memcpy(s->sums, image->sums, l->n_sums * sizeof(*s->sums));
	s->layout = sk_layout_ref((struct sk_layout *)l);
	s->memory = image->slot->memory;
	s->kind = image->kind;
	s->fill = image->slot->fill;
	memory_hold(s->memory);
	return true;
}

static bool begin_image(struct scrub *s)
{
	const struct sk_cat_image *image =
		sk_cat_image_by_id(&s->agent->cat, s->target.id);

	if (!image)
		return false;
	if (!s->target.disk)
		return begin_memory(s, image);
	if (!image->stored.dir[0] || image->bad_disk)
		return false;
	stored_name(image, &s->stored);
	return true;
}

static bool next_image(struct scrub *s)
{
	while (s->at < s->n) {
		s->target = s->round[s->at++];
		s->ended = false;
		s->reading = begin_image(s);
		if (s->reading)
			return true;
	}
	return false;
}

static size_t list_places(const struct sk_cat_image *image,
			  struct target ret[2])
{
	size_t n = 0;

	if (image->slot)
		ret[n++] = (struct target){ image->id, false };
	if (image->stored.dir[0])
		ret[n++] = (struct target){ image->id, true };
	return n;
}

/* All that there is now; what comes later is the next round's. */
static void begin_round(struct scrub *s)
{
	const struct sk_cat_snapshot *of;
	const struct sk_cat_image *image;
	const struct sk_cat_job *job;
	size_t n = 0;

	sk_link_each(job, &s->agent->cat.jobs, link)
	sk_link_each(of, &job->snapshots, link)
		n += 2 * of->n_images;
	free(s->round);
	s->round = calloc(n + 1, sizeof(*s->round));
	s->n = s->at = 0;
	s->began_ns = agent_now(s->agent);
	if (!s->round)
		return;
	sk_link_each(job, &s->agent->cat.jobs, link)
	sk_link_each(of, &job->snapshots, link)
	sk_link_each(image, &of->images, link)
		s->n += list_places(image, &s->round[s->n]);
}

static void go_on(struct timer *timer)
{
	struct scrub *s = sk_link_object(timer, struct scrub, timer);
	struct agent *a = s->agent;
	uint64_t now = agent_now(a);

	if (a->stopping)
		return;
	if (!s->reading && !next_image(s)) {
		if (now - s->began_ns < ROUND_NS) {
			wait_for(s, ROUND_NS - (now - s->began_ns));
			return;
		}
		begin_round(s);
		wait_for(s, 1);
		return;
	}
	s->work.run = read_some;
	s->work.finish = was_read;
	work_submit(&a->loop.works, a->scrubber, &s->work);
}

int scrub_open(struct agent *a)
{
	struct sk_err err;
	struct scrub *s;
	int r;

	if (!a->opts->scrub_rate)
		return 0;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->agent = a;
	s->fd = -1;
	s->timer.fire = go_on;
	a->scrub = s;
	r = sk_pool_new(1, -1, "sk-scrub", &a->scrubber, &err);
	if (r < 0)
		return r;
	wait_for(s, ROUND_NS);
	return 0;
}

void scrub_close(struct agent *a)
{
	struct scrub *s = a->scrub;

	a->scrubber = sk_pool_free(a->scrubber);
	if (!s)
		return;
	timer_clear(&a->loop.timers, &s->timer);
	let_go(s);
	free(s->round);
	free(s);
	a->scrub = NULL;
}
