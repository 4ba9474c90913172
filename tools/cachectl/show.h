/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of cachectl show share. */
#ifndef SK_CACHECTL_SHOW_H
#define SK_CACHECTL_SHOW_H

#include "cachectl.h"

/* All images of a snapshot, each opened once, whatever places it has. */
struct images {
	struct sk_wire_image *records;
	struct opened *opened;		/* layout NULL: not opened */
	size_t n;
};

/** Opens all of a snapshot; images_close() in any case. */
int images_open(struct context *ctx, const struct sk_wire_id *id,
		struct images *im);
void images_close(struct context *ctx, struct images *im);

/** "[96, 24]". Returns @buf. */
char *format_shape(const struct sk_spec *spec, char *buf, size_t size);

/** Adds the table of all tensors and blobs to the report. -ENOMEM. */
int show_tensors(struct context *ctx, const struct images *im);
/** Draws one tensor or blob and lists its boxes. -ENOENT there is none of
 * that name, -ENOMEM. */
int show_tensor(struct context *ctx, const struct images *im,
		const char *name);

#endif
