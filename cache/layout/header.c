/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the template header. The form is canonical: the same layout always
 * gives the same bytes, which is what digests and parsing stand on.
 */
#include <assert.h>
#include <string.h>

#include "base/table.h"
#include "base/util.h"
#include "bytes/checksum.h"
#include "layout/private.h"
#include "layout/text.h"
#include "tensor/dtype.h"

#define ENTRY_BYTES 320u
#define SUM_BYTES 24u

static void put_ints(struct sk_text *t, const int64_t *v, int n)
{
	sk_text_word(t, "[");
	for (int i = 0; i < n; i++) {
		sk_text_comma(t, i > 0);
		sk_text_int(t, v[i]);
	}
	sk_text_word(t, "]");
}

/* A field of fixed width; remembers where it is. */
static uint32_t put_field(struct sk_text *t, int width, char fill)
{
	uint32_t at = (uint32_t)t->n;

	assert(width > 0);
	for (int i = 1; i < width; i++)
		sk_text_byte(t, fill);
	sk_text_byte(t, '0');
	return at;
}

static void put_key(struct sk_text *t, const struct sk_layout *l,
		    const struct sk_entry *e)
{
	const struct sk_item *item = &l->items[e->item];
	char key[1100];

	assert(e->item < l->n_items);
	if (item->kind == SK_ITEM_TENSOR && !e->box_index)
		sk_text_string(t, item->spec.name);	/* which is its key */
	else
		sk_text_string(t, sk_layout_key(l, e, key, sizeof(key)));
}

/* ---- __metadata__ ---- */

static void put_sharding_info(struct sk_text *t, const struct sk_layout *l)
{
	sk_text_word(t, "{");
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];

		sk_text_comma(t, i > 0);
		put_key(t, l, e);
		sk_text_word(t, ":{\"saved_offsets\":");
		put_ints(t, e->box.offset, l->items[e->item].spec.ndim);
		sk_text_word(t, "}");
	}
	sk_text_word(t, "}");
}

/* Outermost first, as the shape. */
static void put_steps(struct sk_text *t, const struct sk_steps *steps)
{
	sk_text_word(t, ",\"first\":");
	sk_text_int(t, steps->first);
	sk_text_word(t, ",\"steps\":[");
	for (int i = steps->n - 1; i >= 0; i--) {
		int64_t pair[] = { steps->v[i].count, steps->v[i].stride };

		put_ints(t, pair, 2);
		sk_text_comma(t, i > 0);
	}
	sk_text_word(t, "]");
}

static void put_ranks(struct sk_text *t, const struct sk_mesh *mesh)
{
	if (sk_mesh_steps(mesh)) {
		put_steps(t, sk_mesh_steps(mesh));
		return;
	}
	sk_text_word(t, ",\"ranks\":[");
	for (int64_t i = 0; i < sk_mesh_count(mesh); i++) {
		sk_text_comma(t, i > 0);
		sk_text_int(t, sk_mesh_rank_at(mesh, i));
	}
	sk_text_word(t, "]");
}

static void put_mesh(struct sk_text *t, const struct sk_mesh *mesh)
{
	int ndim = sk_mesh_ndim(mesh);

	sk_text_word(t, "{\"shape\":[");
	for (int d = 0; d < ndim; d++) {
		sk_text_comma(t, d > 0);
		sk_text_int(t, sk_mesh_dim(mesh, d));
	}
	sk_text_word(t, "]");
	if (sk_mesh_name(mesh, 0)) {
		sk_text_word(t, ",\"names\":[");
		for (int d = 0; d < ndim; d++) {
			sk_text_comma(t, d > 0);
			sk_text_string(t, sk_mesh_name(mesh, d));
		}
		sk_text_word(t, "]");
	}
	if (!sk_mesh_is_dense(mesh))
		put_ranks(t, mesh);
	sk_text_word(t, "}");
}

struct meshes {
	const struct sk_mesh **v;
	int *of_item;		/* index, or -1 */
	int n;
	struct sk_table table;	/* indices */
};

/* Its index, which it gets if it is new; -ENOMEM. */
static int find_mesh(struct meshes *m, const struct sk_mesh *mesh)
{
	struct sk_table_walk walk = sk_table_find(&m->table,
						  sk_mesh_hash(mesh));
	uintptr_t i;
	int r;

	while (sk_table_next(&walk, &i)) {
		assert(i < (uintptr_t)m->n);
		if (sk_mesh_equal(m->v[i], mesh))
			return (int)i;
	}
	r = sk_table_add(&m->table, sk_mesh_hash(mesh), (uintptr_t)m->n);
	if (r < 0)
		return r;
	m->v[m->n] = mesh;
	return m->n++;
}

static bool collect_meshes(const struct sk_layout *l, struct meshes *m)
{
	m->v = malloc((l->n_items + 1u) * sizeof(*m->v));
	m->of_item = malloc((l->n_items + 1u) * sizeof(*m->of_item));
	if (!m->v || !m->of_item)
		return false;
	for (uint32_t i = 0; i < l->n_items; i++) {
		const struct sk_mesh *mesh = l->items[i].spec.mesh;

		m->of_item[i] = mesh ? find_mesh(m, mesh) : -1;
		if (mesh && m->of_item[i] < 0)
			return false;
	}
	return true;
}

static void put_placements(struct sk_text *t, const struct sk_spec *s)
{
	char buf[48];

	assert(s->mesh);
	sk_text_word(t, ",\"placements\":[");
	for (int m = 0; m < sk_mesh_ndim(s->mesh); m++) {
		sk_text_comma(t, m > 0);
		sk_text_string(t, sk_placement_format(&s->placements[m], buf,
						  sizeof(buf)));
	}
	sk_text_word(t, "]");
}

static void put_boxes(struct sk_text *t, const struct sk_item *item)
{
	if (item->explicit_boxes)
		sk_text_word(t, ",\"explicit\":true");
	sk_text_word(t, ",\"boxes\":[");
	for (int b = 0; b < item->n_boxes; b++) {
		sk_text_comma(t, b > 0);
		sk_text_word(t, "[");
		put_ints(t, item->boxes[b].offset, item->spec.ndim);
		sk_text_word(t, ",");
		put_ints(t, item->boxes[b].size, item->spec.ndim);
		sk_text_word(t, "]");
	}
	sk_text_word(t, "]");
}

/* What has been put since @from is part of the description. */
static void describe(struct sk_xxh3_stream *d, const struct sk_text *t,
		     size_t from)
{
	if (!t->failed)
		sk_xxh3_add(d, t->v + from, t->n - from);
}

static void put_item(struct sk_text *t, const struct sk_item *item, int mesh,
		     struct sk_xxh3_stream *d, struct sk_words *ret_boxes)
{
	size_t from = t->n;

	assert((mesh >= 0) == (item->spec.mesh != NULL));
	sk_text_word(t, "{\"name\":");
	sk_text_string(t, item->spec.name);
	sk_text_word(t, ",\"kind\":");
	sk_text_string(t, sk_item_kind_name(item->kind));
	if (item->kind == SK_ITEM_BLOB_LOCAL)
		describe(d, t, from);
	sk_text_word(t, ",\"dtype\":");
	sk_text_string(t, sk_dtype_name(item->spec.dtype));
	sk_text_word(t, ",\"shape\":");
	put_ints(t, item->spec.shape, item->spec.ndim);
	if (mesh >= 0) {
		sk_text_word(t, ",\"mesh\":");
		sk_text_int(t, mesh);
		put_placements(t, &item->spec);
	}
	if (item->kind != SK_ITEM_BLOB_LOCAL)
		describe(d, t, from);
	sk_xxh3_add(d, item->explicit_boxes ? "b" : "p", 1);
	ret_boxes->from = (uint32_t)t->n;
	put_boxes(t, item);
	ret_boxes->to = (uint32_t)t->n;
	sk_text_word(t, "}");
}

static void put_sums(struct sk_text *t, const struct sk_layout *l)
{
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];

		assert(e->first_sum + e->n_sums <= l->n_sums);
		sk_text_comma(t, i > 0);
		sk_text_word(t, "{\"key\":");
		put_key(t, l, e);
		sk_text_word(t, ",\"item\":");
		sk_text_int(t, e->item);
		sk_text_word(t, ",\"box\":");
		sk_text_int(t, e->box_index);
		sk_text_word(t, ",\"xxh3\":[");
		for (uint32_t k = 0; k < e->n_sums; k++) {
			sk_text_comma(t, k > 0);
			sk_text_word(t, "\"");
			l->priv->sums_at[e->first_sum + k] =
				put_field(t, SK_SUM_WIDTH, '0');
			sk_text_word(t, "\"");
		}
		sk_text_word(t, "]}");
	}
}

/* Whose it is; all but the job's name is the stamp's. */
static void put_identity(struct sk_text *t, const struct sk_layout *l)
{
	struct sk_layout_priv *p = l->priv;

	sk_text_word(t, "{\"version\":");
	sk_text_int(t, l->nodes ? SK_FORMAT_VERSION_NODES : SK_FORMAT_VERSION);
	sk_text_word(t, ",\"xxh3\":\"");
	p->sum_at = put_field(t, SK_SUM_WIDTH, '0');
	sk_text_word(t, "\",\"job\":");
	sk_text_string(t, l->job);
	sk_text_word(t, ",\"run\":");
	p->run_at = put_field(t, SK_RUN_WIDTH, ' ');
	sk_text_word(t, ",\"run_id\":\"");
	p->run_id_at = put_field(t, SK_SUM_WIDTH, '0');
	sk_text_word(t, "\",\"step\":");
	p->step_at = put_field(t, SK_RUN_WIDTH, ' ');
}

static void put_nodes(struct sk_text *t, const struct sk_nodes *nodes)
{
	sk_text_word(t, "],\"nodes\":[");
	for (size_t i = 0; i < sk_nodes_meshes(nodes); i++) {
		sk_text_comma(t, i > 0);
		put_mesh(t, sk_nodes_mesh(nodes, i));
	}
}

static void put_described(struct sk_text *t, struct sk_layout *l,
			  const struct meshes *meshes)
{
	struct sk_xxh3_stream d;
	size_t from = t->n;

	sk_xxh3_begin(&d);
	sk_text_word(t, ",\"meshes\":[");
	for (int i = 0; i < meshes->n; i++) {
		sk_text_comma(t, i > 0);
		put_mesh(t, meshes->v[i]);
	}
	if (l->nodes)
		put_nodes(t, l->nodes);
	describe(&d, t, from);
	sk_text_word(t, "],\"items\":[");
	for (uint32_t i = 0; i < l->n_items; i++) {
		sk_text_comma(t, i > 0);
		put_item(t, &l->items[i], meshes->of_item[i], &d,
			 &l->priv->boxes[i]);
	}
	l->description = sk_xxh3_end(&d);
}

/* The same words as another layout's, but for boxes that are not its. */
static void put_again(struct sk_text *t, struct sk_layout *l,
		      const struct sk_layout *base)
{
	const struct sk_layout_priv *p = base->priv;
	uint32_t at = p->described_from;

	assert(base->header && at < p->described_to);
	for (uint32_t i = 0; i < l->n_items; i++) {
		if (l->items[i].boxes == base->items[i].boxes)
			continue;
		sk_text_raw(t, base->header + at, p->boxes[i].from - at);
		put_boxes(t, &l->items[i]);
		at = p->boxes[i].to;
	}
	sk_text_raw(t, base->header + at, p->described_to - at);
	l->description = base->description;
}

static void put_shardkeep(struct sk_text *t, struct sk_layout *l,
			  const struct meshes *meshes)
{
	put_identity(t, l);
	sk_text_word(t, ",\"rank\":");
	sk_text_int(t, l->rank);
	sk_text_word(t, ",\"world\":");
	sk_text_int(t, l->world);
	sk_text_put(t, l->kind == SK_IMAGE_PRIMARY ? ",\"kind\":\"primary\"" :
					     ",\"kind\":\"replica\"");
	l->priv->described_from = (uint32_t)t->n;
	if (l->priv->base)
		put_again(t, l, l->priv->base);
	else
		put_described(t, l, meshes);
	l->priv->described_to = (uint32_t)t->n;
	sk_text_word(t, "],\"entries\":[");
	put_sums(t, l);
	sk_text_word(t, "]}");
}

/* ---- the whole ---- */

static void put_tensors(struct sk_text *t, const struct sk_layout *l)
{
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		const struct sk_spec *s = &l->items[e->item].spec;
		int64_t at[2] = { (int64_t)e->offset,
				  (int64_t)(e->offset + e->bytes) };

		sk_text_word(t, ",");
		put_key(t, l, e);
		sk_text_word(t, ":{\"dtype\":");
		sk_text_string(t, sk_dtype_name(s->dtype));
		sk_text_word(t, ",\"shape\":");
		put_ints(t, e->box.size, s->ndim);
		sk_text_word(t, ",\"data_offsets\":");
		put_ints(t, at, 2);
		sk_text_word(t, "}");
	}
}

static void put_header(struct sk_text *t, struct sk_layout *l,
		       const struct meshes *meshes)
{
	for (int i = 0; i < 8; i++)
		sk_text_byte(t, 0);
	sk_text_put(t, SK_HEADER_BEGIN);
	t->nested = true;
	put_sharding_info(t, l);
	t->nested = false;
	sk_text_put(t, SK_HEADER_MIDDLE);
	t->nested = true;
	put_shardkeep(t, l, meshes);
	t->nested = false;
	sk_text_word(t, "\"}");
	put_tensors(t, l);
	sk_text_word(t, "}");
	while (t->n % SK_PAGE && !t->failed)
		sk_text_byte(t, ' ');
}

/* About what a header comes to: text that grew would be copied, and touch
 * memory that it leaves again; what is not needed is never touched. */
static size_t expected_bytes(const struct sk_layout *l)
{
	return (size_t)l->n_entries * ENTRY_BYTES +
	       (size_t)l->n_sums * SUM_BYTES;
}

int sk_layout_write_header(struct sk_layout *l, struct sk_err *err)
{
	struct meshes meshes = { 0 };
	struct sk_text t = { 0 };
	uint64_t n;

	l->priv->sums_at = calloc(l->n_sums + 1u, sizeof(uint32_t));
	if (!l->priv->base)
		l->priv->boxes = calloc(l->n_items + 1u,
					sizeof(*l->priv->boxes));
	/* Without, it grows as it is written. */
	if (!sk_text_room(&t, expected_bytes(l)))
		t.failed = false;
	if (l->priv->sums_at && (l->priv->base || (l->priv->boxes &&
						   collect_meshes(l, &meshes))))
		put_header(&t, l, &meshes);
	else
		t.failed = true;
	sk_table_free(&meshes.table);
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
