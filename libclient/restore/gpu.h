/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets on GPUs: what goes there passes through buffers of ours that are
 * page-locked and small. There it is hashed, and from there the device takes
 * it: what was verified is what is delivered, whoever writes to the image
 * meanwhile, and no image has to be locked, which takes longer than the copy.
 */
#ifndef SK_LIBCLIENT_RESTORE_GPU_H
#define SK_LIBCLIENT_RESTORE_GPU_H

#include "bytes/copy.h"
#include "restore/restoring.h"

/** A buffer of SK_SUM_CHUNK bytes, and what still reads it. */
struct sk_restore_stage {
	char *buf;
	struct sk_cuda_mark *mark;
	bool taken;
};

/** Waits until the devices have done what the trainer has asked of them: it
 * may be writing to what is to be overwritten. -EBUSY, -EIO. */
int sk_restore_settle_gpus(struct sk_restoring *rs);

/** Before jobs run: buffers for the GPUs that they go to. -ENOMEM, -EIO. */
int sk_restore_begin_gpus(struct sk_restoring *rs);
/** After them, which came to @r: waits until all is on the devices. Returns
 * @r, or else what became of that. */
int sk_restore_end_gpus(struct sk_restoring *rs, int r);

/** A buffer for that GPU of the state's that nobody reads any more. Any
 * thread of the pool, one at a time each. -EIO. */
int sk_restore_take_stage(struct sk_restoring *rs, int gpu,
			  struct sk_restore_stage **ret_stage,
			  struct sk_err *err);
/** Has the device take [from, to) of @copy, whose source is in the buffer, and
 * gives the buffer back. */
int sk_restore_put_stage(struct sk_restoring *rs, int gpu,
			 struct sk_restore_stage *stage,
			 const struct sk_copy *copy, uint64_t from,
			 uint64_t to, struct sk_err *err);

#endif
