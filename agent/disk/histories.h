/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The histories of all jobs that were looked at. They are those of the work in
 * the background that looks at the store, while one is out; else the loop's.
 */
#ifndef SK_AGENT_DISK_HISTORIES_H
#define SK_AGENT_DISK_HISTORIES_H

#include "store/history.h"

struct agent;

/** NULL: none was made. */
struct sk_history *histories_find(const struct agent *a, const char *job);
/** Finds or makes it; NULL: no memory. */
struct sk_history *histories_get(struct agent *a, const char *job);
/** Frees it where it has no steps. */
void histories_trim(struct agent *a, struct sk_history *history);
void histories_each(const struct agent *a,
		    void (*fn)(void *ctx, struct sk_history *history),
		    void *ctx);
/** Frees all. */
void histories_free(struct agent *a);

#endif
