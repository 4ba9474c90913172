/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots: memory of GPUs, which stands for a rank's tensors on one of
 * them between the copy that the trainer waits for and the one into the node's
 * memory. The agent keeps descriptors of it; its workers do the rest.
 */
#ifndef SK_AGENT_CALLS_DEVICE_H
#define SK_AGENT_CALLS_DEVICE_H

#include "agent.h"
#include "memory/extent.h"
#include "memory/workers.h"

struct session;

/** One at most for each rank. */
struct device_slot {
	struct sk_link link;		/* in agent->device_slots */
	struct agent *agent;
	struct session *session;	/* the rank's */
	struct sk_cat_state *state;
	uint8_t uuid[16];
	int fd;				/* of the driver; -1: see result */
	uint64_t bytes;			/* while it is made: asked for */
	struct sk_extent *extents;
	uint32_t n_extents;
	int result;			/* -EAGAIN: it is being made; < 0: it
					 * could not be, see err */
	struct sk_err err;
	struct sk_cat_slot *sealed;	/* whose extents are all there; NULL */
	bool draining;
	struct order order;		/* of making it, or of draining */
	int data;			/* then: templates, and extents */
};

/** Whether this agent makes any. */
bool device_slots_made(const struct agent *a);
/** The rank leaves, or its layout is another one: nothing of what its device
 * slot holds can be used. */
void device_slots_drop(struct agent *a, const struct sk_cat_state *state);
/** The slot is sealed, or given up, by the rank itself. */
void device_seal_over(struct agent *a, const struct sk_cat_slot *slot);

/* ---- drain.c ---- */

/** What ranks that have died left in device slots goes into the slots that they
 * were filling. Once a turn. */
void device_drain_dead(struct agent *a);
/** Whether something of the job is; NULL: of any. */
bool device_draining(const struct agent *a, const struct sk_cat_job *job);
/** Nothing becomes of it any more. The session may end with the turn. */
void device_drain_end(struct device_slot *d);

/** The rank's, or NULL. */
struct device_slot *device_slot_of(const struct agent *a,
				   const struct sk_cat_state *state);

#endif
