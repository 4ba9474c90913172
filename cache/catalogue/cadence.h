/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cadence: which steps go to disk where nobody says which. Those that are so
 * far apart that one goes in a given time, or in twice the time that a flush
 * takes, whichever is longer.
 *
 * Ranks of one job may be served by several agents, which do not speak to
 * each other and must write the same steps, for else none is ever complete. So
 * it is no time that is chosen, but a power of two: each agent measures how
 * fast the steps follow each other, and writes every 2^k-th. Where they measure
 * otherwise, the one's steps are some of the other's.
 */
#ifndef SK_CACHE_CATALOGUE_CADENCE_H
#define SK_CACHE_CATALOGUE_CADENCE_H

#include <stdbool.h>
#include <stdint.h>

struct sk_cadence {
	uint64_t run, run_id;	/* whose steps these are */
	int64_t step;		/* the last one; valid where at_ns is */
	uint64_t at_ns;		/* when it began; 0: there was none */
	int64_t stride;		/* between two snapshots; 0: not known */
	int64_t other;		/* the last difference, if it is another */
	uint64_t apart_ns;	/* two snapshots, on average; 0: not known */
	uint32_t every;		/* snapshots: that many; 0: each */
};

/** A snapshot begins. The same one again, or an older one, is nothing new.
 * @least_ns: between two that go to disk; 0: each does. */
void sk_cadence_step(struct sk_cadence *c, uint64_t run, uint64_t run_id,
		     int64_t step, uint64_t now_ns, uint64_t least_ns);
/** Whether the step is to go to disk. */
bool sk_cadence_wants(const struct sk_cadence *c, int64_t step);

#endif
