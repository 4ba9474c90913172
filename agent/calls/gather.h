/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SK_AGENT_CALLS_GATHER_H
#define SK_AGENT_CALLS_GATHER_H

#include "catalogue/catalogue.h"

struct agent;

/** A rank is gone: those who wait for it in a gather need not. */
void gather_rank_gone(struct agent *a, const struct sk_cat_run *run,
		      int32_t rank);
/** A rank has come to a run: those who are about to meet in an older one of the
 * job would wait for who may be in this one. */
void gather_run_entered(struct agent *a, const struct sk_cat_run *run);

#endif
