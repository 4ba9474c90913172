/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fences: who waits for snapshots, and what such a snapshot tells of itself.
 *
 * This lies below describing, registering and snapshots: all of them wait
 * until a copy that is under way has let go. How a snapshot is taken is not
 * known here; the newest one stands here as a struct sk_pending, which its
 * owner has embedded in something larger.
 *
 * Thread-safe: the lock is taken inside, unless a function says otherwise.
 */
#ifndef SK_LIBCLIENT_STATE_FENCE_H
#define SK_LIBCLIENT_STATE_FENCE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/os.h"

/** One snapshot, from its first copy to its seal. All under the lock. */
struct sk_pending {
	unsigned refs;
	int64_t step;
	uint32_t *left;		/* units to copy, by item */
	uint32_t n_items;
	uint32_t units_left;	/* to copy */
	uint32_t host_left;	/* of them, of host memory */
	bool asked;		/* for all the others, of their devices */
	bool verify;		/* the fence judges it before it is sealed */
	bool hashed, judged, finished;
	bool told;		/* the caller was told what became of it */
	int result;		/* once it is finished, or sooner where it
				 * failed */
	struct sk_err err;
	/* The fence of a verified snapshot was reached: looks at the tensors
	 * once more, after @stream of the calling thread, seals or refuses,
	 * and has it finished. Without the lock. */
	void (*judge)(struct sk_pending *p, uint64_t stream);
	/* Waits for what was asked of devices, all of it, which is released
	 * then; whoever waits so knows sooner than who is told. False: it
	 * cannot be waited for. Without the lock. */
	bool (*reach)(struct sk_pending *p);
	/* The last reference is gone. With the lock. */
	void (*release)(struct sk_pending *p);
};

struct sk_fences {
	const struct sk_os *os;
	pthread_mutex_t lock;	/* of all that follows, and of snapshots */
	pthread_cond_t changed;
	struct sk_pending *newest;	/* with a reference, or NULL */
	unsigned running;		/* snapshots not finished */
	unsigned item_waiters;		/* fences for one item */
	unsigned hurry;			/* snapshots to come whose copies
					 * should be over soonest */
};

void sk_fences_init(struct sk_fences *f, const struct sk_os *os);
/** Nothing may be under way. */
void sk_fences_destroy(struct sk_fences *f);

void sk_fences_lock(struct sk_fences *f);
void sk_fences_unlock(struct sk_fences *f);

/** Gives a reference back. NULL is fine. With the lock held. */
void sk_pending_unref(struct sk_pending *p);

/** Makes @p, which has a reference for that, the newest. With the lock held. */
void sk_fences_begin(struct sk_fences *f, struct sk_pending *p);
/** It is over, with @result; gives a reference back. With the lock held. */
void sk_fences_finish(struct sk_fences *f, struct sk_pending *p, int result);

/** A trainer that had to wait for a copy is taken to wait for the copies of so
 * many snapshots after it, too. */
#define SK_FENCE_HURRY 16
/** Whether there was a snapshot, and nobody waited for the copies of the last
 * ones to write: training hid them. */
bool sk_fences_calm(struct sk_fences *f);

/** Every item. */
#define SK_FENCE_ALL INT64_MAX

/**
 * Waits until the newest snapshot has let go of @item, by its number in the
 * description; an item that it does not know it never held. A verified one is
 * judged, whatever @item is, after the default stream of each device: that is
 * there whoever calls, which no other stream is sure to be.
 * Errors: what became of it, if that is known; -ETIMEDOUT.
 */
int sk_fence_wait(struct sk_fences *f, int64_t item, uint64_t until_ns,
		  struct sk_err *err);
/** The same of every item, but 0 where the caller was told before what became
 * of it: it is no reason to refuse the next one. */
int sk_fence_wait_untold(struct sk_fences *f, uint64_t until_ns,
			 struct sk_err *err);
/** Waits until the newest snapshot is over, if it is that of @step: the others
 * are not held up by it, nor answered for. Errors: as sk_fence_wait(). */
int sk_fence_wait_step(struct sk_fences *f, int64_t step, uint64_t until_ns,
		       struct sk_err *err);
/** Waits until the newest snapshot has copied what is host memory, and has
 * asked for all the rest: streams can wait for that from here on. Of a
 * verified one as sk_fence_wait(), but judged after @stream. Errors: as
 * that. */
int sk_fence_wait_asked(struct sk_fences *f, uint64_t stream,
			uint64_t until_ns, struct sk_err *err);
/** Waits until none is under way; a fence as well. -ETIMEDOUT. */
int sk_fences_settle(struct sk_fences *f, uint64_t until_ns);
/** Forgets the newest: nobody waits for it, nobody is told of it again. */
void sk_fences_drop(struct sk_fences *f);

#endif
