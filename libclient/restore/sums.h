/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of an image: those of the entries that are read. */
#ifndef SK_LIBCLIENT_RESTORE_SUMS_H
#define SK_LIBCLIENT_RESTORE_SUMS_H

#include "restore/restoring.h"

/** Keeps all of them, malloc'ed, which the image owns from then on. Errors:
 * -ENOMEM, and they are freed. */
int sk_restore_keep_sums(struct sk_restoring *rs,
			 struct sk_restore_image *image, uint64_t *sums);
/** Reads out of @fd, which has all of them, those of what this rank takes of
 * the image (takes.h), or @all. Errors: -ENOMEM; -EIO and others where it
 * cannot be read. */
int sk_restore_read_sums(struct sk_restoring *rs,
			 struct sk_restore_image *image, int fd, bool all);
void sk_restore_free_sums(struct sk_restore_image *image);

/** Whether those of the entry are there. */
bool sk_restore_has_sums(const struct sk_restore_image *image,
			 const struct sk_entry *entry);
/** The checksum of a chunk of an entry of which they are. Any thread. */
uint64_t sk_restore_sum(const struct sk_restore_image *image,
			const struct sk_entry *entry, uint32_t chunk);

#endif
