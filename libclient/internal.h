/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of libshardkeep share: the handle, connections, the state.
 *
 *   client.c    sk_open, finding and starting the agent, sk_close
 *   conn.c      one connection, requests, deferred requests, reconnecting
 *   say.c       the calling thread's sentence
 *   state.c     describing tensors and blobs
 *   register.c  layouts, registration, mapped slots, sk_prepare
 *   snapshot.c  copying, hashing, sealing, fences, verification mode
 *   wait.c      sk_wait, sk_flush, sk_status
 *   restore*.c  choosing, agreeing, planning, moving bytes
 *   comm.c      the agent's comm
 *
 * Lock order: state->lock (one caller changes a state), then state->copy_lock
 * (progress of the copy), then conn->lock (one request on a connection).
 */
#ifndef SK_LIBCLIENT_INTERNAL_H
#define SK_LIBCLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "error.h"
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
	struct sk_wire_hello_reply agent;
};

/** Connects and says hello. Errors: -ENOENT, -ECONNREFUSED, -EPROTO, ... */
int sk_conn_open(const char *socket_path, uint32_t timeout_ms,
		 struct sk_conn *ret_conn, struct sk_err *err);
void sk_conn_close(struct sk_conn *conn);

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

/* ---- client.c ---- */

struct sk {
	const struct sk_os *os;
	pid_t pid;			/* of the opener: fork is noticed */
	char *socket_path;		/* the one that answered */
	uint32_t timeout_ms;
	struct sk_pool *pool;		/* copies, hashes */
	struct sk_conn conn;		/* short requests; states live here */
	unsigned states;		/* not freed yet; atomic */
};

/** -EOWNERDEAD in a forked child. */
int sk_check(const struct sk *sk, struct sk_err *err);

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

struct sk_slot_map;		/* register.c */
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

	struct sk_copying *copying;	/* the snapshot under way */
	struct sk_status status;	/* under the copying's lock */
};

/** Index into locals, or -1. */
int64_t sk_state_find(const struct sk_state *state, const char *name);

/* ---- register.c ---- */

/**
 * Registers, or registers anew when the description changed or the agent is
 * another one than before; connects again where the connection was lost.
 * Call with state->lock held. Nothing to do: 0.
 */
int sk_state_register(struct sk_state *state, struct sk_err *err);

/* ---- comm.c ---- */

/** The agent's comm for this state (registered). @ret_comm->ctx is @state. */
void sk_comm_of_agent(struct sk_state *state, struct sk_comm *ret_comm);

#endif
