/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/flow.h"

#include <assert.h>

uint64_t sk_flow_cut(struct sk_flow *f, struct sk_flow_part *parts,
		     size_t *n_parts)
{
	uint64_t bytes = 0;

	assert(f->cap && f->units);
	for (size_t k = 0; k < f->units && f->at < f->n; k++) {
		const struct sk_want *w = &f->wants[f->at];
		uint64_t left = w->to - w->from - f->done;
		uint64_t n = left < f->cap - bytes ? left : f->cap - bytes;

		if (!n)
			break;
		if (parts)
			parts[(*n_parts)++] = (struct sk_flow_part){
				.flow = f,
				.want = f->at,
				.from = w->from + f->done,
				.to = w->from + f->done + n,
				.offset = f->base + bytes,
			};
		bytes += n;
		f->done += n;
		if (n < left)
			break;
		f->at++;
		f->done = 0;
	}
	return bytes;
}

uint64_t sk_flow_rounds(const struct sk_flow *flow)
{
	struct sk_flow f = *flow;
	uint64_t rounds = 0;

	f.at = 0;
	f.done = 0;
	while (sk_flow_cut(&f, NULL, NULL))
		rounds++;
	return rounds;
}
