/* SPDX-License-Identifier: Apache-2.0 */
#include "state/layout.h"

#include "base/util.h"

/* A restore has looked at the very same, as a rule. */
int sk_state_layout(const struct sk_state *state, struct sk_layout **ret,
		    struct sk_err *err)
{
	_cleanup_free_ struct sk_item *items = NULL;
	const struct sk_job *job = &state->job;
	struct sk_layout *same;

	/* A rank that asks for nothing takes part in a restore all the same:
	 * the others could not agree without it. */
	items = calloc(state->n_locals + 1u, sizeof(*items));
	if (!items)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < state->n_locals; i++)
		items[i] = state->locals[i].item;
	same = sk_recall_same(state->sk->recall, job->name, job->rank,
			      job->world, SK_IMAGE_PRIMARY, state->nodes,
			      items, state->n_locals);
	if (!same)
		return sk_layout_new_over(job->name, job->rank, job->world,
					  SK_IMAGE_PRIMARY, state->nodes,
					  items, state->n_locals, ret, err);
	*ret = same;
	return 0;
}
