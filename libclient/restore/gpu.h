/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Targets on GPUs: what goes there passes through buffers of ours that are
 * page-locked and small. There it is hashed, and from there the device takes
 * it: what was verified is what is delivered, whoever writes to the image
 * meanwhile, and no image has to be locked, which takes longer than the copy.
 * What is locked already goes without them (on-device.h).
 */
#ifndef SK_LIBCLIENT_RESTORE_GPU_H
#define SK_LIBCLIENT_RESTORE_GPU_H

#include "bytes/copy.h"
#include "restore/buffers.h"
#include "restore/restoring.h"

/** Waits until the devices have done what the trainer has asked of them: it
 * may be writing to what is to be overwritten. -EBUSY, -EIO. */
int sk_restore_settle_gpus(struct sk_restoring *rs);

/** The id of the allocation in which a piece's tensor begins, on its GPU. Of
 * two that are neighbours the driver may refuse one copy. */
uint64_t sk_restore_memory_of(const struct sk_restoring *rs,
			      const struct sk_restore_piece *piece);

/** What a thread of the pool has of a buffer, one at a time each: chunks that
 * come one after the other share it, as small tensors do, and one copy takes
 * those that are neighbours in one allocation of the device as well. Begins as
 * { 0 }. */
struct sk_restore_filling {
	struct sk_restore_buffer buffer;
	int gpu;
	uint64_t used;			/* bytes of it */
	uint64_t memory;		/* where what came last goes to */
	uint64_t run_memory;		/* the same of the run */
	struct sk_copy run;		/* of 0 bytes: none waits for more */
};

/** Room for @bytes of a piece that goes to a GPU, SK_SUM_CHUNK at most:
 * *ret_buf, which nobody reads any more. Where no more buffers can be made, one
 * that another thread gives back is waited for. -ENOMEM: there are none; -EIO.
 */
int sk_restore_fill(struct sk_restoring *rs, struct sk_restore_filling *f,
		    const struct sk_restore_piece *piece, uint64_t bytes,
		    char **ret_buf, struct sk_err *err);
/** Has the device take [from, to) of @copy, whose source is in that room. It is
 * asked for by sk_restore_filling_end() at the latest. -EIO. */
int sk_restore_filled(struct sk_restoring *rs, struct sk_restore_filling *f,
		      const struct sk_copy *copy, uint64_t from, uint64_t to,
		      struct sk_err *err);
/** Gives back what the thread has, after what came to @r. Returns that, or else
 * what came of it. */
int sk_restore_filling_end(struct sk_restoring *rs,
			   struct sk_restore_filling *f, int r,
			   struct sk_err *err);

#endif
