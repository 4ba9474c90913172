/* SPDX-License-Identifier: Apache-2.0 */
/* The agent as a whole. */
#ifndef SK_AGENT_SERVER_H
#define SK_AGENT_SERVER_H

#include "base/os.h"
#include "loop/endpoint.h"
#include "keeper/keeper.h"
#include "keeper/kept.h"
#include "keeper/standby.h"
#include "options.h"

/** What an agent is born with that is to outlive others. */
struct birth {
	struct keeper keeper;
	struct kept kept;
	struct standby standby;	/* of a taker, until it has an agent */
};

/**
 * Serves at @endpoint, which it takes over and closes, until told to stop.
 * @birth: its keeper, which it takes over as well, and what was kept for it,
 * of which it takes the slots; NULL: nothing outlives it.
 * What the system does for it passes through @os. Blocks SIGTERM and SIGINT
 * in the caller's process and hears them itself.
 *
 * The process's exit status: 0, or 1 where it could not begin or something
 * could not be made durable.
 */
int agent_run(const struct sk_os *os, const struct options *o,
	      const struct endpoint *endpoint, struct birth *birth);

/**
 * Whether an agent of these options could begin: makes and opens all that
 * agent_run() cannot do without, the store's directory too, and closes it. A
 * negative errno comes with a sentence. It changes the caller's limits and
 * signals: for a process of its own.
 */
int agent_try(const struct sk_os *os, const struct options *o,
	      struct sk_err *err);

#endif
