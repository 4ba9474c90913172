/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the template header. The form is canonical: the same layout always
 * gives the same bytes, which is what digests and parsing stand on.
 */
#include <stdio.h>
#include <string.h>

#include "dtype.h"
#include "layout-private.h"
#include "util.h"

/* Text that grows; with nested set, everything goes through the escape of a
 * JSON string, because some of our JSON lies in a string of the header's. */
struct text {
	char *v;
	size_t n, room;
	bool nested;
	bool failed;
};

/* Room for @n more bytes, or NULL; the caller adds what it wrote to n. */
static char *room_for(struct text *t, size_t n)
{
	size_t room = t->room ? t->room : 4096;
	char *v;

	if (t->failed)
		return NULL;
	if (t->room - t->n >= n)
		return t->v + t->n;
	while (room - t->n < n)
		room *= 2;
	v = realloc(t->v, room);
	if (!v) {
		t->failed = true;
		return NULL;
	}
	t->v = v;
	t->room = room;
	return v + t->n;
}

static void put_byte(struct text *t, char c)
{
	char *at = room_for(t, 1);

	if (at) {
		*at = c;
		t->n++;
	}
}

static void put_n(struct text *t, const char *s, size_t n)
{
	char *at = room_for(t, 2 * n), *w = at;

	if (!at)
		return;
	if (!t->nested) {
		memcpy(at, s, n);
		t->n += n;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (s[i] == '"' || s[i] == '\\')
			*w++ = '\\';
		*w++ = s[i];
	}
	t->n += (size_t)(w - at);
}

static void put(struct text *t, const char *s)
{
	put_n(t, s, strlen(s));
}

static void put_int(struct text *t, int64_t v)
{
	uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
	char buf[24], *s = buf + sizeof(buf) - 1;

	*s = 0;
	do
		*--s = (char)('0' + u % 10);
	while (u /= 10);
	if (v < 0)
		*--s = '-';
	put(t, s);
}

/* Names are UTF-8 without control characters: two characters to escape. */
static void put_string(struct text *t, const char *s)
{
	put_n(t, "\"", 1);
	while (*s) {
		size_t n = strcspn(s, "\"\\");

		put_n(t, s, n);
		s += n;
		if (*s) {
			put_n(t, "\\", 1);
			put_n(t, s++, 1);
		}
	}
	put_n(t, "\"", 1);
}

static void put_ints(struct text *t, const int64_t *v, int n)
{
	put(t, "[");
	for (int i = 0; i < n; i++) {
		put(t, i ? "," : "");
		put_int(t, v[i]);
	}
	put(t, "]");
}

/* A field of fixed width; remembers where it is. */
static uint32_t put_field(struct text *t, int width, char fill)
{
	uint32_t at = (uint32_t)t->n;

	for (int i = 1; i < width; i++)
		put_byte(t, fill);
	put_byte(t, '0');
	return at;
}

static void put_key(struct text *t, const struct sk_layout *l,
		    const struct sk_entry *e)
{
	char key[1100];

	put_string(t, sk_layout_key(l, e, key, sizeof(key)));
}

/* ---- __metadata__ ---- */

static void put_sharding_info(struct text *t, const struct sk_layout *l)
{
	put(t, "{");
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];

		put(t, i ? "," : "");
		put_key(t, l, e);
		put(t, ":{\"saved_offsets\":");
		put_ints(t, e->box.offset, l->items[e->item].spec.ndim);
		put(t, "}");
	}
	put(t, "}");
}

static void put_mesh(struct text *t, const struct sk_mesh *mesh)
{
	int ndim = sk_mesh_ndim(mesh);

	put(t, "{\"shape\":[");
	for (int d = 0; d < ndim; d++) {
		put(t, d ? "," : "");
		put_int(t, sk_mesh_dim(mesh, d));
	}
	put(t, "]");
	if (sk_mesh_name(mesh, 0)) {
		put(t, ",\"names\":[");
		for (int d = 0; d < ndim; d++) {
			put(t, d ? "," : "");
			put_string(t, sk_mesh_name(mesh, d));
		}
		put(t, "]");
	}
	if (!sk_mesh_is_dense(mesh)) {
		put(t, ",\"ranks\":[");
		for (int64_t i = 0; i < sk_mesh_count(mesh); i++) {
			put(t, i ? "," : "");
			put_int(t, sk_mesh_rank_at(mesh, i));
		}
		put(t, "]");
	}
	put(t, "}");
}

struct meshes {
	const struct sk_mesh **v;
	int *of_item;		/* index, or -1 */
	int n;
};

static int find_mesh(struct meshes *m, const struct sk_mesh *mesh)
{
	/* Newest first: neighbours mostly share one. */
	for (int i = m->n - 1; i >= 0; i--)
		if (sk_mesh_equal(m->v[i], mesh))
			return i;
	m->v[m->n] = mesh;
	return m->n++;
}

static bool collect_meshes(const struct sk_layout *l, struct meshes *m)
{
	m->v = malloc((l->n_items + 1u) * sizeof(*m->v));
	m->of_item = malloc((l->n_items + 1u) * sizeof(*m->of_item));
	if (!m->v || !m->of_item)
		return false;
	for (uint32_t i = 0; i < l->n_items; i++)
		m->of_item[i] = l->items[i].spec.mesh ?
				find_mesh(m, l->items[i].spec.mesh) : -1;
	return true;
}

static void put_placements(struct text *t, const struct sk_spec *s)
{
	char buf[48];

	put(t, ",\"placements\":[");
	for (int m = 0; m < sk_mesh_ndim(s->mesh); m++) {
		put(t, m ? "," : "");
		put_string(t, sk_placement_format(&s->placements[m], buf,
						  sizeof(buf)));
	}
	put(t, "]");
}

static void put_boxes(struct text *t, const struct sk_item *item)
{
	put(t, item->explicit_boxes ? ",\"explicit\":true,\"boxes\":[" :
				      ",\"boxes\":[");
	for (int b = 0; b < item->n_boxes; b++) {
		put(t, b ? ",[" : "[");
		put_ints(t, item->boxes[b].offset, item->spec.ndim);
		put(t, ",");
		put_ints(t, item->boxes[b].size, item->spec.ndim);
		put(t, "]");
	}
	put(t, "]");
}

static void put_item(struct text *t, const struct sk_item *item, int mesh)
{
	put(t, "{\"name\":");
	put_string(t, item->spec.name);
	put(t, ",\"kind\":");
	put_string(t, sk_item_kind_name(item->kind));
	put(t, ",\"dtype\":");
	put_string(t, sk_dtype_name(item->spec.dtype));
	put(t, ",\"shape\":");
	put_ints(t, item->spec.shape, item->spec.ndim);
	if (mesh >= 0) {
		put(t, ",\"mesh\":");
		put_int(t, mesh);
		put_placements(t, &item->spec);
	}
	put_boxes(t, item);
	put(t, "}");
}

static void put_sums(struct text *t, const struct sk_layout *l)
{
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];

		put(t, i ? ",{\"key\":" : "{\"key\":");
		put_key(t, l, e);
		put(t, ",\"item\":");
		put_int(t, e->item);
		put(t, ",\"box\":");
		put_int(t, e->box_index);
		put(t, ",\"xxh3\":[");
		for (uint32_t k = 0; k < e->n_sums; k++) {
			put(t, k ? ",\"" : "\"");
			l->priv->sums_at[e->first_sum + k] =
				put_field(t, SK_SUM_WIDTH, '0');
			put(t, "\"");
		}
		put(t, "]}");
	}
}

static void put_shardkeep(struct text *t, const struct sk_layout *l,
			  const struct meshes *meshes)
{
	put(t, "{\"version\":1,\"job\":");
	put_string(t, l->job);
	put(t, ",\"run\":");
	l->priv->run_at = put_field(t, SK_RUN_WIDTH, ' ');
	put(t, ",\"step\":");
	l->priv->step_at = put_field(t, SK_RUN_WIDTH, ' ');
	put(t, ",\"rank\":");
	put_int(t, l->rank);
	put(t, ",\"world\":");
	put_int(t, l->world);
	put(t, l->kind == SK_IMAGE_PRIMARY ? ",\"kind\":\"primary\"" :
					     ",\"kind\":\"replica\"");
	put(t, ",\"meshes\":[");
	for (int i = 0; i < meshes->n; i++) {
		put(t, i ? "," : "");
		put_mesh(t, meshes->v[i]);
	}
	put(t, "],\"items\":[");
	for (uint32_t i = 0; i < l->n_items; i++) {
		put(t, i ? "," : "");
		put_item(t, &l->items[i], meshes->of_item[i]);
	}
	put(t, "],\"entries\":[");
	put_sums(t, l);
	put(t, "]}");
}

/* ---- the whole ---- */

static void put_tensors(struct text *t, const struct sk_layout *l)
{
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		const struct sk_spec *s = &l->items[e->item].spec;
		int64_t at[2] = { (int64_t)e->offset,
				  (int64_t)(e->offset + e->bytes) };

		put(t, ",");
		put_key(t, l, e);
		put(t, ":{\"dtype\":");
		put_string(t, sk_dtype_name(s->dtype));
		put(t, ",\"shape\":");
		put_ints(t, e->box.size, s->ndim);
		put(t, ",\"data_offsets\":");
		put_ints(t, at, 2);
		put(t, "}");
	}
}

static void put_header(struct text *t, const struct sk_layout *l,
		       const struct meshes *meshes)
{
	for (int i = 0; i < 8; i++)
		put_byte(t, 0);
	put(t, SK_HEADER_BEGIN);
	t->nested = true;
	put_sharding_info(t, l);
	t->nested = false;
	put(t, SK_HEADER_MIDDLE);
	t->nested = true;
	put_shardkeep(t, l, meshes);
	t->nested = false;
	put(t, "\"}");
	put_tensors(t, l);
	put(t, "}");
	while (t->n % SK_PAGE && !t->failed)
		put_byte(t, ' ');
}

int sk_layout_write_header(struct sk_layout *l, struct sk_err *err)
{
	struct meshes meshes = { 0 };
	struct text t = { 0 };
	uint64_t n;

	l->priv->sums_at = calloc(l->n_sums + 1u, sizeof(uint32_t));
	if (l->priv->sums_at && collect_meshes(l, &meshes))
		put_header(&t, l, &meshes);
	else
		t.failed = true;
	free(meshes.v);
	free(meshes.of_item);
	if (t.failed) {
		free(t.v);
		return sk_err_set(err, -ENOMEM, "out of memory for a header");
	}
	if (t.n - 8 > SK_HEADER_MAX) {
		free(t.v);
		return sk_err_set(err, -E2BIG, "a header of %zu bytes for %u "
				  "tensors; readers of safetensors take at "
				  "most %u", t.n, l->n_items, SK_HEADER_MAX);
	}
	n = t.n - 8;
	memcpy(t.v, &n, sizeof(n));
	l->header = t.v;
	l->header_bytes = t.n;
	for (uint32_t i = 0; i < l->n_entries; i++)
		l->entries[i].offset += t.n;
	l->image_bytes += t.n;
	return 0;
}
