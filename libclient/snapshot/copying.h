/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One snapshot on the pool's threads: copy, hash, stamp, seal.
 *
 * The copy runs alone, so that the trainer may write again soonest, and the
 * checksums are taken from the slot right after it; unless CPUs are scarce and
 * nobody waits for the copy: then each piece is hashed while it is in the
 * cache. Both together take a quarter less of the trainers' time so, the copy
 * by itself two fifths more.
 */
#ifndef SK_LIBCLIENT_SNAPSHOT_COPYING_H
#define SK_LIBCLIENT_SNAPSHOT_COPYING_H

#include "base/pool.h"
#include "state/state.h"
#include "state/work.h"

/** When checksums of host memory are taken. */
enum sk_sums {
	SK_SUMS_AFTER,		/* of the slot, once all is copied */
	SK_SUMS_WHERE_FREE,	/* with the copy where that takes no longer: of
				 * what is contiguous. Rows that are gathered
				 * have to be read again */
	SK_SUMS_IN_STEP,	/* with the copy, of everything */
};

struct sk_copying {
	struct sk_pending pending;
	struct sk_task open, copy, copy_gpu, hash;
	struct sk_state *state;
	const struct sk_work *work;	/* as long as it is not over */
	uint32_t gpus;			/* the work's */
	char *base[2];			/* of the slot, by kind */
	uint32_t slot;
	bool no_device;			/* the device slot is not written to */
	bool ahead;			/* the device was asked in the call */
	bool gpus_over;			/* what GPUs have is released; under
					 * the fences' lock */
	enum sk_sums when;
	unsigned parts_left;		/* of the copy: host, GPUs; under the
					 * fences' lock, as is: */
	int opened;			/* 1: the slot may be written to; an
					 * error */
	struct sk_err not_opened;	/* its sentence */
	int failed;			/* the first error of a part */
	uint64_t run, run_id, start_ns;
	/* What copy and call took; under that lock. */
	uint64_t copied_ns, returned_ns;
	uint64_t id, generation;	/* of the state, and the connection */
	uint64_t *sums[2];		/* of the slot, by kind */
	uint64_t *before[2];		/* verification: of the tensors */
};

/** A snapshot of the prepared state into a slot that the agent gave; NULL: no
 * memory. It has one reference and does nothing yet. */
struct sk_copying *sk_copying_new(struct sk_state *state, int64_t step,
				  uint32_t slot, bool verify,
				  enum sk_sums when);
/** Whether the checksums of @op are taken with its copy. */
bool sk_copying_in_step(const struct sk_copying *c, const struct sk_op *op);
/** Whether CPUs are scarce for a process that may use @cpus, one of @ranks on
 * this node (0: not known): there is less than one for each rank's trainer and
 * another for its copy. */
bool sk_hash_in_step(unsigned cpus, uint32_t ranks);
/** Has the pool copy; from here on it ends by itself. */
void sk_copying_begin(struct sk_copying *c, uint64_t start_ns);
/** Lets go of one that did not begin. NULL is fine. */
void sk_copying_free(struct sk_copying *c);

/** Stamps the headers, asks the agent to seal, and is over. */
void sk_copying_seal(struct sk_copying *c);
/** Refuses it: the slot goes back, and @r is what the fence says. */
void sk_copying_refuse(struct sk_copying *c, int r);

/** What GPUs have is copied, all of it: it is released. Any thread that has a
 * reference, and the first that says so. */
void sk_copying_gpus_done(struct sk_copying *c);
/** Waits until the slot may be written to; else an error, whose sentence is
 * kept. */
int sk_copying_await_open(struct sk_copying *c);
/** A message about the slot, to the agent that gave it. */
int sk_copying_tell(struct sk_copying *c, enum sk_msg_type type,
		    struct sk_err *err);

/** The chunk of @op that unit @u covers: bytes of the entry, and the number of
 * its checksum. */
struct sk_chunk {
	uint64_t from, to;
	uint32_t sum;
};

struct sk_chunk sk_copying_chunk(const struct sk_op *op,
				 const struct sk_unit *u);

#endif
