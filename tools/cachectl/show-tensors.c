/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a snapshot's tensors and blobs, each once over all images. */
#include "show.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "tensor/dtype.h"

static const struct column tensor_columns[] = {
	{ "name", "TENSOR" }, { "kind", NULL }, { "dtype", "DTYPE" },
	{ "shape", "SHAPE" }, { "mesh", "MESH" },
	{ "placements", "PLACEMENTS" }, { "boxes", NULL },
	{ "bytes", "BYTES" },
};

char *format_shape(const struct sk_spec *spec, char *buf, size_t size)
{
	size_t at = (size_t)snprintf(buf, size, "[");

	for (int d = 0; d < spec->ndim && at < size; d++)
		at += (size_t)snprintf(buf + at, size - at, "%s%lld",
				       d ? ", " : "",
				       (long long)spec->shape[d]);
	if (at < size)
		(void)snprintf(buf + at, size - at, "]");
	return buf;
}

/* "dp 2 x tp 4", "4 at 1,5,...", "-" without a mesh. */
static char *format_mesh(const struct sk_mesh *mesh, char *buf, size_t size)
{
	size_t at = 0;

	(void)snprintf(buf, size, "-");
	if (!mesh)
		return buf;
	for (int d = 0; d < sk_mesh_ndim(mesh) && at < size; d++) {
		const char *name = sk_mesh_name(mesh, d);

		at += (size_t)snprintf(buf + at, size - at, "%s%s%s%lld",
				       d ? " x " : "", name ? name : "",
				       name ? " " : "",
				       (long long)sk_mesh_dim(mesh, d));
	}
	if (sk_mesh_is_dense(mesh))
		return buf;
	for (int64_t i = 0; i < sk_mesh_count(mesh) && at < size; i++) {
		if (i == 8) {
			(void)snprintf(buf + at, size - at, ",...");
			break;
		}
		at += (size_t)snprintf(buf + at, size - at, "%s%d",
				       i ? "," : " at ",
				       sk_mesh_rank_at(mesh, i));
	}
	return buf;
}

static char *format_placements(const struct sk_spec *spec, char *buf,
			       size_t size)
{
	int n = spec->mesh ? sk_mesh_ndim(spec->mesh) : 0;
	size_t at = 0;
	char one[32];

	(void)snprintf(buf, size, "%s", spec->mesh ? "" : "R");
	for (int d = 0; d < n && at < size; d++)
		at += (size_t)snprintf(buf + at, size - at, "%s%s",
				       d ? " " : "",
				       sk_placement_format(
					       &spec->placements[d], one,
					       sizeof(one)));
	return buf;
}

static const char *item_kind_word(enum sk_item_kind kind)
{
	return kind == SK_ITEM_TENSOR ? "tensor" :
	       kind == SK_ITEM_BLOB ? "blob" : "local-blob";
}

static uint64_t hash_item(const struct sk_item *item)
{
	return sk_hash_bytes(sk_hash_seed() + (uint64_t)item->kind,
			     item->spec.name, strlen(item->spec.name));
}

/* Where the item's row stands; the number of rows: it has none. */
static size_t find_row(const struct rows *rows, const struct sk_item *item,
		       uint64_t hash)
{
	struct sk_table_walk walk = sk_table_find(&rows->index, hash);
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		const struct sk_item *its = rows->rows[at].item;

		if (its->kind == item->kind &&
		    strcmp(its->spec.name, item->spec.name) == 0)
			return at;
	}
	return rows->n;
}

/* The same, of one that is made if it is the first of its name. */
static int row_of(struct rows *rows, const struct sk_item *item, size_t *ret)
{
	uint64_t hash = hash_item(item);

	*ret = find_row(rows, item, hash);
	if (*ret < rows->n)
		return 0;
	if (sk_array_fit(rows->rows, rows->room, rows->n + 1) < 0 ||
	    sk_table_add(&rows->index, hash, rows->n) < 0)
		return -ENOMEM;
	rows->rows[rows->n++] = (struct row){ .item = item };
	return 0;
}

int rows_add(struct rows *rows, struct sk_layout *l, bool primary)
{
	_cleanup_free_ size_t *of_item = calloc(l->n_items + 1u,
						sizeof(*of_item));
	size_t before = rows->n;

	if (!of_item || sk_array_fit(rows->layouts, rows->room_layouts,
				     rows->n_layouts + 1) < 0)
		return -ENOMEM;
	rows->layouts[rows->n_layouts] = sk_layout_ref(l);
	rows->n_layouts++;
	for (uint32_t k = 0; k < l->n_items; k++)
		if (row_of(rows, &l->items[k], &of_item[k]) < 0)
			return -ENOMEM;
	for (uint32_t e = 0; primary && e < l->n_entries; e++) {
		struct row *row = &rows->rows[of_item[l->entries[e].item]];

		row->boxes++;
		row->bytes += l->entries[e].bytes;
	}
	/* Nothing points at it. */
	if (rows->n == before)
		sk_layout_free(rows->layouts[--rows->n_layouts]);
	return 0;
}

void rows_free(struct rows *rows)
{
	for (size_t i = 0; i < rows->n_layouts; i++)
		sk_layout_free(rows->layouts[i]);
	free(rows->layouts);
	free(rows->rows);
	sk_table_free(&rows->index);
}

/* Boxes that ranks name one by one may lie over each other. */
static uint64_t bytes_once(const struct row *row)
{
	const struct sk_spec *spec = &row->item->spec;
	uint64_t whole;
	int64_t count;

	if (row->item->kind != SK_ITEM_TENSOR ||
	    sk_shape_count(spec->ndim, spec->shape, &count, NULL) < 0 ||
	    sk_dtype_bytes(spec->dtype, (uint64_t)count, &whole, NULL) < 0)
		return row->bytes;
	return row->bytes < whole ? row->bytes : whole;
}

static void add_tensor(struct report *r, const struct row *row)
{
	const struct sk_item *item = row->item;
	char buf[256];

	report_cell_name(r, "%s", item->spec.name);
	report_cell_text(r, "%s", item_kind_word(item->kind));
	report_cell_text(r, "%s", sk_dtype_name(item->spec.dtype));
	report_cell_numbers(r, format_shape(&item->spec, buf, sizeof(buf)));
	report_cell_text(r, "%s",
			 format_mesh(item->spec.mesh, buf, sizeof(buf)));
	report_cell_text(r, "%s",
			 item->kind != SK_ITEM_TENSOR ?
			 item_kind_word(item->kind) : item->explicit_boxes ?
			 "boxes" : format_placements(&item->spec, buf,
						     sizeof(buf)));
	report_cell(r, CELL_INT, row->boxes);
	report_cell(r, CELL_BYTES, (int64_t)bytes_once(row));
}

void rows_report(const struct rows *rows, struct report *report)
{
	report_table(report, "tensors", "Tensors", tensor_columns,
		     SK_ARRAY_SIZE(tensor_columns));
	for (size_t i = 0; i < rows->n; i++)
		add_tensor(report, &rows->rows[i]);
}
