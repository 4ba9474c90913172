/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a look believed by names and inodes alone (store/history.h) is looked
 * at in the background, a portion at a time, beside everything else. Nobody
 * waits for it.
 */
#ifndef SK_AGENT_DISK_PROVE_H
#define SK_AGENT_DISK_PROVE_H

#include <stdbool.h>

struct agent;

/** -ENOMEM. */
int prove_open(struct agent *a);
/** Its work must have come back. */
void prove_close(struct agent *a);
/** A look has left something to prove. */
void prove_later(struct agent *a);
/** Whether a portion is due: then prove_begin() is to follow as soon as nobody
 * else has the histories. */
bool prove_is_due(const struct agent *a);
/** It has the histories until its work is back. */
void prove_begin(struct agent *a);

#endif
