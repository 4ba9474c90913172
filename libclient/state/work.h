/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot has to copy and hash, cut into units once. */
#ifndef SK_LIBCLIENT_STATE_WORK_H
#define SK_LIBCLIENT_STATE_WORK_H

#include "bytes/copy.h"
#include "cuda/table.h"
#include "state/state.h"

/** A piece of work: ops [first, last), or of one op the bytes [from, to). */
struct sk_unit {
	uint32_t first, last;
	uint64_t from, to;
};

/** One entry: how it is copied into its image, whose tensor it is. */
struct sk_op {
	struct sk_copy copy;	/* dst is an offset into the image */
	uint32_t item, first_sum, n_sums;
	uint64_t memory;	/* of a GPU: the allocation's id */
	uint8_t kind;		/* enum sk_image_kind */
	int8_t gpu;		/* the state's, that has the tensor; -1 */
};

/** What a device slot is asked for by a table: its small asks, and the stamp
 * that its lane knew them by. Those of a work that is new are not known. */
struct sk_small {
	uint64_t stamp;
	struct sk_cuda_table_copy v[];
};

/** Whether a table takes it. */
bool sk_op_is_small(const struct sk_op *op);

/** All that a snapshot does, prepared once; immutable then. */
struct sk_work {
	struct sk_op *ops;	/* in the order of description */
	struct sk_unit *units;	/* of about a MiB, on checksum boundaries;
				 * each of the host or of one GPU */
	uint32_t *left;		/* units that touch each item */
	struct sk_op *asks;	/* of GPUs, by place: what is contiguous in one
				 * allocation and in the image is one, under
				 * the item and the sums of its first */
	struct sk_small *small;	/* of the thread that asks for them */
	uint32_t *longs;	/* the other asks, by number */
	uint32_t *gpu_items;	/* that GPUs have */
	uint32_t n_ops, n_units, n_items, n_sums[2];
	uint32_t n_gpu_units, n_asks, n_small, n_gpu_items;
	uint32_t n_strided;	/* ops of host memory that is not contiguous */
	uint32_t n_strided_asks;	/* of GPUs' */
	uint32_t gpus;		/* a bit for each that has some of it */
	uint64_t bytes;
};

/** Cuts the registered state into work, unless that is done already; waits
 * for a snapshot that works by the old one. With state->lock held.
 * Errors: -EINVAL a tensor has no data; -ENOMEM. */
int sk_work_prepare(struct sk_state *state, struct sk_err *err);
/** Returns NULL. */
struct sk_work *sk_work_free(struct sk_work *work);

#endif
