/* SPDX-License-Identifier: Apache-2.0 */
/* What layout.c, layout-header.c and layout-parse.c share. */
#ifndef SK_CACHE_LAYOUT_PRIVATE_H
#define SK_CACHE_LAYOUT_PRIVATE_H

#include <stdatomic.h>

#include "layout.h"

#define SK_RUN_WIDTH 20		/* of run and step in a header */
#define SK_SUM_WIDTH 16		/* hexadecimal digits of a checksum */
/* What stands before DCP_SHARDING_INFO, and between it and ours. */
#define SK_HEADER_BEGIN "{\"__metadata__\":{\"format\":\"pt\"," \
	"\"DCP_VERSION\":\"1.0\",\"DCP_SHARDING_INFO\":\""
#define SK_HEADER_MIDDLE "\",\"shardkeep\":\""

struct sk_layout_priv {
	atomic_uint extra_refs;	/* beyond the first */
	/* Where the stamp's fields lie in the header. */
	uint32_t run_at, step_at;
	uint32_t *sums_at;
	/* Open hash tables, power-of-two sized, of index + 1; 0 is empty. */
	uint32_t *entry_table, *item_table;
	uint32_t entry_mask, item_mask;
};

/** Writes the template header and sets header, header_bytes, the stamp's
 * places; shifts entries' offsets behind it. Errors: -E2BIG, -ENOMEM. */
int sk_layout_write_header(struct sk_layout *layout, struct sk_err *err);

/** Which of the layout's items this rank is primary of: @ret_primary has
 * n_items flags. Errors: -ENOMEM. */
int sk_layout_split(const struct sk_layout *layout, bool *ret_primary,
		    struct sk_err *err);

const char *sk_item_kind_name(enum sk_item_kind kind);

#endif
