/* SPDX-License-Identifier: Apache-2.0 */
/* Records of LIST: what is said of a snapshot and of its images. */
#ifndef SK_AGENT_CALLS_RECORDS_H
#define SK_AGENT_CALLS_RECORDS_H

#include "agent.h"
#include "wire/message.h"

/** Of one kind; all zero: none. */
struct records {
	char *data;			/* malloc'ed */
	size_t n, room;
	size_t size;			/* of one */
	uint32_t flags;			/* of the snapshot whose parts they
					 * are */
};

/** How long one is; @what: as in the message, and checked. */
size_t records_size(uint32_t what);
/** Adds what the list asks for of that snapshot. 0 or -ENOMEM. */
int records_add(struct agent *a, struct records *records,
		const struct sk_cat_snapshot *snapshot,
		const struct sk_wire_list *list);

#endif
