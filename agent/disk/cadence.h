/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which steps go to disk of ranks that do not say: catalogue/cadence.h, and
 * where steps do not come as they did, the newest complete snapshot when it has
 * been too long.
 */
#ifndef SK_AGENT_DISK_CADENCE_H
#define SK_AGENT_DISK_CADENCE_H

#include "catalogue/catalogue.h"

struct agent;

/** A rank asks for a slot. */
void cadence_step(struct agent *a, const struct sk_cat_state *state,
		  int64_t step);
/** It was sealed; no step may come after it. */
void cadence_sealed(struct agent *a, const struct sk_cat_snapshot *s);
void cadence_close(struct agent *a);

#endif
