/* SPDX-License-Identifier: Apache-2.0 */
/* The step's directory, when what is to be there is. */
#ifndef SK_AGENT_DISK_SETTLE_H
#define SK_AGENT_DISK_SETTLE_H

#include "catalogue/catalogue.h"

struct agent;

/** The name that readers look for. */
void settle_name(char dir[SK_CAT_DIR_MAX], int64_t step);
/** In the background: pins it there if it is pinned, and gives it the name that
 * readers look for if all of it is on disk. What fails is logged, a pin once:
 * held_look() tries that again, and the next complete flush does the rest. */
void settle_step(struct agent *a, struct sk_cat_snapshot *s);

#endif
