/* SPDX-License-Identifier: Apache-2.0 */
/* Files that were written are known by what they were written from. */
#include "disk/wrote.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent.h"
#include "cache/store/common.h"

#define FILES 5

/* Written by run 1 under the job's name: as an agent notes it. */
static void note(struct agent *a, const char *job_name, int64_t step,
		 struct sk_layout *l)
{
	struct sk_cat_job job = { 0 };
	struct sk_cat_snapshot s = { .job = &job, .run = 1, .step = step,
				     .run_id = run_named(1).id, .world = 1 };
	struct sk_cat_layout layout = { .layout = l };
	struct sk_cat_image image = { .snapshot = &s, .layout = &layout,
				      .id = (uint64_t)step,
				      .content = { 7, (uint64_t)step } };

	(void)snprintf(job.name, sizeof(job.name), "%s", job_name);
	(void)snprintf(image.stored.dir, sizeof(image.stored.dir),
		       "step-%012d", (int)step);
	wrote_add(a, &image);
}

static struct sk_layout *layout(void)
{
	const struct sk_item item = {
		.spec = { .name = "w", .dtype = SK_F32, .ndim = 1,
			  .shape = { 16 } } };
	struct sk_layout *l = NULL;

	cr_assert_eq(sk_layout_new("job", 0, 1, SK_IMAGE_PRIMARY, &item, 1,
				   &l, NULL), 0);
	return l;
}

static void note_all(struct agent *a)
{
	struct sk_layout *l = layout();

	for (int64_t step = 0; step < FILES; step++) {
		note(a, "job", step, l);
		note(a, "other", step, l);
	}
	sk_layout_free(l);
}

Test(wrote, each_is_taken_once)
{
	struct agent *a = calloc(1, sizeof(*a));
	struct wrote_list l;

	note_all(a);
	wrote_take(a, "job", &l);
	cr_assert_eq(l.n, FILES);
	for (size_t i = 0; i < l.n; i++) {
		cr_assert_str_eq(l.files[i].job, "job");
		cr_assert_eq(l.files[i].file.image, i);
	}
	wrote_free(&l);
	wrote_take(a, "job", &l);
	cr_assert_eq(l.n, 0);
	wrote_free(&l);
	/* Those of any job: what is left. */
	wrote_take(a, "", &l);
	cr_assert_eq(l.n, FILES);
	wrote_free(&l);
	note_all(a);
	wrote_close(a);
	free(a);
}

/* All of them, but for those whose directory is another run's by now. */
Test(wrote, each_is_noted_where_it_is)
{
	struct sk_history *h = sk_history_new("job");
	struct agent *a = calloc(1, sizeof(*a));
	struct sk_err err = { "" };
	struct sk_store *store;
	struct wrote_list l;
	struct place p;

	store = make_store(&p, NULL);
	for (uint64_t step = 0; step < FILES; step++)
		cr_assert_eq(put(store, step == 3 ? 2 : 1, step, 0), 0);
	cr_assert_eq(sk_history_look(h, store, &err), 0, "%s", err.text);
	note_all(a);
	wrote_take(a, "", &l);
	wrote_note(&l, h);
	for (uint64_t step = 0; step < FILES; step++) {
		char dir[SK_STORE_NAME_MAX];
		const struct sk_history_file *f;

		sk_step_name_format(dir, step);
		f = sk_history_file_find(sk_history_find(h, dir), 0, 1);
		cr_assert_eq(!f, step == 3, "%s", dir);
		cr_assert(!f || (f->image == step && f->content[0] == 7));
	}
	wrote_free(&l);
	wrote_close(a);
	free(a);
	sk_history_free(h);
	sk_store_close(store);
	place_remove(&p);
}
