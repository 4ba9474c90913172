/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs out of mapped images. */
#ifndef SK_LIBCLIENT_RESTORE_MEMORY_H
#define SK_LIBCLIENT_RESTORE_MEMORY_H

#include "restore/restoring.h"

/** Runs jobs [0, n), which are those from memory. */
int sk_restore_from_memory(struct sk_restoring *rs, size_t n);

/** Faults in bytes [@from, @to) of an image's mapping, all at once: that takes
 * half of what page by page takes. Where the system cannot, touching them does
 * the same. Any thread. */
void sk_restore_populate(const struct sk_restoring *rs, uint32_t image,
			 uint64_t from, uint64_t to);

#endif
