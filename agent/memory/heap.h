/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heap: what the allocator keeps for later is given back to the system after
 * much was freed: reading a large layout takes several times its size.
 */
#ifndef SK_AGENT_MEMORY_HEAP_H
#define SK_AGENT_MEMORY_HEAP_H

#include <stdint.h>

struct agent;

/** So many bytes were freed, about, or soon will be. */
void heap_freed(struct agent *a, uint64_t bytes);
/** The agent ends: what is under way comes back by itself. */
void heap_close(struct agent *a);

#endif
