/* SPDX-License-Identifier: Apache-2.0 */
/* Which images there are in what the last agent left: their headers are held
 * to the table, which the agent alone wrote. */
#ifndef SK_AGENT_REVIVE_SEALED_H
#define SK_AGENT_REVIVE_SEALED_H

#include "revive/left.h"

/** Layouts and checksums of a sealed slot; one that is not as the record says
 * is lost. What is not sealed is left alone. */
void sealed_read(struct reviving *v, struct left *e);
/** Of the @n of one registration: device slots find the slots that they stand
 * for, which get their layouts; what stands for none is let go, a copy is left
 * alone. */
void sealed_match(struct reviving *v, struct left *first, uint32_t n);

#endif
