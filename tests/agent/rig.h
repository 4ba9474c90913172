/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the daemon share: an agent in a directory of its own,
 * and ranks that speak the wire without the library.
 *
 * A test is a program: argv[1] is the agent, exit 0 means all is well. CHECK
 * ends the process with a line that says where and why.
 */
#ifndef SK_TEST_AGENT_RIG_H
#define SK_TEST_AGENT_RIG_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "layout/layout.h"
#include "support/await.h"
#include "wire/channel.h"

#define WAIT_MS 60000u
/* struct options' hangs_s, where the store is not to be said to hang: a clock
 * of the test's own may be moved by more than a look at the store takes, and 0
 * is any look that is not over at once. */
#define NEVER_HANGS_S (1u << 30)

struct rig {
	const char *program;
	char dir[64];
	char socket[96];
	char store[96];		/* a path; used if the flags name it */
	pid_t agent;
	bool retains;		/* by itself: it looks at the store then, which
				 * most tests do by turns of their own */
};

/** A directory and a name for everything; nothing runs yet. */
void rig_init(struct rig *rig, const char *program);
/** Starts an agent with further arguments, up to NULL; waits until ready. */
void rig_start(struct rig *rig, ...);
/** Until then nothing of it runs; returns when all of it stands still. */
void rig_freeze(const struct rig *rig);
void rig_thaw(const struct rig *rig);
/** The exit status that the agent ends with; 128 + signal if killed. */
int rig_wait(struct rig *rig);
/** SIGTERM and rig_wait. */
int rig_stop(struct rig *rig);
/** Removes the directory; the agent must have ended. */
void rig_remove(struct rig *rig);

/** The version that this process speaks from now on; 0: the newest. A
 * connection keeps its own. */
void rig_speak(unsigned version);
/** A connection that said hello. */
int rig_connect(const struct rig *rig);
/** The same for an agent that may refuse: the socket or a negative errno. */
int rig_try_connect(const struct rig *rig, struct sk_msg *ret_msg);
/** One request; its status. Reply in @msg, descriptors in @fds (or closed). */
int rig_call(int sock, struct sk_msg *msg, const int *send, int n_send,
	     int *fds, int *n_fds);
/** Sends without waiting; rig_reply waits for the answer. */
void rig_send(int sock, struct sk_msg *msg);
int rig_reply(int sock, struct sk_msg *msg, int *fds, int *n_fds);
/** The sentence of the last reply with an error. */
const char *rig_why(const struct sk_msg *msg);

/** One rank with a row-sharded tensor "w" and, if @replicated, a tensor "r"
 * that every rank holds whole. */
struct rank {
	int sock;
	char job[SK_JOB_MAX + 1];
	int32_t rank, world;
	uint64_t state, run, run_id;
	uint32_t slots;
	struct sk_layout *layouts[2];
	char *maps[8][2];
	struct sk_msg msg;	/* the last reply */
};

struct rank_options {
	const char *job;
	int32_t rank, world;
	uint64_t run, run_id;
	uint32_t slots;		/* 0: 2 */
	uint32_t flush_every;	/* 0: 1 */
	bool by_cadence;	/* it says none */
	uint32_t keep_last;	/* 0: it says nothing */
	int64_t rows;		/* of "w" per rank; 0: 16 of 4 KiB each */
	bool replicated;
	int64_t wide;		/* elements of "r", then; 0: 1024 */
	unsigned more;		/* tensors of one element beside it */
	unsigned salt;		/* stands in their names */
	const struct rank *of;	/* not NULL: it has restored a step of that
				 * one's run; */
	int64_t begun;		/* this one, */
	bool newest;		/* and what is newer is not whole */
	bool on_devices;	/* a GPU writes to its slots */
};

/** Connects and registers; the status. */
int rank_open(struct rank *r, const struct rig *rig,
	      const struct rank_options *o);
/** The same rank describes itself anew on its connection, as @o says. It has
 * no slots then. */
int rank_again(struct rank *r, const struct rank_options *o);
void rank_close(struct rank *r);
/** UNREGISTER: it leaves in order, and its images stay. The status. */
int rank_unregister(struct rank *r);
/** DEVICE_SLOT, on that device, for all that the rank has; the status. */
int rank_device_slot(struct rank *r, const uint8_t uuid[16]);
/** SLOT; the slot's number or the status. */
int rank_slot(struct rank *r, int64_t step, uint32_t flags);
/** Fills the slot for the step: data that tell rank and step, header. */
void rank_fill(struct rank *r, int slot, int64_t step);
int rank_seal(struct rank *r, int slot, int64_t step);
/** All three, checked. */
void rank_snapshot(struct rank *r, int64_t step);
/** A rank of a job of one comes, has so many steps on disk, and goes. */
void rank_write_steps(const struct rig *rig, const char *job, int steps);
/** WAIT; 1 sealed, 2 complete, 3 durable. */
int rank_wait(struct rank *r, int64_t step, uint32_t until,
	      uint32_t timeout_ms);
/** The same without waiting: rig_reply() has the answer, which comes after
 * those to what is asked next. */
void rank_send_wait(struct rank *r, int64_t step, uint32_t until,
		    uint32_t timeout_ms);
/** SLOT_WAIT: until a slot may be had. */
int rank_await_slot(struct rank *r);
/** The word that "w" holds at that row in a snapshot. */
uint32_t rank_word(int32_t rank, int64_t step);

/** Records of LIST or STATS, malloc'ed. */
struct sk_wire_snapshot *list_snapshots(int sock, const char *job, size_t *n);
struct sk_wire_image *list_images(int sock, const char *job, int64_t step,
				  size_t *n);
/** The same, of what the agent knows already. */
struct sk_wire_image *list_known(int sock, const char *job, int64_t step,
				 size_t *n);
/** The snapshot's flags; 0: there is none. */
uint32_t snapshot_flags(int sock, const char *job, int64_t step);
double stat_value(int sock, const char *name);
/** The jobs, ranks and slots that the agent had gone through, at a time. */
struct rig_since {
	double visits;
	unsigned long asked;	/* so often this process had, for figures */
};
struct rig_since rig_since(int sock);
/** What it has gone through since then, without what asking for figures took:
 * who waits asks again and again, more often the more the machine has to do.
 * Exact once all is quiet. */
double rig_visits(int sock, struct rig_since since);
/** And what that takes, once. */
double rig_visits_to_ask(int sock);
/** Nothing goes on that was begun before: asking is all that is counted. */
bool rig_is_quiet(int sock);
/** Until the agent's loop has been through @n turns: so often it has looked at
 * all descriptors and at the clock. In one it may answer many requests. */
void rig_turns(int sock, unsigned n);
/** STATUS: whether it is in that state, and why; the sentences must be
 * there. */
struct rig_state {
	bool on;
	char why[SK_ERR_MAX];
};
struct rig_state rig_state(int sock, const char *name);
bool is_degraded(int sock, const char *name);
/** PIN, UNPIN, EVICT, FLUSH. */
int manage(int sock, enum sk_msg_type type, const char *job, int64_t step,
	   uint32_t flags, struct sk_msg *ret_msg);

#define CHECK(cond, ...)						\
	do {								\
		if (cond)						\
			break;						\
		fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
		fprintf(stderr, "  " __VA_ARGS__);			\
		fputc('\n', stderr);					\
		_exit(1);						\
	} while (0)

#define CHECK_STATUS(got, want, msg)					\
	do {								\
		int g_ = (got), w_ = (want);				\
		CHECK(g_ == w_, "status %d, not %d: %s", g_, w_,	\
		      g_ < 0 ? rig_why(msg) : "");			\
	} while (0)

#endif
