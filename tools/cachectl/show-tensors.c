/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a snapshot's tensors and blobs, each once over all images. */
#include "show.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

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

/* A tensor or blob, over all images. */
struct row {
	const struct sk_item *item;
	int64_t boxes;
	uint64_t bytes;
};

struct rows {
	struct row *rows;
	size_t n;
	json_t *index;		/* kind and name: position in rows */
};

/* The row of an item, made if it is the first of its name; NULL: no memory. */
static struct row *row_of(struct rows *rows, const struct sk_item *item)
{
	_cleanup_free_ char *key = NULL;
	json_t *known;

	if (asprintf(&key, "%d%s", (int)item->kind, item->spec.name) < 0)
		return NULL;
	known = json_object_get(rows->index, key);
	if (known)
		return &rows->rows[json_integer_value(known)];
	if (json_object_set_new(rows->index, key,
				json_integer((json_int_t)rows->n)) < 0)
		return NULL;
	rows->rows[rows->n] = (struct row){ .item = item };
	return &rows->rows[rows->n++];
}

/* Replicas lie in other images; what is primary is there once. */
static int add_image(struct rows *rows, const struct sk_layout *l,
		     bool primary)
{
	_cleanup_free_ struct row **of_item = calloc(l->n_items + 1u,
						     sizeof(*of_item));

	for (uint32_t k = 0; of_item && k < l->n_items; k++) {
		of_item[k] = row_of(rows, &l->items[k]);
		if (!of_item[k])
			return -ENOMEM;
	}
	for (uint32_t e = 0; of_item && primary && e < l->n_entries; e++) {
		of_item[l->entries[e].item]->boxes++;
		of_item[l->entries[e].item]->bytes += l->entries[e].bytes;
	}
	return of_item ? 0 : -ENOMEM;
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

static int collect_rows(const struct images *im, struct rows *rows)
{
	size_t most = 1;
	int r = 0;

	for (size_t i = 0; i < im->n; i++)
		most += im->opened[i].layout ? im->opened[i].layout->n_items :
					       0;
	rows->index = json_object();
	rows->rows = calloc(most, sizeof(*rows->rows));
	if (!rows->index || !rows->rows)
		return -ENOMEM;
	for (size_t i = 0; i < im->n && r >= 0; i++)
		if (im->opened[i].layout)
			r = add_image(rows, im->opened[i].layout,
				      im->records[i].kind ==
				      SK_IMAGE_PRIMARY);
	return r;
}

int show_tensors(struct context *ctx, const struct images *im)
{
	struct rows rows = { 0 };
	int r = collect_rows(im, &rows);

	report_table(ctx->report, "tensors", "Tensors", tensor_columns,
		     SK_ARRAY_SIZE(tensor_columns));
	for (size_t i = 0; r >= 0 && i < rows.n; i++)
		add_tensor(ctx->report, &rows.rows[i]);
	json_decref(rows.index);
	free(rows.rows);
	return r < 0 ? sk_err_set(&ctx->err, r, "out of memory") : 0;
}
