/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of which jobs ranks restore here: it stands in the store, where other agents
 * may be about to delete what those will ask for (cache/store/restoring.c).
 * Said with the look at the store that a registration waits for, renewed while
 * the job is held (hold.h), and taken back within a second after.
 */
#ifndef SK_AGENT_DISK_RESTORING_H
#define SK_AGENT_DISK_RESTORING_H

#include <stdbool.h>
#include <sys/types.h>

struct agent;

/** A rank of the job is about to be registered, to restore. Whether memory
 * sufficed for that; then restoring_came() is owed. */
bool restoring_comes(struct agent *a, const char *job, uid_t uid);
/** It is registered, or will not be. */
void restoring_came(struct agent *a, const char *job, uid_t uid);
/** Nothing may be out in the background. */
void restoring_close(struct agent *a);

#endif
