/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SK_AGENT_CALLS_SEAL_H
#define SK_AGENT_CALLS_SEAL_H

struct agent;
struct sk_cat_slot;

/** The image in @slot, which its dead rank was filling, is whole: as SEAL, but
 * nobody is answered. What is wrong with it is logged, and it is discarded. */
void seal_for_dead(struct agent *a, struct sk_cat_slot *slot);

#endif
