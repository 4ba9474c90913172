/* SPDX-License-Identifier: Apache-2.0 */
/* Headers read back: whatever is in them, and without JSON of each tensor. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "layout/layout.h"
#include "support/random.h"

#define ITEMS_MAX 24

static unsigned long pieces;	/* of JSON's memory, so far */

static void *count_piece(size_t n)
{
	pieces++;
	return malloc(n);
}

static struct sk_layout *lay_out(const struct sk_item *items, uint32_t n)
{
	struct sk_err err = { "" };
	struct sk_layout *l = NULL;

	cr_assert_eq(sk_layout_new("job", 1, 4, SK_IMAGE_PRIMARY, items, n, &l,
				   &err), 0, "%s", err.text);
	return l;
}

/* Returns how much JSON that took. */
static unsigned long read_back(const struct sk_layout *l)
{
	struct sk_layout *back = NULL;
	struct sk_err err = { "" };
	unsigned long before = pieces;

	cr_assert_eq(sk_layout_parse(l->header, l->header_bytes,
				     l->image_bytes, &back, &err), 0, "%s",
		     err.text);
	cr_assert(sk_digest_equal(&l->digest, &back->digest));
	cr_assert_eq(l->description, back->description);
	sk_layout_free(back);
	return pieces - before;
}

static struct sk_mesh *mesh_of_4(void)
{
	const int64_t shape[] = { 2, 2 };
	const char *const names[] = { "dp\"", "tp" };
	struct sk_mesh *m = NULL;

	cr_assert_eq(sk_mesh_new(2, shape, NULL, names, &m, NULL), 0);
	return m;
}

/* ---- what is in them ---- */

/* Of a name the quotes and backslashes are what JSON escapes. */
static char *draw_name(uint64_t *state, uint32_t i, bool plain)
{
	static const char *const parts[] = { "layers.", "w", "\xc3\xa9", "],",
		"{", "\"", "\\", "\\\"", "\",\"items\":[", "],\"entries\":[" };
	char name[256];
	int n = snprintf(name, sizeof(name), "%u.", i);

	for (uint64_t k = draw(state, 5); k--;)
		n += snprintf(name + n, sizeof(name) - (size_t)n, "%s",
			      parts[draw(state, plain ? 5 : 10)]);
	return strdup(name);
}

static void draw_boxes(uint64_t *state, struct sk_item *item)
{
	int n = (int)draw(state, 4);

	item->explicit_boxes = true;
	item->boxes = calloc((size_t)n + 1, sizeof(*item->boxes));
	for (int b = 0; b < n; b++) {
		item->boxes[b].size[0] = 2;
		item->boxes[b].offset[0] = 3 * b;
		for (int d = 1; d < item->spec.ndim; d++)
			item->boxes[b].size[d] = item->spec.shape[d];
	}
	item->n_boxes = n;
}

static struct sk_item draw_item(uint64_t *state, uint32_t i,
				const struct sk_mesh *mesh, bool plain)
{
	static const struct sk_placement placements[] = {
		SK_SHARD(0), { .kind = SK_PLACEMENT_REPLICATE },
		SK_STRIDED_SHARD(0, 2) };
	struct sk_item item = { .kind = (enum sk_item_kind)(
		SK_ITEM_TENSOR + draw(state, 3)) };
	struct sk_spec *s = &item.spec;

	s->name = draw_name(state, i, plain);
	s->dtype = SK_U8;
	s->ndim = 1;
	s->shape[0] = 12;
	if (item.kind != SK_ITEM_TENSOR)
		return item;
	s->dtype = draw(state, 2) ? SK_F32 : SK_BF16;
	s->ndim += (int)draw(state, 3);
	for (int d = 1; d < s->ndim; d++)
		s->shape[d] = 1 + (int64_t)draw(state, 1000);
	if (draw(state, 3) == 0) {
		draw_boxes(state, &item);
	} else if (draw(state, 2)) {
		s->mesh = mesh;
		s->placements[0] = placements[draw(state, 3)];
		s->placements[1] = placements[draw(state, 2)];
	}
	return item;
}

Test(items, any_header_is_read_back)
{
	struct sk_mesh *mesh = mesh_of_4();
	uint64_t state = 7;

	for (int round = 0; round < 400; round++) {
		struct sk_item items[ITEMS_MAX];
		uint32_t n = (uint32_t)draw(&state, ITEMS_MAX);
		struct sk_layout *l;

		for (uint32_t i = 0; i < n; i++)
			items[i] = draw_item(&state, i, mesh, round % 2);
		l = lay_out(items, n);
		(void)read_back(l);
		sk_layout_free(l);
		for (uint32_t i = 0; i < n; i++) {
			free((char *)items[i].spec.name);
			free(items[i].boxes);
		}
	}
	sk_mesh_unref(mesh);
}

/* ---- what it costs ---- */

static unsigned long json_for(uint32_t n)
{
	struct sk_mesh *mesh = mesh_of_4();
	struct sk_item *items = calloc(n, sizeof(*items));
	struct sk_layout *l;
	uint64_t state = 3;
	unsigned long took;

	for (uint32_t i = 0; i < n; i++)
		items[i] = draw_item(&state, i, mesh, true);
	l = lay_out(items, n);
	took = read_back(l);
	sk_layout_free(l);
	for (uint32_t i = 0; i < n; i++) {
		free((char *)items[i].spec.name);
		free(items[i].boxes);
	}
	free(items);
	sk_mesh_unref(mesh);
	return took;
}

Test(items, more_of_them_take_no_more_json)
{
	json_set_alloc_funcs(count_piece, free);
	cr_assert_gt(json_for(10), 0);	/* that they are counted */
	cr_assert_eq(json_for(10), json_for(2000));
	json_set_alloc_funcs(malloc, free);
}
