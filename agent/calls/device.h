/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots: memory of GPUs, which stands for a rank's tensors on one of
 * them between the copy that the trainer waits for and the one into the node's
 * memory. The agent keeps descriptors of it; its workers do the rest.
 */
#ifndef SK_AGENT_CALLS_DEVICE_H
#define SK_AGENT_CALLS_DEVICE_H

#include "memory/device.h"

/** The rank has died, or is registered anew: what its device slot holds a copy
 * of may be read, and the memory taken over by its next life. */
void device_slots_leave(struct agent *a, const struct sk_cat_state *state);
/** The rank leaves in order: the memory is somebody else's. */
void device_slots_drop(struct agent *a, const struct sk_cat_state *state);
/** The rank's process may still write to its device slot: it is counted until
 * that is let go of. */
void device_slots_detain(struct agent *a, const struct sk_cat_state *state,
			 const void *detainer);
void device_slots_let_go(struct agent *a, const void *detainer);
/** All of them: the agent ends. */
void device_slots_close(struct agent *a);
/** What a worker, or a reader, needs to know of it, for the rank that it is
 * now. A negative errno comes with a sentence. */
int device_put_data(struct device_slot *d, struct sk_err *err);
/** Nothing of it is needed any more. */
void device_slot_free(struct device_slot *d);
/** That which stands for the slot; NULL: none does. */
struct device_slot *device_sealed_for(const struct agent *a,
				      const struct sk_cat_slot *slot);
/** The slot is sealed, or given up, by the rank itself. */
void device_seal_over(struct agent *a, const struct sk_cat_slot *slot);

/* ---- drain.c ---- */

/** What ranks that have died left in device slots goes into the slots that they
 * were filling. Once a turn. */
void device_drain_dead(struct agent *a);
/** Whether something of the job is; NULL: of any. */
bool device_draining(const struct agent *a, const struct sk_cat_job *job);
/** A job of which something is, and that @is says is meant; NULL: none. */
const struct sk_cat_job *
device_draining_which(const struct agent *a,
		      bool (*is)(const void *ctx, const struct sk_cat_job *job),
		      const void *ctx);
/** Nothing becomes of it any more. The session may end with the turn. */
void device_drain_end(struct device_slot *d);

/* ---- device-copy.c ---- */

/** The image that it was on the way to is sealed in @slot: it is a copy. */
void device_stands(struct device_slot *d, const struct sk_cat_slot *slot);
/** Whether the rank, which is given a slot, must not write to its device slot.
 * Else that is no copy from now on. */
bool device_keeps_out(struct agent *a, const struct sk_cat_state *state);
/** Its rank is gone: it is left as a copy, or freed where it is none. */
void device_slot_leave(struct device_slot *d);
/** It is freed, as soon as nobody reads it. */
void device_slot_drop(struct device_slot *d);
/** What was left is freed where it serves nobody any more, or where its GPU
 * has more than this agent may take. Once a turn. */
void device_copies_tidy(struct agent *a);
/** Frees one that was left on that device; false: there is none. */
bool device_make_room(struct agent *a, const uint8_t *uuid);
/** What the rank's last life has left on that device, where it has the same
 * extents: the rank's now, but for its session and its data. NULL: nothing;
 * what there was for other extents is freed. */
struct device_slot *device_inherit(struct agent *a,
				   struct sk_cat_state *state,
				   const uint8_t *uuid,
				   const struct sk_extent *extents,
				   uint32_t n);
/** The slot that holds what it is a copy of; NULL: it is none. */
const struct sk_cat_slot *device_copied_slot(const struct device_slot *d);
/** Another agent's: a copy of what @slot holds, left by its rank just now. */
void device_left_as_copy(struct device_slot *d,
			 const struct sk_cat_slot *slot);
/** A reader found it bad; false: there is no such copy. */
bool device_copy_bad(struct agent *a, uint64_t image);

/* ---- device-kept.c ---- */

/** It outlives the agent from now on, as far as something is sealed in it, or
 * it holds a copy. */
void device_keep(struct device_slot *d);
/** Something is sealed in it, or copied, or nothing any more. */
void device_note(const struct device_slot *d);
/** It outlives the agent no more. */
void device_forget(struct device_slot *d);
/** What another agent had: memory that stands for @slot, which is being filled
 * for a rank that is not here. Takes @fds, the device's and the data, over on
 * success; it is drained in the next turn. -ENOMEM. */
int device_revive(struct agent *a, const struct table_record *record,
		  uint32_t at, int fds[2], struct sk_cat_slot *slot);
/** The same of a copy of the image that @slot holds, as its record says; it
 * is nobody's. -ENOMEM; -EBADMSG: of another image, or this agent makes no
 * device slots. */
int device_revive_copy(struct agent *a, const struct table_record *record,
		       uint32_t at, int fds[2],
		       const struct sk_cat_slot *slot);

#endif
