/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of shardkeepd share.
 *
 *   main.c       starting, detaching
 *   options.c    the command line and the environment
 *   server.c     the event loop: socket, signals, timers, finished work
 *   place.c      the socket's directory, the lock, the listening socket
 *   session.c    one connection: messages in, replies out, its end
 *   request.c    requests that are answered later
 *   register.c   REGISTER: parsing layouts, runs, budget, slots
 *   slots.c      MAP, SLOT, SEAL, DISCARD, UNREGISTER
 *   wait.c       PREPARE, SLOT_WAIT, WAIT
 *   gather.c     GATHER
 *   list.c       LIST
 *   images.c     OPEN, CLOSE, REPORT_BAD
 *   manage.c     PIN, UNPIN, EVICT, FLUSH, STOP
 *   stats.c      STATS
 *   memory.c     the memory of slots: made, faulted in, given back
 *   flush.c      writing snapshots to the store
 *   stored.c     what lies on the store
 *   work.c       threads in the background and what they hand back
 *   timer.c      deadlines
 *   log.c        lines for people and the journal
 *
 * One thread owns everything here. Those in the background get what they
 * need in a struct work, touch nothing else, and hand it back.
 *
 * Who may do what: a job belongs to the uid that made it. Other users do not
 * see it. An administrator (uid 0, the agent's own uid, --admin-uid) sees and
 * manages all jobs and stops the agent.
 */
#ifndef SK_AGENT_AGENT_H
#define SK_AGENT_AGENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "catalogue.h"
#include "error.h"
#include "io.h"
#include "layout-recall.h"
#include "link.h"
#include "os.h"
#include "pool.h"
#include "slot.h"
#include "store.h"
#include "util.h"
#include "wire.h"

#define AGENT_VERSION "0.1.0"

/* ---- quotas ---- */

#define MAX_REQUESTS 16u	/* deferred, of one connection */
#define MAX_REPLIES 32u		/* unsent, of one connection */
#define MAX_STATES 4096u	/* of one user */
#define MAX_LEASES 65536u	/* of one connection */
#define MAX_SLOTS 64u		/* of one state */
#define MAX_GATHER_BYTES ((uint64_t)1 << 30)	/* unfinished, of one user */

/* ---- log.c ---- */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO,
		 LOG_LEVEL_DEBUG };

struct log {
	enum log_level level;
	bool plain;		/* the journal puts the time on it */
};

void log_open(struct log *log, enum log_level level);
/** -1: no such level. */
int log_level_parse(const char *word);
void log_line(const struct log *log, enum log_level level,
	      const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define log_error(a, ...) log_line(&(a)->log, LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(a, ...) log_line(&(a)->log, LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(a, ...) log_line(&(a)->log, LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(a, ...) log_line(&(a)->log, LOG_LEVEL_DEBUG, __VA_ARGS__)

/* ---- options.c ---- */

struct options {
	char *socket;		/* NULL: chosen */
	char *store;		/* NULL: none */
	uint64_t memory;
	uint64_t flush_rate;	/* bytes per second; 0: no limit */
	unsigned idle_exit_s;	/* 0: never */
	unsigned stop_timeout_s;
	uid_t admin_uid;	/* (uid_t)-1: none */
	enum sk_io_backend backend;
	enum log_level level;
	int ready_fd;		/* -1: none */
	bool seal_writes;
	bool no_direct;
	bool detach;
};

/** 0 go on, 1 done (help, version), -EINVAL said why. */
int options_parse(int argc, char **argv, struct options *ret);
void options_free(struct options *o);

/* ---- timer.c ---- */

struct timer {
	uint64_t at;		/* monotonic ns */
	size_t index;		/* in the heap, plus one; 0: not set */
	void (*fire)(struct timer *timer);
};

struct timers {
	struct timer **heap;
	size_t n, room;
};

/** Sets it, or sets it anew. -ENOMEM. */
int timer_set(struct timers *ts, struct timer *t, uint64_t at);
void timer_clear(struct timers *ts, struct timer *t);
/** Milliseconds until the first; -1: there is none. */
int timers_wait(const struct timers *ts, uint64_t now);
void timers_run(struct timers *ts, uint64_t now);

/* ---- place.c ---- */

struct place {
	char path[108];		/* what a socket's address holds */
	int lock;
	int sock;
};

/** Finds the path, makes the directory, takes the lock, listens.
 * 1: another agent answers there. */
int place_take(const char *path, struct place *ret, struct sk_err *err);
void place_leave(struct place *p);

/* ---- server.c ---- */

/** Something that epoll watches. */
struct source {
	void (*ready)(struct source *source, uint32_t events);
	int fd;			/* -1: none */
	bool watched;
};

/** Counters that only grow; stats.c names them. */
struct counts {
	uint64_t sealed, completed, durable;
	uint64_t bytes_sealed, bytes_flushed;
	uint64_t discarded_death, discarded_client, discarded_bad;
	uint64_t refused_busy, refused_memory;
	uint64_t flush_errors, evictions, protocol_errors, refused_clients;
	uint64_t bad_reported, ignored_files, connections, deaths;
};

struct flush;
struct work;
struct file_key;

struct agent {
	const struct sk_os *os;
	const struct options *opts;
	struct log log;
	struct sk_catalogue cat;
	struct place place;
	uint64_t instance;
	uid_t uid;

	int epoll;
	struct source listener, signals, wake;
	struct timers timers;
	struct sk_link sessions;
	struct sk_link buried;		/* closed in this turn */
	unsigned n_sessions, max_sessions;
	uint64_t next_session;
	int spare_fd;			/* given up to refuse politely */
	struct timer idle_timer;

	struct sk_pool *slow, *populate, *flusher;
	struct sk_recall *recall;	/* layouts of ranks that may be back */
	pthread_mutex_t work_lock;
	struct sk_link finished;	/* under the lock */
	unsigned working;		/* handed out, not back yet */

	struct sk_link waiting;		/* requests, looked at on a change */
	struct sk_link gathers;
	bool changed;

	struct sk_link to_populate;	/* memories by order, in turn */
	uint64_t fill_mark;		/* memory.c: counts looks */
	unsigned populating;
	struct timer trim_timer;	/* of what the dead left behind */

	struct sk_store *store;		/* NULL: none */
	int store_volatile;
	struct sk_link scans;		/* wishes that wait for one */
	bool scanning;
	struct file_key *ignored;	/* damaged or foreign, said once */
	size_t n_ignored;

	struct sk_io *io;		/* the flusher thread's */
	struct flush *flush;		/* under way */
	struct timer flush_timer;
	double flush_rate;		/* bytes per second; 0: not known */
	uint64_t durable_ns;		/* when the last became so */
	atomic_bool abort;		/* ends a write under way */

	bool stopping;
	struct timer stop_timer;
	bool quit;
	int status;

	struct counts counts;
};

/** Serves until told to stop; the process's exit status. */
int agent_run(const struct options *o, struct place *place);
/** Watches, or (events 0) forgets, the source's descriptor. */
int agent_watch(struct agent *a, struct source *s, uint32_t events);
/** Something happened that may answer a request or free a snapshot. */
static inline void agent_changed(struct agent *a)
{
	a->changed = true;
}
void agent_stop(struct agent *a, const char *why);
void agent_check_idle(struct agent *a);
static inline uint64_t agent_now(const struct agent *a)
{
	return a->os->now_ns(a->os);
}

/* ---- work.c ---- */

struct work {
	struct sk_task task;
	struct sk_link link;
	struct agent *agent;
	void (*run)(struct work *work);		/* in the background */
	void (*finish)(struct work *work);	/* back here */
};

void work_submit(struct agent *a, struct sk_pool *pool, struct work *work);
void work_finish_all(struct agent *a);

/* ---- session.c ---- */

struct lease {
	struct sk_link link;
	uint64_t image;
	uint32_t place;
};

struct session {
	struct source source;
	struct source peer;		/* its pidfd */
	struct sk_link link;
	struct agent *agent;
	uint64_t id;
	uid_t uid;
	pid_t pid;
	bool greeted;
	bool closed;
	struct sk_link requests;
	unsigned n_requests;
	struct sk_link replies;
	unsigned n_replies;
	struct sk_link leases;
	unsigned n_leases;
};

void session_accept(struct agent *a);
/** @why NULL: the other side went in order. */
void session_close(struct session *s, const char *why);
/** Sends or queues; descriptors are taken over. */
void session_reply(struct session *s, uint16_t type, uint32_t seq, int status,
		   struct sk_msg *msg, const int *fds, int n_fds,
		   const struct sk_err *err);
bool session_admin(const struct session *s);
/** May the session see the job? */
bool session_sees(const struct session *s, const struct sk_cat_job *job);
/** The job of that name that the session means, or NULL. */
struct sk_cat_job *session_job(const struct session *s, const char *name);
/** The state of that id, if it is this connection's. */
struct sk_cat_state *session_state(const struct session *s, uint64_t id);

/** What a handler is given. */
struct call {
	struct session *session;
	struct agent *agent;
	const struct sk_msg *in;
	int *fds;			/* a handler that keeps one sets -1 */
	int n_fds;
	struct sk_msg out;		/* the reply's body */
	int out_fds[SK_MSG_FDS];
	int n_out;
	struct sk_err err;
};

#define CALL_LATER 1			/* a request has it */

/* Handlers: 0 (reply), CALL_LATER, or a negative errno and a sentence. */
int call_register(struct call *c);
int call_map(struct call *c);
int call_slot(struct call *c);
int call_seal(struct call *c);
int call_discard(struct call *c);
int call_unregister(struct call *c);
int call_wait(struct call *c);		/* PREPARE, SLOT_WAIT, WAIT */
int call_gather(struct call *c);
int call_list(struct call *c);
int call_open(struct call *c);
int call_close(struct call *c);
int call_report_bad(struct call *c);
int call_manage(struct call *c);	/* PIN, UNPIN, EVICT, FLUSH */
int call_stats(struct call *c);
int call_stop(struct call *c);

/** Checks the id of a call and finds its job; -ENOENT with a sentence. */
int call_job(struct call *c, const struct sk_wire_id *id,
	     struct sk_cat_job **ret_job);

/* ---- request.c ---- */

/** A call that is answered later. */
struct request {
	struct sk_link link;		/* in its session */
	struct sk_link queue;		/* in whatever it waits for */
	struct session *session;	/* NULL: the connection is gone */
	struct agent *agent;
	struct sk_msg msg;		/* the call */
	struct timer timer;
	bool busy;			/* a worker or a scan has it */
	uint64_t mark;			/* handlers' own */
	void *thing;			/* handlers' own */
	/** The timeout is over, or the connection is gone: let go of thing.
	 * Never called while busy. */
	void (*drop)(struct request *q);
	/** For those that wait for a change: -EAGAIN, or the answer. */
	int (*look)(struct request *q, struct sk_err *err);
	/** For those that wait for a scan; not busy any more. */
	void (*scanned)(struct request *q, int r, const struct sk_err *err);
};

/** @timeout_ms 0: none. NULL: too many or no memory; the sentence is set. */
struct request *request_new(struct call *c, uint32_t timeout_ms);
void request_answer(struct request *q, int status, struct sk_msg *msg,
		    const int *fds, int n_fds, const struct sk_err *err);
/** The connection is gone. */
void request_orphan(struct request *q);
/** Looks at all that wait for a change. */
void requests_look(struct agent *a);

/* ---- slots.c ---- */

/** The rank is gone; @why is a word for the log. */
void state_ended(struct agent *a, struct sk_cat_state *state,
		 const char *why);

/* ---- gather.c ---- */

/** A rank is gone: those who wait for it need not. */
void gather_rank_gone(struct agent *a, const struct sk_cat_run *run,
		      int32_t rank);

/* ---- memory.c ---- */

struct memory {
	struct sk_link link;		/* in to_populate */
	struct agent *agent;
	struct sk_slot slots[2];	/* by kind */
	uint64_t populated;		/* bytes handed out so far */
	uint32_t order;			/* which slot of its rank */
	uint64_t filling;		/* equals agent->fill_mark: it is */
	uint64_t bytes;
	unsigned busy;			/* pieces under way */
	int result;			/* of populating */
	char text[SK_ERR_MAX];
	bool released;
	bool sealed_writes;
};

/** @order: which slot of its rank it is; those of lower order are faulted in
 * first. */
int memory_new(struct agent *a, const char *name, const uint64_t bytes[2],
	       int numa_node, uint32_t order, struct memory **ret,
	       struct sk_err *err);
void memory_release(struct memory *m);
/** Hands pieces out that are still to be faulted in. */
void memory_populate(struct agent *a);
static inline bool memory_ready(const struct memory *m)
{
	return m->populated == m->bytes && !m->busy;
}

/* ---- flush.c ---- */

int flush_open(struct agent *a, struct sk_err *err);
void flush_close(struct agent *a);
/** Starts the next flush, if any is due. */
void flush_kick(struct agent *a);
/** Nanoseconds that the flush under way still needs; 0: none. */
uint64_t flush_eta(const struct agent *a);
/** Has the newest complete snapshot written, where there is a store. */
void flush_newest(struct agent *a, struct sk_cat_job *job);
/** True while something is to be written that can be. */
bool flush_pending(struct agent *a);
/** Names in the log what is lost with this agent; true: nothing. */
bool flush_all_durable(struct agent *a);
/** Bytes of the snapshot that are written, the file under way included. */
uint64_t flush_done(const struct agent *a, const struct sk_cat_snapshot *s);

/* ---- stored.c ---- */

/** Has the disk looked at before q->scanned() is called, for the job of the
 * request, or all jobs if it names none; @headers: all of them, not only what
 * tells the runs. Without a store it is called at once. */
void stored_scan(struct agent *a, struct request *q, const char *job,
		 uid_t uid, bool headers);
/** Nothing is looked at any more. */
void stored_close(struct agent *a);
void stored_name(const struct sk_cat_image *image, struct sk_stored *ret);

/* ---- list.c ---- */

/** A sealed memfd of @bytes. */
int bytes_fd(const char *name, const void *data, size_t bytes,
	     struct sk_err *err);

#endif
