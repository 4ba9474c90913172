/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device slot, as its rank has it: memory of the agent's on the GPU that the
 * rank's tensors lie on. A snapshot copies them there first, which takes as
 * long as the device's own memory needs, and the trainer goes on; from there
 * they go to the slot beside whatever it does.
 *
 * Only the thread that waits for GPUs has it (state/gpu.h), and whoever
 * registers while no snapshot is under way.
 */
#ifndef SK_LIBCLIENT_STATE_DEVICE_SLOT_H
#define SK_LIBCLIENT_STATE_DEVICE_SLOT_H

#include "base/again.h"
#include "cuda/share.h"
#include "memory/extent.h"

struct sk_state;
struct sk_work;
struct sk_op;

struct sk_device_slot {
	struct sk_again again;		/* when it is asked for */
	int gpu;			/* the state's, that it is on */
	uint64_t bytes;			/* of it; atomic: status tells */
	struct sk_cuda_share *share;	/* NULL: there is none */
	struct sk_extent *extents;	/* of the images, in its order */
	uint64_t *at;			/* where each begins there */
	uint32_t n_extents;
	uint64_t stamp;			/* the small asks' that it had last */
	bool anew;			/* it could not be mapped, and another
					 * was asked for */
};

/** Whether it serves this work: there is one, and all is on its GPU. */
bool sk_device_slot_serves(const struct sk_state *state,
			   const struct sk_work *work);
/** Asks the agent for one, where all of @work's device tensors are on one GPU
 * and the agent gives any. It may take until the next snapshots have asked
 * again; what it cannot be had for is not told, since all goes on without. What
 * was refused for want of room, or failed, is asked for after a minute, two,
 * four, up to about an hour: the trainer, or another job, may have had all of
 * the device just then. */
void sk_device_slot_ask(struct sk_state *state, const struct sk_work *work,
			uint64_t id, uint64_t generation);
/** The device's address of the entry that @op copies. */
uint64_t sk_device_slot_at(const struct sk_device_slot *d,
			   const struct sk_op *op);
/** Lets go of it: the layout, or the agent, is another one. */
void sk_device_slot_free(struct sk_state *state);

#endif
