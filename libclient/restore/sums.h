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

/** Room to note which chunks of the image this rank has verified. -ENOMEM. */
int sk_restore_may_verify(struct sk_restoring *rs,
			  struct sk_restore_image *image);
/** Whether it has, of those at @place, 0 or 1: what is damaged at one may be
 * good at the other, and the other way round. Any thread. */
bool sk_restore_is_verified(const struct sk_restore_image *image,
			    uint32_t place, const struct sk_entry *entry,
			    uint32_t chunk);
/** It has, whatever came of it. Where there is room; any thread. */
void sk_restore_note_verified(struct sk_restore_image *image, uint32_t place,
			      const struct sk_entry *entry, uint32_t chunk);

#endif
