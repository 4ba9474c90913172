/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank's agent has that could be restored. */
#ifndef SK_LIBCLIENT_RESTORE_OFFER_H
#define SK_LIBCLIENT_RESTORE_OFFER_H

#include "restore/restoring.h"

/**
 * Lists snapshots, further back each time that rs->lists says it was done, and
 * fills in rs->offers, newest first; rs->cut, where there are older ones;
 * rs->gaps; and in rs->incomplete what is lacking of one that is not whole.
 * Errors: those of the list; -ENOMEM.
 */
int sk_restore_offers(struct sk_restoring *rs);

#endif
