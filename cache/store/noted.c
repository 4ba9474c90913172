/* SPDX-License-Identifier: Apache-2.0 */
/* History, the files: what their headers said. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "store/private.h"

/* Where that name stands, or would: by world, then rank. */
static uint32_t place_of(const struct sk_history_step *s, int32_t rank,
			 int32_t world)
{
	return (uint32_t)sk_count_before(s->n_files, i,
					 s->files[i].world < world ||
					 (s->files[i].world == world &&
					  s->files[i].rank < rank));
}

struct sk_history_file *
sk_history_file_find(const struct sk_history_step *s, int32_t rank,
		     int32_t world)
{
	uint32_t at = place_of(s, rank, world);

	return at < s->n_files && s->files[at].rank == rank &&
	       s->files[at].world == world ? &s->files[at] : NULL;
}

/* Room at that place, as names come in order mostly at the end. */
static struct sk_history_file *make_room(struct sk_history_step *s,
					 uint32_t at)
{
	size_t room = s->room_files;

	if (sk_array_fit(s->files, room, s->n_files + 1u) < 0)
		return NULL;
	s->room_files = (uint32_t)room;
	memmove(&s->files[at + 1], &s->files[at],
		(s->n_files++ - at) * sizeof(*s->files));
	s->files[at].layout = NULL;
	return &s->files[at];
}

struct sk_history_file *sk_history_file_note(struct sk_history_step *s,
					     const struct sk_history_file *file)
{
	struct sk_history_file *f =
		sk_history_file_find(s, file->rank, file->world);
	struct sk_layout *layout = sk_layout_ref(file->layout);

	if (!f)
		f = make_room(s, place_of(s, file->rank, file->world));
	if (!f) {
		sk_layout_free(layout);
		return NULL;
	}
	sk_layout_free(f->layout);
	*f = *file;
	f->layout = layout;
	return f;
}

void sk_history_files_forget(struct sk_history_step *s)
{
	for (uint32_t i = 0; i < s->n_files; i++)
		sk_layout_free(s->files[i].layout);
	free(s->files);
	s->files = NULL;
	s->n_files = s->room_files = 0;
	sk_history_briefs_forget(s);
}

void sk_history_briefs_forget(struct sk_history_step *s)
{
	free(s->briefs);
	s->briefs = NULL;
	s->n_briefs = 0;
}

/* ---- what the index said ---- */

static const struct sk_history_brief *
find_brief(const struct sk_history_step *s, int32_t rank, int32_t world)
{
	size_t at = sk_count_before(s->n_briefs, i,
				    s->briefs[i].world < world ||
				    (s->briefs[i].world == world &&
				     s->briefs[i].rank < rank));

	return at < s->n_briefs && s->briefs[at].rank == rank &&
	       s->briefs[at].world == world ? &s->briefs[at] : NULL;
}

bool sk_history_brief_find(const struct sk_history *h,
			   const struct sk_history_step *s, int32_t rank,
			   int32_t world, const struct sk_file_id *id,
			   struct sk_layout_brief *ret_brief,
			   uint64_t ret_content[2])
{
	const struct sk_history_brief *b = find_brief(s, rank, world);

	if (!b || id->device != h->dir.device || id->inode != b->inode ||
	    id->bytes != b->bytes || id->mtime_ns != b->mtime_ns ||
	    id->ctime_ns != b->ctime_ns)
		return false;
	*ret_brief = (struct sk_layout_brief){
		.rank = b->rank, .n_sums = b->n_sums,
		.header_bytes = (uint64_t)b->header_pages << 12,
		.image_bytes = b->bytes, .description = b->description,
		.digest = b->digest, .n_locals = b->n_locals,
		.locals = h->locals + b->locals_at,
	};
	memcpy(ret_content, b->content, sizeof(b->content));
	return true;
}

/* ---- what the index is to say ---- */

static int compare(const struct sk_history_brief *b,
		   const struct sk_history_file *f)
{
	if (b->world != f->world)
		return b->world < f->world ? -1 : 1;
	return (b->rank > f->rank) - (b->rank < f->rank);
}

/* Layouts that are always read as a whole, and what is no image of its
 * directory's run, are left out. */
static bool is_brief(const struct sk_history_step *s,
		     const struct sk_history_file *f)
{
	return s->run.number && sk_store_run_equal(&s->run, &f->run) &&
	       !sk_layout_says_boxes(f->layout);
}

static void add_file(struct sk_briefs *all, const struct sk_history_file *f)
{
	const struct sk_layout *l = f->layout;
	uint32_t n_locals = sk_layout_locals(l, all->locals ?
					     all->locals + all->n_locals :
					     NULL);

	if (all->files)
		all->files[all->n] = (struct sk_history_brief){
			.rank = f->rank, .world = f->world,
			.inode = f->id.inode, .bytes = f->id.bytes,
			.mtime_ns = f->id.mtime_ns, .ctime_ns = f->id.ctime_ns,
			.content = { f->content[0], f->content[1] },
			.digest = l->digest, .description = l->description,
			.n_sums = l->n_sums,
			.header_pages = (uint32_t)(l->header_bytes >> 12),
			.n_locals = n_locals, .locals_at = all->n_locals,
		};
	all->n++;
	all->n_locals += n_locals;
}

static void add_brief(struct sk_briefs *all, const struct sk_history *h,
		      const struct sk_history_brief *b)
{
	if (all->files) {
		all->files[all->n] = *b;
		all->files[all->n].locals_at = all->n_locals;
	}
	if (all->locals && b->n_locals)
		memcpy(all->locals + all->n_locals, h->locals + b->locals_at,
		       b->n_locals * sizeof(*h->locals));
	all->n++;
	all->n_locals += b->n_locals;
}

uint32_t sk_history_briefs(const struct sk_history *h,
			   const struct sk_history_step *s,
			   struct sk_briefs *all)
{
	size_t before = all->n;
	uint32_t at = 0;

	for (uint32_t i = 0; i < s->n_files; i++) {
		const struct sk_history_file *f = &s->files[i];

		while (at < s->n_briefs && compare(&s->briefs[at], f) < 0)
			add_brief(all, h, &s->briefs[at++]);
		/* What was read since is it. */
		if (at < s->n_briefs && compare(&s->briefs[at], f) == 0)
			at++;
		if (is_brief(s, f))
			add_file(all, f);
	}
	while (at < s->n_briefs)
		add_brief(all, h, &s->briefs[at++]);
	return (uint32_t)(all->n - before);
}

void sk_history_briefs_doubt(struct sk_history *h)
{
	for (size_t i = 0; i < h->n; i++)
		sk_history_briefs_forget(&h->steps[i]);
}

void sk_history_learnt(struct sk_history *h)
{
	h->unsaved = true;
}
