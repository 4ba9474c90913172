/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank sends to other nodes, a round at a time: cut off its flows,
 * packed into one of two windows, handed to the comm. While a round is sent
 * the next one is packed.
 */
#ifndef SK_LIBCLIENT_RESTORE_SEND_H
#define SK_LIBCLIENT_RESTORE_SEND_H

#include "restore/flow.h"

struct sk_sending {
	struct sk_restoring *rs;
	struct sk_flow *flows;
	size_t n_flows;
	uint64_t sum_bytes;		/* struct sk_flows's */
	uint64_t window;		/* struct sk_flows's */
	char *packed;			/* two of them */
	uint64_t *bytes[2];		/* per flow, of a round */
	struct sk_flow_part *parts;	/* of the round that is packed */
	size_t n;
	uint64_t round;			/* that one */
};

/** Of @flows those that go out, whose progress is its own from then on.
 * Counts its memory into the report. -ENOMEM; to be freed in any case. */
int sk_sending_new(struct sk_restoring *rs, const struct sk_flows *flows,
		   struct sk_sending *ret);
/** What the comm may still read when it has failed stays. */
void sk_sending_free(struct sk_sending *s);

/** The next round, one after the other from 0: ->n parts. */
void sk_sending_cut(struct sk_sending *s, uint64_t round);
/** Packs a part of it. Any thread of the pool, one per part; the errors of
 * sk_restore_read_source(). */
int sk_sending_pack(const struct sk_sending *s, size_t part,
		    struct sk_err *err);
/** Once all of the round is packed. */
void sk_sending_seal(const struct sk_sending *s);
/** Appends what goes in @round, which has been sealed, to the @n parts, and
 * returns how many there are then; one per flow at most. */
size_t sk_sending_list(const struct sk_sending *s, uint64_t round,
		       struct sk_comm_part *parts, size_t n);

#endif
