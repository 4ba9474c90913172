/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots, as what they are: memory of GPUs that somebody has, and that a
 * budget counts. What happens to them is calls/device.h.
 */
#ifndef SK_AGENT_MEMORY_DEVICE_H
#define SK_AGENT_MEMORY_DEVICE_H

#include "agent.h"
#include "loop/timer.h"
#include "memory/extent.h"
#include "memory/workers.h"

struct seal;
struct session;

/** One at most for each rank. */
struct device_slot {
	struct sk_link link;		/* in agent->device_slots */
	struct agent *agent;
	struct session *session;	/* the rank's; NULL: detained, or sealed
					 * when another agent was here */
	struct sk_cat_state *state;	/* NULL: its process may still write,
					 * and it serves nobody */
	const void *detainer;		/* then: calls/quarantine.h */
	struct timer patience;		/* with a process that does not end */
	bool waits;			/* it is set */
	uint8_t uuid[16];
	bool instance;			/* of a GPU that is split, as the worker
					 * said that made it */
	int fd;				/* of the driver; -1: see result */
	uint64_t bytes;			/* while it is made: asked for */
	struct sk_extent *extents;
	uint32_t n_extents;
	int result;			/* -EAGAIN: it is being made; < 0: it
					 * could not be, see err */
	struct sk_err err;
	struct sk_cat_slot *sealed;	/* whose extents are all there; NULL */
	uint64_t copies[2];		/* by kind: images, by id, that they
					 * are those of; 0: of none */
	bool dropped;			/* it is a copy for nobody any more */
	bool draining;
	struct seal *reading;		/* it is drained, and sealed when that
					 * is over; NULL: calls/seal.h */
	struct order order;		/* of making it, or of draining */
	int data;			/* templates, and extents: what a worker
					 * needs to drain it */
	uint64_t extents_at;		/* in that */
	uint32_t record;		/* of the keeper's table; TABLE_NONE */
	uint64_t serial;		/* its */
};

/** Whether this agent makes any. */
bool device_slots_made(const struct agent *a);
/** The rank's, or NULL. */
struct device_slot *device_slot_of(const struct agent *a,
				   const struct sk_cat_state *state);

/** Its memory was another process's, which has ended (cuda/held.h). */
bool device_slot_is_void(const struct device_slot *d);

/** What a GPU's memory is taken for. */
struct device_use {
	uint8_t uuid[16];
	bool instance;
	uint64_t bytes;		/* slots that are being made count as well */
};

/** Bytes of the GPU's memory that are taken. */
uint64_t device_bytes(const struct agent *a, const uint8_t *uuid);
/** Bytes that the job's slots take, of all GPUs. */
uint64_t device_bytes_of_job(const struct agent *a,
			     const struct sk_cat_job *job);
/** The GPUs that slots lie on, the first @room of them; how many. */
unsigned device_uses(const struct agent *a, struct device_use *ret,
		     unsigned room);
/** Slots that are there, and serve a rank. */
unsigned device_slots_count(const struct agent *a);

/** "GPU-01234567-89ab-...", of an instance "MIG-...", as NVIDIA's tools write
 * it. */
#define DEVICE_NAME 44
void device_name(const uint8_t *uuid, bool instance, char ret[DEVICE_NAME]);

#endif
