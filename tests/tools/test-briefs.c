/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of many ranks, the words once: the same entries, in less room. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "briefs.h"

#define TENSORS 60

/* Of @world ranks a layer each is cut, split otherwise, or whole; rank by rank
 * other boxes are said where @says; and an object of so many bytes. */
static struct sk_layout *layout_of(int32_t rank, int32_t world, bool says,
				   const char *stem, int64_t local)
{
	char names[TENSORS][64];
	struct sk_item items[TENSORS + 1] = { 0 };
	struct sk_box said = { .offset = { rank }, .size = { 1, 7 } };
	struct sk_layout *ret = NULL;
	struct sk_mesh *mesh = NULL;
	int64_t sizes[] = { world };
	int32_t ranks[64];

	for (int32_t i = 0; i < world; i++)
		ranks[i] = i;
	cr_assert_eq(sk_mesh_new(1, sizes, ranks, NULL, &mesh, NULL), 0);
	for (int i = 0; i < TENSORS; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "%s.layers.%d.mlp",
			       stem, i);
		items[i].spec = (struct sk_spec){
			.name = names[i], .dtype = SK_F32, .ndim = 2,
			.shape = { 100 + i, 7 }, .mesh = mesh,
			.placements = { i % 3 ? SK_SHARD(i % 2) :
						SK_REPLICATE } };
	}
	if (says) {
		items[0].spec.mesh = NULL;
		items[0].explicit_boxes = true;
		items[0].boxes = &said;
		items[0].n_boxes = 1;
	}
	items[TENSORS] = (struct sk_item){ .kind = SK_ITEM_BLOB_LOCAL,
		.spec = { .name = "own", .dtype = SK_U8, .ndim = 1,
			  .shape = { local } } };
	cr_assert_eq(sk_layout_new("job", rank, world, SK_IMAGE_PRIMARY, items,
				   TENSORS + 1, &ret, NULL), 0);
	sk_mesh_unref(mesh);
	return ret;
}

static void compare(const struct sk_layout *l, const struct sk_layout *want)
{
	cr_assert_eq(l->rank, want->rank);
	cr_assert_eq(l->n_entries, want->n_entries);
	cr_assert_eq(l->n_sums, want->n_sums);
	for (uint32_t i = 0; i < want->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		const struct sk_entry *w = &want->entries[i];
		const struct sk_spec *spec = &l->items[e->item].spec;
		const struct sk_spec *as = &want->items[w->item].spec;

		cr_assert_str_eq(spec->name, as->name);
		cr_assert_eq(spec->dtype, as->dtype);
		cr_assert_eq(spec->shape[0], as->shape[0]);
		cr_assert(sk_box_equal(2, &e->box, &w->box));
		cr_assert_eq(e->offset, w->offset);
		cr_assert_eq(e->bytes, w->bytes);
		cr_assert_eq(e->first_sum, w->first_sum);
		cr_assert_eq(e->n_sums, w->n_sums);
	}
}

/* Of two descriptions in turn, as of two stages of a pipeline, each with
 * objects of two sizes: what follows from another one is told by both. */
Test(briefs, have_the_entries_of_the_whole)
{
	struct briefs b = { 0 };
	struct sk_layout *l[32];
	uint64_t whole = 0, brief = 0;

	for (int32_t rank = 0; rank < 32; rank++) {
		l[rank] = layout_of(rank, 32, false, rank % 2 ? "b" : "a",
				    100 + rank / 16);
		whole += sk_layout_memory(l[rank]);
		cr_assert_eq(briefs_add(&b, &l[rank]), 0);
	}
	cr_assert_eq(b.n_firsts, 4);
	briefs_release(&b);
	for (int32_t rank = 0; rank < 32; rank++) {
		struct sk_layout *want = layout_of(rank, 32, false,
						   rank % 2 ? "b" : "a",
						   100 + rank / 16);

		compare(l[rank], want);
		brief += sk_layout_memory(l[rank]);
		sk_layout_free(want);
	}
	cr_assert(brief < whole / 3, "%llu of %llu bytes",
		  (unsigned long long)brief, (unsigned long long)whole);
	for (int32_t rank = 0; rank < 32; rank++)
		sk_layout_free(l[rank]);
}

Test(briefs, what_says_boxes_stays_whole)
{
	struct briefs b = { 0 };

	for (int32_t rank = 0; rank < 4; rank++) {
		struct sk_layout *l = layout_of(rank, 4, true, "a", 9), *was = l;

		cr_assert_eq(briefs_add(&b, &l), 0);
		cr_assert_eq(l, was);
		sk_layout_free(l);
	}
	cr_assert_eq(b.n_firsts, 0);
	briefs_release(&b);
}
