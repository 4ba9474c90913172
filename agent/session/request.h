/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: calls that are answered later, when a thing happens or never did.
 *
 * A struct request is part of an object of its kind, which has what the kind
 * needs, and lives until the request is answered or its connection ends.
 */
#ifndef SK_AGENT_SESSION_REQUEST_H
#define SK_AGENT_SESSION_REQUEST_H

#include "loop/timer.h"
#include "session/session.h"

struct request;

struct request_kind {
	/** What is to be answered now, 0 or an error with its sentence; or
	 * -EAGAIN, with a sentence of what is missing or none; it is read when
	 * the time is over. Asked then, and on a change: see
	 * request_await_change().
	 * NULL: not asked. It changes nothing. */
	int (*outcome)(struct request *q, struct sk_err *err);
	/** Answers with that outcome, by request_answer() or request_again();
	 * or goes on with it, and does so later.
	 * NULL: the status and the sentence are the answer. */
	void (*answer)(struct request *q, int status, const struct sk_err *err);
	/** Of a busy one, of which nobody wants to hear any more: whether what
	 * has it lets it go, as nothing has begun.
	 * NULL: not before it is done. */
	bool (*take_back)(struct request *q);
	/** It was answered, or its connection is gone: lets go of what it
	 * waited for, and frees the object. */
	void (*release)(struct request *q);
};

struct request {
	const struct request_kind *kind;
	struct session *session;	/* NULL: the connection is gone */
	struct agent *agent;
	struct sk_msg msg;		/* the call */
	/** The background, or a wish, has the object: it is not released
	 * before that comes back and answers. */
	bool busy;
	bool over;			/* its time: a sentence is wanted */
	/* private: */
	struct sk_link link;		/* in its session */
	struct sk_link queue;		/* in agent->waiting, or its session's
					 * crowd */
	struct timer timer;
};

/** @timeout_ms 0: none; more than SK_WAIT_MAX_MS is that. From then on the
 * request releases the object. -EBUSY: too many of the connection wait; the
 * object is the caller's still. */
int request_init(struct request *q, const struct request_kind *kind,
		 struct session *s, const struct sk_msg *msg,
		 uint32_t timeout_ms, struct sk_err *err);
/** It is asked for its outcome at this turn's end and on each change; where its
 * process has many that wait, when it is that one's turn. */
void request_await_change(struct request *q);
/** The same, for so long from now at most. */
void request_await_change_for(struct request *q, uint32_t timeout_ms);
/** Replies, where the connection is not gone, and releases. Descriptors are
 * taken over. */
void request_answer(struct request *q, int status, struct sk_msg *msg,
		    const int *fds, int n_fds, const struct sk_err *err);
/** Replies, and has nobody who waits for it any more: whoever it is busy with
 * answers to nobody. */
void request_leave(struct request *q, int status, struct sk_msg *msg,
		   const struct sk_err *err);
/** It is released, and its call made once more, as if it came now. */
void request_again(struct request *q);
/** The same with descriptors that came with it; those that are not kept are
 * the caller's. */
void request_again_with(struct request *q, int *fds, int n_fds);
/** The connections' requests have nobody who waits for them any more. */
void requests_abandon(struct session *s);
/** Asks the session's crowd: the chore of each. */
void requests_ask_crowd(struct chore *chore);
/** Answers those that wait for a change and have an outcome now. */
void requests_answer_due(struct agent *a);
/** Of the crowds too, before the agent ends. */
void requests_answer_crowds(struct agent *a);

#endif
