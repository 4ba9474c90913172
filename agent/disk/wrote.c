/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/wrote.h"

#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"

/* Nobody looks for long, or the background cannot keep up. */
#define MOST 65536u

void wrote_add(struct agent *a, const struct sk_cat_image *image)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	struct wrote *w;

	if (a->n_wrote >= MOST ||
	    sk_array_fit(a->wrote, a->room_wrote, a->n_wrote + 1) < 0)
		return;		/* it is read */
	w = &a->wrote[a->n_wrote++];
	*w = (struct wrote){ .file = {
		.rank = image->rank, .world = s->world,
		.id = image->stored.file, .run = { s->run, s->run_id },
		.layout = sk_layout_ref(image->layout->layout),
		.content = { image->content[0], image->content[1] },
		.image = image->id,
	} };
	memcpy(w->job, s->job->name, sizeof(w->job));
	memcpy(w->dir, image->stored.dir, sizeof(w->dir));
}

void wrote_take(struct agent *a, const char *job, struct wrote_list *ret)
{
	size_t n = 0;

	*ret = (struct wrote_list){ 0 };
	for (size_t i = 0; i < a->n_wrote; i++) {
		struct wrote w = a->wrote[i];

		a->cat.visits++;
		if (job[0] && strcmp(w.job, job) != 0)
			a->wrote[n++] = w;
		else if (sk_array_fit(ret->files, ret->room, ret->n + 1) < 0)
			sk_layout_free(w.file.layout);
		else
			ret->files[ret->n++] = w;
	}
	a->n_wrote = n;
}

void wrote_doubt(const struct wrote_list *l, struct sk_history *h)
{
	for (size_t i = 0; i < l->n; i++) {
		const struct wrote *w = &l->files[i];
		struct sk_history_step *s =
			strcmp(w->job, sk_history_job(h)) == 0 ?
			sk_history_find(h, w->dir) : NULL;

		if (s && !sk_store_run_equal(&s->run, &w->file.run))
			sk_history_doubt(s);
	}
}

void wrote_note(const struct wrote_list *l, struct sk_history *h)
{
	for (size_t i = 0; i < l->n; i++) {
		const struct wrote *w = &l->files[i];
		struct sk_history_step *s =
			strcmp(w->job, sk_history_job(h)) == 0 ?
			sk_history_find(h, w->dir) : NULL;

		/* Another one may have it by now. */
		if (!s || !sk_store_run_equal(&s->run, &w->file.run))
			continue;
		if (sk_history_file_note(s, &w->file))
			sk_history_learnt(h);
	}
}

void wrote_free(struct wrote_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		sk_layout_free(l->files[i].file.layout);
	free(l->files);
	*l = (struct wrote_list){ 0 };
}

void wrote_close(struct agent *a)
{
	struct wrote_list all = { .files = a->wrote, .n = a->n_wrote };

	wrote_free(&all);
	a->wrote = NULL;
	a->n_wrote = a->room_wrote = 0;
}
