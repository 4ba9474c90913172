/* SPDX-License-Identifier: Apache-2.0 */
/* Takeover: what a running agent holds becomes ours, and it ends; and one that
 * ends anyhow. */
#ifndef SK_AGENT_TAKEOVER_H
#define SK_AGENT_TAKEOVER_H

#include "base/error.h"
#include "keeper/kept.h"
#include "keeper/standby.h"
#include "options.h"

/**
 * Tries in another process whether an agent of these options could begin, and
 * asks the agent that listens at @path for all that it keeps; it serves nobody
 * from then on, and ends when we have all. Errors: -ENOENT nobody listens
 * there; -EPROTO one of us cannot read what the other writes; -EPERM,
 * -EOPNOTSUPP it refuses; others, with a sentence, those of agent_try() too. It
 * goes on then, and @ret is empty.
 * @o: NULL: nothing is tried.
 *
 * @ret_standby has all of it as well, to be dismissed when another process
 * does. Where this one dies before, the call returns in the standby instead.
 */
int takeover(const struct sk_os *os, const struct options *o, const char *path,
	     struct kept *ret, struct standby *ret_standby,
	     struct sk_err *err);

/* Of who answers, or does so no more. */
enum other_state {
	OTHER_SERVES,		/* or does not say */
	OTHER_STOPPING,
	OTHER_GONE,
};

/** How the agent at @path is; *ret_process is a descriptor of its process, the
 * caller's, or -1. */
enum other_state other_look(const struct sk_os *os, const char *path,
			    int *ret_process);

#endif
