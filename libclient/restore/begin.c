/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/begin.h"

#include <errno.h>

#include "restore/gpu.h"
#include "restore/keys.h"
#include "state/register.h"

/* ---- the agent ---- */

void sk_restore_disconnect(struct sk_restoring *rs)
{
	if (rs->connected)
		sk_conn_close(&rs->conn);
	rs->connected = false;
}

int sk_restore_connect(struct sk_restoring *rs)
{
	int r;

	sk_restore_disconnect(rs);
	r = sk_conn_open_more(rs->sk->os, &rs->sk->conn, rs->sk->socket_path,
			      sk_until(rs->sk), &rs->conn, &rs->err);
	rs->connected = r >= 0;
	return r;
}

/* It was told of that run by an agent that is gone, and its neighbours, who
 * came to the next one before it, of another. It has nothing in it, and by the
 * caller's comm all go on in one run. */
static bool may_leave_run(const struct sk_restoring *rs, int r)
{
	struct sk_state *state = rs->state;
	uint64_t taken;

	sk_fences_lock(&state->fences);
	taken = state->status.taken;
	sk_fences_unlock(&state->fences);
	return (r == -EEXIST || r == -ESTALE) && rs->comm.allgather &&
	       rs->comm.ctx != &rs->agent_comm && state->run_id &&
	       !state->n_slots && !taken;
}

/* Killed then, the agent is followed by another one, or by none. */
static int find_agent(struct sk_restoring *rs)
{
	int r, agents = 0;

	do {
		r = sk_state_register(rs->state, false, sk_until(rs->sk),
				      &rs->err);
		if (may_leave_run(rs, r)) {
			sk_state_set_run(rs->state, 0, 0);
			r = -ECONNRESET;
		}
	} while (r == -ECONNRESET && ++agents < SK_AGENTS_MOST);
	return r;
}

int sk_restore_refuse(struct sk_restoring *rs)
{
	rs->err = rs->refusal;
	return rs->refused;
}

int sk_restore_begin(struct sk_restoring *rs)
{
	int r;

	if (rs->refused)
		return sk_restore_refuse(rs);
	r = sk_restore_settle_gpus(rs);
	if (r >= 0)
		r = sk_restore_connect(rs);
	if (r < 0)
		return r;
	/* On the same mesh the images' layouts are ours. */
	for (int k = 0; k < 2; k++)
		sk_recall_add(rs->sk->recall, rs->state->layouts[k]);
	return sk_restore_wanted(rs);
}

int sk_restore_begin_again(struct sk_restoring *rs)
{
	int r = find_agent(rs);

	return r < 0 ? r : sk_restore_begin(rs);
}

int sk_restore_settle_nodes(struct sk_restoring *rs)
{
	struct sk_state *state = rs->state;
	struct sk_nodes *nodes = NULL;
	int r;

	if (!(state->job.flags & SK_JOB_NODE_REPLICAS))
		return 0;
	r = sk_nodes_new(rs->node_of, state->job.world, &nodes, &rs->err);
	if (r < 0)
		return r;
	sk_state_set_nodes(state, nodes);
	sk_nodes_unref(nodes);
	return 0;
}

/* ---- its comm ---- */

static void use_agent_comm(struct sk_restoring *rs, bool fresh)
{
	struct sk_state *state = rs->state;

	rs->agent_comm = (struct sk_agent_comm){
		.sk = rs->sk,
		.id = sk_state_wire_id(state, 0),
		.state = state,
		.fresh = fresh,
	};
	if (state->job.flags & SK_JOB_READER) {
		rs->agent_comm.state = NULL;
		rs->agent_comm.id.run = SK_RUN_READERS;
		rs->agent_comm.id.run_id = 0;
	}
	sk_comm_of_agent(&rs->agent_comm, &rs->comm);
}

/* What an agent may say no to because of what is described, or the system. */
static bool may_come_without(int r)
{
	return r == -EINVAL || r == -E2BIG || r == -EFBIG || r == -ENOMEM ||
	       r == -EOVERFLOW || r == -EDQUOT;
}

/* @r is why this rank cannot be registered with what it describes: it is let
 * into the run with nothing, for the others to hear that. */
static void come_without(struct sk_restoring *rs, int r)
{
	if (!rs->state->run_id && may_come_without(r))
		(void)sk_state_register_bare(rs->state, sk_until(rs->sk));
}

int sk_restore_find(struct sk_restoring *rs)
{
	bool fresh = !rs->state->run_id;
	int r = find_agent(rs);

	if (rs->comm.allgather)
		return r;
	if (r < 0)
		come_without(rs, r);
	if (r >= 0 || rs->state->run_id)
		use_agent_comm(rs, fresh);
	return r;
}
