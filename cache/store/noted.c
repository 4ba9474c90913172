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
}
