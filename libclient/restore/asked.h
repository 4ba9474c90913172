/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other nodes ask of this rank: each want once, with all who ask for it,
 * and where it is to be read.
 */
#ifndef SK_LIBCLIENT_RESTORE_ASKED_H
#define SK_LIBCLIENT_RESTORE_ASKED_H

#include "restore/source.h"

/** A rank that asks for a want. */
struct sk_ask {
	const struct sk_want *want;
	int32_t rank;
	uint32_t index;		/* among those that it asks of this rank */
};

/** A want, and who asks for it. */
struct sk_asked_want {
	size_t first, n;	/* of ->asks, by rank */
	struct sk_sourced sourced;
};

struct sk_asked {
	struct sk_ask *asks;	/* by want */
	size_t n;
	struct sk_asked_want *wants;
	size_t n_wants;
	bool several;		/* ranks ask for one of them */
};

/** From what was asked, which has to outlive it. -EPROTO, -ENOMEM and the
 * errors of sk_restore_find_source(); @ret is to be freed in any case. */
int sk_asked_new(struct sk_restoring *rs, const struct sk_wants *wants,
		 struct sk_asked *ret);
void sk_asked_free(struct sk_asked *asked);

#endif
