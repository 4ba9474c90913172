/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of shardkeepd share.
 *
 *   main.c      options, socket, the loop, shutdown
 *   session.c   connections: receiving, sending, leaving
 *   serve.c     one function per request
 *   state.c     registered ranks, their slots, the budget, runs
 *   snapshot.c  seals, coverage, eviction, what is to be flushed
 *   flush.c     the flusher thread and its results
 *   disk.c      the catalogue of what lies in the store
 *   waits.c     deferred requests and gathers
 *   query.c     lists, opened images, statistics
 *
 * One thread owns all of this. The flusher thread and the pool that faults
 * slots in see only what they are handed, and report through an eventfd.
 */
#ifndef SK_AGENT_H
#define SK_AGENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "catalogue.h"
#include "error.h"
#include "os.h"
#include "pool.h"
#include "slot.h"
#include "store.h"
#include "util.h"
#include "wire.h"

#define SESSIONS_MAX 4096
#define STATES_PER_UID_MAX 1024
#define SLOTS_MAX 64		/* of one state */

struct agent_options {
	const char *socket, *store;
	uint64_t memory, flush_rate;
	unsigned stop_timeout_s;
	int ready_fd;
	bool detach, no_direct, seal_writes;
	enum sk_io_backend backend;
	int log_level;		/* 0 error, 1 warning, 2 info, 3 debug */
};

enum slot_status { SLOT_FREE, SLOT_FILLING, SLOT_SEALED };

/* Memory of one snapshot of one rank: a slot per kind of image. */
struct rank_slot {
	struct sk_slot memory[2];	/* by sk_image_kind */
	enum slot_status status;
	uint64_t step;
	uint32_t flags;			/* SK_SLOT_... */
	struct sk_cat_image *image[2];	/* while SEALED */
	struct state *state;
};

struct populate;

/* One rank of one run, as registered. Outlives its session while it holds
 * sealed images. */
struct state {
	struct state *next;
	uint64_t id;
	struct session *session;	/* NULL: it died or left */
	struct sk_cat_job *job;
	uint64_t run;
	int32_t rank, world;
	uid_t uid;
	uint32_t flush_every;
	struct sk_layout *layouts[2];
	struct rank_slot *slots;
	uint32_t n_slots;
	uint64_t charged;		/* bytes of the budget */
	struct populate *populate;	/* NULL: all slots are faulted in */
};

struct session {
	struct session *next;
	int sock;
	uid_t uid;
	pid_t pid;
	bool greeted, gone;
	struct sk_cat_image **leases;
	size_t n_leases;
};

struct wait {
	struct wait *next;
	struct session *session;
	struct sk_msg msg;
	int fd;				/* a gather's bytes, or -1 */
	uint64_t deadline_ns;
};

struct counters {
	uint64_t sealed, discarded, completed, durable, flush_errors;
	uint64_t evicted, bytes_sealed, bytes_flushed, protocol_errors;
	uint64_t bad_images, refused, busy, connections;
	double flush_rate;		/* bytes per second, of the last */
	uint64_t durable_ns;		/* when the last became durable */
};

struct flusher;

struct agent {
	struct agent_options o;
	const struct sk_os *os;
	uint64_t instance;
	int listen_fd, event_fd, signal_fd, epoll_fd, lock_fd;
	struct sk_store *store;
	int store_volatile;
	struct sk_pool *pool;
	struct flusher *flusher;
	struct sk_cat cat;
	struct state *states;
	struct session *sessions;
	unsigned n_sessions;
	struct wait *waits;
	uint64_t used, next_state;
	struct counters count;
	bool stopping;
	uint64_t stop_deadline_ns;
};

/* ---- main.c ---- */
void say(const struct agent *a, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
void wake(struct agent *a);	/* from any thread */
uint64_t now_ns(const struct agent *a);

/* ---- session.c ---- */
void session_accept(struct agent *a);
void session_serve(struct agent *a, struct session *s);
void session_close(struct agent *a, struct session *s);
void session_reap(struct agent *a);
void session_reply(struct agent *a, struct session *s, struct sk_msg *msg,
		   int status, const struct sk_err *err, const int *fds,
		   int n_fds);
/** Whether @s may see and manage what belongs to @uid. */
bool session_may(const struct agent *a, const struct session *s, uid_t uid);

/* ---- serve.c ---- */
void serve(struct agent *a, struct session *s, struct sk_msg *msg, int *fds,
	   int n_fds);

/* ---- state.c ---- */
int state_register(struct agent *a, struct session *s, struct sk_msg *msg,
		   int fd, struct sk_err *err);
struct state *state_find(struct agent *a, const struct session *s,
			 uint64_t id);
struct state *state_of_rank(struct agent *a, const char *job, uint64_t run,
			    int32_t rank);
/** The rank is gone: filling slots are lost, sealed ones stay. */
void state_leave(struct agent *a, struct state *st, bool in_order);
/** Frees what is of no use to anybody any more. */
void state_collect(struct agent *a);
bool state_ready(const struct state *st);	/* slots are faulted in */
void slot_release(struct agent *a, struct rank_slot *slot);

/* ---- snapshot.c ---- */
int slot_take(struct agent *a, struct state *st, uint64_t step,
	      uint32_t flags, uint32_t *ret_slot, uint64_t *ret_eta_ns,
	      struct sk_err *err);
/** 0 if slot_take() would find one, -EBUSY if not. */
int slot_would(struct agent *a, struct state *st);
int slot_seal(struct agent *a, struct state *st, uint32_t slot,
	      uint64_t step, struct sk_err *err);
void snapshot_cover(struct agent *a, struct sk_cat_snapshot *s);
int snapshot_evict(struct agent *a, struct sk_cat_snapshot *s,
		   uint32_t flags, struct sk_err *err);
/** Evicts an unprotected snapshot's slots to free budget; false: none. */
bool snapshot_evict_oldest(struct agent *a);
void job_ended(struct agent *a, struct sk_cat_job *job, uint64_t run);
void image_bad(struct agent *a, struct sk_cat_image *image, uint32_t place);

/* ---- flush.c ---- */
int flush_start(struct agent *a, struct sk_err *err);
void flush_stop(struct agent *a);
/** Queues what is wanted, complete and not durable. */
void flush_queue(struct agent *a);
void flush_results(struct agent *a);
uint64_t flush_eta_ns(const struct agent *a);
bool flush_idle(const struct agent *a);
uint64_t flush_next_ns(const struct agent *a);	/* of a retry, or 0 */

/* ---- disk.c ---- */
void disk_scan_job(struct agent *a, const char *job);
void disk_scan_all(struct agent *a);

/* ---- waits.c ---- */
int wait_add(struct agent *a, struct session *s, struct sk_msg *msg, int fd,
	     uint32_t timeout_ms);
void waits_check(struct agent *a);
void waits_drop(struct agent *a, const struct session *s);
uint64_t waits_next_ns(const struct agent *a);

/* ---- query.c ---- */
int query_list(struct agent *a, struct session *s, struct sk_msg *msg,
	       int *ret_fd, struct sk_err *err);
int query_stats(struct agent *a, struct sk_msg *msg, int *ret_fd,
		struct sk_err *err);
int query_open(struct agent *a, struct session *s, struct sk_msg *msg,
	       int ret_fds[2], struct sk_err *err);
int query_close(struct agent *a, struct session *s, uint64_t image);
/** A sealed memfd with these bytes. */
int memfd_with(const void *data, size_t size, struct sk_err *err);

#endif
