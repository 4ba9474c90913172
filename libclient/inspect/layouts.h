/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts of one snapshot's images. Ranks that describe the same have layouts
 * that follow from each other by arithmetic: one header is read for all.
 */
#ifndef SK_LIBCLIENT_INSPECT_LAYOUTS_H
#define SK_LIBCLIENT_INSPECT_LAYOUTS_H

#include "base/table.h"
#include "conn/client.h"

struct sk_layouts {
	struct sk *sk;
	struct sk_conn *conn;
	struct sk_wire_id id;		/* the snapshot's */
	/* private: struct sk_layout, references, by description; zeroes */
	struct sk_table described;
};

/** The layout of an image of the snapshot, a reference. Errors: as those of
 * opening it; -ENOMEM. */
int sk_layouts_get(struct sk_layouts *layouts, const struct sk_wire_part *part,
		   struct sk_layout **ret, struct sk_err *err);
void sk_layouts_forget(struct sk_layouts *layouts);

#endif
