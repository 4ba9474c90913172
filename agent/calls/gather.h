/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SK_AGENT_CALLS_GATHER_H
#define SK_AGENT_CALLS_GATHER_H

#include "catalogue/catalogue.h"

struct agent;

/** A rank is gone: those who wait for it in a gather need not. */
void gather_rank_gone(struct agent *a, const struct sk_cat_run *run,
		      int32_t rank);

#endif
