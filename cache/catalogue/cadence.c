/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue/cadence.h"

#include <assert.h>

#define EVERY_MOST (UINT32_C(1) << 30)

/* One difference that stands alone, as where a snapshot was skipped, changes
 * nothing; two of a kind do. */
static void note_stride(struct sk_cadence *c, int64_t stride)
{
	if (!c->stride || stride == c->other)
		c->stride = stride;
	c->other = stride == c->stride ? 0 : stride;
}

/* A pause, for a validation or a slow disk, is no new pace. */
static void note_time(struct sk_cadence *c, uint64_t apart_ns)
{
	if (!apart_ns)
		apart_ns = 1;
	if (!c->apart_ns)
		c->apart_ns = apart_ns;
	if (apart_ns > 4 * c->apart_ns)
		apart_ns = 4 * c->apart_ns;
	c->apart_ns = (3 * c->apart_ns + apart_ns + 3) / 4;
}

/* What was chosen stays while it is about right: agents that measure a little
 * differently shall not change back and forth. */
static uint32_t choose(const struct sk_cadence *c, uint64_t least_ns)
{
	uint64_t now_ns = c->every * c->apart_ns, every = 1;

	if (c->every && now_ns >= least_ns - least_ns / 4 &&
	    now_ns <= 2 * least_ns)
		return c->every;
	while (every < EVERY_MOST && every * c->apart_ns < least_ns)
		every *= 2;
	return (uint32_t)every;
}

void sk_cadence_step(struct sk_cadence *c, uint64_t run, uint64_t run_id,
		     int64_t step, uint64_t now_ns, uint64_t least_ns)
{
	assert(step >= 0);
	if (!c->at_ns || c->run != run || c->run_id != run_id) {
		*c = (struct sk_cadence){ .run = run, .run_id = run_id,
					  .step = step,
					  .at_ns = now_ns ? now_ns : 1 };
		return;
	}
	if (step <= c->step)
		return;
	note_stride(c, step - c->step);
	note_time(c, now_ns - c->at_ns);
	c->step = step;
	c->at_ns = now_ns;
	c->every = least_ns ? choose(c, least_ns) : 1;
}

bool sk_cadence_wants(const struct sk_cadence *c, int64_t step)
{
	if (c->every <= 1)
		return true;
	return step / (c->stride ? c->stride : 1) % (int64_t)c->every == 0;
}
