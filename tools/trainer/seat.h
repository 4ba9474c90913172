/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seat: where a rank of the demo sits. Its agent, the memory that its tensors
 * lie in, and how it talks to ranks of other nodes. There are two: host.c, the
 * machine's one agent and host memory, and the tests' tests/demo/gpus.c.
 */
#ifndef SK_TRAINER_SEAT_H
#define SK_TRAINER_SEAT_H

#include "shardkeep.h"
#include "trainer.h"

/** All seats; made before ranks are forked. NULL, with a line on stderr: there
 * are none as the options want them. */
struct seats;
struct seats *seats_new(const struct options *o);

/** In its rank's process, for as long as that lives. What cannot be had ends
 * it. */
struct seat;
struct seat *seat_take(struct seats *seats, const struct options *o, int rank);
/** Of its agent; NULL: the one that there is. Borrowed. */
const char *seat_socket(const struct seat *seat);
/** Says in @tensor where its @bytes lie here; they are kept in @tensor's data
 * as well, which is borrowed. */
void seat_tensor(struct seat *seat, struct sk_tensor *tensor, size_t bytes);
/** Brings all tensors where they lie, or back; the stream on which it is done,
 * as in sk_snapshot_options. */
uint64_t seat_put(struct seat *seat);
void seat_get(struct seat *seat);
/** For one restore at a time; NULL: the agent's. Borrowed. */
const struct sk_comm *seat_comm(struct seat *seat, struct sk *sk);
/** Why no device took part; "": they did, or none should. */
const char *seat_why(const struct seat *seat);

#endif
