/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/nodes.h"

#include <assert.h>

static int32_t find_node(const struct sk_restoring *rs, uint64_t agent,
			 int32_t guess)
{
	if (guess < rs->n_nodes && rs->nodes[guess].agent == agent)
		return guess;
	for (int32_t i = 0; i < rs->n_nodes; i++)
		if (rs->nodes[i].agent == agent)
			return i;
	return -1;
}

/* In the order of their lowest ranks. */
static void number_nodes(struct sk_restoring *rs, const uint64_t *agents)
{
	int32_t at = 0;

	for (int32_t i = 0; i < rs->state->job.world; i++) {
		at = find_node(rs, agents[i], at);
		if (at < 0) {
			at = rs->n_nodes++;
			rs->nodes[at].agent = agents[i];
		}
		rs->node_of[i] = at;
		rs->nodes[at].n++;
	}
}

/* All lists in one piece of memory, that of the first node. */
static int list_ranks(struct sk_restoring *rs)
{
	int32_t *ranks = calloc((uint32_t)rs->state->job.world,
				sizeof(*ranks));

	if (!ranks)
		return -ENOMEM;
	for (int32_t i = 0; i < rs->n_nodes; i++) {
		rs->nodes[i].ranks = ranks;
		ranks += rs->nodes[i].n;
		rs->nodes[i].n = 0;
	}
	for (int32_t i = 0; i < rs->state->job.world; i++) {
		struct sk_restore_node *node = &rs->nodes[rs->node_of[i]];

		node->ranks[node->n++] = i;
	}
	return 0;
}

int sk_restore_nodes(struct sk_restoring *rs, const uint64_t *agents)
{
	uint32_t world = (uint32_t)rs->state->job.world;

	assert(!rs->nodes && world);
	rs->nodes = calloc(world, sizeof(*rs->nodes));
	rs->node_of = calloc(world, sizeof(*rs->node_of));
	if (rs->nodes && rs->node_of)
		number_nodes(rs, agents);
	if (!rs->nodes || !rs->node_of || list_ranks(rs) < 0)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %u ranks",
				  world);
	rs->node = rs->node_of[rs->state->job.rank];
	rs->near_ranks = rs->nodes[rs->node].ranks;
	rs->n_near = rs->nodes[rs->node].n;
	return 0;
}

void sk_restore_forget_nodes(struct sk_restoring *rs)
{
	if (rs->nodes)
		free(rs->nodes[0].ranks);
	free(rs->nodes);
	free(rs->node_of);
	rs->nodes = NULL;
	rs->node_of = NULL;
	rs->near_ranks = NULL;
	rs->n_nodes = rs->n_near = 0;
}
