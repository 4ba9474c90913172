/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Degraded states: what is not as it should be, while the agent goes on. One
 * table has each one's name, what it means and what to do about it; status,
 * doctor, metrics and the log tell of it by that.
 *
 * Who meets a state sets it; who sees that its cause is gone clears it. Both
 * may be said again and again. Where several may be its cause at once, jobs or
 * ranks, each is kept, and the state is theirs: disk/faults.h,
 * calls/refusals.h. The loop's thread alone.
 */
#ifndef SK_AGENT_DEGRADED_H
#define SK_AGENT_DEGRADED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct agent;

enum degraded_id {
	DEGRADED_STORE_FULL,
	DEGRADED_STORE_ERROR,	/* EIO, a short write, a failed fsync */
	DEGRADED_STORE_GONE,
	DEGRADED_STORE_HANGS,
	DEGRADED_STORE_READ_ONLY,
	DEGRADED_STORE_VOLATILE,
	DEGRADED_MEMORY,	/* a registration found no room */
	DEGRADED_PINS,		/* a rank has no slot beside them */
	DEGRADED_NO_URING,
	DEGRADED_NO_DIRECT,
	DEGRADED_SMALL_PAGES,
	DEGRADED_MEMLOCK,
	DEGRADED_GPU_PAGEABLE,	/* a rank's driver does not lock slots */
	DEGRADED_GPU_EXCLUSIVE,	/* a GPU takes one process, the rank's */
	DEGRADED_KEEPER,
	DEGRADED_SOCKET,
	DEGRADED_METRICS_PORT,
	DEGRADED_METRICS_FILE,
	DEGRADED_COUNT
};

struct degraded_info {
	const char *name;	/* for scripts, and the label of the metric */
	const char *what, *remedy;
};

/** By id. */
extern const struct degraded_info degraded_infos[DEGRADED_COUNT];

struct degraded {
	struct degraded_state {
		bool on;
		uint64_t since_ns;	/* of the agent's clock */
		char why[SK_ERR_MAX];	/* the last time; "": no more is known */
	} v[DEGRADED_COUNT];
};

/** @why: the error that shows it, or NULL. Logged where it is new. */
void degraded_set(struct agent *a, enum degraded_id id, const char *why);
/** Logged where it was set. */
void degraded_clear(struct agent *a, enum degraded_id id);
/** One or the other. */
void degraded_is(struct agent *a, enum degraded_id id, bool on,
		 const char *why);

static inline bool degraded_on(const struct degraded *d, enum degraded_id id)
{
	return d->v[id].on;
}

#endif
