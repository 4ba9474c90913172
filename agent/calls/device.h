/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots: memory of GPUs, which stands for a rank's tensors on one of
 * them between the copy that the trainer waits for and the one into the node's
 * memory. The agent keeps descriptors of it; its workers do the rest.
 */
#ifndef SK_AGENT_CALLS_DEVICE_H
#define SK_AGENT_CALLS_DEVICE_H

#include "memory/device.h"

/** The rank leaves, or its layout is another one: nothing of what its device
 * slot holds can be used. */
void device_slots_drop(struct agent *a, const struct sk_cat_state *state);
/** The rank's process may still write to its device slot: it is counted until
 * that is let go of. */
void device_slots_detain(struct agent *a, const struct sk_cat_state *state,
			 const void *detainer);
void device_slots_let_go(struct agent *a, const void *detainer);
/** Nothing of it is needed any more. */
void device_slot_free(struct device_slot *d);
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

/* ---- device-kept.c ---- */

/** It outlives the agent from now on, as far as something is sealed in it. */
void device_keep(struct device_slot *d);
/** Something is sealed in it, or nothing any more. */
void device_note(const struct device_slot *d);
/** It outlives the agent no more. */
void device_forget(struct device_slot *d);
/** What another agent had: memory that stands for @slot, which is being filled
 * for a rank that is not here. Takes @fds, the device's and the data, over on
 * success; it is drained in the next turn. -ENOMEM. */
int device_revive(struct agent *a, const struct table_record *record,
		  uint32_t at, int fds[2], struct sk_cat_slot *slot);

#endif
