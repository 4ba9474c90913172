/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of cachectl show share. */
#ifndef SK_CACHECTL_SHOW_H
#define SK_CACHECTL_SHOW_H

#include "base/table.h"
#include "cachectl.h"

/* All images of a snapshot, as they are listed: by rank. */
struct images {
	struct sk_wire_image *records;
	size_t n;
};

int images_list(struct context *ctx, const struct sk_wire_id *id,
		struct images *im);
void images_free(struct images *im);
/** Opens each, in one of its places, and closes it before the next: thousands
 * of ranks are not open at once. What @fn keeps of a layout it takes a
 * reference of; it may say -ENOMEM. */
int images_each(struct context *ctx, const struct images *im,
		int (*fn)(void *data, const struct sk_wire_image *record,
			  const struct opened *opened), void *data);

/** "[96, 24]". Returns @buf. */
char *format_shape(const struct sk_spec *spec, char *buf, size_t size);

/* A tensor or blob, over all images. */
struct row {
	const struct sk_item *item;
	int64_t boxes;
	uint64_t bytes;
};

/** Tensors and blobs, each once, of images of any number of ranks: of the
 * layouts those stay that were the first to have one. Zeroes are none. */
struct rows {
	struct row *rows;
	size_t n, room;
	struct sk_table index;		/* by kind and name */
	struct sk_layout **layouts;	/* references */
	size_t n_layouts, room_layouts;
};

/** Adds what an image has: names and specs, and its boxes where it is primary,
 * for replicas lie in other images as well. -ENOMEM. */
int rows_add(struct rows *rows, struct sk_layout *layout, bool primary);
void rows_free(struct rows *rows);
/** Adds the table of all of them to the report. */
void rows_report(const struct rows *rows, struct report *report);
/** Those of all images. */
int rows_collect(struct context *ctx, const struct images *im,
		 struct rows *rows);

/** Draws one tensor or blob and lists its boxes. -ENOENT there is none of
 * that name, -ENOMEM. */
int show_tensor(struct context *ctx, const struct images *im,
		const char *name);

#endif
