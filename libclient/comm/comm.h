/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's comm: ranks of one node meet through their agent. */
#ifndef SK_LIBCLIENT_COMM_COMM_H
#define SK_LIBCLIENT_COMM_COMM_H

#include "conn/client.h"
#include "state/state.h"

/** Who meets: @id's rank of its world, in its job and run. */
struct sk_agent_comm {
	struct sk *sk;
	struct sk_wire_id id;
	/* Registered by whoever calls; NULL: readers, who need not be. */
	struct sk_state *state;
	bool fresh;	/* it is in its run since just now: in another one, if
			 * the next agent has that in its place */
	bool astray;	/* so it is, and has not met anybody yet: what it gave
			 * has been heard by nobody */
	/* Counts the meetings of one restore. From 0 each time: a rank that
	 * was there too early, and alone, meets the others when they come. */
	uint64_t round;
	/* Of the last one that was held: the agent, 0 before there was one, and
	 * what this rank gave, which is ours. */
	uint64_t agent;
	void *last;
	size_t last_bytes;
	struct sk_err err;	/* what the agent said of one that was not */
	bool over;	/* that is that this rank's run is, of all agents by
			 * the one where it is registered */
	bool met;	/* it was the last one that was called for: what failed
			 * then is this rank's, and the others have all */
};

/**
 * A meeting that one agent does not live to end is held at the next one; ranks
 * that had its answer, and ranks that had not, go on together. -ECONNRESET:
 * there is none, or another run has the job there, or @ctx->astray, and
 * @ctx->id is as it is then. Before its first meeting a rank registers at that
 * agent: who comes there next finds the run that others are in.
 * @ctx is the comm's and must outlive it; sk_agent_comm_free() frees what it
 * has.
 */
void sk_comm_of_agent(struct sk_agent_comm *ctx, struct sk_comm *ret_comm);
/** After the last meeting, in every rank that had its answer: where the agent
 * was killed before it had told all of them, they hear it of us, if they ask
 * the next one soon. */
void sk_agent_comm_leave(struct sk_agent_comm *ctx);
/** Harmless where there was none. */
void sk_agent_comm_free(struct sk_agent_comm *ctx);

#endif
