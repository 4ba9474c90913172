/* SPDX-License-Identifier: Apache-2.0 */
/* A header is parsed once: its directory's history, or else the index, says
 * what it said. */
#include "disk/scan-file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"

/* Of ranks that describe the same, one layout is kept as a whole. */
static struct sk_layout *sketch(struct sk_recall *recall, struct sk_layout *l)
{
	_cleanup_layout_ struct sk_layout *base =
		sk_recall_described(recall, l);
	struct sk_layout *brief = NULL;

	if (base && base != l)
		brief = sk_layout_sketch(base, l);
	if (!brief)
		return sk_layout_ref(l);
	sk_recall_drop(recall, l);
	return brief;
}

/* Of a header that is its layout's what the stamp says. */
static int take_stamp(struct found *f, const struct sk_layout *l,
		      const void *header)
{
	_cleanup_free_ uint64_t *sums = calloc((size_t)l->n_sums + 1,
					       sizeof(*sums));
	struct sk_stamp stamp = { .sums = sums };
	int r;

	if (!sums)
		return sk_err_set(&f->err, -ENOMEM, "no memory for %u "
				  "checksums", l->n_sums);
	r = sk_layout_read_stamp(l, header, &stamp, &f->err);
	if (r == 0 && stamp.step != f->stored.step)
		r = sk_err_set(&f->err, -EBADMSG, "it says it is step %" PRIu64,
			       stamp.step);
	if (r < 0)
		return r;
	f->run = (struct sk_store_run){ stamp.run, stamp.run_id };
	/* The file has them: those of all steps would fill memory. */
	sk_cat_hash_sums(l, sums, f->content);
	return 0;
}

static int read_layout(struct sk_recall *recall, struct found *f,
		       const void *header, uint64_t bytes)
{
	_cleanup_layout_ struct sk_layout *l = NULL;
	int r;

	r = sk_recall_get(recall, f->stored.job, f->stored.rank,
			  SK_IMAGE_PRIMARY, header, bytes,
			  f->stored.file.bytes, &l, &f->err);
	if (r == 0)
		r = take_stamp(f, l, header);
	if (r == 0)
		f->layout = sketch(recall, l);
	return r;
}

/* What the header says of itself against its names and its directory. */
static int check_identity(struct found *f)
{
	const struct sk_stored *stored = &f->stored;
	const struct sk_layout *l = f->layout;

	if (strcmp(l->job, stored->job) != 0 || l->rank != stored->rank ||
	    l->world != stored->world || l->kind != SK_IMAGE_PRIMARY)
		return sk_err_set(&f->err, -EBADMSG, "it says it is rank %"
				  PRId32 " of %" PRId32 " of job \"%.40s\"",
				  l->rank, l->world, l->job);
	if (stored->run.number && !sk_store_run_equal(&f->run, &stored->run))
		return sk_err_set(&f->err, -EBADMSG, "it says it is of run %"
				  PRIu64 " (%016" PRIx64 "), its directory is "
				  "of run %" PRIu64 " (%016" PRIx64 ")",
				  f->run.number, f->run.id, stored->run.number,
				  stored->run.id);
	return 0;
}

static int read_file(struct agent *a, struct found *f, int fd)
{
	_cleanup_free_ void *header = NULL;
	struct sk_file_id file;
	uint64_t bytes = 0;
	int r;

	r = sk_store_read_header(a->store, fd, &header, &bytes, &file,
				 &f->err);
	if (r < 0)
		return r;
	/* Of what was read, which may not be what was seen first. */
	f->stored.file = file;
	r = read_layout(a->recall, f, header, bytes);
	if (r == 0)
		r = check_identity(f);
	/* One that is another's is none of this file. */
	if (r < 0)
		f->layout = sk_layout_free(f->layout);
	return r;
}

/* What is wrong with one file stands with that file: the others are read. */
static void read_found(struct agent *a, struct found *f)
{
	int fd = sk_store_open_image(a->store, &f->stored, &f->err);

	f->result = fd < 0 ? fd : read_file(a, f, fd);
	if (fd >= 0)
		a->os->close(a->os, fd);
	if (found_unreadable(f))
		sk_err_prefix(&f->err, f->result, "%s/%s/%s",
			      sk_store_path(a->store), f->stored.job,
			      f->stored.dir);
}

static bool is_ignored(const struct agent *a, const struct sk_stored *stored)
{
	struct file_key key = file_key_of(stored), *known;

	known = a->n_ignored ?
		bsearch(&key, a->ignored, a->n_ignored, sizeof(*a->ignored),
			file_key_compare) : NULL;
	return known && sk_file_id_equal(&known->file, &key.file);
}

/* What its header said when it was read, if it is the same file still. */
static bool find_noted(struct found *f)
{
	const struct sk_stored *stored = &f->stored;
	const struct sk_history_file *noted =
		sk_history_file_find(f->step, stored->rank, stored->world);

	if (!noted || !sk_file_id_equal(&noted->id, &stored->file) ||
	    (stored->run.number &&
	     !sk_store_run_equal(&noted->run, &stored->run)))
		return false;
	f->layout = sk_layout_ref(noted->layout);
	f->run = noted->run;
	memcpy(f->content, noted->content, sizeof(f->content));
	f->image = noted->image;
	return true;
}

/* What the index says of it, where a layout is known that describes the same:
 * of that one the header was read, by this agent. */
static bool find_brief(struct scan *scan, struct sk_history *h,
		       struct found *f)
{
	_cleanup_layout_ struct sk_layout *base = NULL;
	struct sk_layout like = { .world = f->stored.world };
	struct sk_layout_brief brief;

	if (!f->stored.run.number ||
	    !sk_history_brief_find(h, f->step, f->stored.rank,
				   f->stored.world, &f->stored.file, &brief,
				   f->content))
		return false;
	memcpy(like.job, f->stored.job, sizeof(like.job));
	like.description = brief.description;
	base = sk_recall_described(scan->agent->recall, &like);
	f->layout = base ? sk_layout_sketch_brief(base, &brief) : NULL;
	f->run = f->stored.run;
	return f->layout;
}

/* A header that was read all the same tells what the index is worth. */
static void check_brief(struct sk_history *h, const struct found *f)
{
	struct sk_layout_brief brief;
	uint64_t content[2];

	if (sk_history_brief_find(h, f->step, f->stored.rank, f->stored.world,
				  &f->stored.file, &brief, content) &&
	    (brief.description != f->layout->description ||
	     !sk_digest_equal(&brief.digest, &f->layout->digest)))
		sk_history_briefs_doubt(h);
}

static void note(const struct found *f)
{
	const struct sk_history_file file = {
		.rank = f->stored.rank, .world = f->stored.world,
		.id = f->stored.file, .run = f->run, .layout = f->layout,
		.content = { f->content[0], f->content[1] },
	};

	/* Without memory it is read again. */
	(void)sk_history_file_note(f->step, &file);
}

static void read_new(struct scan *scan, struct sk_history *h,
		     struct found *f)
{
	read_found(scan->agent, f);
	scan->spent += SCAN_HEADER;
	if (!f->layout || f->result < 0)
		return;
	check_brief(h, f);
	/* It is to be known to the next one. */
	sk_history_learnt(h);
}

void scan_look_at(struct scan *scan, struct sk_history *h, struct found *f)
{
	const struct sk_stored *stored = &f->stored;

	__atomic_fetch_add(&scan->agent->looked_at, 1, __ATOMIC_RELAXED);
	scan->spent++;
	if (stored->error)
		f->result = sk_err_errno(&f->err, stored->error, "cannot read "
					 "%s/%s/%s", sk_store_path(
					 scan->agent->store), stored->job,
					 stored->dir);
	else if (!find_noted(f) && !find_brief(scan, h, f) &&
		 !is_ignored(scan->agent, stored))
		read_new(scan, h, f);
	if (f->layout && f->result == 0 && !f->image)
		note(f);
}
