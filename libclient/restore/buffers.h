/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that bytes pass through on their way to GPUs: page-locked, a MiB
 * each, a few for each thread. Some lie side by side, and the device is asked
 * to read all of such a lot at once, when each of them is full. A MiB that is
 * asked for and waited for by itself takes an H200 27 us, of which the link
 * needs 19, and 8 MiB 20 us each: the rest is taken for what it costs to be
 * told of each that it is done.
 */
#ifndef SK_LIBCLIENT_RESTORE_BUFFERS_H
#define SK_LIBCLIENT_RESTORE_BUFFERS_H

#include "restore/restoring.h"

/** Buffers of a lot, at most. */
#define SK_RESTORE_LOT_MOST 8u

struct sk_restore_lot;

/** SK_SUM_CHUNK bytes, one thread's until it gives them back. */
struct sk_restore_buffer {
	char *data;
	struct sk_restore_lot *lot;	/* NULL: there is none */
};

/** Before jobs run. A GPU's buffers are made when one has use for them. -ENOMEM.
 */
int sk_restore_begin_gpus(struct sk_restoring *rs);
/** After them, which came to @r: waits until all is on the devices. Returns
 * @r, or else what became of that. */
int sk_restore_end_gpus(struct sk_restoring *rs, int r);

/** One that nobody reads any more, for that GPU. Where no more can be made, one
 * that another thread gives back is waited for: a thread has one at a time.
 * -ENOMEM: there are none; -EIO. */
int sk_restore_take_buffer(struct sk_restoring *rs, int gpu,
			   struct sk_restore_buffer *ret_buffer,
			   struct sk_err *err);
/** After what is to be read of it has been asked for (sk_cuda_lane_in()), or
 * where nothing is. Errors: of what the driver was asked for by then. */
int sk_restore_give_buffer(struct sk_restoring *rs,
			   const struct sk_restore_buffer *buffer,
			   struct sk_err *err);

/** What it is locked by; NULL: it is not. */
const struct sk_cuda_lock *
sk_restore_buffer_lock(const struct sk_restore_buffer *buffer);

/** Bytes of a lot of a restore by so many threads, of so many bytes that go to
 * one GPU. */
uint64_t sk_restore_lot_bytes(unsigned threads, uint64_t bytes);

#endif
