/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct agent: what the rooms of shardkeepd share.
 *
 *   loop/      descriptors, times, background work, log, the endpoint
 *   agent.h    this; options.h and counts.h belong to it
 *   worker/    the process that uses GPUs for the agent; knows no agent
 *   memory/    the memory of slots; workers
 *   disk/      the flusher, and what lies on the store
 *   session/   connections, requests that wait, who may see what, stopping
 *   metrics/   the list of figures, and who is told of them
 *   calls/     a file per message, and the table of them
 *   server.c   birth, turn and death of the agent; main.c starts it
 *
 * Each room includes those above it in this list, never those below.
 *
 * One thread owns everything here. Those in the background get what they
 * need in the object that a struct work is part of, touch nothing else, and
 * hand it back. What they may read here never changes while they run: os,
 * opts, uid, store, io, recall, sums; and abort, which is atomic.
 *
 * A reply never ends a connection: where one fails, the connection is marked,
 * and ended when the turn is over. So nothing that is being walked changes
 * because somebody was answered.
 *
 * Who may do what: a job belongs to the uid that made it. Other users do not
 * see it. An administrator (uid 0, the agent's own uid, --admin-uid) sees and
 * manages all jobs and stops the agent.
 */
#ifndef SK_AGENT_AGENT_H
#define SK_AGENT_AGENT_H

#include <stdatomic.h>

#include "catalogue/catalogue.h"
#include "counts.h"
#include "degraded.h"
#include "keeper/keeper.h"
#include "keeper/table.h"
#include "layout/recall.h"
#include "loop/closer.h"
#include "loop/endpoint.h"
#include "loop/lanes.h"
#include "loop/log.h"
#include "loop/loop.h"
#include "options.h"
#include "refusal.h"
#include "store/store.h"

struct flush;
struct index;
struct metrics;
struct prove;
struct retain;
struct reviving;
struct scrub;
struct sums;
struct sweep;
struct merging;
struct watch;
struct wrote;
struct session;
struct sk_msg;
struct file_key;

struct agent {
	const struct sk_os *os;
	const struct options *opts;
	struct {			/* those that may change: reload.h */
		struct sk_retention retention;
		bool retention_said;
		unsigned flush_interval_s, stop_timeout_s, idle_exit_s;
		uint64_t flush_rate;
		uid_t admin_uid;
	} now;
	struct log log;
	struct sk_catalogue cat;
	struct endpoint endpoint;
	uint64_t instance;		/* random: tells agents apart */
	struct keeper keeper;		/* of what outlives this agent */
	struct table table;		/* which it keeps: memory/record.h */
	bool unkept;			/* some slots the keeper has not */
	bool unkept_said;
	bool ready;			/* clients were told that they can
					 * connect */
	uid_t uid;
	uid_t strangers;		/* stands for many users, who are
					 * refused; (uid_t)-1: none does */

	struct loop loop;
	struct source listener, signals, keeps;
	struct closer *closer;		/* of what clients have sent */
	struct sk_pool *slow, *populate, *flusher, *parsers;
	struct lanes lanes;		/* on the parsers */
	struct lanes deeds;		/* of operators, on the slow one */
	struct sk_pool *tellers;	/* of what images cover */
	struct lanes questions;		/* on them */
	struct sk_pool *sealers;	/* who read headers */
	struct lanes seals;		/* on them */
	struct sk_recall *recall;	/* layouts of ranks that may be back */

	struct sk_link sessions;
	struct sk_link closing;		/* marked; ended with the turn */
	struct sk_link lingering;	/* marked; the background has theirs */
	unsigned n_sessions, max_sessions;	/* all lists */
	uint64_t next_session;
	uint64_t refused_ns;		/* when that one was refused was said */
	int spare_fd;			/* given up to refuse politely */
	struct timer idle_timer;
	unsigned max_flight;		/* of descriptors; 0: any number */
	unsigned in_flight;		/* as far as it was looked at */
	uint64_t looked_ns;
	struct sk_link flights;		/* by user */
	struct sk_link unread;		/* connections that ended */
	struct timer unread_timer;
	struct timer upkeep_timer;
	bool displaced;			/* another agent has our path */
	/** What a connection's message is given to: calls/table.h. Takes the
	 * descriptors that it keeps out of @fds. */
	void (*dispatch)(struct session *s, const struct sk_msg *msg,
			 int *fds, int n_fds);

	struct sk_link waiting;		/* requests, asked on a change */
	struct sk_link crowds;		/* connections with many of those */
	struct sk_link gathers;
	struct sk_link stops;		/* those who wait for the end */
	int stop_fds[8];	/* who is to see our end by them */
	unsigned n_stop_fds;
	bool changed;			/* see agent_changed() */
	struct timer decide_timer;	/* of snapshots undecided */

	struct sk_link workers;		/* of GPUs: memory/workers.h */
	struct sk_link ended;		/* of their processes, in this turn */
	uint64_t worker_failed_ns;	/* when one did last */
	struct sk_link device_slots;	/* calls/device.h */
	struct sk_link quarantines;	/* calls/quarantine.h */

	struct sk_link to_populate;	/* memories by order, in turn */
	unsigned populating;		/* pieces under way */
	struct sk_link to_collapse;	/* memories that are faulted in */
	struct collapsing *collapsing;	/* collapse.h */
	unsigned small_memories;	/* of which some lies in small pages */
	struct reviving *reviving;	/* what is still to be read of what the
					 * last agent left; or NULL */
	uint32_t unread_devices;	/* device slots among that */
	uint64_t read_images;		/* of that */
	struct timer await_timer;	/* of ranks from before a restart */
	struct timer trim_timer;	/* of what the dead left behind */

	uint64_t freed_bytes;		/* since the heap was trimmed */
	struct timer heap_timer;
	struct work trim_heap;
	bool trimming_heap;

	struct sk_store *store;		/* NULL: none */
	int store_volatile;
	struct sweep *sweep;		/* of what dead agents left */
	struct sk_link wishes;		/* that no scan serves yet */
	uint64_t wish_round;		/* of the last user that one served */
	struct scan *scan;		/* under way; NULL: none */
	bool scanning;			/* a look has histories and ignored */
	struct merging *merging;	/* what a look has found; or NULL */
	struct wrote *wrote;		/* files, since the last look */
	size_t n_wrote, room_wrote;
	uint32_t looks;			/* how many there were */
	uint64_t looked_at;		/* files, by all of them; atomic */
	struct sk_table histories;	/* by job: histories.h */
	struct index *index;		/* NULL: none is written */
	struct prove *prove;		/* NULL: there is no store */
	struct timer leave_timer;	/* of old steps that are known */
	uint64_t leave_ns;		/* not before that */
	uint64_t asked_ns;		/* when somebody last asked for them */
	struct file_key *ignored;	/* damaged or foreign, said once */
	size_t n_ignored, room_ignored;
	struct passed *passed;		/* cannot be looked at, said once */
	size_t n_passed, sorted_passed, room_passed;
	struct retain *retain;		/* what need not stay goes */
	struct sk_pool *keeping;	/* its thread */
	struct leftover *leftover;	/* that it deletes; or NULL */
	struct sk_link restoring;	/* jobs: disk/restoring.h */
	struct timer restoring_timer;
	struct scrub *scrub;		/* NULL: none */
	struct sk_pool *scrubber;
	struct sums *sums;		/* of files that were opened last */
	struct timer sums_timer;

	struct sk_io *io;		/* the flusher thread's */
	struct flush *flush;		/* under way */
	struct timer flush_timer;
	struct timer cadence_timer;	/* of what may have been left */
	bool not_owned_said;		/* files that stay root's */
	double flush_rate;		/* bytes per second; 0: not known */
	double flush_pace;		/* the same, of the last large one */
	uint64_t durable_ns;		/* when the last became so */
	atomic_bool abort;		/* ends a write under way */

	uint64_t visits;		/* cat.visits when the turn began */
	uint64_t most_visits;		/* of a turn */
	bool stopping;			/* flushes what is to be kept */
	struct timer stop_timer;
	unsigned stop_signals[2];	/* to it, and passed on by its keeper */
	bool quit;			/* this turn is the last */
	int status;			/* of the process */

	struct counts counts;
	uint64_t began_ns;
	struct metrics *metrics;	/* NULL: nobody wants any */
	struct degraded degraded;
	struct timer health_timer;
	struct watch *watch;		/* of the store's path; NULL: none */
	uint64_t store_free, store_bytes;	/* 0: not known */
	uint64_t store_files;		/* that can still be made there */
	uint64_t flush_turns;		/* flushes that were begun, and 1 */
	bool store_failed;		/* the last flush, by the store's fault */
	bool store_denied;		/* it lets the agent make nothing */
	struct refusal refusal;		/* of who left last with one */
	uint64_t refusal_left_ns;	/* until when it counts */
};

/** Something happened that may answer a request or free a snapshot: what
 * follows from it is done when the turn ends. */
static inline void agent_changed(struct agent *a)
{
	a->changed = true;
}

static inline uint64_t agent_now(const struct agent *a)
{
	return loop_now(&a->loop);
}

#endif
