/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls: what a connection asks for. A file per message, or per group of
 * messages that are alike; table.c has which function answers which.
 */
#ifndef SK_AGENT_CALLS_CALL_H
#define SK_AGENT_CALLS_CALL_H

#include "agent.h"
#include "session/session.h"

/** What a handler is given. */
struct call {
	struct session *session;
	struct agent *agent;
	const struct sk_msg *in;
	int *fds;			/* a handler that keeps one sets -1 */
	int n_fds;
	struct sk_msg out;		/* the reply's body */
	int out_fds[SK_MSG_FDS];	/* the reply's, which takes them */
	int n_out;
	struct sk_err err;
};

#define CALL_LATER 1			/* a request has it */

/* Handlers: 0 (reply), CALL_LATER, or a negative errno and a sentence. */
int call_hello(struct call *c);
int call_register(struct call *c);
int call_map(struct call *c);
int call_slot(struct call *c);
int call_seal(struct call *c);
int call_discard(struct call *c);
int call_device_slot(struct call *c);
int call_device_seal(struct call *c);
int call_device_open(struct call *c);
int call_unregister(struct call *c);
int call_wait(struct call *c);		/* PREPARE, SLOT_WAIT, WAIT */
int call_gather(struct call *c);
int call_list(struct call *c);
int call_open(struct call *c);
int call_close(struct call *c);
int call_report_bad(struct call *c);
int call_manage(struct call *c);	/* PIN, UNPIN, EVICT, FLUSH */
int call_retain(struct call *c);
int call_keep(struct call *c);
int call_stats(struct call *c);
int call_status(struct call *c);
int call_stop(struct call *c);
int call_takeover(struct call *c);

/** The agent ends: those who wait for that hear what is lost with it. */
void calls_say_lost(struct agent *a);

/** Checks the id of a call and finds its job; -ENOENT with a sentence. */
int call_job(struct call *c, const struct sk_wire_id *id,
	     struct sk_cat_job **ret_job);
/** The same of a call that names a step. A job that no rank has named since the
 * agent began may be on the disk: CALL_LATER, the call is made once more when
 * it was looked for there. */
int call_job_looked(struct call *c, const struct sk_wire_id *id,
		    struct sk_cat_job **ret_job);
/** A question of the job is out: the call is made once more when it is
 * answered. Descriptors that came with it are not kept. CALL_LATER, or an
 * error with its sentence. */
int call_when_told(struct call *c, const struct sk_cat_job *job);
/** The catalogue does not have the snapshot, but the disk may: the call is made
 * once more when that was looked for. -ENOENT with a sentence: it was, or there
 * is nowhere to look. */
int call_when_looked(struct call *c, const struct sk_cat_job *job,
		     const struct sk_wire_id *id);
/** Before it counts whether the disk has the snapshot as well: as the call
 * below. */
int call_step_looked(struct call *c, const struct sk_cat_snapshot *s);
/** Before it counts that a snapshot is the newest complete one: the disk may
 * have newer ones that nobody has asked about. 0: that is known; else
 * CALL_LATER, as above, or an error with its sentence. */
int call_newest_looked(struct call *c, const struct sk_cat_job *job);
/** The state of that id of this connection; -ENOENT with a sentence. */
int call_state(struct call *c, uint64_t id, struct sk_cat_state **ret_state);
/** Its slot of that number; -ENOENT or -EINVAL with a sentence. */
int call_slot_of(struct call *c, uint64_t id, uint32_t number,
		 struct sk_cat_slot **ret_slot);
/** 0: it is being filled for that step; -EINVAL with a sentence. */
int call_check_filling(struct call *c, const struct sk_cat_slot *slot,
		       int64_t step);
/** Replies with a list: @n records of @bytes each, as the session's version has
 * them, in a memfd of that @name. */
int call_records(struct call *c, const char *name, const void *records,
		 size_t n, size_t bytes);

#endif
