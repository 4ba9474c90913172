/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds which part of one tensor: a picture and a table. */
#include "show.h"

#include <string.h>

#include "base/array.h"

static const struct column box_columns[] = {
	{ "rank", "RANK" }, { "kind", "KIND" }, { "box", "BOX" },
	{ "bytes", "BYTES" }, { "xxh3", "XXH3" },
};

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

/* A box of the tensor, in the image that has it. */
struct held {
	const struct sk_wire_image *image;
	struct sk_entry entry;
	uint64_t sum;
};

struct boxes {
	const char *name;
	struct held *held;
	size_t n, room;
	const struct sk_spec *spec;
	struct sk_layout *layout;	/* a reference: the spec's */
};

static int add_box(struct boxes *b, const struct held *held)
{
	if (sk_array_fit(b->held, b->room, b->n + 1) < 0)
		return -ENOMEM;
	b->held[b->n++] = *held;
	return 0;
}

static int add_boxes(void *data, const struct sk_wire_image *record,
		     const struct opened *opened)
{
	const struct sk_layout *l = opened->layout;
	struct boxes *b = data;
	const struct sk_item *item = find_item(l, b->name);
	int r = 0;

	if (!item)
		return 0;
	if (!b->layout) {
		b->layout = sk_layout_ref(opened->layout);
		b->spec = &item->spec;
	}
	for (uint32_t e = 0; e < l->n_entries && r >= 0; e++) {
		const struct sk_entry *entry = &l->entries[e];

		if (&l->items[entry->item] == item)
			r = add_box(b, &(struct held){ record, *entry,
				    opened->stamp.sums[entry->first_sum] });
	}
	return r;
}

static int by_rank(const void *a, const void *b)
{
	const struct held *x = a, *y = b;

	return x->image->id.rank - y->image->id.rank;
}

static int draw_boxes(struct report *r, const char *name,
		      const struct boxes *b)
{
	_cleanup_free_ struct draw_part *parts = calloc(b->n + 1,
							sizeof(*parts));

	for (size_t i = 0; parts && i < b->n; i++)
		parts[i] = (struct draw_part){ b->held[i].entry.box,
					       b->held[i].image->id.rank };
	if (parts)
		draw_tensor(r, name, b->spec->ndim, b->spec->shape, parts,
			    b->n);
	return parts ? 0 : -ENOMEM;
}

static void list_boxes(struct report *r, const struct boxes *b)
{
	char buf[256];

	report_table(r, "boxes", "Boxes", box_columns,
		     SK_ARRAY_SIZE(box_columns));
	for (size_t i = 0; i < b->n; i++) {
		const struct held *h = &b->held[i];

		report_cell(r, CELL_INT, h->image->id.rank);
		report_cell_text(r, "%s", image_kind_word(h->image));
		report_cell_text(r, "%s",
				 sk_box_format(b->spec->ndim, &h->entry.box,
					       buf, sizeof(buf)));
		report_cell(r, CELL_BYTES, (int64_t)h->entry.bytes);
		report_cell_text(r, "%016llx%s", (unsigned long long)h->sum,
				 h->entry.n_sums > 1 ? "..." : "");
	}
}

int show_tensor(struct context *ctx, const struct images *im,
		       const char *name)
{
	struct boxes b = { .name = name };
	int r = images_each(ctx, im, add_boxes, &b);

	if (r >= 0 && !b.spec)
		return sk_err_set(&ctx->err, -ENOENT,
				  "the snapshot has no tensor or blob \"%s\"",
				  name);
	if (b.n)
		qsort(b.held, b.n, sizeof(*b.held), by_rank);
	if (r >= 0 && draw_boxes(ctx->report, name, &b) < 0)
		r = sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	if (r >= 0)
		list_boxes(ctx->report, &b);
	free(b.held);
	sk_layout_free(b.layout);
	return r;
}
