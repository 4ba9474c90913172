/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state: what one rank of one job has described, where it stands with the
 * agent, and the fences of its snapshots.
 *
 * Lock order: state->lock (one caller changes a state), then the lock of the
 * fences (progress of copies; names and status, too), then the connection's.
 */
#ifndef SK_LIBCLIENT_STATE_STATE_H
#define SK_LIBCLIENT_STATE_STATE_H

#include <pthread.h>
#include <stdbool.h>

#include "base/again.h"
#include "base/table.h"
#include "conn/client.h"
#include "layout/layout.h"
#include "shardkeep.h"
#include "state/device-slot.h"
#include "state/fence.h"
#include "state/gpu.h"
#include "state/local.h"

struct sk_work;			/* work.h */
struct sk_warming;		/* warm.h */

/** A slot as this process maps it, by sk_image_kind. */
struct sk_slot_map {
	void *map[2];
	struct sk_slot_file {
		dev_t device;
		ino_t number;	/* 0: not known */
	} file[2];		/* what is mapped there */
	bool read_only;		/* sealed; see slots.h */
	bool lock_tried;	/* see gpu.h */
	bool lock_refused;	/* not all of it was locked; atomic */
	struct sk_again lock_again;	/* what could not be locked then */
	struct sk_cuda_lock *lock[2];	/* NULL: not page-locked */
};

/** A slot that is asked for before it is needed: ahead.h. */
struct sk_ahead {
	bool asked;
	bool vain;		/* the last snapshot had new slots */
	struct sk_wire_slot slot;	/* what was asked */
	struct sk_conn_ahead request;
};

/** What was restored, and the run that began with it. */
struct sk_begun {
	uint64_t run, run_id;	/* the snapshot; run 0: none */
	int64_t step;
	bool newest;		/* what is newer was found incomplete */
	uint64_t by_id;		/* the run's; 0: it has no slots yet */
};

/** Bytes of what a rank says in one step of a restore: restore/agree.h. */
#define SK_SAID_BYTES 256u

struct sk_state {
	struct sk *sk;
	struct sk_job job;	/* name is owned */
	void *said;		/* room for what all ranks say: a restore in
				 * which that is lacking could not tell them */
	pthread_mutex_t lock;

	/* Changed with both locks held, read with either. */
	struct sk_local *locals;
	uint32_t n_locals, room_locals;
	struct sk_table names;	/* names.h; tensors and blobs are one space */

	bool changed;		/* layouts no longer fit the description */
	bool moved;		/* pointers changed: work must be made anew */

	struct sk_layout *layouts[2];	/* by sk_image_kind; replica or NULL */
	struct sk_nodes *nodes;	/* with SK_JOB_NODE_REPLICAS: as the last
				 * restore found them; NULL: one of all */
	uint64_t id;		/* at the agent; 0: not registered */
	uint64_t instance;	/* of the agent it is registered with */
	uint64_t generation;	/* of the connection it is registered on */
	uint64_t devices;	/* what lay where then; register.c */
	uint64_t run, run_id;	/* which the agent told; as the first ones */
	bool fresh;		/* no restore has made it other nodes' too */
	struct sk_begun begun;
	int64_t keep[2];	/* of run_id keep_id: sk_keep() */
	uint64_t keep_id;	/* 0: nothing was said */
	uint64_t slot_bytes;
	uint32_t n_slots;
	struct sk_slot_map *slots;
	struct sk_ahead ahead;
	uint32_t slice_ms;	/* of a wait for a slot: then a snapshot is
				 * -EINTR; 0: the wait is one */
	bool agent_faults;	/* it alone faults them in */
	bool faulted_in;	/* and has, all of them; atomic */
	uint64_t protect_ns;	/* before, protecting slots would cost too
				 * much; atomic */
	struct sk_gpus gpus;
	struct sk_device_slot device_slot;
	struct sk_warming *warming;	/* of the slots, or NULL */
	struct sk_work *work;	/* what a snapshot has to do, or NULL */
	uint64_t fenced_ns;	/* in fences since the last seal; atomic */
	unsigned in_step;	/* snapshots that hashed as they copied; for
				 * tests */

	struct sk_fences fences;
	struct sk_status status;	/* under the fences' lock */
};

/** -EINVAL: NULL; -EOWNERDEAD: in a forked child. */
int sk_state_check(const struct sk_state *state, struct sk_err *err);

/** What the agent knows this rank's snapshot of @step by. Without the fences'
 * lock. */
struct sk_wire_id sk_state_wire_id(struct sk_state *state, int64_t step);
/** Which ranks share a node: where replicas are kept by that, layouts change
 * with it. A reference is taken. With state->lock held. */
void sk_state_set_nodes(struct sk_state *state, struct sk_nodes *nodes);
/** It stands in this run from now on. With state->lock held. */
void sk_state_set_run(struct sk_state *state, uint64_t run, uint64_t run_id);

#endif
