/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl show: a snapshot's images and tensors, and who holds what. */
#include "cachectl.h"

#include <stdio.h>
#include <string.h>

#include "dtype.h"

static const struct column image_columns[] = {
	{ "rank", "RANK" }, { "kind", "KIND" }, { "place", "PLACE" },
	{ "state", "STATE" }, { "bytes", "BYTES" }, { "layout", "LAYOUT" },
};

static const struct column tensor_columns[] = {
	{ "name", "TENSOR" }, { "kind", NULL }, { "dtype", "DTYPE" },
	{ "shape", "SHAPE" }, { "mesh", "MESH" },
	{ "placements", "PLACEMENTS" }, { "boxes", "BOXES" },
	{ "bytes", "BYTES" },
};

static const struct column box_columns[] = {
	{ "rank", "RANK" }, { "kind", "KIND" }, { "box", "BOX" },
	{ "bytes", "BYTES" }, { "xxh3", "XXH3" },
};

/* All images of a snapshot, each opened once, whatever places it has. */
struct images {
	struct sk_wire_image *records;
	struct opened *opened;		/* layout NULL: not opened */
	size_t n;
};

static void images_close(struct context *ctx, struct images *im)
{
	for (size_t i = 0; i < im->n; i++)
		if (im->opened[i].layout)
			ask_close(ctx, &im->records[i], &im->opened[i]);
	free(im->opened);
	free(im->records);
}

static bool seen_before(const struct images *im, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (im->records[j].id.rank == im->records[i].id.rank &&
		    im->records[j].kind == im->records[i].kind &&
		    im->opened[j].layout)
			return true;
	return false;
}

static bool readable(const struct sk_wire_image *image)
{
	return image->state != SK_IMAGE_FILLING &&
	       image->state != SK_IMAGE_BAD;
}

static int images_open(struct context *ctx, const struct sk_wire_id *id,
		       struct images *im)
{
	int r = ask_images(ctx, id, &im->records, &im->n);

	if (r < 0)
		return r;
	im->opened = calloc(im->n + 1, sizeof(*im->opened));
	if (!im->opened)
		return sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < im->n; i++) {
		if (!readable(&im->records[i]) || seen_before(im, i))
			continue;
		r = ask_open(ctx, &im->records[i], &im->opened[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

static void show_summary(struct context *ctx,
			 const struct sk_wire_snapshot *s)
{
	struct report *r = ctx->report;
	char words[160];

	report_text(r, "job", "job", "%s", s->id.job);
	report_number(r, "run", "run", CELL_INT, (int64_t)s->id.run);
	report_number(r, "step", "step", CELL_INT, s->id.step);
	report_number(r, "world", "ranks", CELL_INT, s->id.world);
	report_words(r, "state", "state",
		     snapshot_words(s, words, sizeof(words)));
	report_number(r, "memory_bytes", "memory", CELL_BYTES,
		      (int64_t)s->bytes_memory);
	report_number(r, "disk_bytes", "disk", CELL_BYTES,
		      (int64_t)s->bytes_disk);
	report_text(r, "note", s->text[0] ? "note" : NULL, "%s", s->text);
}

static void show_images(struct context *ctx, const struct images *im)
{
	char digest[33];

	report_table(ctx->report, "images", "Images", image_columns,
		     SK_ARRAY_SIZE(image_columns));
	for (size_t i = 0; i < im->n; i++) {
		const struct sk_wire_image *m = &im->records[i];

		report_cell(ctx->report, CELL_INT, m->id.rank);
		report_cell_text(ctx->report, "%s",
				 m->kind == SK_IMAGE_PRIMARY ? "primary" :
							       "replica");
		report_cell_text(ctx->report, "%s",
				 m->place == SK_PLACE_MEMORY ? "memory" :
							       "disk");
		report_cell_text(ctx->report, "%s",
				 image_state_word(m->state));
		report_cell(ctx->report, CELL_BYTES, (int64_t)m->bytes);
		report_cell_text(ctx->report, "%.12s",
				 sk_digest_format(&m->digest, digest));
	}
}

static char *format_shape(const struct sk_spec *spec, char *buf, size_t size)
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

/* Boxes and bytes of one name over all images; replicas count as well. */
static void count_entries(const struct images *im, const struct sk_item *item,
			  int64_t *ret_boxes, int64_t *ret_bytes)
{
	for (size_t i = 0; i < im->n; i++) {
		const struct sk_layout *l = im->opened[i].layout;
		const struct sk_item *mine;

		mine = l ? sk_layout_item(l, item->kind, item->spec.name) :
			   NULL;
		for (uint32_t e = 0; mine && e < l->n_entries; e++) {
			if (&l->items[l->entries[e].item] != mine)
				continue;
			*ret_boxes += 1;
			*ret_bytes += (int64_t)l->entries[e].bytes;
		}
	}
}

static void add_tensor(struct report *r, const struct images *im,
		       const struct sk_item *item)
{
	int64_t boxes = 0, bytes = 0;
	char buf[256];

	count_entries(im, item, &boxes, &bytes);
	report_cell_text(r, "%s", item->spec.name);
	report_cell_text(r, "%s", item_kind_word(item->kind));
	report_cell_text(r, "%s", sk_dtype_name(item->spec.dtype));
	report_cell_text(r, "%s",
			 format_shape(&item->spec, buf, sizeof(buf)));
	report_cell_text(r, "%s",
			 format_mesh(item->spec.mesh, buf, sizeof(buf)));
	report_cell_text(r, "%s",
			 item->kind != SK_ITEM_TENSOR ?
			 item_kind_word(item->kind) : item->explicit_boxes ?
			 "boxes" : format_placements(&item->spec, buf,
						     sizeof(buf)));
	report_cell(r, CELL_INT, boxes);
	report_cell(r, CELL_BYTES, bytes);
}

static bool named_before(const struct images *im, size_t image,
			 const struct sk_item *item)
{
	for (size_t i = 0; i < image; i++)
		if (im->opened[i].layout &&
		    sk_layout_item(im->opened[i].layout, item->kind,
				   item->spec.name))
			return true;
	return false;
}

static void show_tensors(struct context *ctx, const struct images *im)
{
	report_table(ctx->report, "tensors", "Tensors", tensor_columns,
		     SK_ARRAY_SIZE(tensor_columns));
	for (size_t i = 0; i < im->n; i++) {
		const struct sk_layout *l = im->opened[i].layout;

		for (uint32_t k = 0; l && k < l->n_items; k++)
			if (!named_before(im, i, &l->items[k]))
				add_tensor(ctx->report, im, &l->items[k]);
	}
}

static const struct sk_item *find_item(const struct sk_layout *l,
				       const char *name)
{
	const struct sk_item *item = sk_layout_item(l, SK_ITEM_TENSOR, name);

	if (!item)
		item = sk_layout_item(l, SK_ITEM_BLOB, name);
	if (!item)
		item = sk_layout_item(l, SK_ITEM_BLOB_LOCAL, name);
	return item;
}

struct parts {
	struct draw_part *parts;
	size_t n;
	const struct sk_spec *spec;
};

static int add_box(struct context *ctx, struct parts *p,
		   const struct sk_wire_image *m, const struct opened *o,
		   const struct sk_entry *e)
{
	const struct sk_spec *spec = &o->layout->items[e->item].spec;
	struct draw_part *bigger;
	char buf[128];

	bigger = realloc(p->parts, (p->n + 1) * sizeof(*bigger));
	if (!bigger)
		return sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	p->parts = bigger;
	p->parts[p->n++] = (struct draw_part){ e->box, m->id.rank };
	report_cell(ctx->report, CELL_INT, m->id.rank);
	report_cell_text(ctx->report, "%s", m->kind == SK_IMAGE_PRIMARY ?
			 "primary" : "replica");
	report_cell_text(ctx->report, "%s",
			 sk_box_format(spec->ndim, &e->box, buf, sizeof(buf)));
	report_cell(ctx->report, CELL_BYTES, (int64_t)e->bytes);
	report_cell_text(ctx->report, "%016llx%s",
			 (unsigned long long)o->stamp.sums[e->first_sum],
			 e->n_sums > 1 ? "..." : "");
	return 0;
}

static int add_boxes(struct context *ctx, struct parts *p,
		     const struct images *im, size_t i, const char *name)
{
	const struct sk_layout *l = im->opened[i].layout;
	const struct sk_item *item = l ? find_item(l, name) : NULL;
	int r = 0;

	if (!item)
		return 0;
	p->spec = &item->spec;
	for (uint32_t e = 0; e < l->n_entries && r >= 0; e++)
		if (&l->items[l->entries[e].item] == item)
			r = add_box(ctx, p, &im->records[i], &im->opened[i],
				    &l->entries[e]);
	return r;
}

static int by_rank(const void *a, const void *b)
{
	return ((const struct draw_part *)a)->rank -
	       ((const struct draw_part *)b)->rank;
}

static int show_tensor(struct context *ctx, const struct images *im,
		       const char *name)
{
	struct parts p = { 0 };
	int r = 0;

	report_table(ctx->report, "boxes", "Boxes", box_columns,
		     SK_ARRAY_SIZE(box_columns));
	for (size_t i = 0; i < im->n && r >= 0; i++)
		r = add_boxes(ctx, &p, im, i, name);
	if (r >= 0 && !p.spec)
		r = sk_err_set(&ctx->err, -ENOENT,
			       "the snapshot has no tensor or blob \"%s\"",
			       name);
	if (r >= 0) {
		if (p.n)
			qsort(p.parts, p.n, sizeof(*p.parts), by_rank);
		draw_tensor(ctx->report, name, p.spec->ndim, p.spec->shape,
			    p.parts, p.n);
	}
	free(p.parts);
	return r;
}

int command_show(struct context *ctx, int argc, char **argv)
{
	struct sk_wire_snapshot s;
	struct images im = { 0 };
	int r = ask_snapshot(ctx, argv[0], &s);

	if (r < 0)
		return r;
	show_summary(ctx, &s);
	r = images_open(ctx, &s.id, &im);
	if (r >= 0) {
		show_images(ctx, &im);
		if (argc > 1)
			r = show_tensor(ctx, &im, argv[1]);
		else
			show_tensors(ctx, &im);
	}
	images_close(ctx, &im);
	return r;
}
