/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stays on disk of a job whose ranks have several agents, as they say:
 * the newest step that all of them have written, and one that they are to agree
 * on. Arithmetic over a few numbers; no input or output.
 *
 * Who is new has agreed on nothing yet, and of what was agreed on before some
 * agents may have heard what others have not: so all of that stays until
 * something newer is agreed on.
 */
#ifndef SK_CACHE_BASE_STAYING_H
#define SK_CACHE_BASE_STAYING_H

#include <stdbool.h>
#include <stdint.h>

#define SK_STAY_MOST 8u

struct sk_stay {
	uint64_t run, run_id;
	int64_t step;
};

/** All 0: nobody said anything. */
struct sk_staying {
	uint64_t run, run_id;		/* that said so last */
	int64_t steps[2];		/* of it; -1: none */
	struct sk_stay before[SK_STAY_MOST];	/* of runs before it */
	uint32_t n_before;
};

/** That run says so. */
void sk_staying_say(struct sk_staying *staying, uint64_t run, uint64_t run_id,
		    const int64_t steps[2]);
bool sk_staying_has(const struct sk_staying *staying, uint64_t run,
		    uint64_t run_id, int64_t step);
bool sk_staying_equal(const struct sk_staying *a, const struct sk_staying *b);

#endif
