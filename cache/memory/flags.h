/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank asks for together with a slot: said on the wire, and acted upon
 * by the catalogue. */
#ifndef SK_CACHE_MEMORY_FLAGS_H
#define SK_CACHE_MEMORY_FLAGS_H

#define SK_SLOT_FLUSH (1u << 0)		/* to disk whatever flush_every says */
#define SK_SLOT_NO_FLUSH (1u << 1)
/* Busy is not the end: the rank waits, and others may wait for its step. */
#define SK_SLOT_WILL_WAIT (1u << 2)

#endif
