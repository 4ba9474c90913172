/* SPDX-License-Identifier: Apache-2.0 */
/* What the last agent left of a job becomes this one's: into the catalogue. */
#ifndef SK_AGENT_REVIVE_ADD_H
#define SK_AGENT_REVIVE_ADD_H

#include "revive/left.h"

/** All that there is of one job: runs, then by registration, in their order;
 * what is sealed was read. What cannot be taken up is lost; and nothing of it
 * is the list's any more. */
void add_job(struct reviving *v, struct left *first, uint32_t n);

#endif
