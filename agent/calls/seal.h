/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SK_AGENT_CALLS_SEAL_H
#define SK_AGENT_CALLS_SEAL_H

struct agent;
struct sk_cat_slot;

struct seal;

/** The image in @slot, which its dead rank was filling, is whole: as SEAL, but
 * nobody is answered. What is wrong with it is logged, and it is discarded.
 * NULL: that is done. Else its header is being read, and the slot has to stay
 * as it is until @over is called, where it is done. */
struct seal *seal_for_dead(struct agent *a, struct sk_cat_slot *slot,
			   void (*over)(void *ctx), void *ctx);
/** What is being read is nobody's any more: nothing becomes of it, and over()
 * is not called. */
void seal_give_up(struct seal *seal);

#endif
