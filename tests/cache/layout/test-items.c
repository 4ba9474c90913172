/* SPDX-License-Identifier: Apache-2.0 */
/* Headers read back: whatever is in them, and without JSON of each tensor. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "layout/layout.h"
#include "layout/private.h"
#include "layout/text.h"
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

/* The text of a header's items as it is read, from behind their bracket. */
static char *items_text(const struct sk_layout *l, size_t *ret_n)
{
	static const char list[] = "\\\"items\\\":[";
	const char *header = (const char *)l->header;
	const char *at = memmem(header, l->header_bytes, list,
				sizeof(list) - 1);
	char *text = calloc(1, l->header_bytes);
	size_t n = 0;

	cr_assert(at && text);
	for (at += sizeof(list) - 1; *at != '"'; at++) {
		at += *at == '\\';
		text[n++] = *at;
	}
	/* The entries follow from them, and are not read. */
	cr_assert(strstr(text, "],\"entries\":["));
	strcpy(strstr(text, "],\"entries\":["), "]}");
	*ret_n = strlen(text);
	return text;
}

static bool is_read(const char *text, size_t n, struct sk_mesh *mesh)
{
	struct sk_item *items = NULL;
	char *copy = calloc(1, n + 1);
	size_t n_items = 0;
	bool read;

	memcpy(copy, text, n);
	read = sk_items_read(copy, &mesh, 1, &items, &n_items);
	if (read)
		sk_items_free(items, n_items);
	free(copy);
	return read;
}

/* Headers come from files and clients: wherever one is cut, or says something
 * else than we do, it is no list of ours, and nothing worse. */
Test(items, any_other_text_is_refused)
{
	static const char others[] = "\"5]},[\\x-";
	struct sk_mesh *mesh = mesh_of_4();
	const struct sk_item items[] = {
		{ .spec = { .name = "a", .dtype = SK_F32, .ndim = 1,
			    .shape = { 12 }, .mesh = mesh, .placements = {
				    SK_SHARD(0), SK_REPLICATE } } },
		{ .spec = { .name = "b", .dtype = SK_U8, .ndim = 1,
			    .shape = { 12 } } },
	};
	struct sk_layout *l = lay_out(items, 2);
	size_t n = 0;
	char *text = items_text(l, &n);

	cr_assert(is_read(text, n, mesh), "%s", text);
	for (size_t i = 0; i < n; i++) {
		char was = text[i];

		cr_assert_not(is_read(text, i, mesh), "cut at %zu", i);
		for (size_t k = 0; k + 1 < sizeof(others); k++) {
			text[i] = others[k];
			(void)is_read(text, n, mesh);
		}
		text[i] = was;
	}
	free(text);
	sk_layout_free(l);
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

/* NULL would be for want of memory; nor may it be reckoned with. */
Test(items, an_empty_text_has_room_for_nothing)
{
	struct sk_text t = { 0 };

	cr_assert(sk_text_room(&t, 0));
	cr_assert_not(t.failed);
	free(t.v);
}
