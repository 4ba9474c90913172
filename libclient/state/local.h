/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor or blob, as a rank has described it. */
#ifndef SK_LIBCLIENT_STATE_LOCAL_H
#define SK_LIBCLIENT_STATE_LOCAL_H

#include <stdbool.h>

#include "base/error.h"
#include "layout/layout.h"
#include "shardkeep.h"

/** What is described, and where this rank's boxes of it lie. */
struct sk_local {
	struct sk_item item;	/* owned; boxes always filled in */
	uint64_t hash;		/* of its name, see names.h; 0: not taken */
	/* Per box of item: the trainer's memory and its strides in elements
	 * (never all 0 here: dense ones are written out). Where placements
	 * give several boxes, they are slices of the one local tensor. */
	struct sk_part *parts;
	int32_t memory, device;
	int gpu;		/* its number in the state's; -1: host memory,
				 * or nothing */
	uint64_t *ids;		/* of device memory, per box: gpu.h */
};

/** Whether that may be a name here: who describes has no use for control
 * characters, a reader asks for what is stored (tensor/name.h). @what as of
 * sk_name_check(). Errors: -EINVAL. */
int sk_local_check_name(const struct sk_job *job, const char *name,
			const char *what, struct sk_err *err);
/** Checks the description and makes a local of it, for @job's rank. On an
 * error what was made is still to be cleared. Errors: as sk_state_tensor(). */
int sk_local_make(const struct sk_tensor *t, enum sk_item_kind kind,
		  const struct sk_job *job, struct sk_local *ret,
		  struct sk_err *err);
void sk_local_clear(struct sk_local *l);

/** Elements from the first of a part, none of whose dimensions is empty, to the
 * one at the ends of all, on either side. False: they are more than can be
 * counted. */
bool sk_strides_reach(int ndim, const int64_t *size, const int64_t *strides,
		      int64_t *ret_low, int64_t *ret_high);

/** Whether both have the same place in a layout: only pointers and strides
 * may differ. */
bool sk_local_same_boxes(const struct sk_local *a, const struct sk_local *b);

#endif
