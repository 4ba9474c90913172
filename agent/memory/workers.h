/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers, as the agent sees them: a process for each GPU that there is
 * something to do on (worker/worker.h), started when it is needed. Each does
 * one order at a time. One that fails, hangs or dies takes its order with it,
 * and the next is another process.
 */
#ifndef SK_AGENT_MEMORY_WORKERS_H
#define SK_AGENT_MEMORY_WORKERS_H

#include <stdbool.h>

#include "base/error.h"
#include "base/link.h"
#include "wire/message.h"

struct agent;

/** What is to be done, embedded in whatever needs it. */
struct order {
	/** It is over: 0, and *@fd (-1: none), which whoever takes it sets to
	 * -1; or a negative errno and its sentence. May free the order. */
	void (*done)(struct order *order, int status,
		     const struct sk_wire_worker *answer, int *fd,
		     const struct sk_err *err);
	struct sk_msg msg;	/* type, and body.worker */
	int fds[SK_MSG_FDS];	/* the caller's, open until it is over */
	int n_fds;
	/* private: */
	struct sk_link link;
	bool sent, again;
};

/** Gives it to the worker of the device that it names. done() is called later,
 * and in any case, unless the order is taken back. -ENOMEM: it is not. */
int order_submit(struct agent *a, struct order *order);
/** done() is not called any more; harmless where it is over. */
void order_take_back(struct agent *a, struct order *order);
/** Whether one has failed just now: what may be refused is, so that nobody has
 * processes begun all the time. */
bool workers_rest(const struct agent *a);
/** Once a turn. */
void workers_tidy(struct agent *a);
/** The agent ends: so do its workers, and -ESHUTDOWN is what became of all
 * orders. */
void workers_close(struct agent *a);

#endif
