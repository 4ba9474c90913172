/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which entries of an image this rank may take bytes from: of thousands of
 * images it wants a tensor each, and each has hundreds of others. Nothing else
 * of them is kept, and no other checksum is read.
 */
#ifndef SK_LIBCLIENT_RESTORE_TAKES_H
#define SK_LIBCLIENT_RESTORE_TAKES_H

#include "restore/restoring.h"

/** An image, by what it describes. */
struct sk_restore_taking {
	const struct sk_restoring *rs;
	const struct sk_restore_image *image;
	/* Per item of its description: the local that is restored from it, and
	 * 1; 0: none is. Of others all is taken. */
	const uint32_t *locals;
	uint32_t n_items;
};

/** What is taken of @image, whose description has been learnt or not. Errors:
 * -ENOMEM. */
int sk_restore_taking(struct sk_restoring *rs,
		      const struct sk_restore_image *image,
		      struct sk_restore_taking *ret);
/** Whether one of its entries may be; a sk_keeps_fn, @ctx a struct
 * sk_restore_taking. Also all that other nodes may well ask for. */
bool sk_restore_takes(const struct sk_layout *layout,
		      const struct sk_entry *entry, void *ctx);

#endif
