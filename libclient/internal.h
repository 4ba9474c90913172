/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of libshardkeep share: the handle, connections, the state.
 *
 *   client.c    sk_open, finding and starting the agent, sk_close
 *   conn.c      one connection, requests, deferred requests, reconnecting
 *   say.c       the calling thread's sentence
 *   state.c     describing tensors and blobs
 *   work.c      what a snapshot has to copy and hash, cut into units
 *   register.c  layouts, registration, mapped slots, sk_prepare
 *   warm.c      mapped slots, faulted in
 *   snapshot.c  copying, hashing, sealing, fences, verification mode
 *   wait.c      sk_wait, sk_flush, sk_status
 *   restore*.c  choosing, agreeing, planning, moving bytes
 *   comm.c      the agent's comm
 *   inspect.c   what snapshots hold, as JSON
 *
 * Lock order: state->lock (one caller changes a state), then state->copy_lock
 * (progress of the copy), then conn->lock (one request on a connection).
 */
#ifndef SK_LIBCLIENT_INTERNAL_H
#define SK_LIBCLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "copy.h"
#include "error.h"
#include "layout-recall.h"
#include "layout.h"
#include "os.h"
#include "pool.h"
#include "shardkeep.h"
#include "util.h"
#include "wire.h"

#define SK_API __attribute__((visibility("default")))

/* ---- say.c ---- */

/** Keeps the sentence for sk_error() and returns @r unchanged. */
int sk_say(int r, const struct sk_err *err);
/** A sentence of any length; takes the malloc'ed @text over. */
int sk_say_long(int r, char *text);

/* ---- conn.c ---- */

struct sk_conn {
	pthread_mutex_t lock;
	int sock;			/* -1: not connected */
	uint32_t seq;
	uint64_t generation;		/* counts connections made */
	struct sk_wire_hello_reply agent;
};

/** Connects and says hello. Errors: -ENOENT, -ECONNREFUSED, -EPROTO, ... */
int sk_conn_open(const char *socket_path, uint32_t timeout_ms,
		 struct sk_conn *ret_conn, struct sk_err *err);
void sk_conn_close(struct sk_conn *conn);
/** Connects an open handle again where its connection was lost. Other threads
 * may use it meanwhile. Errors: as sk_conn_open(). */
int sk_conn_again(const char *socket_path, uint32_t timeout_ms,
		  struct sk_conn *conn, struct sk_err *err);
/** Whether it is connected; and to what, as of the last connection. */
bool sk_conn_look(struct sk_conn *conn, uint64_t *ret_generation,
		  uint64_t *ret_instance);

/**
 * One request and its reply (in @msg). @fds/@n_fds are sent, and received
 * ones are written to @ret_fds (room for SK_MSG_FDS, the caller closes them;
 * NULL: none expected, any are closed). A reply with a status < 0 is returned
 * as that with the agent's sentence. A lost connection is -ECONNRESET and
 * leaves sock -1.
 */
int sk_conn_call(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fds, int *ret_n_fds, uint32_t timeout_ms,
		 struct sk_err *err);

/** A request without descriptors, on the connection of that @generation and
 * no later one: -ECONNRESET there. */
int sk_conn_call_in(struct sk_conn *conn, uint64_t generation,
		    struct sk_msg *msg, uint32_t timeout_ms,
		    struct sk_err *err);

/* ---- client.c ---- */

struct sk {
	const struct sk_os *os;
	pid_t pid;			/* of the opener: fork is noticed */
	char *socket_path;		/* the one that answered */
	uint32_t timeout_ms;
	struct sk_pool *pool;		/* copies, hashes */
	struct sk_recall *recall;	/* layouts, from a look to a restore */
	struct sk_conn conn;		/* short requests; states live here */
	unsigned states;		/* not freed yet; atomic */
};

/** -EOWNERDEAD in a forked child. */
int sk_check(const struct sk *sk, struct sk_err *err);

/** The search of sk_open() without starting anything: the socket that answers,
 * written to @ret_path. -ENOENT: none does. */
int sk_find_agent(const char *option, char *ret_path, size_t size,
		  struct sk_err *err);

/** A deferred request on a short-lived connection of its own; else as
 * sk_conn_call. */
int sk_call_deferred(struct sk *sk, struct sk_msg *msg, const int *fds,
		     int n_fds, int *ret_fds, int *ret_n_fds,
		     uint32_t timeout_ms, struct sk_err *err);

/* ---- state.c ---- */

/** One tensor or blob and where this rank's boxes of it lie. */
struct sk_local {
	struct sk_item item;	/* owned; boxes always filled in */
	/* Per box of item: the trainer's memory and its strides in elements
	 * (never all 0 here: dense ones are written out). Where placements
	 * give several boxes, they are slices of the one local tensor. */
	struct sk_part *parts;
	int32_t memory, device;
};

/** A slot as this process maps it, by sk_image_kind. */
struct sk_slot_map {
	void *map[2];
};

struct sk_work;			/* work.c */
struct sk_warming;		/* warm.c */
struct sk_copying;		/* snapshot.c */

struct sk_state {
	struct sk *sk;
	struct sk_job job;	/* name is owned */
	pthread_mutex_t lock;

	struct sk_local *locals;
	uint32_t n_locals;
	/* Index of the local of that kind-less name, or -1: names of tensors
	 * and blobs are one space. sk_state_find() */
	void *names;
	bool changed;		/* layouts no longer fit the description */

	struct sk_layout *layouts[2];	/* by sk_image_kind; replica or NULL */
	uint64_t id;		/* at the agent; 0: not registered */
	uint64_t instance;	/* of the agent it is registered with */
	uint64_t run;
	uint64_t gather_round;
	uint64_t slot_bytes;
	uint32_t n_slots;
	struct sk_slot_map *slots;
	struct sk_warming *warming;	/* of the slots, or NULL */
	uint64_t generation;	/* of the connection it is registered on */

	struct sk_work *work;	/* register.c: what a snapshot has to do */
	bool moved;		/* pointers changed: work must be made anew */

	pthread_mutex_t copy_lock;	/* of what follows, and of copying */
	pthread_cond_t copy_cond;
	struct sk_copying *copying;	/* the newest snapshot, or NULL */
	unsigned running;		/* snapshots not finished */
	struct sk_status status;
};

/** Index into locals, or -1. */
int64_t sk_state_find(const struct sk_state *state, const char *name);

/* ---- register.c ---- */

/**
 * Registers, or registers anew when the description changed or the agent is
 * another one than before; connects again where the connection was lost.
 * Without @slots the state is known to the agent, but has no memory there
 * yet. Call with state->lock held. Nothing to do: 0.
 */
int sk_state_register(struct sk_state *state, bool slots, struct sk_err *err);

/** Unmaps the slots and forgets the layouts. */
void sk_state_unregister(struct sk_state *state);

/* ---- warm.c ---- */

/**
 * Begins to fault in the slots as this process maps them, on a thread of its
 * own that stands back while a snapshot is copied. NULL without memory or
 * threads for it: then the first snapshots are slower.
 */
struct sk_warming *sk_warm_new(struct sk_state *state);
/** Before the slots are unmapped. Returns NULL. */
struct sk_warming *sk_warm_free(struct sk_warming *w);
/** Waits until all is faulted in. */
void sk_warm_finish(struct sk_warming *w);
/** Returns when the pieces of a slot that [from, to) of an image touches are
 * faulted in, which it does itself where nobody has begun. Any thread. */
void sk_warm_range(struct sk_warming *w, uint32_t slot, int kind,
		   uint64_t from, uint64_t to);

/* ---- work.c ---- */

/** A piece of work: ops [first, last), or of one op the bytes [from, to). */
struct sk_unit {
	uint32_t first, last;
	uint64_t from, to;
};

/** One entry: how it is copied into its image, whose tensor it is. */
struct sk_op {
	struct sk_copy copy;	/* dst is an offset into the image */
	uint32_t item, first_sum, n_sums;
	uint8_t kind;		/* enum sk_image_kind */
};

/** All that a snapshot does, prepared once; immutable then. */
struct sk_work {
	struct sk_op *ops;	/* in the order of description */
	struct sk_unit *units;	/* of about a MiB, on checksum boundaries */
	uint32_t *left;		/* units that touch each item */
	uint32_t n_ops, n_units, n_items, n_sums[2];
	uint64_t bytes;
};

int sk_work_make(const struct sk_state *state, struct sk_work **ret,
		 struct sk_err *err);
struct sk_work *sk_work_free(struct sk_work *work);

/* ---- snapshot.c ---- */

/** Cuts the registered state into work, unless that is done already. */
int sk_snapshot_prepare(struct sk_state *state, struct sk_err *err);
/** Waits until no snapshot of the state is under way. */
void sk_snapshot_settle(struct sk_state *state);
/** The same for its last one, in verification mode: counts as the fence. */
int sk_snapshot_fence(struct sk_state *state, struct sk_err *err);
void sk_copying_drop(struct sk_state *state);

/* ---- comm.c ---- */

/** The agent's comm for this state (registered). @ret_comm->ctx is @state. */
void sk_comm_of_agent(struct sk_state *state, struct sk_comm *ret_comm);

#endif
