/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes: which ranks share an agent. */
#ifndef SK_LIBCLIENT_RESTORE_NODES_H
#define SK_LIBCLIENT_RESTORE_NODES_H

#include "restore/restoring.h"

/** Once, from the agent of each rank. -ENOMEM. */
int sk_restore_nodes(struct sk_restoring *rs, const uint64_t *agents);
void sk_restore_forget_nodes(struct sk_restoring *rs);

/** Spreads numbers evenly. */
static inline uint64_t sk_restore_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

#endif
