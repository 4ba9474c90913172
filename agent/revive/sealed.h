/* SPDX-License-Identifier: Apache-2.0 */
/* Which images there are in what the last agent left: their headers are held
 * to the table, which the agent alone wrote. */
#ifndef SK_AGENT_REVIVE_SEALED_H
#define SK_AGENT_REVIVE_SEALED_H

#include "revive/left.h"

/** Layouts and checksums of a sealed slot, layouts of what stands on a device
 * alone; of others nothing. A negative errno, with its sentence: it is not as
 * the record says. In any thread: of the agent what never changes is read. */
int sealed_read(const struct agent *a, struct left *e, struct sk_err *err);
/** What that reads is about so much; 0: nothing. */
uint64_t sealed_bytes(const struct left *e);
/** Of the @n of one registration, which were read: device slots find the slots
 * that they stand for, which get their layouts; what stands for none is let go,
 * a copy is left alone. */
void sealed_match(struct reviving *v, struct left *first, uint32_t n);

#endif
