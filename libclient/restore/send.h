/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank sends to other nodes, a round at a time: cut off its flows,
 * packed into one of two windows, handed to the comm. While a round is sent
 * the next one is packed. What it passes on it copies out of the window that it
 * came in.
 */
#ifndef SK_LIBCLIENT_RESTORE_SEND_H
#define SK_LIBCLIENT_RESTORE_SEND_H

#include "restore/flow.h"

/** What is passed on in a round, as it came: with its sum. */
struct sk_passed_part {
	const char *from;
	uint64_t bytes;
	uint64_t offset;		/* in the window */
};

struct sk_sending {
	struct sk_restoring *rs;
	const struct sk_staging *staging;
	int32_t region;			/* this rank's of it */
	uint64_t there;			/* on the device what is packed, */
	uint64_t came, came_bytes;	/* and what came in: two windows */
	struct sk_flow *flows;
	size_t n_flows;
	uint64_t sum_bytes;		/* struct sk_flows's */
	uint64_t window;		/* struct sk_flows's */
	uint64_t packed_bytes;
	char *packed;			/* two of them */
	struct sk_comm_part *messages[2];	/* of a round */
	size_t n_messages[2];
	uint64_t sent[2], passed[2];	/* bytes of it without sums; of those
					 * that are passed on */
	struct sk_flow_part *parts;	/* of the round that is packed */
	size_t n_parts;
	struct sk_passed_part *passing;	/* the same */
	size_t n_passing;
	size_t n;			/* both */
	uint64_t round;			/* that one */
};

/** Of @flows those that go out, whose progress is its own from then on.
 * @staging is kept: where what is passed on comes in, in the region of this
 * rank. NULL: all goes from device to device, where it lies as ->there, ->came
 * and ->came_bytes say, which are set before anything is cut. Counts its memory
 * into the report. -ENOMEM; to be freed in any case. */
int sk_sending_new(struct sk_restoring *rs, const struct sk_flows *flows,
		   const struct sk_staging *staging, struct sk_sending *ret);
/** What the comm may still read when it has failed stays. */
void sk_sending_free(struct sk_sending *s);

/** The next round, one after the other from 0: ->n parts. What is passed on in
 * it came sk_tree_rounds() before, and nothing has been received since the
 * round after that; from device to device it is still to come. */
void sk_sending_cut(struct sk_sending *s, uint64_t round);
/** Packs a part of it. Any thread of the pool, one per part; the errors of
 * sk_restore_read_source(). */
int sk_sending_pack(const struct sk_sending *s, size_t part,
		    struct sk_err *err);
/** Once all of the round is packed. */
void sk_sending_seal(const struct sk_sending *s);
/** Appends what goes in @round, which has been sealed, to the @n parts, and
 * returns how many there are then; one per flow at most. From device to device
 * they lie there. */
size_t sk_sending_list(const struct sk_sending *s, uint64_t round,
		       struct sk_comm_part *parts, size_t n);

#endif
