/* SPDX-License-Identifier: Apache-2.0 */
/* Leases: images that a connection has open, and that are therefore kept. */
#ifndef SK_AGENT_SESSION_LEASE_H
#define SK_AGENT_SESSION_LEASE_H

#include <stdbool.h>

#include "catalogue/catalogue.h"

struct session;

/** @place: enum sk_place. Errors: -EDQUOT, -ENOMEM. */
int lease_new(struct session *s, struct sk_cat_image *image, uint32_t place,
	      struct sk_err *err);
/** Ends one of those of the image there; false: there is none. */
bool lease_end(struct session *s, uint64_t image, uint32_t place);
void lease_end_all(struct session *s);

#endif
